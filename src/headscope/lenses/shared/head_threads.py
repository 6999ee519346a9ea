"""Work on many heads, shared among threads.

A measurement lends helpers to the lenses that it runs (`pipeline.lens_threads`). Without them, as in a test of a lens,
the heads are taken one after the other. Each head is computed alone on one thread of torch, so the numbers are the same
either way.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")
# Pieces of work that wait for a helper: enough to keep helpers busy, few enough to hold little in memory.
_AHEAD = 4


class _OfThisThread(threading.local):
    helpers: Executor | None = None


_here = _OfThisThread()


@contextmanager
def helped(helpers: Executor | None) -> Iterator[None]:
    """Let the lenses of this thread share their work among helpers, if there are any, for a while."""
    before, _here.helpers = _here.helpers, helpers
    try:
        yield
    finally:
        _here.helpers = before


def mapped(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """The results of `work` for all items, in their order.

    Properties:
        - the same with helpers and without  (tested: test_helpers_change_nothing)
        - items are taken as they are needed, not all at once  (tested: test_few_items_wait_for_helpers)
    """
    if _here.helpers is None:
        return [work(item) for item in items]
    waiting: deque[Future[Result]] = deque()
    results: list[Result] = []
    for item in items:
        waiting.append(_here.helpers.submit(without_gradients, work, item))
        if len(waiting) > _AHEAD:
            results.append(waiting.popleft().result())
    return results + [future.result() for future in waiting]


def without_gradients(work: Callable[..., Result], *arguments: object) -> Result:
    """The result of `work` on a thread of its own, where torch would record gradients."""
    with torch.no_grad():
        return work(*arguments)
