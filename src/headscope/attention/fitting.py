"""Chooses parameters of mechanisms for calls of one head: the keys with the most mass, and the nearest output."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

import torch

from headscope.attention.call import Call
from headscope.attention.maps import pattern
from headscope.attention.mechanism import Mechanism
from headscope.attention.mechanisms.dense import Dense
from headscope.attention.sparse.pattern import Pattern

AnyMechanism = TypeVar("AnyMechanism", bound=Mechanism)
SEEDS = 8  # of random features and projections that a head may choose from


def heaviest_keys(calls: Sequence[Call], covered: Pattern, count: int) -> tuple[int, ...]:
    """The `count` key positions with the most mass outside of what a pattern covers, summed over calls and queries.

    Properties:
        - no other positions carry more mass  (tested: test_fitted_columns_carry_the_most_mass)
    """
    mass = torch.zeros(1 + max(int(call.key_positions.max()) for call in calls), dtype=torch.float64)
    for call in calls:
        mask = covered.seen(call).mask
        weights = pattern(call) if mask is None else pattern(call).masked_fill(mask, 0.0)
        by_key = weights.double().sum((1, 2)).cpu()
        mass.scatter_add_(0, call.key_positions.expand_as(by_key).flatten().cpu(), by_key.flatten())
    # Among equal masses the first positions, whatever the order of sorting.
    return tuple(sorted(torch.argsort(mass, descending=True, stable=True)[:count].tolist()))


def output_error(mechanism: Mechanism, calls: Sequence[Call]) -> float:
    r"""The squared error of the output relative to that of dense attention: $\sum |\Delta z|^2 / \sum |z|^2$."""
    squared_error = total = 0.0
    for call in calls:
        dense = Dense()(call).out.double()
        squared_error += float((mechanism(call).out.double() - dense).square().sum())
        total += float(dense.square().sum())
    return squared_error / total if total else squared_error


def nearest_to_dense(mechanisms: Iterable[AnyMechanism], calls: Sequence[Call]) -> AnyMechanism:
    """The mechanism with the smallest `output_error`, the first of equal ones."""
    return min(mechanisms, key=lambda mechanism: output_error(mechanism, calls))
