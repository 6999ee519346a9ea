"""Times and memory that can be compared on a busy machine.

Contenders run side by side, in CPU seconds of one thread, and the result is a ratio.
"""

import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

Run = Callable[[], Any]
_ENOUGH = 0.02  # seconds; shorter runs are repeated until the clock can see them


def interleaved(runs: Sequence[Run], rounds: int) -> list[list[float]]:
    """The seconds of each run, round by round, after a warm-up round.

    Within a round they run one after the other, so that a busy machine slows all alike: compare within rounds.
    """
    repeats = [_repeats(run) for run in runs]
    seconds_by_run: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for times, run, calls in zip(seconds_by_run, runs, repeats, strict=True):
            times.append(_seconds(run, calls))
    return seconds_by_run


def ratio(slow: Sequence[float], fast: Sequence[float]) -> float:
    """By which factor one is slower: the median over rounds of the ratio in a round."""
    return statistics.median(a / b for a, b in zip(slow, fast, strict=True))


def peak_bytes(run: Run) -> int:
    """Peak of torch's allocations beyond those before the call.

    torch records them itself.
    """
    gc.collect()
    # The profiler writes lines of its own to the process's standard output, below Python.
    with _muted(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        run()
    allocated = peak = 0
    for event in record.profiler.kineto_results.events():
        if event.name() == "[memory]":
            allocated += event.nbytes()
            peak = max(peak, allocated)
    return peak


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread; afterwards on the same number as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _repeats(run: Run) -> int:
    once = _seconds(run, 1)
    return max(1, round(_ENOUGH / max(once, 1e-6)))


def _seconds(run: Run, calls: int) -> float:
    start = time.thread_time()
    for _ in range(calls):
        run()
    return (time.thread_time() - start) / calls


@contextmanager
def _muted() -> Iterator[None]:
    sys.stdout.flush()
    sys.stderr.flush()
    duplicates = [(stream, os.dup(stream)) for stream in (1, 2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        for stream, _ in duplicates:
            os.dup2(nowhere, stream)
        yield
    finally:
        for stream, copy in duplicates:
            os.dup2(copy, stream)
            os.close(copy)
        os.close(nowhere)
