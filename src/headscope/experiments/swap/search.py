"""Finds the cheapest plan within a budget: the ladder proposes, measurement on the whole model decides.

Plans of the ladder get cheaper and worse step by step. The search halves the range of steps, measures the perplexity of
the plan in the middle on the windows of the search, and goes on in the upper or lower half: a plan is within the budget
when the upper end of its paired 95 % interval is. Every measurement stays in the frontier. A measurement that is over
the budget after some windows beyond doubt ends early.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headscope.experiments.swap.ladder import Ladder
from headscope.experiments.swap.quality import Quality, quality_of, window_nats
from headscope.experiments.text_sample import Tokens
from headscope.model.model import Model
from headscope.model.plans.applied_plan import apply
from headscope.model.plans.plan import Plan
from headscope.progress import Step

TASK = "measuring plans on the search text, window"
ORIGINAL_TASK = "measuring the original on the search text, window"
_HOPELESS = 3.0  # a plan whose mean is so many budgets over is not measured to the end
_FEWEST = 2  # windows before that is decided
_PRECISION = 100  # the search ends when the best plan is known to this part of the ladder


@dataclass(frozen=True)
class Tried:
    """One plan that was measured: the steps of the ladder that it takes, and its quality."""

    steps: int
    rules: dict[str, str]
    share: float  # of the original's pairs
    quality: Quality
    within: bool


@dataclass
class Search:
    """The state of a search: what was measured, and the best plan so far.

    Properties:
        - the plan that it returns is within the budget on the search text  (tested: test_search_meets_its_budget)
        - nothing fits: no head is replaced  (tested: test_an_impossible_budget_replaces_nothing)
    """

    model: Model
    ladder: Ladder
    windows: Sequence[Tokens]
    allowed: float
    total_pairs: float
    seconds: float
    clock: Callable[[], float] = time.monotonic
    tried: list[Tried] = field(default_factory=list)
    is_complete: bool = True

    def run(self, step: Step) -> int:
        """The number of steps of the best plan within the budget."""
        end = self.clock() + self.seconds
        original = self._nats(ORIGINAL_TASK, Plan({}), step)
        fitting, failing = 0, len(self.ladder.steps) + 1
        while failing - fitting > max(1, len(self.ladder.steps) // _PRECISION):
            if self.clock() > end:
                self.is_complete = False
                break
            # Everything first: where all heads are cheap, nothing is left to search.
            count = (fitting + failing) // 2 if self.tried else len(self.ladder.steps)
            tried = self._measured(count, original, step)
            self.tried.append(tried)
            fitting, failing = (count, failing) if tried.within else (fitting, count)
        return fitting

    def _measured(self, steps: int, original: Sequence[float], step: Step) -> Tried:
        rules = self.ladder.rules(steps)
        nats = self._nats(f"{TASK} (plan {len(self.tried) + 1})", Plan(rules), step, original)
        measured = quality_of(nats, original[: len(nats)], self.windows[: len(nats)])
        is_whole = len(nats) == len(self.windows)
        share = 1.0 - self.ladder.saved(steps) / self.total_pairs
        return Tried(steps, rules, share, measured, is_whole and measured.ratio.high <= 1.0 + self.allowed)

    def _nats(self, task: str, plan: Plan, step: Step, original: Sequence[float] = ()) -> list[float]:
        """The nats of the windows; of fewer where a plan is far over the budget."""
        nats: list[float] = []
        with apply(plan, self.model):
            for index, tokens in enumerate(self.windows):
                step(task, index, len(self.windows))
                nats.append(window_nats(self.model, tokens))
                if original and len(nats) >= _FEWEST:
                    so_far = quality_of(nats, original[: len(nats)], self.windows[: len(nats)])
                    if so_far.ratio.mean > 1.0 + _HOPELESS * self.allowed and so_far.ratio.low > 1.0 + self.allowed:
                        break
        step(task, len(self.windows), len(self.windows))
        return nats
