"""Work on heads that is shared among threads gives the same as without."""

import threading
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial

import pytest
import torch

from headscope.lenses.shared.head_threads import _AHEAD, helped, mapped


@pytest.fixture
def helpers():
    with ThreadPoolExecutor(2, thread_name_prefix="helper") as executor:
        yield executor


def test_helpers_change_nothing(helpers):
    matrices = [torch.randn(size, size, generator=torch.Generator().manual_seed(size)) for size in range(1, 40)]
    alone = mapped(torch.linalg.svdvals, matrices)
    with helped(helpers):
        together = mapped(torch.linalg.svdvals, matrices)
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


def test_helpers_do_the_work_for_this_thread_alone(helpers):
    def name(_):
        return threading.current_thread().name

    with helped(helpers):
        assert all(worker.startswith("helper") for worker in mapped(name, range(8)))
        with ThreadPoolExecutor(1, thread_name_prefix="other") as other:
            assert other.submit(mapped, name, range(2)).result() == ["other_0"] * 2
    assert mapped(name, range(2)) == [threading.current_thread().name] * 2


class Postponed(Future):
    """Work that is done when its result is asked for, and not before."""

    def __init__(self, work):
        super().__init__()
        self.work = work

    def result(self, timeout=None):
        return self.work()


class Postponing(Executor):
    """A helper that does nothing on its own."""

    def submit(self, work, /, *arguments):
        return Postponed(partial(work, *arguments))


def test_few_items_wait_for_helpers():
    """Heads are made as they are needed: all at once would not fit into memory."""
    finished, waiting = [], []

    def items():
        for item in range(5 * _AHEAD):
            waiting.append(item - len(finished))
            yield item

    with helped(Postponing()):
        mapped(finished.append, items())
    assert max(waiting) == _AHEAD
    assert finished == list(range(5 * _AHEAD))


def test_an_error_of_the_work_reaches_the_caller(helpers):
    def fails(item):
        raise ValueError(f"head {item}")

    with helped(helpers), pytest.raises(ValueError, match="head 0"):
        mapped(fails, range(3))


def test_gradients_are_not_recorded(helpers):
    with helped(helpers):
        assert mapped(lambda _: torch.is_grad_enabled(), range(3)) == [False] * 3
