r"""Random projections along the keys: signs that keep lengths.

Johnson and Lindenstrauss; Achlioptas.

Definition:
    $R_{rj} = \pm 1 / \sqrt{\text{rank}}$, each sign with probability one half and independent.
Properties:
    - $|R x|^2$ is $|x|^2$ up to about $\sqrt{2 / \text{rank}}$  (tested: test_random_projections_keep_lengths)
    - column j is a function of seed and j, for every length  (tested: test_a_column_does_not_depend_on_the_length)
"""

from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor


def sign_projection(
    rank: int, length: int, seed: int, dtype: torch.dtype = torch.float64
) -> Float[Tensor, "rank length"]:
    """`rank` rows over `length` keys."""
    return _columns(rank, 1 << max(4, (length - 1).bit_length()), seed, dtype)[:length].T


@lru_cache(maxsize=8)
def _columns(rank: int, length: int, seed: int, dtype: torch.dtype) -> Tensor:
    # Uniform integers come one after the other, so that a longer draw begins with a shorter one.
    signs = torch.randint(0, 2, (length, rank), generator=torch.Generator().manual_seed(seed))
    columns: Tensor = (2.0 * signs.double() - 1.0) * rank**-0.5
    return columns.to(dtype)
