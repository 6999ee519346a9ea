r"""Sets of places in an n × n matrix: bands, blocks, stripes.

True marks a place where an entry may differ from 0.

The matrices that vanish outside one fixed set are a linear subspace, spanned by units $e_i e_j^\top$.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool
from torch import Tensor

from headscope.errors import UsageError

Support = Bool[Tensor, "n n"]


def band(n: int, width: int, dilation: int = 1) -> Support:
    r"""The places with $|i - j| \le$ width, on every dilation-th diagonal.

    `band(n, 0)` is the diagonal.

    Properties:
        - holds $n + 2\sum_{k=1}^{w}(n-k) = n(2w+1) - w(w+1)$ places for w < n  (tested: test_band_size)
    """
    _sized(n)
    if width < 0 or dilation < 1:
        raise UsageError(f"a band needs width ≥ 0 and dilation ≥ 1, got {width} and {dilation}")
    away = torch.arange(n)[:, None] - torch.arange(n)[None, :]
    return (away.abs() <= width) & (away % dilation == 0)


def blocks(sizes: Sequence[int]) -> Support:
    """Squares of the given sizes along the diagonal.

    Properties:
        - holds the sum of the squared sizes  (tested: test_block_size)
    """
    if not sizes or min(sizes) < 1:
        raise UsageError(f"blocks need sizes of at least 1, got {list(sizes)}")
    owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(list(sizes)))
    return owner[:, None] == owner[None, :]


def stripes(n: int, columns: Sequence[int]) -> Support:
    """Whole columns: every query may look at the same few keys.

    The matrices of this support are a left ideal (a product with any matrix from the left stays there), and no right
    ideal unless every column belongs to it  (tested: test_stripes_are_a_left_ideal).
    """
    _sized(n)
    wrong = [c for c in columns if not 0 <= c < n]
    if wrong:
        raise UsageError(f"columns must lie in 0…{n - 1}, got {wrong}")
    in_stripe = torch.zeros(n, dtype=torch.bool)
    in_stripe[torch.tensor(list(columns), dtype=torch.long)] = True
    return in_stripe.expand(n, n).clone()


def _sized(n: int) -> None:
    if n < 1:
        raise UsageError(f"a matrix needs at least one row, got n = {n}")
