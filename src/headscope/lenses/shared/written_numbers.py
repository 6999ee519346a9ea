"""Numbers as sentences write them: what is said of them can be read off them."""

from collections.abc import Sequence
from math import floor, isclose, isfinite, log10

# Digits that are added at most where two numbers would be written alike.
MORE_DIGITS = 4


def side_by_side(numbers: Sequence[float | None], *, decimals: int | None = None, digits: int = 3) -> tuple[str, ...]:
    """Numbers of one comparison, rounded alike and so finely that different ones look different.

    Rounding keeps an order: a value never leaves its own interval. `decimals` are those to start from, or else
    `digits` significant ones; what is no number is the empty text.

    Properties:
        - different numbers are written differently  (tested: test_different_numbers_look_different)
        - an order is never reversed  (tested: test_rounding_keeps_an_order)
    """
    rounded = [tuple(_written(number, decimals, digits, more) for number in numbers) for more in range(MORE_DIGITS + 1)]
    most = _different(rounded[-1])
    return next(texts for texts in rounded if _different(texts) == most)


def _different(texts: Sequence[str]) -> int:
    return len({float(text) for text in texts if text})


def _written(number: float | None, decimals: int | None, digits: int, more: int) -> str:
    if number is None or not isfinite(number):
        return ""
    if decimals is not None:
        return f"{round(number, decimals + more) + 0.0:.{decimals + more}f}"
    return significant(number, digits + more)


def significant(number: float, digits: int) -> str:
    """The number with so many significant digits, all of a large one; whole numbers without decimals.

    Properties:
        - keeps so many digits  (tested: test_significant_digits)
    """
    places = decimals_of(number, digits)
    return f"{round(number, places) + 0.0:.{places}f}"


def decimals_of(number: float, digits: int) -> int:
    """The decimals of a number with so many significant digits; a whole number has none."""
    if isclose(number, round(number), rel_tol=0.0, abs_tol=1e-9):
        return 0
    places = max(digits - 1 - floor(log10(abs(number))), 0)
    # 9.96 to two digits is 10, which needs one place less.
    return max(digits - 1 - floor(log10(abs(round(number, places)))), 0)


def interval(low: str, high: str, windows: int) -> str:
    """Both ends of a 95 % interval as `side_by_side` wrote them; ends that look alike are what all windows agree on."""
    if not low or not high:
        return "no interval"
    return f"in each of {counted(windows, 'window')}" if low == high else f"95 % interval {low} to {high}"


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 head`, `3 heads`."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def part_of(part: int, total: int, noun: str, plural: str = "") -> str:
    """`2 of 3 heads`."""
    return f"{part} of {counted(total, noun, plural)}"


def percents(shares: Sequence[float | None], *, digits: int = 2) -> tuple[str, ...]:
    """Shares of one comparison in percent, as `side_by_side`; below a thousandth of a percent they are 0."""
    rounded = [None if share is None or not isfinite(share) else 100 * round(share, 5) for share in shares]
    return tuple(text and f"{text} %" for text in side_by_side(rounded, digits=digits))
