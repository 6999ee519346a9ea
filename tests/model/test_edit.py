"""Edits: what they do to the weights, and exact restoration."""

import pytest
import torch
from torch import Tensor

from headscope.errors import UsageError, WeightsRefused
from headscope.model.model import Model, open_model
from headscope.model.transformers.probe_inputs import probe_inputs
from tests.model.test_fidelity import first_output, relative_error
from tests.model.test_session import opened

FAMILIES = ["llama_gqa", "gpt2", "gpt_neox", "phi3", "bert", "t5"]


def parameters(model: Model) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.hf.parameters()]


def stacked(w: Tensor) -> Tensor:
    """[heads, d_model, width] as one matrix [d_model, heads · width]."""
    return w.permute(1, 0, 2).flatten(1)


@pytest.mark.parametrize("name", FAMILIES)
def test_restoration_is_exact(name: str) -> None:
    model = opened(name)
    before = parameters(model)
    with pytest.raises(ZeroDivisionError), model.edit() as edit:
        edit.scale_spectrum("qkvo", 0.3)
        edit.truncate("all", "qk", rank=2)
        edit.randomise(seed=1)
        edit.randomise("all", "v", keep="UD", seed=2)
        edit.ablate("all")
        edit.initialise(seed=3)
        assert not all(torch.equal(a, b) for a, b in zip(parameters(model), before, strict=True))
        raise ZeroDivisionError
    assert all(torch.equal(a, b) for a, b in zip(parameters(model), before, strict=True))


@pytest.mark.parametrize("name", FAMILIES)
def test_scaling_touches_the_named_matrix_of_the_selected_heads_only(name: str) -> None:
    model = opened(name)
    site = model.sites[0]
    before = model.weights(site)
    kept = [getattr(before, f"w_{letter}").clone() for letter in "qkvo"]
    with model.edit() as edit:
        edit.scale_spectrum("q", 2.0, at=f"{site.label}.H1")
        after = model.weights(site)
        changed = [getattr(after, f"w_{letter}") for letter in "qkvo"]
        assert torch.allclose(changed[0][1], 2 * kept[0][1], rtol=1e-6)
        assert torch.equal(changed[0][[0, 2, 3]], kept[0][[0, 2, 3]])
        assert all(torch.equal(a, b) for a, b in zip(changed[1:], kept[1:], strict=True))
        assert torch.equal(after.b_q, before.b_q)


@pytest.mark.parametrize("letter", ["q", "k", "v", "o"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_mapped_spectrum_is_the_spectrum(name: str, letter: str) -> None:
    model = opened(name)
    site = model.sites[0]

    def spectrum() -> Tensor:
        w = getattr(model.weights(site), f"w_{letter}")
        return torch.linalg.svdvals((w.flatten(0, 1) if letter == "o" else stacked(w)).double())

    before = spectrum()
    with model.edit() as edit:
        edit.map_spectrum(site.label, letter, lambda s: s.sqrt())
        assert torch.allclose(spectrum(), before.sqrt(), rtol=1e-4)
        edit.truncate(site.label, letter, rank=3)
        assert torch.allclose(spectrum()[:3], before.sqrt()[:3], rtol=1e-4)
        assert float(spectrum()[3:].max()) < 1e-5


def test_keeping_u_and_d_keeps_spectrum_and_output_side() -> None:
    model = opened("llama_gqa")
    site = model.sites[0]
    before = stacked(model.weights(site).w_q).double()
    with model.edit() as edit:
        edit.randomise("L0", "q", keep="UD", seed=4)
        after = stacked(model.weights(site).w_q).double()
    assert torch.allclose(torch.linalg.svdvals(after), torch.linalg.svdvals(before), rtol=1e-5)
    # Written [out, in], W Wᵀ = U D² Uᵀ holds U and D and not V: here that is wᵀ w.
    assert torch.allclose(after.T @ after, before.T @ before, atol=1e-5)
    assert relative_error(after @ after.T, before @ before.T) > 0.1


def test_randomising_uses_the_models_own_initialisation() -> None:
    model = opened("llama_gqa")
    with model.edit() as edit:
        edit.randomise(seed=5)
        drawn = model.weights(model.sites[0]).w_q.clone()
        edit.randomise(seed=5)
        assert torch.equal(model.weights(model.sites[0]).w_q, drawn)
        edit.randomise(seed=6)
        assert not torch.equal(model.weights(model.sites[0]).w_q, drawn)
    expected = model.hf.config.initializer_range
    assert float(drawn.std()) == pytest.approx(expected, rel=0.1)


def test_an_ablated_head_is_a_zeroed_output() -> None:
    model = opened("llama_gqa")
    inputs = probe_inputs(model.hf, batch=2)
    with torch.no_grad():
        with model.session() as session:
            session.ablate("L1.H2")
            by_session = first_output(model.hf(**inputs))
        with model.edit() as edit:
            edit.ablate("L1.H2")
            by_edit = first_output(model.hf(**inputs))
        plain = first_output(model.hf(**inputs))
    assert relative_error(by_edit, by_session) <= 1e-6 < relative_error(plain, by_session)


def test_layers_that_share_weights_are_edited_together() -> None:
    model = opened("albert")
    with model.edit() as edit:
        with pytest.raises(UsageError, match="L0 and L1 share their weights"):
            edit.scale_spectrum("q", 2.0, at="L0")
        before = model.weights(model.sites[0]).w_q.clone()
        edit.scale_spectrum("q", 2.0)
        assert torch.allclose(model.weights(model.sites[0]).w_q, 2 * before)


def test_wrong_edits_say_what_is_wrong() -> None:
    model = opened("llama_gqa")
    with pytest.raises(UsageError, match="not open"):
        model.edit().ablate("all")
    with model.edit() as edit:
        with pytest.raises(UsageError, match="cannot edit 'w'"):
            edit.scale_spectrum("w", 2.0)
        with pytest.raises(UsageError, match=r"must return \(32,\) singular values, got \(3,\)"):
            edit.map_spectrum("L0", "q", lambda s: s[:3])
        with pytest.raises(UsageError, match="not finite"):
            edit.map_spectrum("L0", "q", lambda s: s / 0)
        with pytest.raises(UsageError, match="at least 0"):
            edit.truncate("L0", "q", -1)
        with pytest.raises(UsageError, match="already being edited"), model.edit():
            pass
    with opened("deepseek_v3").edit() as edit, pytest.raises(WeightsRefused, match="cannot be edited"):
        edit.ablate("all")


def test_initialise_gives_what_the_architecture_draws() -> None:
    model = open_model("random:" + str(model_config()), seed=11)
    other = open_model("random:" + str(model_config()), seed=12)
    with other.edit() as edit:
        edit.initialise(seed=11)
        assert all(torch.equal(a, b) for a, b in zip(parameters(other), parameters(model), strict=True))


def model_config() -> str:
    from headscope.model.sources import names

    return str(names.resolve("tiny").folder / "config.json")
