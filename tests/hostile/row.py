"""A row of the table: how an input is damaged, the command that meets it, and how that must end."""

import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TextIO

import pytest


@dataclass(frozen=True)
class Seeds:
    """Sound inputs, made once, that rows copy and break."""

    llama: Path  # a checkpoint without a tokenizer
    sharded: Path
    gguf: Path
    talker: Path  # the checkpoint with a tokenizer of its own size
    run: Path  # a finished run with a figure of every kind


@dataclass(frozen=True)
class Scene:
    """An empty folder, sound inputs to copy into it, and a patch that is undone afterwards."""

    folder: Path
    seeds: Seeds
    patch: pytest.MonkeyPatch
    streams: ExitStack

    def replace_stream(self, name: str, stream: TextIO) -> None:
        """Replace `sys.stdout` or `sys.stderr` by a stream, which is closed afterwards."""
        self.streams.push(lambda *_: stream.close())
        self.patch.setattr(sys, name, stream)

    def copy(self, seed: Path, name: str = "model") -> Path:
        """A copy of a seed to break."""
        target = self.folder / name
        return Path(shutil.copytree(seed, target) if seed.is_dir() else shutil.copy(seed, target))

    def file(self, name: str, content: str | bytes) -> Path:
        """A file with this content."""
        path = self.folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path


class Row(NamedTuple):
    """What is wrong, and the exit code and sentences that answer it; `prepare` returns the command line."""

    kind: str
    id: str
    prepare: Callable[[Scene], list[str]]
    code: int
    says: tuple[str, ...]
    hints: str = ""


def words(kind: str, code: int, rows: dict[str, tuple[str, ...]]) -> list[Row]:
    """Rows in which the command line itself is the damage: the words, and last what the error says."""

    def row(name: str, line: tuple[str, ...]) -> Row:
        return Row(kind, name, lambda scene: list(line[:-1]), code, line[-1:])

    return [row(name, line) for name, line in rows.items()]
