"""Threads that all reach the same point before any of them goes on."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class Meeting:
    """Lets `count` threads wait for each other once.

    A thread that ends before all have met breaks the meeting, so that nobody waits for it. After they have met nothing
    breaks it: a thread that is done early does not disturb one that has yet to wake up.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._have_met = threading.Event()
        self._barrier = threading.Barrier(count, action=self._have_met.set)

    def wait(self) -> None:
        """Wait until all threads are here."""
        self._barrier.wait()

    def results(self, work: Callable[[], T]) -> list[T]:
        """What `work`, which waits on the way, returns in each thread; the first error where one failed."""
        with ThreadPoolExecutor(self._count) as pool:
            ended = [pool.submit(self._attended, work) for _ in range(self._count)]
        return [each.result() for each in ended]

    def _attended(self, work: Callable[[], T]) -> T:
        try:
            return work()
        finally:
            # Either this thread has passed the barrier, then all have met; or it never will.
            if not self._have_met.is_set():
                self._barrier.abort()
