"""Work on many heads, shared among threads.

A measurement lends a helper to the lenses that it runs (`pipeline.lens_threads`). Without one, as in a test of a lens,
the heads are taken one after the other. Each head is computed alone on one thread of torch, so the numbers are the same
either way.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

WAKE = 0.2  # seconds after which a thread that waits looks whether Ctrl-C was pressed

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Helpers:
    """Threads that take a part of the work: `count` of them."""

    executor: Executor
    count: int


class _OfThisThread(threading.local):
    helpers: Helpers | None = None


_here = _OfThisThread()


@contextmanager
def helped(helpers: Helpers | None) -> Iterator[None]:
    """Let the lenses of this thread share their work with helpers, if there are any, for a while."""
    before, _here.helpers = _here.helpers, helpers
    try:
        yield
    finally:
        _here.helpers = before


def mapped(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """The results of `work` for all items, in their order.

    Properties:
        - the same with helpers and without  (tested: test_helpers_change_nothing)
        - items are taken as they are needed, not all at once  (tested: test_each_thread_holds_one_item)
    """
    if _here.helpers is None:
        return [work(item) for item in items]
    queue = _Queue(work, items)
    futures = [_here.helpers.executor.submit(queue.work) for _ in range(_here.helpers.count)]
    queue.work()
    for future in futures:
        # A helper that was busy elsewhere all the time has nothing left to do.
        if not future.cancel():
            result_of(future)
    return [queue.results[number] for number in range(len(queue.results))]


def result_of(future: Future[Result]) -> Result:
    """The result of work on another thread; Ctrl-C ends the wait.

    A thread that waits for a lock without end may not notice a signal: polars installs a handler for Ctrl-C after which
    the system goes on with the wait instead of waking Python.
    """
    while not wait([future], timeout=WAKE).done:
        pass
    return future.result()


class _Queue(Generic[Item, Result]):
    """Items that several threads work on, each thread on one at a time."""

    def __init__(self, work: Callable[[Item], Result], items: Iterable[Item]) -> None:
        self._work, self._lock = work, threading.Lock()
        self._items: Iterator[tuple[int, Item]] = enumerate(items)
        self.results: dict[int, Result] = {}

    def work(self) -> None:
        """Work until no item is left; after an error none is."""
        try:
            while (numbered := self._next()) is not None:
                number, item = numbered
                self.results[number] = without_gradients(self._work, item)
        except BaseException:
            self._items = iter(())
            raise

    def _next(self) -> tuple[int, Item] | None:
        with self._lock, torch.no_grad():
            return next(self._items, None)


def without_gradients(work: Callable[..., Result], *arguments: object) -> Result:
    """The result of `work` on a thread of its own, where torch would record gradients."""
    with torch.no_grad():
        return work(*arguments)
