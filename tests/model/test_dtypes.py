"""Models in bfloat16 and float16 are opened, measured and refused as those in float32 are."""

from typing import Any

import pytest
import torch
from torch import Tensor

import headscope as hs
from headscope.attention.call import Call, Output
from headscope.errors import CaptureError
from headscope.model import rounding
from headscope.model.model import open_model
from headscope.model.tracing import attention_sites
from headscope.model.transformers.attention_hook import DENSE
from headscope.model.transformers.probe_inputs import forward_options, probe_inputs
from tests.model.families import DISPATCHING, OUTSIDE, Family
from tests.model.opened_families import opened
from tests.model.test_fidelity import by_name

NAMED = {family.name: family for family in (*DISPATCHING, *OUTSIDE)}
# A router that chooses experts, a cap, sinks, a relative bias, an image, sound, two look-only families, limits, norms.
VARIED = [
    NAMED[name]
    for name in ("mixtral", "gemma2", "gpt_oss", "t5", "vit", "whisper", "bloom", "deberta_v2", "olmo_clipped", "qwen3")
]
NARROW = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("family", VARIED, ids=by_name)
def test_narrow_models_in_memory_open(family: Family, dtype: torch.dtype) -> None:
    """With the sites and the weight statuses of the same model in float32, and maps that are near its maps."""
    model, wide = open_model(family.build().to(dtype)), opened(family)
    assert model.sites == wide.sites
    assert [model.weight_status(site).status for site in model.sites] == [
        wide.weight_status(site).status for site in wide.sites
    ]
    first = model.sites[0]
    maps = []
    for each in (model, wide):
        inputs = probe_inputs(wide.hf, batch=2, seed=3)
        inputs = {key: _like(value, each.hf.dtype) for key, value in inputs.items()}
        with each.session() as session, torch.no_grad():
            captured = session.capture("pattern", at=first)
            each.hf(**inputs, **forward_options(each.hf))
            maps.append(captured.take()["pattern"][first].double())
    # Scores are of order one, and each is a sum of products of rounded numbers.
    assert float((maps[0] - maps[1]).abs().max()) <= 8 * torch.finfo(dtype).eps


def _like(value: Tensor, dtype: torch.dtype) -> Tensor:
    return value.to(dtype) if value.is_floating_point() else value


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_checkpoint_opens_in_a_narrow_dtype(dtype: str) -> None:
    model = hs.open("tiny", dtype=dtype)
    assert model.spec.dtype == dtype
    assert any(f"rounded to {dtype}" in note for note in model.spec.notes)
    run = hs.measure(model, text="The cat sat on the mat, and the dog on the rug. " * 12, lenses=["focus", "maps"])
    assert {run[name].status for name in ("focus", "maps")} == {"ok"}


class Shrunk:
    """Dense attention whose output is wrong by less than one rounding of bfloat16."""

    def __call__(self, call: Call) -> Output:
        return Output(DENSE(call).out * (1 - 2e-3))


def test_a_narrow_model_is_judged_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_sites, "DENSE", Shrunk())
    with pytest.raises(CaptureError, match="differs from transformers' eager attention"):
        open_model(NAMED["llama_gqa"].build().to(torch.bfloat16))


def test_without_memory_for_a_copy_the_notes_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounding, "physical_bytes", lambda: 1000)
    model = open_model(NAMED["llama_gqa"].build().to(torch.bfloat16))
    (note,) = model.spec.notes
    assert note.startswith("there was no memory to check its attention in float32: it agrees")
    assert open_model(NAMED["llama_gqa"].build()).spec.notes == ()


def test_tolerances_depend_on_the_dtype() -> None:
    assert rounding.agreement(torch.float32, 60) == rounding.agreement(torch.float64, 60) == rounding.AGREEMENT
    assert rounding.agreement(torch.bfloat16, 4) == 8 * 2**-7
    assert rounding.agreement(torch.float16, 4) == 8 * 2**-10


def test_widening_is_exact() -> None:
    narrow: Any = NAMED["llama_gqa"].build().to(torch.bfloat16)
    wide: Any = rounding.widened(narrow)
    assert all(
        torch.equal(a.to(torch.bfloat16), b) for a, b in zip(wide.parameters(), narrow.parameters(), strict=True)
    )
    assert rounding.widened(wide) is wide
