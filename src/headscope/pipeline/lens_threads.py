"""Lenses on several threads: each takes its batches in order, and different lenses work at the same time.

The numbers do not depend on the number of threads. Every lens computes alone, on one thread of torch, and a lens of
headscope draws from generators of its own. A lens of another package may draw from torch's global generator, which
all threads share: it runs on the thread of the caller, where the generator is seeded for it.
"""

import ctypes
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from headscope.lenses.lens import Batch
from headscope.lenses.shared.head_threads import helped, without_gradients
from headscope.pipeline.fold import Fold

T = TypeVar("T")


class LensThreads:
    """Threads that update lenses and ask them for their answers.

    Args:
        executor: The threads, or None to do all work at once on the thread of the caller.
        helpers: Threads that lenses share their heads and layers among, or None.
    """

    def __init__(self, executor: Executor | None = None, helpers: Executor | None = None) -> None:
        self._executor, self._helpers = executor, helpers
        self._updates: list[Future[None]] = []
        self._seconds: dict[int, float] = {}

    def update(self, batches: Sequence[tuple[Fold, Batch]]) -> None:
        """Hand batches to their lenses, after all earlier batches; the caller goes on meanwhile.

        What was handed over before is finished first. So a lens never has two batches at a time, and never more than
        one piece of a forward waits in memory.
        """
        self.wait()
        # The slowest first: a long update that begins last would keep the other threads waiting.
        for fold, batch in sorted(batches, key=lambda pair: -self._seconds.get(id(pair[0]), 0.0)):
            if self._shares(fold):
                self._updates.append(self._submit(self._timed_update, fold, batch))
        for fold, batch in batches:
            if not self._shares(fold):
                fold.update(batch)

    def wait(self) -> None:
        """Wait until every batch is worked into its lens.

        Raises:
            HeadscopeError: The checkpoint is bad or the machine is full; a failure of the lens is kept in its fold.
        """
        updates, self._updates = self._updates, []
        for update in updates:
            update.result()

    def answers(self, answer: Callable[[Fold], T], folds: Sequence[Fold]) -> Iterator[tuple[Fold, Callable[[], T]]]:
        """Each fold with a function that waits for its answer, in the order of the folds."""
        futures = {id(fold): self._submit(answer, fold) for fold in folds if self._shares(fold)}
        for fold in folds:
            future = futures.get(id(fold))
            yield fold, partial(answer, fold) if future is None else future.result

    def _shares(self, fold: Fold) -> bool:
        """Whether the lens may work beside others: those of headscope leave torch's global generator alone."""
        is_of_headscope = type(fold.plan.question.lens).__module__.partition(".")[0] == "headscope"
        return self._executor is not None and is_of_headscope

    def _submit(self, work: Callable[..., T], *arguments: object) -> "Future[T]":
        if self._executor is None:
            raise RuntimeError("there is no thread but the caller's")
        return self._executor.submit(self._helped, work, *arguments)

    def _helped(self, work: Callable[..., T], *arguments: object) -> T:
        with helped(self._helpers):
            return without_gradients(work, *arguments)

    def _timed_update(self, fold: Fold, batch: Batch) -> None:
        start = time.perf_counter()
        fold.update(batch)
        self._seconds[id(fold)] = time.perf_counter() - start


@contextmanager
def lens_threads(count: int) -> Iterator[LensThreads]:
    """Threads for lenses; one thread is that of the caller.

    An error or Ctrl-C ends the lenses that are at work: what they would have answered is not asked for any more.
    """
    if count <= 1:
        yield LensThreads()
        return
    identifiers: list[int] = []

    def note_thread() -> None:
        identifiers.append(threading.get_ident())

    helpers = ThreadPoolExecutor(count, thread_name_prefix="head", initializer=note_thread)
    executor = ThreadPoolExecutor(count, thread_name_prefix="lens", initializer=note_thread)
    try:
        yield LensThreads(executor, helpers)
    except BaseException:
        for pool in (executor, helpers):
            pool.shutdown(wait=False, cancel_futures=True)
        for identifier in identifiers:
            _interrupt(identifier)
        raise
    finally:
        for pool in (executor, helpers):
            pool.shutdown(wait=True)


def _interrupt(thread_identifier: int) -> None:
    """Raise KeyboardInterrupt in a thread, at its next step of Python."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_identifier), ctypes.py_object(KeyboardInterrupt))
