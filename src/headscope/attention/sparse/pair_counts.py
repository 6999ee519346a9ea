r"""Exact numbers of visible pairs of a band with columns and rows.

The n × n mask is not formed.

In a band query i sees the keys from i − left to i + right; None is no limit. Positions run from 0 to n − 1.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

Limit = int | None


def side_pairs(n: int, limit: Limit, dilation: int = 1) -> int:
    """Pairs on one side of the diagonal at distances dilation, 2·dilation, … ≤ limit.

    Properties:
        - equals the count of the mask  (tested: test_flops_count_the_visible_pairs)
    """
    steps = farthest(n, limit) // dilation
    return steps * n - dilation * steps * (steps + 1) // 2


def band_pairs(n: int, left: Limit, right: Limit) -> int:
    """All pairs inside a band.

    Properties:
        - equals the count of the mask  (tested: test_flops_count_the_visible_pairs)
    """
    return n + side_pairs(n, left) + side_pairs(n, right)


def column_pairs(n: int, left: Limit, right: Limit, columns: Sequence[int]) -> int:
    """Pairs of any query with a key at one of the columns, outside the band.

    Properties:
        - equals the count of the mask  (tested: test_flops_count_the_visible_pairs)
    """
    # A key sees the queries that a query with mirrored limits sees.
    return sum(n - _run_length(n, column, right, left) for column in columns if column < n)


def row_pairs(n: int, left: Limit, right: Limit, rows: Sequence[int]) -> int:
    """Pairs of a query at one of the rows with a key outside the band.

    A key at one of the rows does not count.

    Properties:
        - equals the count of the mask  (tested: test_flops_count_the_visible_pairs)
    """
    inside = sorted(row for row in rows if row < n)
    pairs = 0
    for row in inside:
        first, last = _run(n, row, left, right)
        also_columns = len(inside) - (bisect_right(inside, last) - bisect_left(inside, first))
        pairs += n - (last + 1 - first) - also_columns
    return pairs


def farthest(n: int, limit: Limit) -> int:
    """The reach of a limit among n positions."""
    return n - 1 if limit is None else min(limit, n - 1)


def _run(n: int, row: int, left: Limit, right: Limit) -> tuple[int, int]:
    return max(0, row - farthest(n, left)), min(n - 1, row + farthest(n, right))


def _run_length(n: int, row: int, left: Limit, right: Limit) -> int:
    first, last = _run(n, row, left, right)
    return last + 1 - first
