"""How much of a budget a training has used up."""

from headscope.training.batches.batch_source import BatchSource
from headscope.training.recipe import Budget
from headscope.training.state import State


def parts_done(budget: Budget, state: State, batches: BatchSource) -> tuple[float, float]:
    """The used and the whole amount of the limit that comes first.

    They are steps, batches or seconds.
    """
    limits: list[tuple[float, float]] = []
    if budget.steps is not None:
        limits.append((float(state.step), float(budget.steps)))
    if budget.epochs is not None:
        n_batches = batches.batches_in(state.place.epoch)
        used = state.place.epoch * n_batches + state.place.position
        limits.append((float(used), float(budget.epochs * n_batches)))
    if budget.minutes is not None:
        limits.append((state.seconds, 60.0 * budget.minutes))
    return max(limits, key=lambda limit: limit[0] / limit[1])


def used_share(budget: Budget, state: State, batches: BatchSource) -> float:
    """The used share of a budget, at most 1.

    Properties:
        - it is 1 when the first limit is reached  (tested: test_the_first_limit_ends_a_training)
    """
    used, limit = parts_done(budget, state, batches)
    return min(used / limit, 1.0)
