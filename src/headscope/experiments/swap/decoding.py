"""The cache and the speed of generation, with a plan and without, in turns.

A prefill reads most of a window, once with the plan and once without. Then both ways read the rest of the window token
by token, in turns in one process, each with its own cache, until each has read the whole window: so bytes and speed
are those at its length, and no text is needed beyond it. The bytes are those of the tensors that the cache holds.

A mechanism that needs the queries of earlier tokens loses them when the original takes its turn. With one of these in
the plan the text is read anew before each of the plan's turns, which is not timed.
"""

import gc
import statistics
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from headscope.attention.mechanism_spelling import spelled
from headscope.experiments.text_sample import Tokens
from headscope.model.model import Model
from headscope.model.plans.applied_plan import apply
from headscope.model.plans.plan import Plan
from headscope.model.transformers.probe_inputs import generation_options
from headscope.progress import Step

STEPS = 16  # tokens per turn


@dataclass(frozen=True)
class Decoding:
    """Tokens per second, turn by turn, and bytes of the caches at one length."""

    n: int
    steps: int
    original_speeds: tuple[float, ...]
    speeds: tuple[float, ...]
    original_bytes: int
    bytes: int
    undropped: dict[str, str]  # sites whose cache keeps keys that no head reads, and why

    @property
    def ratio(self) -> float:
        """How many times as fast the plan is: the ratio of medians."""
        return statistics.median(self.speeds) / statistics.median(self.original_speeds)

    @property
    def range(self) -> tuple[float, float]:
        """The least and the most ratio of a turn."""
        ratios = [fast / slow for slow, fast in zip(self.original_speeds, self.speeds, strict=True)]
        return min(ratios), max(ratios)


def decoding_speed(model: Model, plan: Plan, tokens: Tokens, repeats: int, step: Step) -> Decoding | None:
    """Read the end of a window token by token, with the plan and without; None where the model keeps no such cache.

    Properties:
        - the bytes of keys and values, and of those that are not dropped  (tested: test_the_bytes_of_a_cache)
    """
    from headscope.model.transformers.dropping_layer import cache_bytes

    task = f"decoding up to {len(tokens)} tokens, turn"
    steps = max(1, min(STEPS, len(tokens) // (2 * repeats + 2)))
    start = len(tokens) - steps * (repeats + 1)  # the first turn warms up
    caches: dict[bool, Any] = {}
    for is_swapped in (False, True):
        with _way(plan, model, is_swapped):
            caches[is_swapped] = _read(model, tokens[:start], None)
    if any(getattr(cache, "layers", None) is None for cache in caches.values()):
        return None
    speeds: dict[bool, list[float]] = {False: [], True: []}
    undropped: dict[str, str] = {}
    forgets = any(spelled(mechanism).needs_all_queries for mechanism in plan.replace)
    for turn in range(repeats + 1):
        step(task, turn, repeats + 1)
        first = start + turn * steps
        for is_swapped in (False, True) if turn % 2 == 0 else (True, False):
            with _way(plan, model, is_swapped) as swapped:
                if is_swapped and forgets:
                    caches[True] = _read(model, tokens[:first], None)
                seconds = _seconds(model, tokens[first : first + steps], caches[is_swapped])
                undropped |= {} if swapped is None else swapped.undropped
            if turn:
                speeds[is_swapped].append(steps / seconds)
    step(task, repeats + 1, repeats + 1)
    sizes = {is_swapped: cache_bytes(cache) for is_swapped, cache in caches.items()}
    return Decoding(len(tokens), steps, tuple(speeds[False]), tuple(speeds[True]), sizes[False], sizes[True], undropped)


def cache_warnings(model: Model, decodings: Sequence[Decoding | None]) -> tuple[str, ...]:
    """Where a cache keeps keys that no head of the plan reads."""
    if any(decoding is None for decoding in decodings):
        return (f"{model.spec.name} keeps no keys and values while it generates, so there is no table of decoding.",)
    undropped: dict[str, str] = {}
    for decoding in decodings:
        undropped |= {} if decoding is None else decoding.undropped
    labels = {reason: [label for label in undropped if undropped[label] == reason] for reason in undropped.values()}
    return tuple(
        f"The cache of {', '.join(sites[:3])}{' …' if len(sites) > 3 else ''} keeps keys that no head reads: {reason}."
        for reason, sites in labels.items()
    )


def _way(plan: Plan, model: Model, is_swapped: bool) -> AbstractContextManager[Any]:
    return apply(plan, model) if is_swapped else nullcontext()


def _read(model: Model, tokens: Tokens, cache: Any) -> Any:
    """Read tokens as generation does; gives the cache."""
    hf = model.hf
    with torch.no_grad():
        ids = tokens[None].to(hf.device)
        return hf(input_ids=ids, past_key_values=cache, **generation_options(hf)).past_key_values


def _seconds(model: Model, tokens: Tokens, cache: Any) -> float:
    gc.collect()
    start = time.perf_counter()
    for index in range(len(tokens)):
        _read(model, tokens[index : index + 1], cache)
    return time.perf_counter() - start
