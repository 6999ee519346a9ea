"""GGUF files: expanded into exactly what was put in, kept in the cache, and always known as dequantised."""

import errno
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from headscope.errors import WeightsRefused
from headscope.fetch import cache
from headscope.model.formats import gguf
from headscope.model.formats.gguf_header import read_gguf_header
from headscope.model.load import load
from headscope.model.model import open_model
from headscope.model.sources.names import resolve
from headscope.model.transformers.fresh_copy import differences
from tests.hostile.broken import change_json, save_gguf, save_llama

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> LlamaForCausalLM:
    return save_llama(tmp_path_factory.mktemp("hf"))


@pytest.fixture(scope="module")
def exact(saved: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("gguf") / "exact.gguf"
    save_gguf(file, saved)
    return file


@pytest.fixture(scope="module")
def quantised(saved: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("gguf") / "quantised.gguf"
    save_gguf(file, saved, "Q8_0")
    return file


def test_float32_comes_back_bit_by_bit(exact: Path, saved: LlamaForCausalLM) -> None:
    loaded = load(resolve(exact))
    state, expected = loaded.model.state_dict(), saved.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], expected[name]) for name in expected)
    assert (loaded.dequantised, loaded.dtype_on_disk, loaded.tokenizer) == ("", "F32", None)
    assert not loaded.model.training


def test_quantised_is_near_and_said_to_be(quantised: Path, saved: LlamaForCausalLM) -> None:
    loaded = load(resolve(quantised))
    assert loaded.dequantised == "Q8_0 (99%)"
    assert loaded.dtype_on_disk == "Q8_0, F32"
    got = loaded.model.model.layers[0].self_attn.q_proj.weight
    wanted = saved.model.layers[0].self_attn.q_proj.weight
    error = float(((got - wanted).norm() / wanted.norm()).detach())
    assert 0 < error < 0.01


