"""The machine around headscope: streams that are closed or full, folders that cannot be written, odd environments."""

import errno
import io
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headscope import api, files
from tests.hostile.row import Row, Scene


def onto_full_device(*line: str) -> Callable[[Scene], list[str]]:
    def prepare(scene: Scene) -> list[str]:
        scene.replace_stream("stdout", Path("/dev/full").open("w"))  # noqa: SIM115  the scene closes it
        return list(line)

    return prepare


def onto_nothing(*line: str) -> Callable[[Scene], list[str]]:
    def prepare(scene: Scene) -> list[str]:
        scene.patch.setattr(sys, "stdout", None)
        return list(line)

    return prepare


def onto_broken_pipe(*line: str) -> Callable[[Scene], list[str]]:
    def prepare(scene: Scene) -> list[str]:
        reader, writer = os.pipe()
        os.close(reader)
        scene.replace_stream("stdout", os.fdopen(writer, "w"))
        return list(line)

    return prepare


def errors_onto_full_device(*line: str) -> Callable[[Scene], list[str]]:
    def prepare(scene: Scene) -> list[str]:
        # Without a buffer: there is nothing left to write when it is closed.
        device = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115  the scene closes it
        scene.replace_stream("stderr", io.TextIOWrapper(device, write_through=True))
        return list(line)

    return prepare


def out(path: str) -> Callable[[Scene], list[str]]:
    return lambda scene: ["report", "tiny", "--out", path]


def out_of_folder(name: str, content: str) -> Callable[[Scene], list[str]]:
    return lambda scene: ["report", "tiny", "--out", str(scene.file(name, content).parent)]


