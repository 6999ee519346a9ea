"""Work on heads that is shared among threads gives the same as without."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from headscope.lenses.shared.head_threads import Helpers, _Queue, helped, mapped


@pytest.fixture
def helpers():
    with ThreadPoolExecutor(2, thread_name_prefix="helper") as executor:
        yield Helpers(executor, 2)


def test_helpers_change_nothing(helpers):
    matrices = [torch.randn(size, size, generator=torch.Generator().manual_seed(size)) for size in range(1, 40)]
    alone = mapped(torch.linalg.svdvals, matrices)
    with helped(helpers):
        together = mapped(torch.linalg.svdvals, matrices)
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


def test_helpers_share_the_work_of_this_thread_alone(helpers):
    meeting = threading.Barrier(3)  # each waits until all have come: one thread alone would wait forever

    def name(_):
        meeting.wait()
        return threading.current_thread().name

    with helped(helpers):
        assert set(mapped(name, range(3))) == {"helper_0", "helper_1", threading.current_thread().name}
        meeting = threading.Barrier(1)
        with ThreadPoolExecutor(1, thread_name_prefix="other") as other:
            assert other.submit(mapped, name, range(2)).result() == ["other_0"] * 2
    assert mapped(name, range(2)) == [threading.current_thread().name] * 2


def test_each_thread_holds_one_item(helpers):
    """Heads are made as they are needed: all at once would not fit into memory."""
    finished, waiting = [], []

    def items():
        for item in range(40):
            waiting.append(item - len(finished))
            yield item

    with helped(helpers):
        mapped(finished.append, items())
    assert max(waiting) <= 2  # made and not finished: one by each other thread
    assert sorted(finished) == list(range(40))


def test_busy_helpers_are_not_waited_for():
    is_over = threading.Event()
    with ThreadPoolExecutor(1) as executor:
        executor.submit(is_over.wait)
        with helped(Helpers(executor, 1)):
            assert mapped(str, range(3)) == ["0", "1", "2"]
        is_over.set()


def test_an_error_of_the_work_reaches_the_caller(helpers):
    def fails(item):
        raise ValueError(f"head {item}")

    with helped(helpers), pytest.raises(ValueError, match="head"):
        mapped(fails, range(3))


def test_after_an_error_no_item_is_left():
    queue = _Queue(lambda item: 1 / item, range(3))
    with pytest.raises(ZeroDivisionError):
        queue.work()
    queue.work()
    assert queue.results == {}


def test_gradients_are_not_recorded(helpers):
    with helped(helpers):
        assert mapped(lambda _: torch.is_grad_enabled(), range(3)) == [False] * 3
