"""Prune: planted heads, importance by its definition, gradients, rows that begin late, curves, bad input."""

import json
import math
from collections.abc import Sequence

import polars as pl
import pytest
import torch
import transformers
from scipy.stats import spearmanr

import headscope as hs
from headscope.cli import main
from headscope.corpora import Text, text_of
from headscope.errors import UsageError
from headscope.experiments.prune.ablation import mean_outputs, outputs_when_off, single_heads, starts_late, switched_off
from headscope.experiments.prune.curve import Point, Pruner, WindowText, counts, original_nats, spared
from headscope.experiments.prune.experiment import EXPERIMENT
from headscope.experiments.prune.gradients import gradient_scores
from headscope.experiments.prune.importance import Importance, importance, rank_correlation
from headscope.experiments.prune.material import gather
from headscope.experiments.prune.settings import Off, Params
from headscope.experiments.swap.quality import PairedNats, window_nats
from headscope.experiments.text_sample import Tokens
from headscope.model.model import Model
from headscope.progress import silent

LENGTH = 48
OTHERS = "L0,L1.H0-2,L1.H4-7,L2-3"  # every head of the embedded model but L1.H3
CARRIER = 8 + 3
SIZES = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
GPT2 = {"vocab_size": 60, "n_embd": 32, "n_layer": 3, "n_head": 4}


@pytest.fixture(scope="module")
def windows(tiny: Model) -> Sequence[Tokens]:
    return gather(tiny, text_of(None), tokens=LENGTH, windows=4, test_windows=4).search


def measured(model: Model, windows: Sequence[Tokens], late: bool = True) -> Importance:
    means = mean_outputs(model, windows, silent)
    scores = single_heads(model, windows, means, late, silent)
    return importance(model.sites, scores, gradient_scores(model, windows, 0, silent))


@pytest.fixture(scope="module")
def of_tiny(tiny: Model, windows: Sequence[Tokens]) -> Importance:
    return measured(tiny, windows)


def test_a_dead_head_has_no_importance(tiny: Model, windows: Sequence[Tokens], of_tiny: Importance) -> None:
    """Its output is multiplied by zeros: nothing notices whether it is off, and every criterion says so."""
    number = of_tiny.heads.index((tiny.sites[1], 2))
    with tiny.edit() as edit:
        edit.ablate("L1.H2")
        dead = measured(tiny, windows[:2])
    for name in ("zero", "mean", "gradient", "curvature"):
        values = dead.by_criterion[name].mean(0)
        assert abs(float(values[number])) < 1e-7, name
        assert float(values.median()) > 1e-4, name
        assert dead.order(name)[0] == number, name
        assert float(of_tiny.by_criterion[name].mean(0)[number]) > 1e-4, name
    assert float(dead.rises["zero_rise"][:, number].abs().max()) < 1e-6


def test_the_head_that_carries_everything(tiny: Model, windows: Sequence[Tokens]) -> None:
    """No other head writes anything: it comes first, and the curve is flat until it is off, too."""
    with tiny.edit() as edit:
        edit.ablate(OTHERS)
        alone = measured(tiny, windows[:2])
        outputs = outputs_when_off(Off.ZERO, mean_outputs(tiny, windows[:1], silent))
        text = WindowText(windows)
        pruner = Pruner(tiny, text, alone.heads, outputs, original_nats(tiny, text, silent), silent)
        curves = {name: pruner.curve(name, alone.order(name)) for name in alone.by_criterion}
        random = pruner.random(2, 0)
    orders = [torch.randperm(32, generator=generator).tolist() for generator in [torch.Generator().manual_seed(0)]
              for _ in range(2)]  # fmt: skip
    for name, points in curves.items():
        assert alone.order(name)[-1] == CARRIER, name
        ratios = [point.quality.ratio.mean for point in points]
        assert ratios[:-1] == pytest.approx([1.0] * (len(points) - 1), abs=1e-6)
        assert abs(math.log(ratios[-1])) > 0.1
    # The null: a random order is hurt where it meets that head.
    for draw, order in enumerate(orders):
        for point in random:
            is_hurt = abs(point.draws[draw].ratio.mean - 1.0) > 1e-5
            assert is_hurt == (order.index(CARRIER) < point.count)


