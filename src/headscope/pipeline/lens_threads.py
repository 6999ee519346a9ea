"""Lenses on several threads: each takes its batches in order, and different lenses work at the same time.

The numbers do not depend on the number of threads. Every lens computes alone, on one thread of torch, and a lens of
headscope draws from generators of its own. A lens of another package may draw from torch's global generator, which
all threads share: it runs on the thread of the caller, where the generator is seeded for it.
"""

import ctypes
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Generic, TypeVar

import torch

from headscope.lenses.lens import Batch
from headscope.lenses.shared.head_threads import Helpers, helped, result_of, without_gradients
from headscope.pipeline.fold import Fold

T = TypeVar("T")
TURN = 0.0005  # seconds after which a thread that waits for the interpreter gets it


class LensThreads:
    """Threads that update lenses and ask them for their answers; the thread of the caller is one of them.

    Args:
        executor: The other threads, or None to do all work at once on the thread of the caller.
        helpers: Threads that lenses share their heads and layers with, or None.
    """

    def __init__(self, executor: Executor | None = None, helpers: Helpers | None = None) -> None:
        self._executor, self._helpers = executor, helpers
        self._updates: list[Task[None]] = []
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
                self._updates.append(self._submit(partial(self._timed_update, fold, batch)))
        for fold, batch in batches:
            if not self._shares(fold):
                with helped(None):
                    fold.update(batch)

    def wait(self) -> None:
        """Work until every batch is in its lens.

        Raises:
            HeadscopeError: The checkpoint is bad or the machine is full; a failure of the lens is kept in its fold.
        """
        updates, self._updates = self._updates, []
        for update in updates:
            update.do()
        for update in updates:
            update.result()

    def helping(self) -> AbstractContextManager[None]:
        """Share work of the caller with the threads that help lenses."""
        return helped(self._helpers)

    def answers(self, answer: Callable[[Fold], T], folds: Sequence[Fold]) -> Iterator[tuple[Fold, Callable[[], T]]]:
        """Each fold with a function that works until its answer is there, in the order of the folds."""
        tasks = {id(fold): self._submit(partial(answer, fold)) for fold in folds if self._shares(fold)}
        for fold in folds:
            task = tasks.get(id(fold))
            yield fold, partial(answer, fold) if task is None else partial(_result, task, list(tasks.values()))

    def _shares(self, fold: Fold) -> bool:
        """Whether the lens may work beside others: those of headscope leave torch's global generator alone."""
        is_of_headscope = type(fold.plan.question.lens).__module__.partition(".")[0] == "headscope"
        return self._executor is not None and is_of_headscope

    def _submit(self, work: Callable[[], T]) -> "Task[T]":
        if self._executor is None:
            raise RuntimeError("there is no thread but the caller's")
        task = Task(partial(self._helped, work))
        self._executor.submit(task.do)
        return task

    def _helped(self, work: Callable[[], T]) -> T:
        with helped(self._helpers):
            return without_gradients(work)

    def _timed_update(self, fold: Fold, batch: Batch) -> None:
        start = time.perf_counter()
        fold.update(batch)
        self._seconds[id(fold)] = time.perf_counter() - start


class Task(Generic[T]):
    """Work that is done once, by the thread that comes to it first."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work, self._claim, self._future = work, threading.Lock(), Future[T]()

    def do(self) -> None:
        """Do the work, unless a thread has begun it."""
        if not self._claim.acquire(blocking=False):
            return
        try:
            self._future.set_result(self._work())
        except Exception as error:  # noqa: BLE001  whoever asks for the result is told
            self._future.set_exception(error)
        except BaseException as error:
            self._future.set_exception(error)
            raise

    def is_done(self) -> bool:
        """Whether there is a result or an error."""
        return self._future.done()

    def result(self) -> T:
        """The result, once there is one."""
        return result_of(self._future)


def _result(task: Task[T], tasks: Sequence[Task[T]]) -> T:
    """The result of a task; until it is there, this thread works on it or on the others."""
    for waiting in (task, *tasks):
        if not task.is_done():
            waiting.do()
    return task.result()


@contextmanager
def lens_threads(count: int) -> Iterator[LensThreads]:
    """Share lenses among `count` threads, the caller's among them.

    An error or Ctrl-C ends the lenses that are at work: what they would have answered is not asked for any more.
    """
    if count <= 1:
        yield LensThreads()
        return
    identifiers: list[int] = []

    def prepare_thread() -> None:
        identifiers.append(threading.get_ident())
        torch.get_num_threads()  # tells OpenMP, which oneDNN asks, how many threads torch has

    helpers = ThreadPoolExecutor(count - 1, thread_name_prefix="head", initializer=prepare_thread)
    executor = ThreadPoolExecutor(count - 1, thread_name_prefix="lens", initializer=prepare_thread)
    try:
        with quick_turns():
            yield LensThreads(executor, Helpers(helpers, count - 1))
    except BaseException:
        for pool in (executor, helpers):
            pool.shutdown(wait=False, cancel_futures=True)
        for identifier in identifiers:
            _interrupt(identifier)
        raise
    finally:
        for pool in (executor, helpers):
            pool.shutdown(wait=True)


@contextmanager
def quick_turns() -> Iterator[None]:
    """Let threads of Python take turns at once.

    Every operation of torch lets go of the interpreter and asks for it again; by default it waits for up to 5 ms.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(TURN)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _interrupt(thread_identifier: int) -> None:
    """Raise KeyboardInterrupt in a thread, at its next step of Python."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_identifier), ctypes.py_object(KeyboardInterrupt))
