"""Repair: planted damage that is mended, weights that must not move, the plan with its weights, bad input."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import torch

import headscope as hs
from headscope.attention.mechanism_spelling import spelled
from headscope.core.selection import Selection
from headscope.corpora import Text, text_of
from headscope.errors import UsageError
from headscope.experiments.swap.experiment import EXPERIMENT
from headscope.experiments.swap.layer_inputs import SwappedSite, layer_inputs, swapped_states
from headscope.experiments.swap.quality import quality, quality_ratio
from headscope.experiments.swap.repair import Sums, repair_plan, repair_windows
from headscope.experiments.swap.repair_tables import gain_table, layer_table, repair_headline
from headscope.experiments.swap.settings import Params
from headscope.experiments.text_sample import Tokens, split_parts
from headscope.model.model import Model
from headscope.model.plans.plan import Plan
from headscope.progress import silent

NARROW = "band_sparse(left=16, right=0, columns=(0,))"
HEADS = "L0,L1.H0-2,L2.H1"  # a whole layer; a whole group and half of another; half of a group
N = 192


@pytest.fixture(scope="module")
def tiny() -> Model:
    return hs.open("tiny")


@pytest.fixture(scope="module")
def plan(tiny: Model) -> Plan:
    return Plan.for_model(tiny, {NARROW: HEADS})


@pytest.fixture(scope="module")
def windows(tiny: Model) -> tuple[Tokens, ...]:
    return repair_windows(tiny, split_parts(text_of(None))["fit"], N, 20 * N)


@pytest.fixture(scope="module")
def repair(tiny: Model, plan: Plan, windows: tuple[Tokens, ...]):
    return repair_plan(tiny, plan, windows, silent)


def swapped_sites(model: Model, plan: Plan) -> list[SwappedSite]:
    heads_by_mechanism = plan.heads(model.sites)
    return [
        SwappedSite(site, dict.fromkeys(heads, spelled(spelling)))
        for spelling, heads_by_site in heads_by_mechanism.items()
        for site, heads in heads_by_site.items()
    ]


def test_wide_mechanisms_need_no_repair(tiny: Model, windows: tuple[Tokens, ...]) -> None:
    """Heads that see every key give on the kept inputs what they gave in the forward."""
    wide = Plan.for_model(tiny, {f"window(left={N}, right=0)": HEADS})
    sites = swapped_sites(tiny, wide)
    inputs = layer_inputs(tiny, sites, windows[0])
    with tiny.session() as session:
        captured = session.capture("z")
        session.run(windows[0][None])
        z = captured.take()["z"]
    for swapped in sites:
        states = swapped_states(tiny, swapped, inputs[swapped.site])
        expected = z[swapped.site][0, list(swapped.heads)].transpose(0, 1).flatten(1)
        assert torch.allclose(states, expected, atol=1e-4)
        assert torch.allclose(inputs[swapped.site].z, expected, atol=1e-5)
    repaired = repair_plan(tiny, wide, windows[:4], silent)
    assert all(layer.error < 1e-8 for layer in repaired.layers)


def test_errors_are_those_of_the_definition() -> None:
    generator = torch.Generator().manual_seed(0)
    swapped, original = torch.randn(2, 50, 6, generator=generator, dtype=torch.float64)
    w_new, w = torch.randn(2, 6, 9, generator=generator, dtype=torch.float64)
    expected = (swapped @ w_new - original @ w).square().sum() / (original @ w).square().sum()
    sums = Sums.of(swapped[:20], original[:20]) + Sums.of(swapped[20:], original[20:])
    assert sums.error(w_new, w) == pytest.approx(float(expected))


def test_the_ridge_solution_is_the_least() -> None:
    generator = torch.Generator().manual_seed(1)
    swapped, original = torch.randn(2, 50, 6, generator=generator, dtype=torch.float64)
    w = torch.randn(6, 9, generator=generator, dtype=torch.float64)
    sums, ridge = Sums.of(swapped, original), 0.1

    def penalised(w_new: torch.Tensor) -> float:
        size = ridge * float(swapped.square().sum() / 6)
        return float((swapped @ w_new - original @ w).square().sum() + size * (w_new - w).square().sum())

    solution = sums.solve(w, ridge)
    for _ in range(20):
        other = solution + 1e-3 * torch.randn(6, 9, generator=generator, dtype=torch.float64)
        assert penalised(solution) < penalised(other)
    assert torch.allclose(Sums.of(original, original).solve(w, ridge), w)


def test_a_planted_damage_is_repaired(tiny: Model, windows: tuple[Tokens, ...]) -> None:
    """Heads whose z̃ is a linear image of z: W_O alone undoes it, up to the pull of the ridge."""
    generator = torch.Generator().manual_seed(2)
    z = torch.randn(400, 8, generator=generator, dtype=torch.float64)
    mixing = torch.randn(8, 8, generator=generator, dtype=torch.float64) + 3 * torch.eye(8)
    w = torch.randn(8, 5, generator=generator, dtype=torch.float64)
    sums = Sums.of(z @ mixing, z)
    assert sums.error(w, w) > 1.0
    assert sums.error(sums.solve(w, 1e-8), w) < 1e-6


def test_a_repair_lowers_the_error_of_its_layers(repair, tiny: Model, plan: Plan) -> None:
    """On held-out windows no layer is worse, the damaged ones are better, and so is the model on other text."""
    assert [layer.n_heads for layer in repair.layers] == [8, 3, 1]
    assert all(layer.repaired_error <= layer.error for layer in repair.layers)
    assert repair.layers[0].repaired_error < 0.5 * repair.layers[0].error
    assert {layer.trained for layer in repair.layers} <= {"", "o", "qo", "qkvo"}
    assert repair.layers[2].trained in ("", "o", "qo")  # its keys are read by a head that is not swapped
    test = repair_windows(tiny, split_parts(text_of(None))["search"], N, 8 * N)
    before = quality(tiny, plan, test)
    after = quality(tiny, replace(plan, repair=repair.weights), test)
    assert quality_ratio(after, before).mean < 1.0


def test_only_weights_of_swapped_heads_change(repair, tiny: Model, plan: Plan) -> None:
    """Every other row and column of every matrix is the same to the last bit, and nothing is left behind."""
    before = {name: weight.detach().clone() for name, weight in tiny.hf.named_parameters()}
    swapped = Selection.parse(HEADS).resolve(tiny.sites)
    allowed = {name: torch.zeros_like(weight, dtype=torch.bool) for name, weight in before.items()}
    for site, heads in swapped.items():
        groups = site.n_heads // site.n_kv_heads
        kv = [g for g in range(site.n_kv_heads) if set(range(g * groups, (g + 1) * groups)) <= set(heads)]
        at, d = f"model.layers.{site.layer}.self_attn", site.d_head
        for letter, owners in (("q", heads), ("k", kv), ("v", kv)):
            for owner in owners:
                allowed[f"{at}.{letter}_proj.weight"][owner * d : (owner + 1) * d] = True
        for head in heads:
            allowed[f"{at}.o_proj.weight"][:, head * d : (head + 1) * d] = True
    n_changed = 0
    with hs.apply(replace(plan, repair=repair.weights), tiny):
        for name, weight in tiny.hf.named_parameters():
            changed = weight != before[name]
            assert not bool((changed & ~allowed[name]).any()), name
            n_changed += int(changed.sum())
    assert n_changed > 1000
    assert all(torch.equal(weight, before[name]) for name, weight in tiny.hf.named_parameters())
    assert all(weight.grad is None for weight in tiny.hf.parameters())


def test_a_fused_projection_is_repaired() -> None:
    """GPT-2 keeps W_Q, W_K and W_V in one matrix, transposed."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = hs.open(GPT2LMHeadModel(GPT2Config(vocab_size=80, n_embd=32, n_layer=2, n_head=4, n_positions=128)).eval())
    before = {name: weight.detach().clone() for name, weight in model.hf.named_parameters()}
    generator = torch.Generator().manual_seed(3)
    windows = [torch.randint(80, (96,), generator=generator) for _ in range(8)]
    plan = Plan.for_model(model, {"window(left=4, right=0)": "L1.H1"})
    repaired = repair_plan(model, plan, windows, silent)
    (layer,) = repaired.layers
    assert layer.repaired_error < layer.error
    with hs.apply(replace(plan, repair=repaired.weights), model):
        fused = "transformer.h.1.attn.c_attn.weight"
        columns = (model.hf.get_parameter(fused) != before[fused]).any(0).nonzero().flatten().tolist()
        assert set(columns) <= {part * 32 + 8 + i for part in range(3) for i in range(8)}
        written = "transformer.h.1.attn.c_proj.weight"
        rows = (model.hf.get_parameter(written) != before[written]).any(1).nonzero().flatten().tolist()
        assert set(rows) == set(range(8, 16))