def test_importance_by_its_definition(tiny: Model, windows: Sequence[Tokens], of_tiny: Importance) -> None:
    """KL and rise from two plain forwards in float64; the head is off because nothing reads it."""
    tokens = windows[1]
    with torch.no_grad():
        log_p = torch.log_softmax(tiny.hf(tokens[None]).logits[0, :-1].double(), -1)
        for label, number in (("L0.H5", 5), ("L1.H0", 8), ("L3.H7", 31)):
            with tiny.edit() as edit:
                edit.ablate(label)
                log_q = torch.log_softmax(tiny.hf(tokens[None]).logits[0, :-1].double(), -1)
            divergence = float((log_p.exp() * (log_p - log_q)).sum(-1).mean())
            rise = float((log_p - log_q).gather(1, tokens[1:, None]).mean())
            assert float(of_tiny.by_criterion["zero"][1, number]) == pytest.approx(divergence, rel=1e-3, abs=1e-6)
            assert float(of_tiny.rises["zero_rise"][1, number]) == pytest.approx(rise, rel=1e-3, abs=1e-6)


def test_off_is_ablated(tiny: Model, windows: Sequence[Tokens]) -> None:
    site, outputs = tiny.sites[2], outputs_when_off(Off.ZERO, mean_outputs(tiny, windows[:1], silent))
    with switched_off(tiny, {site: [1, 4]}, outputs), tiny.session() as session:
        off = session.run(windows[0][None]).logits
    with tiny.session() as session:
        session.ablate("L2.H1,L2.H4")
        ablated = session.run(windows[0][None]).logits
    assert torch.equal(off, ablated)
    assert not torch.equal(off, tiny.run(windows[0][None], "logits").logits)


def test_a_constant_head_is_its_mean() -> None:
    """The values of one head are a bias: its mean changes nothing, and zero takes the bias away."""
    torch.manual_seed(0)
    hf = transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2, initializer_range=0.3)).eval()
    values = slice(64 + 8, 64 + 16)  # those of head 1 in the joined projection
    with torch.no_grad():
        hf.transformer.h[1].attn.c_attn.weight[:, values] = 0.0
        hf.transformer.h[1].attn.c_attn.bias[values] = 0.5
    model = hs.open(hf)
    texts = list(torch.randint(0, 60, (2, 24)))
    by_head = measured(model, texts).by_criterion
    number = 4 + 1
    assert float(by_head["mean"][:, number].max()) < 1e-6
    assert float(by_head["zero"][:, number].min()) > 1e-4
    assert int(by_head["mean"].mean(0).argmin()) == number


