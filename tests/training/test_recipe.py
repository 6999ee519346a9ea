"""The schedule, the budget, early stopping, and settings that are refused."""

import itertools
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headscope.errors import UsageError
from headscope.training import Budget, Optimisation, Place, Rate, SequenceBatches, Target, Validation
from headscope.training.budget import used_share
from headscope.training.early_stopping import judged
from headscope.training.schedule import is_trajectory_step, rate_factor
from headscope.training.state import State

DECAYS = ["inverse-root", "cosine", "linear", "constant"]


@given(st.sampled_from(DECAYS), st.integers(1, 50))
def test_the_rate_rises_to_its_peak(decay, warmup):
    rate = Rate(1.0, warmup, decay)
    factors = [rate_factor(rate, step, 0.0) for step in range(warmup)]
    assert factors == sorted(factors)
    assert factors[0] == pytest.approx(1 / warmup)
    assert factors[-1] == pytest.approx(1.0)


@given(st.sampled_from(DECAYS), st.integers(0, 50), st.integers(51, 200))
def test_the_rate_never_rises_after_the_warm_up(decay, warmup, steps):
    rate = Rate(1.0, warmup, decay)
    factors = [rate_factor(rate, step, step / steps) for step in range(warmup, steps)]
    assert all(later <= earlier + 1e-12 for earlier, later in itertools.pairwise(factors))
    assert all(0 <= factor <= 1 for factor in factors)


def test_known_rates():
    assert rate_factor(Rate(1.0, 100, "inverse-root"), 399, 0.0) == pytest.approx(0.5)
    assert rate_factor(Rate(1.0, 0, "cosine"), 5, 0.5) == pytest.approx(0.5)
    assert rate_factor(Rate(1.0, 0, "linear"), 5, 0.75) == pytest.approx(0.25)
    assert rate_factor(Rate(1.0, 0, "linear"), 5, 1.5) == 0.0  # a step that exceeds its minutes


def test_a_trajectory_is_spaced_evenly_in_the_logarithm():
    assert [step for step in range(70) if is_trajectory_step(step, 1)] == [0, 1, 2, 4, 8, 16, 32, 64]
    assert [step for step in range(70) if is_trajectory_step(step, 2)] == [0, 1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64]
    assert not any(is_trajectory_step(step, 0) for step in range(70))


@given(st.integers(1, 6), st.integers(0, 20))
def test_every_spaced_step_is_in_the_trajectory(per_doubling, index):
    assert is_trajectory_step(round(2 ** (index / per_doubling)), per_doubling)


BATCHES = SequenceBatches([[1]] * 8, tokens=2, padding=0)  # four batches


@pytest.mark.parametrize(
    ("state", "share"),
    [
        (State(step=5), 0.5),
        (State(step=10), 1.0),
        (State(step=1, place=Place(1, 2)), 0.75),
        (State(step=1, place=Place(2, 0)), 1.0),
        (State(step=1, seconds=15.0), 0.25),
        (State(step=1, seconds=61.0), 1.0),
    ],
)
def test_the_first_limit_ends_a_training(state, share):
    assert used_share(Budget(steps=10, epochs=2, minutes=1), state, BATCHES) == pytest.approx(share)


def losses(values, validation):
    state = State()
    for step, nats in enumerate(values):
        state = judged(replace(state, step=step), nats, {}, validation)
    return state


def test_the_best_validation_is_remembered():
    state = losses([5.0, 3.0, 4.0], Validation())
    assert (state.best_step, state.best_nats, state.validations_without_gain) == (1, 3.0, 1)
    assert not state.ending


def test_patience_ends_a_training():
    assert not losses([5.0, 3.0, 4.0, 2.0, 3.0], Validation(patience=2)).ending
    assert losses([5.0, 3.0, 4.0, 3.0], Validation(patience=2)).ending == "patience"
    assert losses([5.0, 4.95, 4.9], Validation(patience=2, least_gain=0.2)).ending == "patience"


def test_a_target_ends_a_training():
    validation = Validation(target=Target("induction", 0.6))
    assert not judged(State(), None, {"induction": 0.5}, validation).ending
    assert judged(State(), None, {"induction": 0.6}, validation).ending == "target"
    with pytest.raises(UsageError, match="no measure 'induction'"):
        judged(State(), None, {"copying": 0.6}, validation)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Budget(), "no budget"),
        (lambda: Budget(steps=0), "steps must be greater than 0, got 0"),
        (lambda: Budget(minutes=float("nan")), "minutes must be greater than 0"),
        (lambda: Budget(steps=1, clock="sun"), "clock must be one of wall, processor"),
        (lambda: Rate(peak=0.0), "peak of the learning rate must be greater than 0"),
        (lambda: Rate(decay="square"), "decay must be one of inverse-root"),
        (lambda: Optimisation(betas=(0.9, 1.0)), "beta must be at least 0 and less than 1, got 1"),
        (lambda: Optimisation(batches=0), "batches per step must be at least 1"),
        (lambda: Optimisation(clip=-1.0), "clip must be greater than 0"),
        (lambda: Validation(every_steps=0), "steps between validations must be at least 1"),
        (lambda: Validation(patience=0), "patience must be at least 1"),
    ],
)
def test_wrong_settings_are_refused(make, words):
    with pytest.raises(UsageError, match=words):
        make()


def test_settings_need_no_torch():
    code = "import sys, headscope.training.recipe; raise SystemExit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
