"""Which validation is the best one, and which one ends the training."""

from collections.abc import Mapping
from dataclasses import replace

from headscope.errors import UsageError
from headscope.training.recipe import Target, Validation
from headscope.training.state import State


def judged(state: State, nats: float | None, measures: Mapping[str, float], validation: Validation) -> State:
    """The state after a validation.

    It is the best one if it gains more than `least_gain` on the best one so far. As many validations in a row without
    a gain as `patience` says end the training, and so does a measure that reaches its target.

    Properties:
        - the best validation is remembered  (tested: test_the_best_validation_is_remembered)
        - patience ends a training that gains no more  (tested: test_patience_ends_a_training)
    """
    if nats is not None:
        state = _with_loss(state, nats, validation)
    if validation.target is not None and _is_reached(validation.target, measures):
        state = replace(state, ending="target")
    return state


def _with_loss(state: State, nats: float, validation: Validation) -> State:
    if state.best_nats is None or nats < state.best_nats - validation.least_gain:
        return replace(state, best_step=state.step, best_nats=nats, validations_without_gain=0)
    waiting = state.validations_without_gain + 1
    is_over = validation.patience is not None and waiting >= validation.patience
    return replace(state, validations_without_gain=waiting, ending="patience" if is_over else state.ending)


def _is_reached(target: Target, measures: Mapping[str, float]) -> bool:
    if target.measure not in measures:
        raise UsageError(f"there is no measure {target.measure!r} to reach", hint=f"there are {', '.join(measures)}")
    return measures[target.measure] >= target.at_least