FAMILIES = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2)),
    "neox": lambda: transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**SIZES)),
    "gemma3": lambda: transformers.Gemma3ForCausalLM(
        transformers.Gemma3TextConfig(**SIZES, num_key_value_heads=2, head_dim=8, sliding_window=4)
    ),
    "bloom": lambda: transformers.BloomForCausalLM(
        transformers.BloomConfig(hidden_size=32, n_layer=3, n_head=4, vocab_size=60, initializer_range=0.2)
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_rows_from_a_layer_on_are_whole_rows(family: str) -> None:
    """One row below the layer of a head and many from it on give what whole rows give; Bloom takes whole rows only."""
    torch.manual_seed(1)
    model = hs.open(FAMILIES[family]().eval())
    texts = list(torch.randint(0, 60, (2, 20)))
    assert starts_late(model, texts[0]) == (family != "bloom")
    means = mean_outputs(model, texts, silent)
    whole = single_heads(model, texts, means, False, silent)
    assert float(whole.divergence.max()) > 1e-5
    if family != "bloom":
        late = single_heads(model, texts, means, True, silent)
        assert torch.allclose(late.divergence, whole.divergence, rtol=1e-4, atol=1e-7)
        assert torch.allclose(late.rise, whole.rise, rtol=1e-3, atol=1e-6)


def test_the_gradient_is_a_difference_quotient(tiny: Model, windows: Sequence[Tokens], of_tiny: Importance) -> None:
    tokens, gradient = windows[0], of_tiny.by_criterion["gradient"][0]
    number = int(gradient.argmax())
    site, head = of_tiny.heads[number]

    def loss(factor: float) -> float:
        with tiny.session() as session:
            session.patch(site.head_label(head), "z", lambda z: z * factor)
            return window_nats(tiny, tokens) / (len(tokens) - 1)

    step = 0.02
    quotient = (loss(1 + step) - loss(1 - step)) / (2 * step)
    assert float(gradient[number]) == pytest.approx(abs(quotient), rel=0.02)


def test_gradients_predict_the_divergence(of_tiny: Importance) -> None:
    """The second order is near the measured KL of the head that gives zero, the first order less so."""
    zero, curvature, gradient = (of_tiny.by_criterion[name].mean(0) for name in ("zero", "curvature", "gradient"))
    assert spearmanr(zero, curvature).statistic > 0.85
    assert spearmanr(zero, gradient).statistic > 0.3
    assert abs(float((curvature / zero).log().median())) < math.log(3)


def test_rank_correlations(of_tiny: Importance) -> None:
    a, b = torch.randn(2, 3, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = [spearmanr(x, y).statistic for x, y in zip(a, b, strict=True)]
    assert rank_correlation(a, b).tolist() == pytest.approx(expected)
    assert float(rank_correlation(a[0], a[0].exp())) == pytest.approx(1.0)
    for (first, second), estimate in of_tiny.correlations().items():
        means = [of_tiny.by_criterion[name].mean(0) for name in (first, second)]
        assert estimate.mean == pytest.approx(spearmanr(*means).statistic)
        assert -1 <= estimate.low <= estimate.mean <= estimate.high <= 1


def points_of(*ratios: float, spread: float = 0.0) -> list[Point]:
    """A curve with these ratios at 1, 2, … heads; two windows that differ by `spread`."""
    original, tokens = torch.full((2,), 20.0), torch.full((2,), 10.0)
    signs = torch.tensor([1.0, -1.0])
    return [
        Point(count, PairedNats(original + 10 * (math.log(ratio) + signs * spread), original, tokens))
        for count, ratio in enumerate(ratios, 1)
    ]


def test_how_many_heads_can_go() -> None:
    assert spared(points_of(1.0, 1.005, 1.02, 1.08), 0.01, surely=False) == (2, 3)
    assert spared(points_of(1.0, 1.005, 1.02, 1.08), 0.05, surely=False) == (3, 4)
    assert spared(points_of(1.0, 1.02, 1.005), 0.01, surely=False) == (1, 2), "it comes back, which does not count"
    assert spared(points_of(1.2, 1.0), 0.05, surely=False) == (0, 1)
    assert spared(points_of(1.0, 0.99), 0.01, surely=True) == (2, None)
    assert spared(points_of(1.0, 0.99, spread=0.01), 0.01, surely=True) == (0, 1)
    assert counts(270)[:3] == (3, 5, 8)
    assert counts(270)[-1] == 270
    assert counts(2) == (1, 2)
    assert 12 <= len(counts(270)) <= 16


@pytest.fixture(scope="module")
def finding(tiny: Model):
    params = Params(tokens=LENGTH, windows=4, test_windows=4, draws=2, off=Off.MEAN)
    return EXPERIMENT.run(tiny, params, silent)[0]


def test_the_tables_of_pruning(finding, tiny: Model) -> None:
    heads = finding.tables["heads"]
    assert len(heads) == sum(site.n_heads for site in tiny.sites)
    for name in ("zero", "mean", "zero_rise", "mean_rise", "gradient", "curvature"):
        assert (heads[f"{name}_low"] <= heads[name]).all()
        assert (heads[name] <= heads[f"{name}_high"]).all()
    for name in ("zero", "mean", "gradient", "curvature"):
        assert heads[f"{name}_low"].min() >= 0
        assert heads.sort(f"{name}_rank")[name].is_sorted(descending=True)
    curve = finding.tables["curve"]
    assert curve["order"].unique(maintain_order=True).to_list() == ["zero", "mean", "gradient", "curvature", "random"]
    last = curve.filter(pl.col("share") == 1.0)
    assert last["ratio"].to_list() == pytest.approx([last["ratio"][0]] * 5, rel=1e-5), "all heads off, in any order"
    random = curve.filter(pl.col("order") == "random")
    assert (random["ratio_least"] <= random["ratio"]).all()
    assert (random["ratio"] <= random["ratio_most"]).all()
    by_mean = curve.filter(pl.col("order") == "mean")
    assert (by_mean["ratio"][:6] < random["ratio"][:6]).all(), "the order is better than none"
    assert EXPERIMENT.show(finding).table.columns[:3] == ["off", "share", "zero"]


def test_the_sentences_of_pruning(finding) -> None:
    first, concentration, likeness = finding.headlines
    spared_rows = finding.tables["spared"].filter(pl.col("order") == "mean", pl.col("budget") == 0.05)
    estimate, upper = spared_rows.to_dicts()
    assert estimate["spared"] >= upper["spared"] >= upper["random"]
    assert first.full.startswith(f"By ablation to the mean, {estimate['spared']} of 32 heads can be switched off")
    assert f"and {upper['spared']} by the upper end" in first.full
    assert f"At random {estimate['random']} can" in first.full
    assert first.value == f"{estimate['spared']} of 32"
    top = finding.tables["heads"].sort("mean", descending=True).row(0, named=True)
    assert f"L{top['layer']}.H{top['head']} moves the predictions most" in concentration.full
    assert "0 is chance" in likeness.full
    assert all(len(headline.short.split()) <= 20 for headline in finding.headlines)
    assert {headline.figure for headline in finding.headlines} <= {"", *(figure.name for figure in finding.figures)}
    assert {quantity.column for quantity in finding.quantities} <= set(finding.tables["heads"].columns)


def test_the_time_left_knows_every_task(tiny: Model) -> None:
    tasks: list[str] = []

    def step(task: str, done: int, total: int, /) -> None:
        tasks.append(task)

    params = Params(tokens=32, windows=4, test_windows=4, draws=1)
    EXPERIMENT.run(tiny, params, step)
    assert list(dict.fromkeys(tasks)) == [stage.task for stage in EXPERIMENT.stages(tiny, params)]


def test_pruning_leaves_the_model_as_it_was(tiny: Model, windows: Sequence[Tokens], finding) -> None:
    before = [parameter.detach().clone() for parameter in tiny.hf.parameters()]
    logits = tiny.run(windows[0][None], "logits").logits
    EXPERIMENT.run(tiny, Params(tokens=32, windows=4, test_windows=4, draws=1), silent)
    assert all(torch.equal(a, b) for a, b in zip(tiny.hf.parameters(), before, strict=True))
    assert torch.equal(tiny.run(windows[0][None], "logits").logits, logits)
    assert not any(module._forward_pre_hooks for module in tiny.hf.modules())


def test_pruning_splits_share_no_document(tiny: Model) -> None:
    words = [" ".join([f"w{index}"] * 120) for index in range(60)]
    material = gather(tiny, Text("numbered", words), tokens=64, windows=20, test_windows=20)
    held = [
        {word for window in part for word in tiny.tokenizer.decode(window).split()}  # type: ignore[union-attr]
        & {f"w{index}" for index in range(60)}
        for part in (material.fit, material.search, material.test)
    ]
    assert all(held)
    assert not held[0] & held[1] | held[0] & held[2] | held[1] & held[2]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (Params(tokens=8), "tokens is at least 16, got 8"),
        (Params(windows=3), "windows is at least 4, got 3"),
        (Params(test_windows=1), "test_windows is at least 4"),
        (Params(draws=0), "draws is at least 1"),
        (Params(text=Text("moby-dick:test", ("a b",))), "one split already"),
    ],
)
def test_bad_settings_of_pruning(params: Params, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        params.check()


def test_pruning_needs_enough_text(tiny: Model) -> None:
    text = Text("short", [f"Story {index} of the old house by the sea. " * 8 for index in range(20)])
    with pytest.raises(UsageError, match=r"needs at least 4 windows of 512: 2048 tokens"):
        EXPERIMENT.run(tiny, Params(text=text, tokens=512), silent)


def test_an_encoder_is_not_pruned() -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    encoder = hs.open(transformers.BertModel(transformers.BertConfig(vocab_size=50, **sizes)).eval())
    with pytest.raises(UsageError, match="predicts no next token"):
        EXPERIMENT.run(encoder, Params(), silent)


def test_the_prune_command(tmp_path, capfd) -> None:
    words = ["prune", "tiny", "--tokens", "32", "--windows", "4", "--test-windows", "4", "--draws", "1"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--off", "mean", "--out", str(tmp_path / "run"), "--format", "json"])
    assert not ended.value.code
    output = json.loads(capfd.readouterr()[0])
    assert set(output["tables"]) == {"curve", "heads", "spared", "correlations"}
    assert output["params"]["off"] == "mean"
    assert "Perplexity with heads switched off" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert hs.load(tmp_path / "run")["prune"].tables["heads"].height == 32
    with pytest.raises(SystemExit) as refused:
        main(["prune", "tiny", "--windows", "2"])
    assert refused.value.code == 2
