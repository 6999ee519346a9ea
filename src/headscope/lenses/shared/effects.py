"""Effect sizes from 0 to 1, by which headlines of different lenses are ranked.

0 is the null or the prediction itself, 1 is as far from it as the measure can get. A test statistic is never an effect:
it grows with the amount of text.
"""

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, median

import polars as pl


def share_effect(share: float, null: float = 0.0) -> float | None:
    """How far a share lies from its null, relative to the farthest end of 0…1.

    Properties:
        - 0 at the null, 1 at the far end  (tested: test_a_share_at_its_null_has_no_effect)
    """
    reach = max(null, 1.0 - null)
    return _bounded(abs(share - null) / reach) if 0.0 <= null <= 1.0 else None


def ratio_effect(value: float, reference: float) -> float | None:
    """One minus the smaller of two positive numbers over the larger: 0 where equal, 1/2 at twice or half.

    Properties:
        - the same for a ratio and its inverse  (tested: test_a_ratio_and_its_inverse_have_the_same_effect)
    """
    if not (value >= 0.0 and reference >= 0.0) or value == reference == 0.0:
        return None
    return _bounded(1.0 - min(value, reference) / max(value, reference))


def difference_effect(value: float, reference: float, unit: float) -> float | None:
    """A difference in a stated unit, bent so that one unit is 1/2 and no difference exceeds 1."""
    return _bounded(1.0 - 1.0 / (1.0 + abs(value - reference) / unit)) if unit > 0.0 else None


def correlation_effect(correlation: float, null: float = 0.0) -> float | None:
    """The distance of a correlation from its null, at most 1."""
    return _bounded(abs(correlation - null))


def information_effect(nats: float, components: int) -> float | None:
    r"""The correlation of Gaussian pairs that share as much in every component.

    Definition:
        $\sqrt{1 - e^{-2 I / k}}$, with I nats in k components.
    Properties:
        - gives back the correlation of Gaussian pairs  (tested: test_information_has_the_effect_of_its_correlation)
    Reference:
        Linfoot (1957), Information and Control 1, 85.
    """
    if components < 1 or not math.isfinite(nats):
        return None
    return _bounded(math.sqrt(-math.expm1(-2.0 * max(nats, 0.0) / components)))


def nats_effect(difference: float) -> float | None:
    """A difference of logarithms as the ratio it stands for: 1/2 at ln 2."""
    return _bounded(-math.expm1(-abs(difference)))


def clear_effect(effect: float | None, low: float | None, high: float | None, null: float = 0.0) -> float | None:
    """The effect if its interval leaves the null out; 0 if not, None without one.

    Properties:
        - an interval that touches the null detects nothing  (tested: test_an_effect_needs_a_clear_interval)
    """
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return None
    return effect if low > null or high < null else 0.0


def median_effect(effects: Iterable[float | None]) -> float | None:
    """The median of those that are numbers; None where there is none."""
    numbers = [effect for effect in effects if effect is not None]
    return median(numbers) if numbers else None


def mean_effect(effects: Iterable[float | None]) -> float | None:
    """The mean of those that are numbers; None where there is none. A head where nothing was detected counts as 0."""
    numbers = [effect for effect in effects if effect is not None]
    return fmean(numbers) if numbers else None


def majority_effect(effect: float | None, detected: Sequence[bool]) -> float | None:
    """The effect of a median: 0 unless at least half of the tests detect something, None without a test.

    Properties:
        - a minority of heads does not move it  (tested: test_a_median_needs_half_of_the_tests)
    """
    if not detected:
        return None
    return effect if 2 * sum(detected) >= len(detected) else 0.0


def excludes_null(rows: pl.DataFrame, null: str | float, ends: tuple[str, str] = ("low", "high")) -> tuple[bool, ...]:
    """Whether each interval leaves its null out; rows without an interval or a null are left out.

    `null` is the name of a column or a number.
    """
    low, high = (pl.col(end) for end in ends)
    reference = pl.col(null) if isinstance(null, str) else pl.lit(null)
    outside = rows.select(outside=(low > reference) | (high < reference))["outside"]
    return tuple(outside.drop_nulls().to_list())


def _bounded(effect: float) -> float | None:
    return min(max(effect, 0.0), 1.0) if math.isfinite(effect) else None
