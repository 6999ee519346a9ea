"""What a model is said to be: how it tells positions apart, and how many parameters it has."""

import itertools
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from headscope.model.look import look, measured_speed
from headscope.model.model import open_model, open_weights
from headscope.model.tracing.position_kinds import is_sinusoidal
from tests.model.families import BART, ENCODER_DECODERS, OUTSIDE, SMALL


def formula(rows: int, d: int, layout: str) -> Tensor:
    angle = torch.arange(rows)[:, None] / 10_000 ** (torch.arange(d // 2) / (d // 2))
    sines, cosines = angle.sin(), angle.cos()
    return torch.cat((sines, cosines), 1) if layout == "halves" else torch.stack((sines, cosines), 2).flatten(1)


@pytest.mark.parametrize("layout", ["halves", "interleaved"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_formula_is_recognised(layout: str, dtype: torch.dtype) -> None:
    table = formula(64, 32, layout)
    padded = torch.cat((torch.zeros(2, 32), table))
    assert is_sinusoidal(table.to(dtype))
    assert is_sinusoidal(padded.to(dtype))


def test_a_smooth_table_is_not_the_formula() -> None:
    generator = torch.Generator().manual_seed(0)
    table = formula(64, 32, "halves")
    assert not is_sinusoidal(1.3 * table)
    assert not is_sinusoidal(table + 0.01 * torch.randn(64, 32, generator=generator))
    assert not is_sinusoidal(torch.randn(64, 32, generator=generator))


def built(name: str, config: str, **options: object) -> object:
    torch.manual_seed(0)
    return getattr(transformers, name)(getattr(transformers, config)(**options)).eval()


def outside(*names: str) -> list[tuple[str, str, dict[str, Any]]]:
    return [(family.model, family.config, family.options) for family in OUTSIDE if family.name in names]


KINDS = {
    "sinusoidal": [("MarianMTModel", "MarianConfig", BART), ("M2M100ForConditionalGeneration", "M2M100Config", BART)],
    "learned": [("BartModel", "BartConfig", BART), ("BertModel", "BertConfig", SMALL)],
    "rotary": [
        ("LlamaModel", "LlamaConfig", SMALL),
        ("RoFormerModel", "RoFormerConfig", SMALL),
        *outside("gptj", "codegen"),
    ],
    "relative bias": outside("bloom", "mpt", "falcon_alibi"),
    "sinusoidal and learned": [
        ("WhisperModel", "WhisperConfig", next(f for f in ENCODER_DECODERS if f.name == "whisper").options)
    ],
}


@pytest.mark.parametrize(
    ("kind", "model", "config", "options"), [(kind, *case) for kind, cases in KINDS.items() for case in cases]
)
def test_positions_are_named(kind: str, model: str, config: str, options: dict[str, object]) -> None:
    assert open_model(built(model, config, **options)).spec.positions == kind


def test_a_sinusoidal_table_of_a_plain_class_is_recognised() -> None:
    options = {
        "vocab_size": 99,
        "dim": 32,
        "n_layers": 1,
        "n_heads": 4,
        "hidden_dim": 48,
        "max_position_embeddings": 64,
    }
    model = built("DistilBertModel", "DistilBertConfig", sinusoidal_pos_embds=True, **options)
    assert open_model(model).spec.positions == "sinusoidal"


def test_parameters_are_counted_in_one_way() -> None:
    """Tied weights once, whether the model is built, read from its file or only looked at."""
    counts = {
        open_model("tiny").spec.n_parameters,
        open_weights("tiny").spec.n_parameters,
        look("tiny").spec.n_parameters,
    }
    assert counts == {885_888}
    assert "885,888 parameters" in str(look("tiny"))


@pytest.mark.parametrize("tied", [True, False])
def test_shared_weights_count_once(tied: bool, tmp_path: Path) -> None:
    hf = built("LlamaForCausalLM", "LlamaConfig", **SMALL, tie_word_embeddings=tied)
    hf.save_pretrained(tmp_path)  # type: ignore[attr-defined]
    head = 99 * 32
    distinct = {id(weight): weight.numel() for weight in hf.parameters()}  # type: ignore[attr-defined]
    wanted = sum(distinct.values())
    assert open_model(hf).spec.n_parameters == look(tmp_path).spec.n_parameters == wanted
    assert (wanted - head == sum(w.numel() for w in hf.model.parameters())) is not tied  # type: ignore[attr-defined]


def test_the_speed_is_known_where_the_time_passes_before_the_first_product(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(step=10.0)
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    assert measured_speed(size=8, seconds=0.2) == pytest.approx(2 * 8**3 / 10 / 1e9)
