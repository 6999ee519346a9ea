"""Sessions on families that compute their attention themselves: what they show and change, and what they refuse."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headscope import attention
from headscope.attention.statistics import Request
from headscope.errors import CaptureError
from headscope.model.language import generate_tokens
from headscope.model.model import Model, open_model
from headscope.model.transformers.probe_inputs import forward_options
from tests.model.families import OTHER_OUTSIDE, OUTSIDE, Family
from tests.model.hand_projections import BY_HAND
from tests.model.opened_families import opened
from tests.model.test_attention_products import Bounded, Gated, attend_by, close
from tests.model.test_fidelity import by_name, padded_inputs
from tests.tolerances import SAME_FUNCTION, WEIGHT_AGREEMENT

FAMILIES = {family.name: family for family in (*OUTSIDE, *OTHER_OUTSIDE)}


def tokens(length: int = 9, seed: int = 7) -> Tensor:
    return torch.randint(3, 99, (2, length), generator=torch.Generator().manual_seed(seed))


def logits(model: Model, **inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return model.hf(**(inputs or {"input_ids": tokens()}), **forward_options(model.hf))[0]


@pytest.mark.parametrize("family", FAMILIES.values(), ids=by_name)
def test_who_only_looks_changes_nothing(family: Family) -> None:
    """With everything captured the model computes what it computes under its eager attention, bit by bit."""
    model = opened(family)
    inputs = padded_inputs(model.hf)
    with model.session():
        plain = logits(model, **inputs)
    with model.session() as session:
        session.capture(*session.everything())
        session.stream(Request(bands=(1,)))
        assert torch.equal(logits(model, **inputs), plain)


@pytest.mark.parametrize("name", BY_HAND)
def test_captures_are_those_of_hooks_by_hand(name: str) -> None:
    model, by_hand = opened(FAMILIES[name]), BY_HAND[name]
    given: dict[tuple[int, str], Tensor] = {}
    gave: dict[tuple[int, str], Tensor] = {}
    hooks = []
    for site in model.sites:
        for letter in "qkvo":

            def keep(_: nn.Module, args: Any, out: Tensor, key: tuple[int, str] = (site.layer, letter)) -> None:
                given[key], gave[key] = args[0].detach().clone(), out.detach().clone()

            hooks.append(by_hand.module(model.hf, site.layer, letter).register_forward_hook(keep))
    try:
        with model.session() as session:
            capture = session.capture("q", "k", "v", "z", "x", "attn_out", "head_out", "scale")
            session.run(tokens())
            taken = capture.take()
    finally:
        for hook in hooks:
            hook.remove()
    for site in model.sites:
        for letter in "qkv":
            expected = by_hand.states(model.hf, site.layer, letter, gave[site.layer, letter])
            assert close(taken[letter][site], expected, WEIGHT_AGREEMENT), letter
        assert torch.equal(taken["x"][site], given[site.layer, "q"])
        assert torch.equal(taken["z"][site].transpose(1, 2).flatten(2), given[site.layer, "o"])
        assert torch.equal(taken["attn_out"][site], gave[site.layer, "o"])
        bias = by_hand.module(model.hf, site.layer, "o").bias
        whole = taken["head_out"][site].sum(1) + (0.0 if bias is None else bias.detach())
        assert close(whole, gave[site.layer, "o"], WEIGHT_AGREEMENT)


@pytest.mark.parametrize("name", BY_HAND)
def test_ablation_is_a_head_without_columns(name: str) -> None:
    model = open_model(FAMILIES[name].build())
    plain = logits(model)
    with model.session() as session:
        session.ablate("L1.H2")
        ablated = logits(model)
    output = BY_HAND[name].module(model.hf, 1, "o")
    with torch.no_grad():
        if isinstance(output, nn.Linear):
            output.weight[:, 16:24] = 0.0
        else:
            output.weight[16:24] = 0.0
    assert not close(plain, logits(model), 1e-3)
    assert close(ablated, logits(model), SAME_FUNCTION)


@pytest.mark.parametrize("name", ["gptj", "bloom", "falcon_grouped", "mpnet", "deberta"])
def test_gradients_are_those_without_headscope(name: str) -> None:
    r"""That of z is the one at the output projection; the others follow from it.

    With P the pattern and G the gradient by z: by v it is P^T G, by P it is G v^T =: D, by the scores
    S = P * (D - sum_j P D), by q it is scale * S k, and by k it is scale * S^T q.
    """
    model, by_hand = opened(FAMILIES[name]), BY_HAND[name]
    site, inputs = model.sites[0], list[Tensor]()

    def keep(_: nn.Module, args: Any) -> None:
        inputs.append(args[0])

    hook = by_hand.module(model.hf, 0, "o").register_forward_pre_hook(keep)
    try:
        output = model.hf(input_ids=tokens(), **forward_options(model.hf))[0]
    finally:
        hook.remove()
    direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(3))
    (plain,) = torch.autograd.grad((output * direction).sum(), inputs)
    names = ("z", "v", "pattern", "scores") if name == "deberta" else ("z", "v", "pattern", "scores", "q", "k")
    with model.session() as session:
        capture = session.capture(*names, gradient=True)
        scale = session.capture("scale")
        output = session.run(tokens()).logits
        gradients = {what: by_site[site] for what, by_site in capture.gradients((output * direction).sum()).items()}
        taken = {what: by_site[site].detach() for what, by_site in capture.take().items()}
        factor = float(scale.take()["scale"][site])
    copies = site.n_heads // site.n_kv_heads

    def shared(by_head: Tensor) -> Tensor:
        return by_head.unflatten(1, (site.n_kv_heads, copies)).sum(2)

    z, pattern = plain.unflatten(-1, (4, 8)).transpose(1, 2), taken["pattern"]
    by_pattern = z @ taken["v"].repeat_interleave(copies, dim=1).mT
    by_scores = pattern * (by_pattern - (pattern * by_pattern).sum(-1, keepdim=True))
    expected = {"z": z, "v": shared(pattern.mT @ z), "pattern": by_pattern, "scores": by_scores}
    if "q" in names:
        expected["q"] = factor * by_scores @ taken["k"].repeat_interleave(copies, dim=1)
        expected["k"] = shared(factor * by_scores.mT @ taken["q"])
    for what, gradient in expected.items():
        assert close(gradients[what], gradient, 2 * WEIGHT_AGREEMENT), what


@pytest.mark.parametrize("name", ["mpnet", "deberta", "deberta_v2", "flaubert", "xlnet", "big_bird", "convbert"])
def test_an_infinite_window_of_an_encoder_changes_nothing(name: str) -> None:
    """The call has queries, keys, values, scale, bias and mask: dense attention of it is the model's own."""
    model = opened(FAMILIES[name])
    inputs = padded_inputs(model.hf)
    real = inputs["attention_mask"].bool()
    with model.session() as session:
        plain = logits(model, **inputs)[real]
        session.replace("L0", attention.window())
        assert close(logits(model, **inputs)[real], plain, SAME_FUNCTION)
        session.replace("L0.H1", attention.window(left=1))
        assert not close(logits(model, **inputs)[real], plain, 1e-3)


