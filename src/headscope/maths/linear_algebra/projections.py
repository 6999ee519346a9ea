r"""The nearest structured matrix (band, blocks, stripes, low rank), and how far.

Two norms: `l1`, the sum of absolute entries $|A| = \sum_{ij} |a_{ij}|$ (a Banach space, no Hilbert space: the
parallelogram law fails), and `frobenius` (the Hilbert space of matrices). With `stochastic` the rows of the answer
are probabilities as well.

What is unique: on a fixed support the nearest matrix is unique in both norms, since each entry is chosen alone. "A band
and at most s entries elsewhere" is a finite union of such subspaces, closed but not convex: a nearest matrix exists
always and is unique only where no tie decides which entries stay. Rows that must be probabilities have a unique nearest
point in the Frobenius norm and in general many in `l1`.
"""

import heapq
from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headscope.errors import NumericsError, UsageError
from headscope.maths.linear_algebra.simplex import nearest_on_simplex, nearest_on_simplex_l1
from headscope.maths.linear_algebra.supports import band, blocks

Norm = Literal["l1", "frobenius"]
Square = Float[Tensor, "*batch n n"]


def distance(a: Square, b: Square, norm: Norm = "l1") -> Float[Tensor, "*batch"]:
    r"""The l1 or Frobenius distance of two matrices, in float64.

    It is $\sum_{ij} |a_{ij} - b_{ij}|$, or the square root of the sum of squares.

    Properties:
        - a metric; only the Frobenius one obeys the parallelogram law  (tested: test_parallelogram_law)
    """
    _known(norm)
    gap = (a.to(torch.float64) - b.to(torch.float64)).flatten(-2)
    length: Tensor = torch.linalg.vector_norm(gap, 1 if norm == "l1" else 2, dim=-1)
    return length


def nearest_on_support(
    a: Square, support: Bool[Tensor, "*#batch n n"], norm: Norm = "l1", *, stochastic: bool = False
) -> Square:
    r"""The nearest matrix that vanishes outside `support`.

    Definition:
        $\arg\min \|B - A\|$ over $b_{ij} = 0$ outside the support, with $b_{ij} \ge 0$, $\sum_j b_{ij} = 1$ where
        `stochastic`. Free rows: A with the other entries set to 0. Probability rows: row by row, see
        `headscope.maths.linear_algebra.simplex`.
    Properties:
        - free rows: unique, the same in both norms, linear and idempotent  (tested: test_on_a_support)
        - no matrix of the same kind is nearer  (tested: test_no_matrix_of_the_kind_is_nearer)
        - stochastic, l1: not unique (missing mass may be put anywhere); Frobenius: unique
          (tested: test_l1_nearest_row_is_not_unique)
    """
    _known(norm)
    a = _checked(a)
    if not stochastic:
        return torch.where(support, a, 0.0)
    allowed = support.expand_as(a)
    return nearest_on_simplex_l1(a, allowed) if norm == "l1" else nearest_on_simplex(a, allowed)


def nearest_band(a: Square, width: int, norm: Norm = "l1", *, stochastic: bool = False) -> Square:
    """The nearest matrix with entries only where |i − j| ≤ width.

    Width 0 gives the nearest diagonal matrix.
    """
    return nearest_on_support(a, band(a.shape[-1], width).to(a.device), norm, stochastic=stochastic)


def nearest_blocks(a: Square, sizes: Sequence[int], norm: Norm = "l1", *, stochastic: bool = False) -> Square:
    """The nearest block-diagonal matrix with blocks of the given sizes."""
    if sum(sizes) != a.shape[-1]:
        raise UsageError(f"blocks of sizes {list(sizes)} do not fill a matrix with {a.shape[-1]} rows")
    return nearest_on_support(a, blocks(sizes).to(a.device), norm, stochastic=stochastic)


