"""Every place of the registry against hooks written by hand on the modules of many families."""

import pytest
import torch
from torch import Tensor

from headscope.model.model import Model, open_model
from headscope.model.session.captures import QUANTITIES, WatchedQuantity
from headscope.model.transformers.probe_inputs import forward_options, probe_inputs
from tests.model.hand_hooks import BY_HAND, FAMILIES, PLACES, RMS, SCALES, Spot, recorded, scale_by_hand, spots_by_hand

SCALE_AGREEMENT = 1e-6
_OPENED: dict[str, Model] = {}


def opened(name: str) -> Model:
    if name not in _OPENED:
        _OPENED[name] = open_model(FAMILIES[name].build())
    return _OPENED[name]


def forward(model: Model) -> None:
    with torch.no_grad():
        model.hf(**probe_inputs(model.hf, batch=2, seed=3), **forward_options(model.hf))


def watched(place: str) -> WatchedQuantity:
    quantity = QUANTITIES[place]
    assert isinstance(quantity, WatchedQuantity)
    return quantity


@pytest.mark.parametrize("name", BY_HAND)
def test_places_are_where_a_person_hooks_them(name: str) -> None:
    model = opened(name)
    by_hand = spots_by_hand(name, model)
    for place in PLACES:
        spots = model.spots(watched(place))
        assert [s.label for s in spots.by_site] == [s.label for s in by_hand[place]], (place, {s.label: r for s, r in spots.missing.items()})


@pytest.mark.parametrize("name", BY_HAND)
def test_values_are_those_of_hooks_written_by_hand(name: str) -> None:
    from contextlib import ExitStack
    model = opened(name)
    by_hand = spots_by_hand(name, model)
    tensors = {}
    wrong = []
    names = [place for place in PLACES if model.spots(watched(place)).by_site]
    with ExitStack() as stack:
        for place, spots in by_hand.items():
            for site, spot in spots.items():
                side = spot.side or "in"
                tensors[place, site] = stack.enter_context(recorded(model.hf, Spot(spot.modules, side, spot.factor)))
        session = stack.enter_context(model.session())
        capture = session.capture(*names)
        forward(model)
        taken = capture.take()
    for (place, site), noted in tensors.items():
        if not noted:
            wrong.append((place, site.label, "hand hook not reached")); continue
        if site not in taken.get(place, {}):
            wrong.append((place, site.label, "missing")); continue
        got = taken[place][site]
        if place in SCALES:
            norm = model.hf.get_submodule(by_hand[place][site].modules[0][0])
            expected = scale_by_hand(norm, noted[0], name in RMS)
            if expected.numel() != got.numel() or float(((got.double() - expected.reshape(got.shape)) / expected.reshape(got.shape)).abs().max()) > SCALE_AGREEMENT:
                wrong.append((place, site.label, "scale", float(((got.double().flatten() - expected.flatten()) / expected.flatten()).abs().max())))
        elif got.numel() != noted[0].numel() or not torch.equal(got, noted[0].reshape(got.shape)):
            wrong.append((place, site.label, tuple(got.shape), tuple(noted[0].shape), float((got.flatten()-noted[0].flatten()).abs().max()) if got.numel()==noted[0].numel() else None))
    assert not wrong, wrong