def test_the_tables_of_a_repaired_plan(tiny: Model, tmp_path: Path) -> None:
    """Three rows at each length, the gain between the last two, and a plan with its weights on disk."""
    saved = tmp_path / "plan.json"
    quick = {"lengths": (64, 128), "recall_lengths": (), "repeats": 1, "new_tokens": 2, "tokens": N}
    params = Params(replace=(f"{HEADS}={NARROW}",), repair=8 * N, save=str(saved), export="flex", **quick)
    finding = EXPERIMENT.run(tiny, params, silent)[0]
    rows = finding.tables["quality"]
    assert rows["which"].to_list() == ["original", "plan", "repaired"] * 2
    gain = finding.tables["repair"].to_dicts()[-1]
    ratios = dict(rows.filter(pl.col("tokens") == 128).select("which", "ratio").iter_rows())
    assert gain["gain"] == pytest.approx(ratios["repaired"] / ratios["plan"], rel=1e-6)
    assert gain["trained_tokens"] == 8 * N
    assert len(finding.tables["repair_layers"]) == 3
    assert any("repaired plan" in headline.full for headline in finding.headlines)
    assert "Repaired on" in finding.method
    assert (tmp_path / "plan_flex.py").exists()
    again = quality(tiny, Plan.read(saved), repair_windows(tiny, split_parts(text_of(None))["test"], 128, 256))
    assert again.ratio.mean > 0
    assert Plan.read(saved).origin["repair"]["text"].endswith(":fit")
    from_file = Params(plan=str(saved), **quick)
    loaded = EXPERIMENT.run(tiny, from_file, silent)[0].tables["quality"]
    at_128 = loaded.filter((pl.col("tokens") == 128) & (pl.col("which") == "plan"))["ratio"].item()
    assert at_128 == pytest.approx(ratios["repaired"], rel=1e-6)


