"""The time and the memory of a prefill, with a plan and without, in turns.

A prefill reads a whole prompt, fills the cache and predicts one token. Both ways run in turns in one process, so that a
machine that slows down slows both; the ratio is that of medians, with the least and the most ratio of a turn. Peak
memory is that of torch's allocations, which torch records itself.
"""

import gc
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from headscope.attention.bench.timing import peak_bytes
from headscope.experiments.text_sample import Tokens
from headscope.model.model import Model
from headscope.model.plans.applied_plan import apply
from headscope.model.plans.plan import Plan
from headscope.model.transformers.probe_inputs import generation_options
from headscope.progress import Step


@dataclass(frozen=True)
class Speed:
    """Seconds and peak bytes of prefills of one length, turn by turn."""

    n: int
    original_seconds: tuple[float, ...]
    seconds: tuple[float, ...]
    original_bytes: int
    bytes: int

    @property
    def ratio(self) -> float:
        """How many times as fast the plan is: the ratio of medians."""
        return statistics.median(self.original_seconds) / statistics.median(self.seconds)

    @property
    def range(self) -> tuple[float, float]:
        """The least and the most ratio of a turn."""
        ratios = [slow / fast for slow, fast in zip(self.original_seconds, self.seconds, strict=True)]
        return min(ratios), max(ratios)


def prefill_speed(model: Model, plan: Plan, tokens: Tokens, repeats: int, step: Step) -> Speed:
    """Time prefills of these tokens, with the plan and without."""
    task = f"timing a prefill of {len(tokens)} tokens, turn"

    def prefill() -> None:
        with torch.no_grad():
            model.hf(input_ids=tokens[None].to(model.hf.device), **generation_options(model.hf))

    original_bytes = peak_bytes(prefill)  # which also warms up
    with apply(plan, model):
        plan_bytes = peak_bytes(prefill)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(repeats):
        step(task, turn, repeats)
        for is_swapped in (False, True) if turn % 2 == 0 else (True, False):
            # Putting the plan in place is no part of a prefill.
            with apply(plan, model) if is_swapped else nullcontext():
                seconds[is_swapped].append(_seconds(prefill))
    step(task, repeats, repeats)
    return Speed(len(tokens), tuple(seconds[False]), tuple(seconds[True]), original_bytes, plan_bytes)


def _seconds(run: Callable[[], Any]) -> float:
    gc.collect()
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
