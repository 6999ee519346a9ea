"""Finds the cheapest plan within a budget: the ladder proposes, measurement on the whole model decides.

Plans of the ladder get cheaper and worse step by step. The search halves the range of steps and measures the plan in
the middle on windows of the split `search`: the longest windows first, since a mechanism hides most there, then shorter
ones, then recall where it is a budget too. A plan is within the budget when the upper end of its loss is, on every text
and at every length.
Every measurement stays in the frontier. One that is over the budget beyond doubt after some windows ends early.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from headscope.experiments.swap.journal import Entry, Journal
from headscope.experiments.swap.ladder import Ladder
from headscope.experiments.swap.material import SearchPart
from headscope.experiments.swap.recall import RecallBudget
from headscope.experiments.swap.yardstick import Loss, Yardstick
from headscope.experiments.text_sample import Tokens
from headscope.model.model import Model
from headscope.model.plans.applied_plan import apply
from headscope.model.plans.plan import Plan
from headscope.progress import Step

_FEWEST = 2  # windows before a plan may count as hopeless
_PRECISION = 100  # the search ends when the best plan is known to this part of the ladder


@dataclass(frozen=True)
class Tried:
    """A plan measured on one part: the steps of the ladder that it takes, and what it loses and gains."""

    steps: int
    rules: dict[str, str]
    text: str
    tokens: int
    windows: int
    loss: Loss
    speedup: float  # seconds of the original's forwards over the plan's, on the same windows
    within: bool


@dataclass
class Search:
    """The state of a search: what was measured, and the best plan so far.

    Properties:
        - the plan that it returns is within the budget on the search text  (tested: test_search_meets_its_budget)
        - nothing fits: no head is replaced  (tested: test_an_impossible_budget_replaces_nothing)
        - an interrupted search ends with the same plan  (tested: test_an_interrupted_search_goes_on)
    """

    model: Model
    ladder: Ladder
    parts: Sequence[SearchPart]
    allowed: float
    yardstick: Yardstick
    seconds: float
    journal: Journal = field(default_factory=Journal)
    recall: RecallBudget | None = None
    clock: Callable[[], float] = time.monotonic
    tried: list[Tried] = field(default_factory=list)
    recall_lost: dict[int, float] = field(default_factory=dict)  # by steps
    is_complete: bool = True

    def run(self, step: Step) -> int:
        """The number of steps of the best plan within the budget."""
        end = self.clock() + self.seconds
        fitting, failing = 0, len(self.ladder.steps) + 1
        # Everything first: where all heads are cheap, nothing is left to search.
        count = len(self.ladder.steps)
        while failing - fitting > max(1, len(self.ladder.steps) // _PRECISION):
            if self.clock() > end:
                self.is_complete = False
                break
            fitting, failing = (count, failing) if self._fits(count, step) else (fitting, count)
            count = (fitting + failing) // 2
        return fitting

    def measured(self, steps: int) -> tuple[Tried, ...]:
        """The measurements of the plan with this number of steps, one for each part."""
        return tuple(tried for tried in self.tried if tried.steps == steps)

    def _fits(self, steps: int, step: Step) -> bool:
        for part in sorted(self.parts, key=lambda part: -part.tokens):
            self.tried.append(self._on_part(steps, part, step))
            if not self.tried[-1].within:
                return False
        if self.recall is None:
            return True
        self.recall_lost[steps] = self.recall.lost(Plan(self.ladder.rules(steps)), step)
        return self.recall_lost[steps] <= self.recall.allowed

    def _on_part(self, steps: int, part: SearchPart, step: Step) -> Tried:
        rules = self.ladder.rules(steps)
        originals = self._entries({}, part, f"measuring the original at {part.tokens} tokens, window", step)
        number = len({tried.steps for tried in self.tried} | {steps})
        task = f"measuring plan {number} of the search at {part.tokens} tokens, window"
        entries = self._entries(rules, part, task, step, originals)
        loss, count = self._loss(entries, originals, part.windows), len(entries)
        seconds, original_seconds = (sum(entry.seconds for entry in of[:count]) for of in (entries, originals))
        within = count == len(part.windows) and loss.high <= self.allowed
        return Tried(steps, rules, part.text, part.tokens, count, loss, original_seconds / seconds, within)

    def _loss(self, entries: Sequence[Entry], originals: Sequence[Entry], windows: Sequence[Tokens]) -> Loss:
        readings, without = ([entry.readings for entry in part] for part in (entries, originals[: len(entries)]))
        return self.yardstick.loss(readings, without, windows[: len(entries)])

    def _entries(
        self, rules: Mapping[str, str], part: SearchPart, task: str, step: Step, originals: Sequence[Entry] = ()
    ) -> list[Entry]:
        """The entries of the windows; of fewer where a plan is far over the budget."""
        entries: list[Entry] = []
        windows = part.windows
        with apply(Plan(rules), self.model):
            for index, tokens in enumerate(windows):
                step(task, index, len(windows))
                entries.append(self.journal.entry(rules, tokens, partial(self._entry, tokens)))
                if originals and self._is_hopeless(entries, originals, windows):
                    break
        step(task, len(windows), len(windows))
        return entries

    def _is_hopeless(self, entries: Sequence[Entry], originals: Sequence[Entry], windows: Sequence[Tokens]) -> bool:
        if len(entries) < _FEWEST:
            return False
        return self.yardstick.is_hopeless(self._loss(entries, originals, windows), self.allowed)

    def _entry(self, tokens: Tokens) -> Entry:
        start = time.perf_counter()
        readings = self.yardstick.reading(self.model, tokens)
        return Entry(readings, time.perf_counter() - start)
