"""Names of hooks and filters: what is captured and changed by them, and what they refuse."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from headscope.errors import UsageError
from headscope.model.model import Model, open_model
from headscope.model.session.captures import QUANTITIES
from headscope.model.session.hook_names import BLOCK_HOOKS, MODEL_HOOKS, OTHER_HOOKS
from tests.model.families import DISPATCHING
from tests.model.test_fidelity import relative_error
from tests.tolerances import SAME_FUNCTION, WEIGHT_AGREEMENT

TEXT = "God said unto Moses, and Moses said unto"
FULL_NAMES = {f"blocks.1.{name}": hook for name, hook in BLOCK_HOOKS.items()} | MODEL_HOOKS


def opened(name: str) -> Model:
    return open_model(next(family for family in DISPATCHING if family.name == name).build())


def tokens() -> Tensor:
    return torch.randint(3, 99, (2, 9), generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("name", FULL_NAMES)
def test_a_hook_is_its_quantity(name: str, tiny: Model) -> None:
    quantity = FULL_NAMES[name].quantity
    assert quantity in QUANTITIES
    cache = tiny.run(TEXT, name).cache
    by_quantity = tiny.run(TEXT, quantity).cache
    site = None if name in MODEL_HOOKS else "L1"
    assert {label for label, _ in cache} == ({"L1"} if site else {label for label, _ in by_quantity})
    expected = by_quantity[quantity] if site is None else by_quantity[site, quantity]
    assert torch.equal(cache[name], expected)
    assert torch.equal(by_quantity[name], expected)


def by_module(model: Model) -> dict[str, tuple[Tensor, Tensor]]:
    """What every module of the model was given and gave on the text, with the attention that sessions compute."""
    passed: dict[str, tuple[Tensor, Tensor]] = {}

    def note(name: str, args: Any, kwargs: Any, output: Any) -> None:
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        gave = output if isinstance(output, Tensor) else next(iter(output))
        passed[name] = (given[0] if given else torch.empty(0), gave if isinstance(gave, Tensor) else torch.empty(0))

    hooks = [
        module.register_forward_hook(
            lambda module, args, kwargs, output, name=name: note(name, args, kwargs, output), with_kwargs=True
        )
        for name, module in model.hf.named_modules()
    ]
    try:
        with torch.no_grad(), model.session():
            model.hf(model.encode(TEXT)[None])
    finally:
        for hook in hooks:
            hook.remove()
    return passed


def test_hooks_mean_what_they_mean_in_transformer_lens(tiny: Model) -> None:
    """Each hook written out from the modules of the model, in the axes of this library.

    TransformerLens is no dependency: these are its definitions, by which HookedTransformer computes.
    """
    passed = by_module(tiny)
    layer, epsilon = "model.layers.1", tiny.hf.config.rms_norm_eps

    def given(name: str) -> Tensor:
        return passed[f"{layer}.{name}"][0]

    def gave(name: str) -> Tensor:
        return passed[f"{layer}.{name}"][1]

    def heads(tensor: Tensor) -> Tensor:
        return tensor.unflatten(-1, (-1, tiny.spec.d_head)).transpose(1, 2)

    def scale(stream: Tensor) -> Tensor:
        return (stream.square().mean(-1, keepdim=True) + epsilon).sqrt()

    stream, attended = given("input_layernorm"), gave("self_attn.o_proj")
    middle, added = stream + attended, gave("mlp.down_proj")
    q, k, v = (heads(gave(f"self_attn.{letter}_proj")) for letter in "qkv")
    positions = torch.arange(stream.shape[1])[None]
    turned_q, turned_k = apply_rotary_pos_emb(q, k, *tiny.hf.model.rotary_emb(v, positions))
    keys = turned_k.repeat_interleave(tiny.spec.n_heads // tiny.spec.n_kv_heads, dim=1)
    scores = turned_q @ keys.mT / tiny.spec.d_head**0.5
    pattern = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf).softmax(-1)
    z = heads(given("self_attn.o_proj"))
    output = tiny.hf.model.layers[1].self_attn.o_proj.weight.T.unflatten(0, (tiny.spec.n_heads, -1))
    expected = {
        "hook_resid_pre": stream,
        "hook_in": stream,
        "ln1.hook_scale": scale(stream),
        "ln1.hook_out": gave("input_layernorm"),
        "attn.hook_q": q,
        "attn.hook_k": k,
        "attn.hook_v": v,
        "attn.hook_rot_q": turned_q,
        "attn.hook_rot_k": turned_k,
        "attn.hook_attn_scores": scores,
        "attn.hook_pattern": pattern,
        "attn.hook_z": z,
        "attn.hook_result": z @ output,
        "attn.hook_out": attended,
        "hook_attn_out": attended,
        "hook_resid_mid": middle,
        "ln2.hook_scale": scale(middle),
        "ln2.hook_out": gave("post_attention_layernorm"),
        "mlp.hook_in": given("mlp"),
        "mlp.hook_post": given("mlp.down_proj"),
        "mlp.hook_out": added,
        "hook_mlp_out": added,
        "hook_resid_post": middle + added,
        "hook_out": middle + added,
    }
    assert set(expected) == set(BLOCK_HOOKS)
    whole = {
        "hook_embed": passed["model.embed_tokens"][1],
        "embed.hook_out": passed["model.embed_tokens"][1],
        "ln_final.hook_scale": scale(passed["model.norm"][0]),
        "unembed.hook_out": passed["lm_head"][1],
        "hook_unembed": passed["lm_head"][1],
    }
    assert set(whole) == set(MODEL_HOOKS)
    for name, tensor in {**{f"blocks.1.{name}": tensor for name, tensor in expected.items()}, **whole}.items():
        captured = tiny.run(TEXT, name).cache[name]
        assert captured.shape == tensor.shape, name
        assert relative_error(captured, tensor) <= SAME_FUNCTION, name


@pytest.mark.parametrize("name", FULL_NAMES)
def test_a_patch_by_a_hook_is_one_of_its_quantity(name: str, tiny: Model) -> None:
    logits = []
    place = "all" if name in MODEL_HOOKS else "L1"
    for at, what in ((None, name), (place, FULL_NAMES[name].quantity)):
        with tiny.session() as session:
            session.patch(at, what, lambda tensor: tensor / 2, positions=5)
            logits.append(session.run(TEXT).logits)
    assert torch.equal(*logits)
    assert not torch.equal(logits[0], tiny.run(TEXT, "logits").logits)


@pytest.mark.parametrize("name", OTHER_HOOKS)
def test_a_hook_that_only_resembles_a_quantity_is_refused_with_the_reason(name: str, tiny: Model) -> None:
    full_name = f"blocks.1.{name}" if not name.startswith(("hook_pos", "ln_final")) else name
    for refused in (lambda: tiny.run(TEXT, full_name), lambda: tiny.run(TEXT, "resid").cache[full_name]):
        with pytest.raises(UsageError) as refusal:
            refused()
        assert refusal.value.message == f"{full_name!r} has no counterpart here: {OTHER_HOOKS[name]}"
    named = [word for word in OTHER_HOOKS[name].split("`")[1::2] if not word.startswith("session.")]
    assert named
    assert set(named) <= set(QUANTITIES)


def test_unknown_hooks_and_layers_are_refused(tiny: Model) -> None:
    with pytest.raises(UsageError, match=r"'blocks\.1\.hook_foo' has no counterpart here\n.*transformer-lens\.md"):
        tiny.run(TEXT, "blocks.1.hook_foo")
    with pytest.raises(UsageError, match=r"'blocks\.4\.hook_resid_pre': this model has the layers 0 … 3"):
        tiny.run(TEXT, "blocks.4.hook_resid_pre")
    with pytest.raises(UsageError, match="the names say which layers, and so does the selection"):
        tiny.run(TEXT, "blocks.1.hook_resid_pre", at="L1")


def test_each_name_is_captured_where_it_says(tiny: Model) -> None:
    """Hooks of several layers are not captured at each other's layers, and names without a layer everywhere."""
    cache = tiny.run(TEXT, "blocks.0.attn.hook_pattern", "blocks.2.hook_resid_mid", "blocks.3.hook_resid_mid").cache
    assert set(cache) == {("L0", "pattern"), ("L2", "resid_mid"), ("L3", "resid_mid")}
    mixed = tiny.run(TEXT, "z", "blocks.2.hook_resid_mid").cache
    assert set(mixed) == {("L0", "z"), ("L1", "z"), ("L2", "z"), ("L3", "z"), ("L2", "resid_mid")}
    assert set(tiny.run(TEXT, "blocks.2.attn.hook_z", "z").cache) == {(f"L{n}", "z") for n in range(4)}


