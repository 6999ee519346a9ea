"""What the rest of a layer makes of its heads: the model's own modules, in any family, and nothing left behind."""

import pytest
import torch

from headscope.errors import WeightsRefused
from headscope.model import rest_of_layer
from headscope.model.transformers.probe_inputs import probe_inputs
from tests.model.test_session import assert_untouched, opened, state_of


def captured_layers(name: str):
    """A model, what entered its layers, what its heads gave, and what left its layers."""
    model = opened(name)
    inputs = probe_inputs(model.hf, batch=3)
    with torch.no_grad(), model.session() as session:
        capture = session.capture("resid", "z", "final")
        model.hf.base_model(**inputs)
        taken = capture.take()
    sites = [site for site in model.sites if site.kind == "self"]
    behind = {
        site: next(
            (taken["resid"][other] for other in sites if (other.stack, other.layer) == (site.stack, site.layer + 1)),
            taken["final"].get(site),
        )
        for site in sites
    }
    return model, taken, behind


@pytest.mark.parametrize("name", ["gpt2", "llama_gqa", "bert", "gemma2", "phi", "mixtral", "t5"])
def test_a_layer_gives_what_it_gave(name: str) -> None:
    model, taken, behind = captured_layers(name)
    source, before = model.weight_source(), state_of(model)
    for site, out in behind.items():
        if site.stack == "dec":  # attends to the encoder in between
            continue
        stream, z = taken["resid"][site], taken["z"][site]
        found = source.after_heads(site, stream, z)
        assert torch.allclose(found.out, out, atol=1e-6)
        assert (found.normed is None) == (name == "mixtral"), "experts in one stack show no input"
        other = source.after_heads(site, stream, torch.zeros_like(z))
        assert not torch.allclose(other.out, out, atol=1e-3), "the heads given are those that count"
    assert_untouched(model, before)


def test_tokens_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer tokens at once than there are: the last part is filled up, and what fills it is dropped."""
    monkeypatch.setattr(rest_of_layer, "WINDOWS", 2)
    model, taken, behind = captured_layers("llama_gqa")
    site = model.sites[0]
    found = model.weight_source().after_heads(site, taken["resid"][site], taken["z"][site])
    assert torch.allclose(found.out, behind[site], atol=1e-6)
    assert found.normed is not None
    assert found.normed.shape == found.out.shape


@pytest.mark.parametrize(("name", "why"), [("albert", "several layers"), ("marian", "attends more than once")])
def test_what_is_no_layer_of_its_own_is_refused(name: str, why: str) -> None:
    model, taken, _ = captured_layers(name)
    site = [site for site in model.sites if site.kind == "self"][-1]
    with pytest.raises(WeightsRefused, match=why):
        model.weight_source().after_heads(site, taken["resid"][site], taken["z"][site])
