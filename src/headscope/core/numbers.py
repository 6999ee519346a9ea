"""Formats numbers alike in tables, tooltips and axes (`frontend/src/drawing/numbers.ts` mirrors `cell`)."""

import math
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

MINUS = "\u2212"
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_MOST_DECIMALS = 6
# A letter with a short index, such as W_QK, is a symbol; d_model is the name of a variable and stays as it is.
SYMBOL = re.compile(r"(?:\b|(?=[σΣ]))(?P<symbol>[A-Za-zσΣ])_(?P<index>[A-Z]{1,2}|[ij]{2}|[a-z0-9])\b")
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def number(value: float | int, significant: int = 3) -> str:
    """A single number with about `significant` digits: 0.42, 1 230 000, 1.2×10⁻⁷."""
    if not math.isfinite(value):
        return _non_finite(value)
    if float(value).is_integer() and abs(value) < 1e15:
        return count(int(value))
    exponent = math.floor(math.log10(abs(value)))
    if exponent < -4 or exponent >= 6:
        return scientific(value, significant - 1)
    return _signed(f"{value:.{max(0, significant - 1 - exponent)}f}")


def count(value: int) -> str:
    """A whole number; from five digits on with thin spaces between thousands."""
    text = f"{abs(value):,}".replace(",", "\u202f") if abs(value) >= 10_000 else str(abs(value))
    return MINUS + text if value < 0 else text


def counted(number: int, noun: str) -> str:
    """A count with its noun: `1 site`, `30 sites`."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def decimals(values: Iterable[float | int]) -> int | None:
    """The decimals that show four significant digits of a column's largest value.

    None where no number of decimals serves all rows, because the values span too many orders of magnitude.
    """
    sizes = sorted(abs(value) for value in values if math.isfinite(value) and value != 0)
    if all(float(size).is_integer() for size in sizes):
        return 0
    top = math.floor(math.log10(sizes[-1]))
    low = math.floor(math.log10(sizes[len(sizes) // 10]))
    if top - low > 2 or not -3 <= top <= 6:
        return None
    return min(_MOST_DECIMALS, max(0, 3 - top))


def cell(value: float | int | None, digits: int | None) -> str:
    """A number with `digits` decimals, or in its own format where these would hide it.

    A missing value is a dash, so that nobody reads an empty cell as zero.
    """
    if value is None:
        return "–"
    if digits is None or not math.isfinite(value) or 0 < abs(value) < 0.5 * 10.0**-digits or abs(value) >= 1e9:
        return number(value)
    return count(int(value)) if digits == 0 else _signed(f"{value:.{digits}f}")


def scientific(value: float, digits: int) -> str:
    """A number as `1.2×10⁻⁷`."""
    mantissa, _, exponent = f"{value:.{digits}e}".partition("e")
    return f"{_signed(mantissa)}×{power_of_ten(int(exponent))}"


def power_of_ten(exponent: int) -> str:
    """A power of ten as `10⁻³`."""
    return "10" + str(exponent).translate(_SUPERSCRIPTS)


def ranges(indices: Iterable[int]) -> str:
    """Whole numbers as ranges: `0–4, 6–10`."""
    runs: list[list[int]] = []
    for index in sorted(set(indices)):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ", ".join(str(low) if low == high else f"{low}–{high}" for low, high in runs)


def value_range(values: NDArray[Any]) -> str:
    """What an array holds: `values 0 to 0.97, 3 NaN`; empty for an empty array."""
    finite, n_missing = values[np.isfinite(values)], int(np.isnan(values).sum())
    ends = f"values {number(float(finite.min()))} to {number(float(finite.max()))}" if finite.size else ""
    return ", ".join(filter(None, (ends, f"{n_missing} NaN" if n_missing else "")))


def visible(text: str) -> str:
    """Replace characters that are invisible or cannot be written by visible ones."""
    return _UNSEEN.sub(lambda match: _picture(match[0]), text)


def _picture(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else "\ufffd"


def _signed(text: str) -> str:
    """`text` with a true minus sign, and none before a zero."""
    if not text.startswith("-"):
        return text
    return MINUS + text[1:] if text.strip("-0.") else text[1:]


def _non_finite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "∞" if value > 0 else f"{MINUS}∞"