def test_a_function_chooses_places_one_by_one(tiny: Model) -> None:
    chosen = {"L0.pattern", "L1.mlp_act", "L3.final_scale", "L2.head_out"}
    assert {f"{site}.{name}" for site, name in tiny.run(TEXT, lambda name: name in chosen).cache} == chosen
    asked: list[str] = []
    with pytest.raises(UsageError, match=r"the function chose no place\n.*names like L0\.q"):
        tiny.run(TEXT, lambda name: asked.append(name) is not None)
    places = {f"{site}.{name}" for site, name in tiny.run(TEXT).cache}
    assert set(asked) == places | {f"L{n}.head_out" for n in range(4)}
    assert len(asked) == len(set(asked))


def test_a_function_is_asked_about_what_has_a_gradient(tiny: Model) -> None:
    with tiny.session() as session:
        capture = session.capture(lambda name: name.startswith("L1."), gradient=True)
        gradients = capture.gradients(session.run(TEXT).logits[0, -1, 0])
    assert "scale" not in gradients
    assert {"q", "pattern", "z", "head_out", "resid_mid"} <= set(gradients)


@pytest.mark.parametrize("name", ["gpt2", "llama_gqa", "opt", "qwen3", "marian"])
def test_projections_are_what_the_weights_make_of_their_input(name: str) -> None:
    """q before rotary positions, norms and factors: x w_q + b_q."""
    model = opened(name)
    cache = model.run(tokens(), "x", "q_proj", "k_proj").cache
    for site in model.sites:
        weights = model.weights(site)
        x = cache[site.label, "x"][:, None]
        pairs = [("q_proj", weights.w_q, weights.b_q)]
        pairs += [] if site.kind == "cross" else [("k_proj", weights.w_k, weights.b_k)]
        for what, matrix, bias in pairs:
            expected = x @ matrix + bias[:, None]
            difference = (cache[site.label, what] - expected).abs().max()
            assert float(difference) <= WEIGHT_AGREEMENT * float(expected.abs().max()), what


