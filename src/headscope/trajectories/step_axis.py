"""The logarithmic axis of steps, on which step 0 has a place too."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def doublings(steps: Sequence[int]) -> Array:
    r"""The place of each step: its base-2 logarithm; step 0 lies one doubling before the next step.

    Properties:
        - each doubling of a step is one unit, from step 0 on  (tested: test_steps_count_by_doublings)
    """
    places = np.asarray(steps, dtype=np.float64)
    if places[0] == 0:
        places[0] = places[1] / 2
    return np.asarray(np.log2(places))


def drawn_steps(steps: Sequence[int]) -> Array:
    """The steps where a logarithmic axis draws them."""
    return np.asarray(2.0 ** doublings(steps))


def middle_step(steps: Sequence[int], pair: int) -> int:
    """The whole step that is nearest to the middle of two neighbours, and none below the first of them."""
    places = doublings(steps)
    return max(round(math.pow(2.0, float(places[pair : pair + 2].mean()))), steps[pair])