def test_a_repair_that_gains_nothing_says_so(repair, tiny: Model, plan: Plan) -> None:
    test = repair_windows(tiny, split_parts(text_of(None))["search"], 64, 4 * 64)
    before = {64: quality(tiny, plan, test)}
    headline = repair_headline(gain_table(before, before, repair), layer_table(repair), "text")
    assert "it holds 1, so no gain is shown" in headline.full
    better = {64: replace(before[64], nats=before[64].nats - 0.1 * before[64].tokens)}
    assert ": a gain)" in repair_headline(gain_table(before, better, repair), layer_table(repair), "text").full
    assert ": a loss" in repair_headline(gain_table(better, before, repair), layer_table(repair), "text").full


def test_what_cannot_be_repaired(tiny: Model, windows: tuple[Tokens, ...]) -> None:
    with pytest.raises(UsageError, match="replaces no head"):
        repair_plan(tiny, Plan({}), windows, silent)
    with pytest.raises(UsageError, match="needs two windows of 128"):
        repair_windows(tiny, Text("short", ("A few words.",)), 128, 1000)
    with pytest.raises(UsageError, match="at least 256 tokens"):
        Params(replace=("L0=dense",), repair=10).check()
    with pytest.raises(UsageError, match="a repair splits the text"):
        Params(replace=("L0=dense",), repair=1000, text=Text("moby-dick:test", ("a b",))).check()


def test_shared_weights_are_refused() -> None:
    from transformers import AlbertConfig, AlbertForMaskedLM

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    model = hs.open(AlbertForMaskedLM(AlbertConfig(vocab_size=50, embedding_size=16, **sizes)).eval())
    with pytest.raises(UsageError, match="shares its weights"):
        repair_plan(model, Plan({"window(left=2)": "L0"}), [torch.arange(8), torch.arange(8)], silent)