@pytest.mark.parametrize("name", ["gptj", "codegen", "openai", "falcon_grouped"])
def test_rows_and_early_rows_are_parts_of_the_maps(name: str) -> None:
    model = opened(FAMILIES[name])
    with model.session() as session:
        capture = session.capture("rows", "early", "pattern")
        session.run(tokens())
        taken = capture.take()
    for site in model.sites:
        pattern = taken["pattern"][site]
        assert torch.allclose(taken["early"][site], pattern, atol=1e-6)
        assert torch.allclose(taken["rows"][site].softmax(-1), pattern, atol=1e-6)


@pytest.mark.parametrize("name", ["codegen", "openai", "xlnet", "gptj", "mpnet"])
def test_uniform_attention_is_over_the_keys_that_are_seen(name: str) -> None:
    """Families hide keys by numbers of several sizes: −1e4, −1e30, the lowest float divided by the scale."""
    model = opened(FAMILIES[name])
    with model.session() as session:
        rows, maps = session.stream(Request()), session.capture("pattern")
        session.run(tokens())
        measured, uniform = rows.take()
        pattern = maps.take()["pattern"]
    for site in model.sites:
        visible = (pattern[site] > 0).sum(-1)
        assert torch.equal(measured[site].n_visible.expand_as(visible), visible)
        largest = uniform[site].entropy_nats.double().expand(visible.shape)
        assert torch.allclose(largest, visible.double().log(), atol=1e-6)


def test_what_is_not_understood_is_refused_with_the_reason() -> None:
    def built(name: str, change: Callable[[Any], None]) -> Model:
        hf = FAMILIES[name].build()
        change(hf)
        return open_model(hf)

    mixed = built("gpt_neo", attend_by(Gated))
    with mixed.session() as session:
        for attempt in (
            lambda: session.replace("all", attention.window()),
            lambda: session.ablate("all"),
            lambda: session.patch("all", "z", torch.zeros(1)),
            lambda: session.patch("all", "pattern", torch.zeros(1)),
            lambda: session.capture("q"),
            lambda: session.capture("z"),
        ):
            with pytest.raises(CaptureError, match=r"gpt_neo models cannot be .*: no matrix reads .* head by head"):
                attempt()
        assert "pattern" in session.shown
        assert not {"q", "k", "v", "z", "rows"} & session.shown
    bounded = built("gpt_neo", attend_by(Bounded))
    with bounded.session() as session:
        assert {"v", "z", "pattern"} <= session.shown
        for attempt in (lambda: session.capture("k"), lambda: session.replace("all", attention.window())):
            with pytest.raises(CaptureError, match="no multiple of a product of queries and keys"):
                attempt()
        capture = session.capture("v", "z", "pattern")
        session.ablate("L0.H1")
        session.run(tokens())
        assert not capture.take()["z"][bounded.sites[0]][:, 1].any()


