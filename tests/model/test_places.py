"""Every place of the registry against hooks written by hand: values, what is missing, and gradients.

`hand_hooks` has the table of modules. Inside the session a place is read and hooked by hand in one forward, so that both
see the same tensor, to the last bit.
"""

import sys
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import Tensor

from headscope.core.site import Site
from headscope.model.model import Model, open_model
from headscope.model.session.captures import QUANTITIES, WatchedQuantity
from headscope.model.transformers.probe_inputs import forward_options, probe_inputs
from tests.model.hand_hooks import (
    BY_HAND,
    FAMILIES,
    OUTSIDE_NAMES,
    PLACES,
    RMS,
    SCALES,
    Spot,
    hooked,
    output_matrix,
    output_projection,
    recorded,
    scale_by_hand,
    spots_by_hand,
)
from tests.model.test_fidelity import relative_error

# A scale in float32 against its formula in float64; parts of heads, scores and maps in float32 against the same products
# taken in another order; gradients in float64, which round at 1e-16 and pass two layers.
AGREEMENT = 1e-6

# Why a place is missing where the table has no module for it.
REASONS = {
    "embed": "no table of token vectors is read",
    "x_scale": "no norm stands directly before it",
    "mlp_scale": "no norm stands directly before it",
    "resid_mid": "adds the attention and the feed-forward part together",
    "mlp_act": "not one matrix out and one back",
    "final_scale": "no norm stands directly after the last layer",
    "logits": "no output head",
}
DISPATCHING_NAMES = [name for name in BY_HAND if name not in OUTSIDE_NAMES]
_OPENED: dict[str, Model] = {}


def opened(name: str) -> Model:
    if name not in _OPENED:
        _OPENED[name] = open_model(FAMILIES[name].build())
    return _OPENED[name]


def forward(model: Model) -> Any:
    return model.hf(**probe_inputs(model.hf, batch=2, seed=3), **forward_options(model.hf))


def spots_of(model: Model, place: str) -> Any:
    quantity = QUANTITIES[place]
    assert isinstance(quantity, WatchedQuantity)
    return model.spots(quantity)


def shown(model: Model) -> list[str]:
    return [place for place in PLACES if spots_of(model, place).by_site]


def labels(by_site: Any) -> list[str]:
    return [site.label for site in by_site]


def test_the_table_names_every_family_and_every_place() -> None:
    assert set(BY_HAND) == set(FAMILIES)
    outside = {"head_out"}  # computed from z and the weights, and compared with them
    assert {name for name, entry in QUANTITIES.items() if isinstance(entry, WatchedQuantity)} == set(PLACES) | outside


@pytest.mark.parametrize("name", BY_HAND)
def test_a_place_is_missing_only_where_nobody_can_hook_it(name: str) -> None:
    model = opened(name)
    by_hand = spots_by_hand(name, model)
    for place in PLACES:
        spots = spots_of(model, place)
        assert labels(spots.by_site) == labels(by_hand[place]), (place, spots.missing)
        assert not set(spots.by_site) & set(spots.missing)
        for reason in spots.missing.values():
            assert REASONS[place] in reason
    assert labels(spots_of(model, "head_out").by_site) == labels(model.sites)


@pytest.mark.parametrize("name", BY_HAND)
def test_values_are_those_of_hooks_written_by_hand(name: str) -> None:
    model, noted = opened(name), dict[tuple[str, Site], list[Tensor]]()
    by_hand, places = spots_by_hand(name, model), shown(model)
    with torch.no_grad(), ExitStack() as stack:
        for place, spots in by_hand.items():
            for site, spot in spots.items():
                read = Spot(spot.modules, spot.side or "in", spot.factor)
                noted[place, site] = stack.enter_context(recorded(model.hf, read))
        capture = stack.enter_context(model.session()).capture(*places)
        forward(model)
    taken = capture.take()
    assert {(place, site) for place, by_site in taken.items() for site in by_site} == set(noted)
    for (place, site), (tensor,) in noted.items():
        captured = taken[place][site]
        if place in SCALES:
            norm = model.hf.get_submodule(by_hand[place][site].modules[0][0])
            formula = scale_by_hand(norm, tensor, name in RMS).reshape(captured.shape)
            assert ((captured.double() - formula) / formula).abs().max() <= AGREEMENT, (place, site.label)
        else:
            assert captured.ndim == 3, place
            # Some families read all texts as one list of tokens.
            assert torch.equal(captured, tensor.reshape(captured.shape)), (place, site.label)


@pytest.mark.parametrize("name", BY_HAND)
def test_heads_give_what_the_output_projection_reads_and_sum_to_what_it_gives(name: str) -> None:
    model = opened(name)
    read = {
        site: Spot(spot.modules, "in") for site, spot in spots_by_hand(name, model)["attn_out"].items()
    }
    with torch.no_grad(), ExitStack() as stack:
        noted = {site: stack.enter_context(recorded(model.hf, spot)) for site, spot in read.items()}
        capture = stack.enter_context(model.session()).capture("z", "head_out", "attn_out")
        forward(model)
    taken = capture.take()
    for site, (tensor,) in noted.items():
        z = taken["z"][site]
        assert torch.equal(z.transpose(1, 2).reshape(tensor.shape), tensor)
        linear = output_projection(name, model, site)
        matrices = output_matrix(linear).reshape(site.n_heads, site.d_value, -1)
        parts = taken["head_out"][site]
        for head in range(site.n_heads):
            assert relative_error(parts[:, head], z[:, head] @ matrices[head]) <= AGREEMENT
        bias = 0 if linear.bias is None else linear.bias.detach()
        assert relative_error(parts.sum(1) + bias, taken["attn_out"][site]) <= AGREEMENT