def nearest_band_and_entries(
    a: Square, width: int, entries: int, norm: Norm = "l1", *, stochastic: bool = False
) -> Square:
    r"""The nearest sum of a band matrix and a matrix with at most `entries` non-zeros.

    Definition:
        $\arg\min \|X - A\|$ over X with at most s non-zeros where $|i - j| > w$ (and probability rows where
        `stochastic`).
    Properties:
        - free rows: keep the band and the s largest entries outside it, in both norms
          (tested: test_band_and_entries_by_brute_force)
        - unique exactly where the s-th largest entry outside is larger than the next one, or the next one is 0
          (tested: test_ties_make_two_nearest_matrices); on a tie the first in reading order stays
        - stochastic: within a row the largest stay, and the rows share s by what each entry still gains; exact, since
          these gains fall from one entry of a row to the next  (tested: test_stochastic_entries_by_brute_force)
        - the split into band and sparse part is not unique (a sparse entry may lie in the band); their sum is what is
          found here
    Numerics:
        Free rows, and stochastic ones in l1: sorts, O(n² log n). Stochastic in Frobenius: n + s projections of a row.
    """
    _known(norm)
    a = _checked(a)
    if entries < 0:
        raise UsageError(f"the number of entries outside the band must be at least 0, got {entries}")
    inside = band(a.shape[-1], width).to(a.device)
    if stochastic:
        support = _gain_in_l1(a, inside, entries) if norm == "l1" else _gain_in_frobenius(a, inside, entries)
        return nearest_on_support(a, support, norm, stochastic=True)
    outside = a.abs().masked_fill(inside, -1.0).flatten(-2)
    # A stable sort, so that a tie is settled by the order of reading and not by the machine.
    best = outside.sort(dim=-1, descending=True, stable=True).indices[..., :entries]
    largest = torch.zeros_like(outside, dtype=torch.bool).scatter(-1, best, True).reshape(a.shape)
    return torch.where(largest | inside, a, 0.0)


def nearest_stripes(a: Square, columns: int, norm: Norm = "l1", *, stochastic: bool = False) -> Square:
    r"""The nearest matrix with entries in at most `columns` columns, the best ones.

    Definition:
        $\arg\min \|B - A\|$ over B with at most c non-zero columns: the c columns with the largest sums of
        $|a_{ij}|$ (l1) or $a_{ij}^2$ (Frobenius), the first ones where sums tie.
    Properties:
        - no other choice of columns is nearer  (tested: test_stripes_by_brute_force)
        - unique where the c-th largest sum exceeds the next
        - stochastic, l1: the same columns, for rows that are non-negative with sums of at most 1. Beyond that, and in
          the Frobenius norm, the choice is a covering problem that no sort solves: refused
    """
    _known(norm)
    a = _checked(a)
    if not 1 <= columns <= a.shape[-1]:
        raise UsageError(f"columns must lie in 1…{a.shape[-1]}, got {columns}")
    if stochastic and (norm != "l1" or bool((a < 0).any()) or bool((a.sum(-1) > 1 + 1e-9).any())):
        raise UsageError(
            "the nearest stripes with probability rows are found in the l1 norm, for rows that are at least 0 and sum "
            "to at most 1",
            hint="choose the columns without stochastic, then use nearest_on_support",
        )
    size = a.abs().sum(-2) if norm == "l1" else a.square().sum(-2)
    best = size.sort(dim=-1, descending=True, stable=True).indices[..., :columns]
    in_stripe = torch.zeros_like(size, dtype=torch.bool).scatter(-1, best, True)
    return nearest_on_support(a, in_stripe.unsqueeze(-2).expand_as(a), norm, stochastic=stochastic)


def nearest_equal_rows(a: Square, norm: Norm = "l1") -> Square:
    r"""The nearest matrix with equal rows: attention that ignores its query.

    Definition:
        $\mathbf 1 c^\top$ with c the column means (Frobenius, unique) or the column medians (l1; between the two middle
        values of an even column every choice is as near, and the lower is taken).
    Properties:
        - no other row is nearer  (tested: test_equal_rows)
        - the means of probability rows are a probability row; the medians need not be
    """
    _known(norm)
    a = _checked(a)
    row = a.mean(-2, keepdim=True) if norm == "frobenius" else a.median(-2, keepdim=True).values
    return row.expand_as(a).clone()