@pytest.mark.parametrize("name", ["deberta", "deberta_v2", "xlnet"])
def test_queries_that_are_read_twice_are_shown_but_not_changed(name: str) -> None:
    model = opened(FAMILIES[name])
    with model.session() as session:
        assert {"q", "k"} <= session.shown
        for what in ("q", "k"):
            with pytest.raises(CaptureError, match=f"the {what} of .* models cannot be patched: .* half a change"):
                session.patch("L0", what, "zero")
            with pytest.raises(CaptureError, match=r"cannot be followed by a gradient: .* half a change"):
                session.capture(what, gradient=True)
        session.patch("L0", "v", "zero")
        capture = session.capture("z")
        session.run(tokens())
        assert not capture.take()["z"][model.sites[0]].any()


def test_scores_that_are_lost_are_computed_from_queries_and_keys() -> None:
    """OpenAI's GPT multiplies hidden scores by 0; nothing is added to them, so that they are known all the same."""
    model = opened(FAMILIES["openai"])
    with model.session() as session:
        capture = session.capture("scores", "q", "k", "scale")
        session.run(tokens())
        taken = capture.take()
        with pytest.raises(CaptureError, match="the scores of openai-gpt models cannot be patched: the family masks"):
            session.patch("L0", "scores", "zero")
    for site in model.sites:
        q, k = taken["q"][site].double(), taken["k"][site].double()
        assert close(taken["scores"][site].double(), taken["scale"][site] * q @ k.mT, WEIGHT_AGREEMENT)
    with model.session() as session:
        session.replace("all", attention.window())
        assert close(logits(model), logits_without(model), SAME_FUNCTION)


def logits_without(model: Model) -> Tensor:
    with model.outside_sessions():
        return logits(model)


def test_a_patch_as_long_as_the_prompt_touches_the_prompt_only() -> None:
    model = opened(FAMILIES["gptj"])
    prompt = tokens()[0]
    value = torch.randn(1, 1, len(prompt), 8, generator=torch.Generator().manual_seed(2))

    def written(cache: bool) -> tuple[Tensor, list[Tensor]]:
        with model.session() as session:
            session.patch("L0.H1", "z", value)
            capture = session.capture("z", at="L0.H1")
            text = generate_tokens(model.hf, prompt, max_new_tokens=5, temperature=0.0, cache=cache, seed=0)
            return text, [frame["z"][model.sites[0]] for frame in capture.take_all()]

    (cached, steps), (again, whole) = written(cache=True), written(cache=False)
    assert torch.equal(cached, again)
    assert torch.equal(steps[0][0, 0], value[0, 0])
    assert torch.allclose(torch.cat([step[0, 0] for step in steps]), whole[-1][0, 0], atol=1e-5)


def test_another_thread_sees_nothing_of_a_session() -> None:
    model = opened(FAMILIES["bloom"])
    plain, other = logits(model), list[Tensor]()
    with model.session() as session:
        session.ablate("all")
        assert not torch.equal(logits(model), plain)
        thread = threading.Thread(target=lambda: other.append(logits(model)))
        thread.start()
        thread.join()
        assert not torch.equal(logits(model), plain)
    assert torch.equal(other[0], plain)


def test_sessions_nest_and_end() -> None:
    model = opened(FAMILIES["mpt"])
    plain = logits(model)
    with model.session() as outer:
        outer.ablate("L0.H0")
        once = logits(model)
        with model.session() as inner:
            inner.ablate("L0.H1")
            assert not torch.equal(logits(model), once)
            assert model.weights(model.sites[0]).w_q.shape == (4, 32, 8)
        assert torch.equal(logits(model), once)
    with torch.inference_mode(), model.session() as session:
        session.patch("L0", "z", lambda z: z)
        assert close(logits(model), plain, SAME_FUNCTION)
    assert torch.equal(logits(model), plain)


def test_a_layer_at_which_a_forward_ends() -> None:
    model = opened(FAMILIES["gptj"])
    with model.session() as session:
        capture = session.capture("z", "resid")
        stream = session.run(tokens(), stop_at="L1")
        taken = capture.take()
        assert set(taken["z"]) == {model.sites[0]}
        session.run(tokens())
        assert torch.equal(capture.take()["resid"][model.sites[1]], stream)
