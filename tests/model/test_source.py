"""What can be named, what it leads to, and what is said when it leads nowhere."""

from pathlib import Path

import pytest

from headscope.errors import CheckpointError, ResourceError, UsageError
from headscope.model.formats.gguf_format import GgufFile
from headscope.model.formats.safetensors_format import SafetensorsFolder
from headscope.model.sources import hub, model_wheels, names
from headscope.model.sources.names import Source, resolve, sources
from tests.hostile.broken import save_llama


def test_a_folder(tmp_path: Path) -> None:
    assert resolve(str(tmp_path)) == Source(str(tmp_path), "folder", SafetensorsFolder(tmp_path))
    assert resolve(tmp_path) == resolve(str(tmp_path))


def test_a_gguf_file(tmp_path: Path) -> None:
    file = tmp_path / "model.Q4_1.GGUF"
    file.touch()
    assert resolve(file) == Source(str(file), "gguf", GgufFile(file))
    assert resolve(file).folder == tmp_path


def test_tiny_needs_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_wheels, "fetch", None)
    found = resolve("tiny")
    assert (found.kind, found.licence, found.folder.name) == ("embedded", "Apache-2.0", "tiny")


@pytest.mark.parametrize(("name", "gguf"), [("smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"), ("minilm", None)])
def test_carriers(name: str, gguf: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_wheels, "fetch", lambda carrier, progress: tmp_path)
    checkpoint = GgufFile(tmp_path / gguf) if gguf else SafetensorsFolder(tmp_path)
    expected = Source(name, "carrier", checkpoint, "Apache-2.0")
    assert resolve(name) == expected


def test_known_names_go_before_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    assert resolve("tiny").kind == "embedded"
    assert resolve("./tiny").kind == "folder"
    assert resolve(Path("tiny")).kind == "folder"


def test_random(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_llama(tmp_path)
    for path in (tmp_path, tmp_path / "config.json"):
        expected = Source(f"random:{path}", "random", SafetensorsFolder(tmp_path), seed=5)
        assert resolve(f"random:{path}", seed=5) == expected
    monkeypatch.chdir(tmp_path)
    assert resolve("random:config.json").folder == Path()
    assert resolve("random:tiny").kind == "random"


def test_random_of_another_json(tmp_path: Path) -> None:
    (tmp_path / "other.json").touch()
    with pytest.raises(UsageError, match=r"not called config\.json"):
        resolve(f"random:{tmp_path / 'other.json'}")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("tinny", "tiny"), ("smolm2", "smollm2"), ("mini-lm", "minilm"), ("my_modle", "my_model")],
)
def test_an_unknown_name_brings_the_nearest(
    name: str, nearest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_model").mkdir()
    with pytest.raises(UsageError, match=f"no model is called '{name}'") as caught:
        resolve(name)
    assert f"did you mean {nearest}" in caught.value.hint


def test_a_missing_path_is_a_missing_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no file or folder") as caught:
        resolve(tmp_path / "nowhere")
    assert "a folder with config.json" in caught.value.hint


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    save_llama(tmp_path)
    with pytest.raises(UsageError, match="neither a folder nor") as caught:
        resolve(tmp_path / "model.safetensors")
    assert caught.value.hint == "give the folder that holds it"


def test_a_hub_id_needs_to_be_asked_for() -> None:
    with pytest.raises(UsageError, match="name of a model on a hub") as caught:
        resolve("someone/some-model")
    assert "--hub" in caught.value.hint


def test_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "README.md").write_text("---\nlanguage: en\nlicense: mit\n---\n# A model\nlicense: none\n")
    monkeypatch.setattr(hub, "fetch", lambda name, progress: tmp_path)
    expected = Source("someone/some-model", "hub", SafetensorsFolder(tmp_path), licence="mit")
    assert resolve("someone/some-model", hub=True) == expected


def test_a_hub_without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def offline(*_: object, **options: object) -> str:
        assert "*.bin" not in str(options)
        assert "*.py" not in str(options)
        raise LocalEntryNotFoundError("cannot find the name of the host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(ResourceError, match="cannot fetch 'someone/some-model'") as caught:
        resolve("someone/some-model", hub=True)
    assert "a network is needed" in caught.value.hint
    assert caught.value.exit_code == 5


@pytest.mark.parametrize(
    ("card", "licence"),
    [("---\nlicense: apache-2.0\n---\n", "apache-2.0"), ("# no front matter\nlicense: mit", ""), ("", "")],
)
def test_licence_of_a_model_card(card: str, licence: str, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(card)
    assert resolve(tmp_path).licence == licence


def test_the_listing(own_cache: Path) -> None:
    listed = {each.name: each for each in sources()}
    assert list(listed) == ["tiny", "tiny-translate", "smollm2", "minilm"]
    assert listed["tiny"].is_cached
    assert not listed["minilm"].is_cached
    assert not own_cache.exists()
    assert all(each.licence and each.what for each in listed.values())
    assert listed["smollm2"].size_bytes == 92_871_040


def test_a_name_too_long_for_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match="cannot read"):
        resolve("x" * 5000)
    assert names.licence_in(Path("/nowhere")) == ""
