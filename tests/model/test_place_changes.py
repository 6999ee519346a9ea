"""Patches of every place against hooks written by hand that change the same tensor: the same logits, to the last bit.

And what a patch leaves behind: nothing, whatever happens inside it.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from headscope.core.site import Site
from headscope.errors import CaptureError, UsageError
from headscope.model.language import generate_tokens
from headscope.model.model import Model, open_model
from tests.model.hand_hooks import (
    FAMILIES,
    ONLY_READER_OF_MID,
    SCALES,
    Act,
    Spot,
    hooked,
    output_matrix,
    output_projection,
    scale_by_hand,
    spots_by_hand,
)
from tests.model.hand_hooks import RMS
from tests.model.test_fidelity import relative_error
from tests.model.test_session import assert_untouched, state_of
from tests.tolerances import SAME_FUNCTION

# Pre-norm with grouped queries, fused projections, sandwich norms, factors, parallel blocks, experts, post-norm, shared
# layers, cross-attention, and two that compute their attention themselves.
CHANGED = (
    "llama_gqa", "gpt2", "gemma2", "granite_scaled", "gpt_neox", "mixtral", "bert", "albert", "t5", "bart", "bloom", "falcon",
)  # fmt: skip
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


@pytest.mark.parametrize("name", CHANGED)
def test_patches_equal_hooks_that_change_the_same_tensor(name: str) -> None:
    model = opened(name)
    spots = spots_by_hand(name, model)
    plain = logits(model)
    # What a row names is all that passes there, but for the stream after the attention, which the next addition reads too.
    places = [place for place in spots if place not in SCALES and (place != "resid_mid" or name in ONLY_READER_OF_MID)]
    with no_trace(model):
        for place in places:
            for site in last_sites(spots[place]):
                spot = spots[place][site]
                width = model.hf.get_submodule("lm_head").out_features if place == "never" else None
                assert width is None
                cases: list[tuple[Any, dict[str, Any], Act]] = [("zero", {}, torch.zeros_like)]
                if spot.factor == 1.0:
                    cases += [
                        (bent, {}, bent),
                        (bent, {"positions": POSITIONS}, by_text(at_positions(bent))),
                    ]
                    cases.append(tensor_case(model, site, place))
                for value, options, act in cases:
                    patched = patched_logits(model, site, place, value, **options)
                    with hooked(model.hf, spot, act):
                        by_hand = logits(model)
                    assert torch.equal(patched, by_hand), (place, site.label, value, options)
                    assert place == "final" or not torch.equal(patched, plain), (place, site.label, value)


def tensor_case(model: Model, site: Site, place: str) -> tuple[Tensor, dict[str, Any], Act]:
    """A tensor for two positions."""
    with model.session() as session:
        capture = session.capture(place, at=site)
        session.run(tokens())
        width = capture.take()[place][site].shape[-1]
    value = noise(2, len(POSITIONS), width)
    return value, {"positions": POSITIONS}, by_text(at_positions(lambda part: value))
