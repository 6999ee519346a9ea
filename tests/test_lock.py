"""Two writers in one run folder: the error names the first; a dead writer is replaced."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from headscope.errors import UsageError
from headscope.folder_lock import NAME, Lock
from headscope.store import RunFolder, check_folder

HOLD = """
import pathlib, sys
from headscope.store import RunFolder
folder = RunFolder.begin(pathlib.Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    first = RunFolder.begin(tmp_path / "run")
    for ask in (RunFolder.begin, check_folder):
        with pytest.raises(UsageError, match="is being written by process") as caught:
            ask(tmp_path / "run")
        assert "--out" in caught.value.hint
    first.release()
    RunFolder.begin(tmp_path / "run").release()


def test_a_dead_writer_is_taken_over(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(UsageError, match=f"is being written by process {other.pid} on "):
            RunFolder.begin(tmp_path)
        other.kill()
    assert (tmp_path / NAME).exists()
    RunFolder.begin(tmp_path).release()
    assert not (tmp_path / NAME).exists()


def test_a_lock_file_that_says_nothing_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"\xff{")
    check_folder(tmp_path)
    lock = Lock(tmp_path)
    lock.release()
    lock.release()
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_locks_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl")

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    first = RunFolder.begin(tmp_path)
    RunFolder.begin(tmp_path).release()
    first.release()
    assert not (tmp_path / NAME).exists()