def nearest_low_rank(a: Float[Tensor, "*batch rows columns"], rank: int) -> Float[Tensor, "*batch rows columns"]:
    r"""The nearest matrix of at most this rank in the Frobenius norm.

    It is nearest in every norm that no rotation changes.

    Definition:
        $\sum_{i \le r} \sigma_i u_i v_i^\top$ of the singular value decomposition.
    Properties:
        - its distance is $\sqrt{\sum_{i>r} \sigma_i^2}$  (tested: test_low_rank_distance)
        - unique exactly where $\sigma_r > \sigma_{r+1}$, or $\sigma_{r+1} = 0$  (tested: test_low_rank_tie)
        - in the l1 norm the problem is NP-hard already for rank 1; the l1 distance of this one is an upper bound
    Reference:
        Eckart and Young (1936); Gillis and Vavasis (2018), On the complexity of robust PCA and l1-norm low-rank matrix
        approximation.
    """
    if rank < 0:
        raise UsageError(f"a rank is at least 0, got {rank}")
    a = a.to(torch.float64)
    _finite(a)
    u, sigma, vh = torch.linalg.svd(a, full_matrices=False)
    low: Tensor = (u[..., :rank] * sigma[..., None, :rank]) @ vh[..., :rank, :]
    return low


def _gain_in_l1(a: Square, inside: Bool[Tensor, "n n"], entries: int) -> Bool[Tensor, "*batch n n"]:
    """The band, and the entries with the largest gain towards probability rows.

    A row that already keeps the mass x gains from an entry a as much as is missing to 1: min(a, 1 − x), twice.
    """
    positive = a.clamp_min(0.0)
    outside, order = positive.masked_fill(inside, -1.0).sort(dim=-1, descending=True, stable=True)
    outside = outside.clamp_min(0.0)
    before = (positive * inside).sum(-1, keepdim=True) + outside.cumsum(-1) - outside
    gain = torch.minimum(outside, (1 - before).clamp_min(0.0)).flatten(-2)
    best = gain.sort(dim=-1, descending=True, stable=True).indices[..., :entries]
    selected = torch.zeros_like(gain, dtype=torch.bool).scatter(-1, best, True) & (gain > 0)
    places = torch.zeros_like(a, dtype=torch.bool).scatter(-1, order, selected.reshape(a.shape))
    return places | inside


def _gain_in_frobenius(a: Square, inside: Bool[Tensor, "n n"], entries: int) -> Bool[Tensor, "*batch n n"]:
    supports = [_rows_that_gain_most(matrix, inside, entries) for matrix in a.reshape(-1, *a.shape[-2:])]
    return torch.stack(supports).reshape(a.shape) if supports else torch.zeros_like(a, dtype=torch.bool)


def _rows_that_gain_most(a: Float[Tensor, "n n"], inside: Bool[Tensor, "n n"], entries: int) -> Bool[Tensor, "n n"]:
    """The same for squared distances.

    Here the gain of an entry needs the projection of its row.
    """
    support = inside.clone()
    order = a.masked_fill(inside, -torch.inf).sort(dim=-1, descending=True, stable=True).indices
    room = (~inside).sum(-1).tolist()
    added_by_row = [0] * len(a)

    def squared(i: int, allowed: Bool[Tensor, " n"]) -> float:
        return float((nearest_on_simplex(a[i], allowed) - a[i]).square().sum())

    def gain(i: int) -> float:
        wider = support[i].clone()
        wider[order[i, added_by_row[i]]] = True
        return squared(i, support[i]) - squared(i, wider)

    heap = [(-gain(i), i) for i in range(len(a)) if room[i]]
    heapq.heapify(heap)
    for _ in range(entries):
        if not heap or heap[0][0] >= 0:
            break
        _, i = heapq.heappop(heap)
        support[i, order[i, added_by_row[i]]] = True
        added_by_row[i] += 1
        if added_by_row[i] < room[i]:
            heapq.heappush(heap, (-gain(i), i))
    return support


def _checked(a: Tensor) -> Tensor:
    if a.ndim < 2 or a.shape[-1] != a.shape[-2] or a.shape[-1] == 0:
        raise UsageError(f"expected square matrices, got the shape {tuple(a.shape)}")
    a = a.to(torch.float64)
    _finite(a)
    return a


def _finite(a: Tensor) -> None:
    if not bool(torch.isfinite(a).all()):
        raise NumericsError(f"a matrix of shape {tuple(a.shape)} holds NaN or Inf, so no matrix is nearest to it")


def _known(norm: str) -> None:
    if norm not in ("l1", "frobenius"):
        raise UsageError(f"there is no norm {norm!r}", hint="there are l1 and frobenius")