def heed_interrupts(scene: Scene) -> None:
    """Let Ctrl-C interrupt, also where a shell started the tests with & and so ignores it for them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    scene.streams.callback(signal.signal, signal.SIGINT, before)


def stopped(number: signal.Signals) -> Callable[[Scene], list[str]]:
    """A signal that comes while something is measured."""

    def prepare(scene: Scene) -> list[str]:
        heed_interrupts(scene)

        def measure(*_: Any, **__: Any) -> None:
            signal.raise_signal(number)

        scene.patch.setattr(api, "measure", measure)
        return ["report", "tiny", "--out", "out"]

    return prepare


def stopped_elsewhere(number: signal.Signals) -> Callable[[Scene], list[str]]:
    """The same in a command that keeps nothing."""

    def prepare(scene: Scene) -> list[str]:
        heed_interrupts(scene)
        scene.patch.setattr(api, "look", lambda *_, **__: signal.raise_signal(number))
        return ["look", "tiny"]

    return prepare


def failing(error: BaseException) -> Callable[[Scene], list[str]]:
    """The system refuses something while a model is looked at."""

    def prepare(scene: Scene) -> list[str]:
        def look(*_: Any, **__: Any) -> None:
            raise error

        scene.patch.setattr(api, "look", look)
        return ["look", "tiny"]

    return prepare


def full_disk(scene: Scene) -> list[str]:
    def sync(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    scene.patch.setattr(files.os, "fsync", sync)
    return ["lens", "spectra", "tiny", "--out", "out"]


def figures_onto(target: str) -> Callable[[Scene], list[str]]:
    return lambda scene: ["figures", str(scene.copy(scene.seeds.run, "run")), "--out", target]


def with_environment(line: list[str], **variables: str | None) -> Callable[[Scene], list[str]]:
    def prepare(scene: Scene) -> list[str]:
        for name, value in variables.items():
            if value is None:
                scene.patch.delenv(name, raising=False)
            else:
                scene.patch.setenv(name, value)
        return line

    return prepare


def figures_command(*line: str) -> Callable[[Scene], list[str]]:
    return lambda scene: ["figures", str(scene.copy(scene.seeds.run, "run")), "--out", str(Path("figures")), *line]


FULL = "standard output cannot be written: No space left on device"
ROWS = [
    Row("standard output is full", "full-version", onto_full_device("--version"), 5, (FULL,), "another place"),
    Row("standard output is full", "full-help", onto_full_device("--help"), 5, (FULL,), "another place"),
    Row("standard output is full", "full-models", onto_full_device("models", "--format", "csv"), 5, (FULL,)),
    Row("standard output is full", "full-json", onto_full_device("lenses", "--format", "json"), 5, (FULL,)),
    Row("standard output is full", "full-parquet", onto_full_device("lenses", "--format", "parquet"), 5, (FULL,)),
    Row("standard output is full", "full-table", onto_full_device("mechanisms"), 5, (FULL,)),
    Row("standard error is full", "errors-full", errors_onto_full_device("look", "nope"), 2, ()),
    Row("standard output is closed", "closed-version", onto_nothing("--version"), 5, ("it is closed",)),
    Row("standard output is closed", "closed-models", onto_nothing("models"), 5, ("it is closed",)),
    Row("standard output is closed", "closed-csv", onto_nothing("lenses", "--format", "csv"), 5, ("it is closed",)),
    Row("standard output is closed", "closed-usage", onto_nothing("reprot"), 2, ("No such command",)),
    Row("reader leaves early", "pipe-version", onto_broken_pipe("--version"), 141, ()),
    Row("reader leaves early", "pipe-help", onto_broken_pipe("--help"), 141, ()),
    Row("reader leaves early", "pipe-models", onto_broken_pipe("models"), 141, ()),
    Row("reader leaves early", "pipe-parquet", onto_broken_pipe("lenses", "--format", "parquet"), 141, ()),
    Row(
        "stopped by a signal",
        "stopped-by-control-c",
        stopped(signal.SIGINT),
        130,
        ("stopped; finished findings are in",),
    ),
    Row("stopped by a signal", "stopped-by-term", stopped(signal.SIGTERM), 143, ("stopped; finished findings are in",)),
    Row("stopped by a signal", "looking-stopped-by-control-c", stopped_elsewhere(signal.SIGINT), 130, ()),
    Row("stopped by a signal", "looking-stopped-by-term", stopped_elsewhere(signal.SIGTERM), 143, ()),
    Row(
        "folder for output that cannot be",
        "out-long-name",
        out("x" * 300),
        2,
        ("(300 characters) cannot be written",),
        "--out",
    ),
    Row("folder for output that cannot be", "out-long-path", out("x/" * 3000), 2, ("cannot be written",), "--out"),
    Row("folder for output that cannot be", "out-zero-byte", out("a\0b"), 2, ("--out",), "--out"),
    Row(
        "folder for output that cannot be",
        "out-a-device",
        out("/dev/null"),
        2,
        ("is a file, expected a folder",),
        "--out",
    ),
    Row(
        "folder for output that cannot be", "out-below-a-device", out("/dev/null/x"), 2, ("cannot be written",), "--out"
    ),
    Row(
        "folder for output that cannot be", "out-below-a-file", out("/etc/passwd/x"), 2, ("cannot be written",), "--out"
    ),
    Row(
        "folder for output that holds other things",
        "out-thesis",
        out_of_folder("thesis.tex", "x"),
        2,
        ("nothing was written",),
    ),
    Row(
        "folder for output that holds other things",
        "out-web-app",
        out_of_folder("manifest.json", '{"name": "a web app"}'),
        2,
        ("nothing was written",),
    ),
    Row(
        "folder for output that holds other things",
        "out-json-damaged",
        out_of_folder("manifest.json", "{"),
        2,
        ("nothing was written",),
    ),
    Row("disk is full", "disk-full-while-measuring", full_disk, 5, ("the disk is full",), "finished parts are kept"),
    Row("disk is full", "figures-full-device", figures_onto("/dev/full/x"), 2, ("is a file, expected a folder",)),
    Row("disk is full", "figures-onto-a-file", figures_onto("/etc/passwd"), 2, ("is a file, expected a folder",)),
    Row(
        "disk is full",
        "figures-long-name",
        figures_onto("x" * 300),
        5,
        ("cannot write to this folder: File name too long",),
    ),
    Row(
        "system refuses",
        "system-no-space",
        failing(OSError(errno.ENOSPC, "No space left", "/x")),
        5,
        ("No space left: /x",),
    ),
    Row(
        "system refuses", "system-read-only", failing(OSError(errno.EROFS, "Read-only file system")), 5, ("Read-only",)
    ),
    Row("system refuses", "system-many-files", failing(OSError(errno.EMFILE, "Too many open files")), 5, ("Too many",)),
    Row("system refuses", "system-no-memory", failing(MemoryError()), 5, ("not enough memory",)),
    Row("odd environments", "no-home", with_environment(["models"], HOME=None, XDG_CACHE_HOME=None), 0, ()),
    Row(
        "odd environments",
        "no-home-no-cache",
        with_environment(["models"], HOME="/nowhere", HEADSCOPE_CACHE="", XDG_CACHE_HOME=""),
        0,
        (),
    ),
    Row("odd environments", "plain-locale", with_environment(["lenses"], LANG="C", LC_ALL="C"), 0, ()),
    Row("odd environments", "narrow-terminal", with_environment(["models"], COLUMNS="1"), 0, ()),
    Row("odd environments", "terminal-of-no-width", with_environment(["models"], COLUMNS="0"), 0, ()),
    Row("odd environments", "terminal-of-words", with_environment(["models"], COLUMNS="wide"), 0, ()),
    Row("odd environments", "cache-long-listed", with_environment(["models"], HEADSCOPE_CACHE="x" * 300), 0, ()),
    Row("sound run, drawn", "sound-run-svg", figures_command(), 0, ()),
    Row("sound run, drawn", "sound-run-png", figures_command("--format", "png"), 0, ()),
    Row("sound run, drawn", "sound-run-pdf", figures_command("--format", "pdf"), 0, ()),
]