@pytest.mark.parametrize("name", ["gpt2", "llama_gqa", "opt"])
@pytest.mark.parametrize("letter", ["q", "k"])
def test_a_patched_projection_is_what_the_scores_are_made_of(name: str, letter: str) -> None:
    """Rotation and factors are linear: half of the projection is half of what the scores see, of that head alone."""
    model = opened(name)
    whole = model.run(tokens(), letter, "v", at="L1").cache
    with model.session() as session:
        session.patch("L1.H0", f"{letter}_proj", lambda projected: projected / 2)
        halved = model.run(tokens(), letter, "v", at="L1").cache
    torch.testing.assert_close(halved["L1", letter][:, 0], whole["L1", letter][:, 0] / 2)
    assert torch.equal(halved["L1", letter][:, 1:], whole["L1", letter][:, 1:])
    assert torch.equal(halved["L1", "v"], whole["L1", "v"])


FOLLOWED = [quantity.name for quantity in QUANTITIES.values() if quantity.patchable]


@pytest.mark.parametrize("name", FOLLOWED)
def test_gradients_need_no_weights_that_ask_for_them(name: str, tiny: Model) -> None:
    """A checkpoint is opened without gradients of its weights; those of places are the same as with them."""
    assert not any(parameter.requires_grad for parameter in tiny.hf.parameters())
    gradients = []
    for asks in (False, True):
        tiny.hf.requires_grad_(asks)
        try:
            with tiny.session() as session:
                capture = session.capture(name, gradient=True)
                gradients.append(capture.gradients(session.run(TEXT).logits[0, -1, 7])[name])
        finally:
            tiny.hf.requires_grad_(False)
    without, with_weights = gradients
    assert set(without) == set(with_weights)
    for site, gradient in without.items():
        torch.testing.assert_close(gradient, with_weights[site])
    assert any(bool(gradient.any()) for gradient in without.values())


@pytest.mark.parametrize("name", sorted(set(QUANTITIES) - set(FOLLOWED)))
def test_what_has_no_gradient_is_refused_at_once(name: str, tiny: Model) -> None:
    with pytest.raises(UsageError, match=rf"the gradient of {name} is not followed"), tiny.session() as session:
        session.capture(name, gradient=True)


def test_other_keys_say_how_a_cache_is_read(tiny: Model) -> None:
    cache = tiny.run(TEXT, "pattern").cache
    for key in (("pattern", 1), 1, ("L1", "H3", "pattern")):
        with pytest.raises(UsageError, match=r'write cache\["L1", "pattern"\]'):
            cache[key]
        assert key not in cache
    assert ("L1.H3", "pattern") in cache


def test_a_session_reads_text(tiny: Model) -> None:
    with tiny.session() as session:
        assert torch.equal(session.run(TEXT).logits, session.run(tiny.encode(TEXT)).logits)
