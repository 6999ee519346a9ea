"""Lists of hub models: each is fetched, opened and verified; the download itself is a stand-in that copies nothing."""

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

from headscope.cli import main
from headscope.errors import CheckpointError, HeadscopeError, NumericsError, ResourceError, UsageError
from headscope.model.sources import hub_survey
from headscope.model.sources.hub_survey import Outcome, check_outcomes, survey
from headscope.model.sources.model_lists import POPULAR, is_list, read_list
from headscope.model.sources.names import _HUB_ID
from headscope.model.verify import Check
from tests.hostile.broken import save_llama


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub with two models, one of them as pickle only, and no network for any other name."""
    save_llama(tmp_path / "abc123")
    (tmp_path / "def456").mkdir()
    (tmp_path / "def456" / "config.json").write_text((tmp_path / "abc123" / "config.json").read_text())
    (tmp_path / "def456" / "pytorch_model.bin").touch()
    folders = {"good/llama": tmp_path / "abc123", "pickle/only": tmp_path / "def456"}

    def download(name: str, *, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        assert not any("bin" in pattern or "*.py" in pattern for pattern in allow_patterns)
        if name == "no/such":
            raise RepositoryNotFoundError("404", response=_Response())
        if name not in folders:
            raise LocalEntryNotFoundError("not in the cache") from ConnectionError("no route to the host")
        return str(folders[name])

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return tmp_path


class _Response:
    """As much of an HTTP response as the hub's errors look at."""

    status_code = 404
    headers: dict[str, str] = {}  # noqa: RUF012
    request = None
    url = ""


def outcomes(hub: Path, *names: str) -> dict[str, Outcome]:
    return {outcome.model: outcome for outcome in survey(names)}


def test_each_model_has_its_outcome(hub: Path) -> None:
    results = outcomes(hub, "good/llama", "pickle/only", "no/such", "far/away")
    good, pickle = results["good/llama"], results["pickle/only"]
    assert (good.result, good.reason, good.revision) == ("agrees", "", "abc123")
    assert good.deviation is not None
    assert good.tolerance is not None
    assert good.deviation <= good.tolerance
    assert (pickle.result, pickle.revision, pickle.deviation) == ("refused", "def456", None)
    assert "pickle" in pickle.reason
    assert results["no/such"].result == "refused"
    assert results["far/away"].result == "not fetched"
    assert results["far/away"].reason == "cannot fetch 'far/away' from the hub: no route to the host"


def test_the_worst_check_is_shown(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [
        Check("exact", 0.0, 0.0, True),
        Check("near", 3e-6, 1e-5, True),
        Check("far", 2e-4, 1e-5, False),
        Check("farther", 1e-2, 1e-3, False, "by a lot"),
    ]
    monkeypatch.setattr(hub_survey, "verify", lambda *_: checks)
    (outcome,) = survey(["good/llama"])
    assert (outcome.result, outcome.check, outcome.deviation, outcome.tolerance) == ("disagrees", "far", 2e-4, 1e-5)
    assert outcome.reason == "far; farther: by a lot"
    monkeypatch.setattr(hub_survey, "verify", lambda *_: [*checks, Check("none", None, 1e-5, False, "no maps")])
    (outcome,) = survey(["good/llama"])
    assert (outcome.check, outcome.deviation) == ("none", None)


def test_what_was_not_compared_is_not_the_worst(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [Check("near", 3e-6, 1e-5, True), Check("maps", None, 1e-6, True, "no attentions are returned")]
    monkeypatch.setattr(hub_survey, "verify", lambda *_: checks)
    (outcome,) = survey(["good/llama"])
    assert (outcome.result, outcome.check, outcome.deviation) == ("agrees", "near", 3e-6)


def test_a_crash_does_not_stop_the_others(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = iter([ZeroDivisionError("by zero"), None])

    def crash_once(*_: Any) -> list[Check]:
        if error := next(results):
            raise error
        return [Check("near", 3e-6, 1e-5, True)]

    monkeypatch.setattr(hub_survey, "verify", crash_once)
    first, second = survey(["good/llama", "good/llama"])
    assert (first.result, first.reason, second.result) == ("crashed", "this is a bug: by zero", "agrees")


@pytest.mark.parametrize(
    ("results", "error"),
    [
        (["agrees", "not fetched", "crashed"], HeadscopeError),
        (["agrees", "refused", "not fetched", "disagrees"], NumericsError),
        (["agrees", "refused", "not fetched"], ResourceError),
        (["agrees", "refused"], CheckpointError),
    ],
)
def test_the_worst_result_decides(results: list[Any], error: Any) -> None:
    with pytest.raises(error, match=f"{len(results)} models") as caught:
        check_outcomes([Outcome(str(n), result) for n, result in enumerate(results)])
    assert ("network" in caught.value.hint) == (error is ResourceError)


def test_agreement_is_no_error() -> None:
    check_outcomes([Outcome("a", "agrees"), Outcome("b", "agrees")])


@pytest.mark.parametrize(
    ("names", "code", "message"),
    [
        (["good/llama"], 0, ""),
        (["good/llama", "pickle/only"], 3, "refused: 1"),
        (["far/away"], 5, "a network is needed"),
    ],
)
def test_the_command_reads_a_list(
    names: list[str], code: int, message: str, hub: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = hub / "list.txt"
    file.write_text("# models\n\n" + "\n".join(f"{name}  # a comment" for name in names))
    with pytest.raises(SystemExit) as ended:
        main(["verify", "--hub", str(file), "--format", "json"])
    out, err = capfd.readouterr()
    assert (ended.value.code or 0) == code
    assert [row["model"] for row in json.loads(out)] == names
    assert message in err


def test_a_disagreement_ends_with_4(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_survey, "verify", lambda *_: [Check("far", 1.0, 1e-5, False)])
    (hub / "list.txt").write_text("good/llama")
    with pytest.raises(SystemExit) as ended:
        main(["verify", "--hub", str(hub / "list.txt")])
    assert ended.value.code == 4


def test_the_list_that_ships() -> None:
    models = read_list(POPULAR)
    assert len(models) == 20
    assert all(_HUB_ID.fullmatch(name) for name in models)


def test_what_is_a_list(tmp_path: Path) -> None:
    for name in ("models.txt", "models"):
        (tmp_path / name).write_text("a/b\na/b # again\n c/d\n")
        assert is_list(str(tmp_path / name))
        assert read_list(str(tmp_path / name)) == ("a/b", "c/d")
    assert is_list(POPULAR)
    assert not any(is_list(name) for name in ("tiny", "a/b", str(tmp_path), str(tmp_path / "x.gguf")))


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"# only comments\n", "names no model"), (b"\xff\xfe", "cannot read"), (b"x" * 1_000_001, "is larger than")],
    ids=["empty", "not text", "huge"],
)
def test_a_list_that_is_none(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_bytes(content)
    with pytest.raises(UsageError, match=message):
        read_list(str(tmp_path / "list.txt"))
