"""Patches of every place against hooks written by hand that change the same tensor: the same logits, to the last bit.

And what a patch leaves behind: nothing, whatever happens inside it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from headscope.core.site import Site
from headscope.model.model import Model, open_model
from tests.model.hand_hooks import (
    FAMILIES,
    ONLY_READER_OF_MID,
    RMS,
    SCALES,
    Act,
    Spot,
    hooked,
    scale_by_hand,
    spots_by_hand,
)
from tests.model.test_fidelity import relative_error
from tests.model.test_session import assert_untouched, state_of
from tests.tolerances import SAME_FUNCTION

# Pre-norm with grouped queries, fused projections, sandwich norms, factors, parallel blocks, experts, post-norm, shared
# layers, cross-attention, and two that compute their attention themselves.
CHANGED = (
    "llama_gqa",
    "gpt2",
    "gemma2",
    "granite_scaled",
    "gpt_neox",
    "mixtral",
    "bert",
    "albert",
    "t5",
    "bart",
    "bloom",
    "falcon",
)
N_TOKENS = 6
POSITIONS = (1, -1)
_OPENED: dict[str, Model] = {}


def opened(name: str) -> Model:
    if name not in _OPENED:
        _OPENED[name] = open_model(FAMILIES[name].build())
    return _OPENED[name]


def tokens() -> Tensor:
    return torch.randint(3, 99, (2, N_TOKENS), generator=torch.Generator().manual_seed(5))


def logits(model: Model) -> Tensor:
    with model.session() as session:
        return session.run(tokens()).logits


def last_sites(by_site: dict[Site, Any]) -> list[Site]:
    """The last site of each stack and kind that has a place."""
    return list({(site.stack, site.kind): site for site in by_site}.values())


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(11))


def bent(tensor: Tensor) -> Tensor:
    return tensor * 2 - 0.5


def at_positions(act: Act, axis: int = 1) -> Act:
    """The function at some tokens only."""

    def changed(tensor: Tensor) -> Tensor:
        index = torch.tensor([position % tensor.shape[axis] for position in POSITIONS])
        return tensor.index_copy(axis, index, act(tensor.index_select(axis, index)))

    return changed


def by_text(act: Act) -> Act:
    """The function of tokens by text, for families that read all texts as one list."""

    def changed(tensor: Tensor) -> Tensor:
        return act(tensor.reshape(2, -1, tensor.shape[-1])).reshape(tensor.shape)

    return changed


@contextmanager
def no_trace(model: Model) -> Iterator[None]:
    """Check that hooks, configuration, weights and modes are as before, and that the model computes what it did."""
    before, state = logits(model), state_of(model)
    yield
    assert_untouched(model, state)
    assert torch._C._len_torch_function_stack() == 0
    assert torch.equal(logits(model), before)


def patched_logits(model: Model, site: Site, place: str, value: Any, **options: Any) -> Tensor:
    with model.session() as session:
        session.patch(site, place, value, **options)
        return session.run(tokens()).logits


Case = tuple[Any, dict[str, Any], Act]  # the value of a patch, its options, and what a hook does by hand


def cases_of(model: Model, site: Site, place: str, number: int) -> list[Case]:
    """Two of four kinds of patches; over places and families all of them meet."""
    if number % 2:
        return [("zero", {}, torch.zeros_like), (bent, {"positions": POSITIONS}, by_text(at_positions(bent)))]
    value = noise(2, len(POSITIONS), captured(model, site, place).shape[-1])
    return [(bent, {}, bent), (value, {"positions": POSITIONS}, by_text(at_positions(lambda part: value)))]


def captured(model: Model, site: Site, what: str) -> Tensor:
    with model.session() as session:
        capture = session.capture(what, at=site)
        session.run(tokens())
        return capture.take()[what][site]


@pytest.mark.parametrize("name", CHANGED)
def test_patches_equal_hooks_that_change_the_same_tensor(name: str) -> None:
    model = opened(name)
    spots = spots_by_hand(name, model)
    # What a row names is all that passes there, but for the stream after the attention: the next addition reads it too.
    places = [place for place in spots if place not in SCALES and (place != "resid_mid" or name in ONLY_READER_OF_MID)]
    with no_trace(model), model.session() as session:
        plain = session.run(tokens()).logits
        for number, place in enumerate(places, start=CHANGED.index(name)):
            for site in last_sites(spots[place]):
                spot = spots[place][site]
                # Before a factor only a zero and a doubling are the same thing as after it.
                factor_cases: list[Case] = [("zero", {}, torch.zeros_like), (doubled, {}, doubled)]
                cases = cases_of(model, site, place, number) if spot.factor == 1.0 else factor_cases
                for value, options, act in cases:
                    patched = patched_logits(model, site, place, value, **options)
                    with hooked(model.hf, spot, act):
                        by_hand = session.run(tokens()).logits
                    assert torch.equal(patched, by_hand), (place, site.label, value, options)
                    assert not torch.equal(patched, plain), (place, site.label, value, options)


@pytest.mark.parametrize("name", ["llama_gqa", "gpt2", "bert", "t5", "bloom"])
def test_patches_of_scales_equal_the_norm_with_another_scale(name: str) -> None:
    """g ⊙ d / σ + b with σ twice as large and a half more, written out; the gain is estimated, so not to the bit."""
    model = opened(name)
    spots = spots_by_hand(name, model)
    with no_trace(model), model.session() as session:
        for place in SCALES:
            for site in last_sites(spots[place]):
                modules = spots[place][site].modules
                norm = model.hf.get_submodule(modules[0][0])
                entering: list[Tensor] = []

                def note(stream: Tensor, entering: list[Tensor] = entering) -> Tensor:
                    entering.append(stream)
                    return stream

                def rescaled(normed: Tensor, norm: Any = norm, entering: list[Tensor] = entering) -> Tensor:
                    scale = scale_by_hand(norm, entering[0], name in RMS)
                    bias = 0 if getattr(norm, "bias", None) is None else norm.bias.double()
                    return ((normed.double() - bias) * scale / (2 * scale + 0.5) + bias).float()

                patched = patched_logits(model, site, place, lambda scale: 2 * scale + 0.5)
                with hooked(model.hf, Spot(modules, "in"), note), hooked(model.hf, Spot(modules, "out"), rescaled):
                    by_hand = session.run(tokens()).logits
                assert relative_error(patched, by_hand) <= SAME_FUNCTION, (place, site.label)


def doubled(tensor: Tensor) -> Tensor:
    return tensor * 2


@contextmanager
def changed_middle(layer: Any, act: Act) -> Iterator[None]:
    """The layer of Llama, written out, with its stream changed between attention and feed-forward part."""

    def forward(hidden_states: Tensor, **options: Any) -> Tensor:
        attended, _ = layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), **options)
        middle = act(hidden_states + attended)
        return middle + layer.mlp(layer.post_attention_layernorm(middle))

    layer.forward = forward
    try:
        yield
    finally:
        del layer.forward


def test_patches_of_the_stream_between_the_parts_reach_both_of_its_readers() -> None:
    model = opened("llama_gqa")
    layer = model.hf.get_submodule("model.layers.0")
    value = noise(2, N_TOKENS, 32)
    cases: list[Case] = [
        (bent, {}, bent),
        (value, {}, lambda middle: value),
        ("zero", {"positions": POSITIONS}, at_positions(torch.zeros_like)),
    ]
    with no_trace(model), model.session() as session:
        with changed_middle(layer, lambda middle: middle):
            assert torch.equal(session.run(tokens()).logits, logits(model))
        for new_value, options, act in cases:
            with changed_middle(layer, act):
                by_hand = session.run(tokens()).logits
            assert torch.equal(patched_logits(model, model.sites[0], "resid_mid", new_value, **options), by_hand)


@pytest.mark.parametrize("name", ["llama_gqa", "gemma2", "granite_scaled", "mixtral", "gpt2", "falcon_sequential"])
def test_another_stream_between_the_parts_is_attention_that_adds_the_difference(name: str) -> None:
    """x + (−x) is 0 to the last bit, so a hook on what the attention adds can set some tokens to 0.

    Divided by a factor and multiplied by it again, a number may round: there the new stream is not 0, since a norm
    would divide by the rounding.
    """
    model = opened(name)
    spots = spots_by_hand(name, model)
    site = model.sites[0]
    factor = spots["attn_add"][site].factor
    stream = torch.zeros(2, N_TOKENS, 32) if factor == 1.0 else noise(2, N_TOKENS, 32)
    entering: list[Tensor] = []
    index = torch.tensor([position % N_TOKENS for position in POSITIONS])

    def note(tensor: Tensor) -> Tensor:
        entering[:] = [tensor]
        return tensor

    def difference(added: Tensor) -> Tensor:
        missing = (stream - entering[0]) / factor
        return added.index_copy(1, index, missing[:, index])

    with no_trace(model), model.session() as session:
        patched = patched_logits(model, site, "resid_mid", stream[:, index], positions=POSITIONS)
        with hooked(model.hf, spots["resid"][site], note), hooked(model.hf, spots["attn_add"][site], difference):
            by_hand = session.run(tokens()).logits
    assert relative_error(patched, logits(model)) > 0.01
    assert relative_error(patched, by_hand) <= (0.0 if factor == 1.0 else SAME_FUNCTION)
