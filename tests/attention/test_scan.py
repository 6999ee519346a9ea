"""Mechanisms are found by their files: one file is enough, and a file that breaks the contract is named."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import headscope.attention as attention
import headscope.attention.mechanisms as folder
from headscope.attention.mechanism import mechanism_named, mechanisms
from headscope.errors import ResourceError, UsageError
from tests.attention.calls import make

ECHO = """
from dataclasses import dataclass
from typing import ClassVar
from headscope.attention.call import Output
from headscope.attention.mechanism import Cost, Mechanism

@dataclass(frozen=True)
class Echo(Mechanism):
    times: int = 1
    name: ClassVar[str] = "echo"

    def supports(self, call):
        return "an echo knows no padding" if call.key_padding is not None else None

    def attend(self, call, *, lse):
        return Output(call.v[:, :1].expand(-1, call.q.shape[1], -1, -1) * self.times)

    definition = cost = attend

MECHANISM = Echo
"""


@pytest.fixture
def add_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Files in the folder of mechanisms during a test."""
    monkeypatch.setattr(folder, "__path__", [*folder.__path__, str(tmp_path)])
    added: list[str] = []

    def add(name: str, text: str) -> None:
        added.append(name)
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, f"{folder.__name__}.{name}", raising=False)
        monkeypatch.delattr(folder, name, raising=False)

    yield add
    for name in added:
        sys.modules.pop(f"{folder.__name__}.{name}", None)


def test_a_new_file_is_enough(add_file: Callable[[str, str], None]) -> None:
    add_file("echo", ECHO)
    assert "echo" in mechanisms()
    assert "echo" in dir(attention)
    call = make(3, heads=1, kv_heads=1)
    assert (attention.echo(times=2)(call).out == 2 * call.v).all()


def test_a_mechanism_refuses_what_it_cannot_honour(add_file: Callable[[str, str], None]) -> None:
    add_file("echo", ECHO)
    call = replace(make(3), key_padding=torch.ones(2, 3, dtype=torch.bool))
    with pytest.raises(UsageError, match="an echo knows no padding"):
        attention.echo()(call)


def test_a_name_that_is_taken_is_refused(add_file: Callable[[str, str], None]) -> None:
    add_file("other", ECHO)
    with pytest.raises(ResourceError, match="'echo', expected 'other'"):
        mechanisms()


def test_a_file_without_a_mechanism_is_refused(add_file: Callable[[str, str], None]) -> None:
    add_file("empty", "")
    with pytest.raises(ResourceError, match="must bind MECHANISM"):
        mechanism_named("empty")


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="band_sparse, bigbird, dense"):
        mechanism_named("wimdow")