def test_the_second_opening_comes_from_the_cache(quantised: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    first = load(resolve(quantised), progress=lambda what, done, total: heard.append(what))
    assert heard == ["expanding quantised.gguf (once)"]
    monkeypatch.setattr(gguf, "build", None)  # a second expansion would fail
    again = load(resolve(quantised))
    assert (again.sha256, again.dequantised, again.notes) == (first.sha256, first.dequantised, first.notes)
    a, b = first.model.state_dict(), again.model.state_dict()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert first.checkpoint is not None
    assert first.checkpoint.folder == gguf.expansion(quantised).folder


def counting(calls: list[object], function: Any) -> Any:
    def counted(*args: Any, **options: Any) -> Any:
        calls.append(args)
        return function(*args, **options)

    return counted


def test_the_first_opening_builds_and_parses_once(quantised: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gguf as library

    builds: list[object] = []
    parses: list[object] = []
    reader = library.GGUFReader
    monkeypatch.setattr(LlamaForCausalLM, "from_pretrained", counting(builds, LlamaForCausalLM.from_pretrained))
    monkeypatch.setattr(reader, "__init__", counting(parses, reader.__init__))
    first = load(resolve(quantised))
    assert (len(builds), len(parses)) == (1, 1)
    assert library.GGUFReader is reader  # as it was, once the file is expanded
    again = load(resolve(quantised))
    assert (len(builds), len(parses)) == (2, 1)
    assert first.model.config.architectures == again.model.config.architectures
    assert differences(first.model, again.model) == []


def test_another_dtype_is_filled_from_the_expansion(exact: Path) -> None:
    first, again = (load(resolve(exact), dtype=torch.bfloat16) for _ in range(2))
    assert first.model.dtype == torch.bfloat16
    assert first.notes == again.notes == ("stored as F32 and rounded to bfloat16 on opening",)
    assert differences(first.model, again.model) == []


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_an_expansion_changed_at_equal_size_is_made_again(name: str, quantised: Path) -> None:
    first = load(resolve(quantised))
    file = gguf.expansion(quantised).folder / name
    content = file.read_bytes()
    changed = bytearray(content)
    if name == "config.json":
        changed[:] = content.replace(b'"rope_theta": 10000.0', b'"rope_theta": 90000.0')
    else:
        changed[-1] ^= 0x80  # the sign of the last weight
    assert len(changed) == len(content)
    assert bytes(changed) != content
    file.write_bytes(changed)
    heard: list[str] = []
    again = load(resolve(quantised), progress=lambda what, done, total: heard.append(what))
    assert heard == ["expanding quantised.gguf (once)"]
    assert file.read_bytes() == content
    assert again.model.config.rope_parameters == first.model.config.rope_parameters
    a, b = first.model.state_dict(), again.model.state_dict()
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_file_put_into_an_expansion_is_noticed(quantised: Path) -> None:
    folder = gguf.expansion(quantised).folder
    (folder / "generation_config.json").write_text('{"eos_token_id": 5}')
    assert load(resolve(quantised)).model.generation_config.eos_token_id != 5
    assert not (folder / "generation_config.json").exists()


def test_an_expansion_without_hashes_is_made_again(quantised: Path) -> None:
    """Earlier versions noted sizes only: what they kept cannot be checked."""
    folder = gguf.expansion(quantised).folder
    change_json(folder / "headscope-cache.json", lambda noted: noted.pop("sha256"))
    heard: list[str] = []
    load(resolve(quantised), progress=lambda what, done, total: heard.append(what))
    assert heard == ["expanding quantised.gguf (once)"]
    assert cache.about(folder, contents=True) is not None


def test_a_changed_file_is_expanded_anew(exact: Path, tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    content = bytearray(exact.read_bytes())
    file.write_bytes(content)
    first = load(resolve(file))
    content[-1] ^= 0x80  # the sign of the last weight
    file.write_bytes(content)
    second = load(resolve(file))
    assert first.sha256 != second.sha256
    a, b = first.model.state_dict(), second.model.state_dict()
    assert not all(torch.equal(a[name], b[name]) for name in a)


def test_a_large_file_is_expanded_in_memory(quantised: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = load(resolve(quantised))
    monkeypatch.setattr(gguf, "MAX_KEPT_BYTES", 1000)
    monkeypatch.setenv("HEADSCOPE_CACHE", str(own_cache / "other"))
    loaded = load(resolve(quantised))
    assert not (own_cache / "other").exists()
    assert loaded.checkpoint is None
    assert "in memory only" in loaded.notes[0]
    assert (loaded.sha256, loaded.dequantised) == (kept.sha256, kept.dequantised)
    a, b = kept.model.state_dict(), loaded.model.state_dict()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert load(resolve(f"random:{quantised}")).notes[0].startswith("freshly initialised")
    with pytest.raises(WeightsRefused, match="not kept"):
        gguf.expansion(quantised)


def test_a_full_disk_is_said_and_survived(exact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(gguf, "_save", full)
    loaded = load(resolve(exact))
    assert "no space left" in loaded.notes[0]


def test_random_takes_only_the_configuration(quantised: Path) -> None:
    loaded = load(resolve(f"random:{quantised}", seed=3))
    assert (loaded.dequantised, loaded.sha256, loaded.checkpoint) == ("", "", None)
    assert loaded.model.config.hidden_size == 32


def test_opening_says_nothing(exact: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load(resolve(exact))
    assert capfd.readouterr() == ("", "")


def test_nothing_half_written_stays(exact: Path, own_cache: Path) -> None:
    load(resolve(exact))
    (folder,) = (own_cache / "expanded").iterdir()
    assert cache.about(folder) is not None


def test_header(quantised: Path) -> None:
    header = read_gguf_header(quantised)
    assert header.values["general.architecture"] == "llama"
    assert header.counts.keys() == {"Q8_0", "F32"}
    assert not header.has_tokenizer


def test_no_initialisation_is_made_up_for_a_gguf(exact: Path, quantised: Path) -> None:
    """The format does not say how a model was initialised; transformers would put its family's default there."""
    assert [open_model(file).spec.initial_sd for file in (exact, quantised)] == [None, None]
