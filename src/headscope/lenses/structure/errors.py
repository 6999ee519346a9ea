"""Errors of all structures in one window: in the map, and in what heads write."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headscope.lenses.structure.reading import Reading
from headscope.lenses.structure.structures import (
    BLOCK_SIZES,
    COLUMN_SIZES,
    ENTRY_SIZES,
    ENTRY_WIDTHS,
    FEATURES,
    FIRST_SIZES,
    OFFSET_SIZES,
    RANKS,
    WIDTHS,
)
from headscope.maths.attention.shuffled_map import falling_order
from headscope.maths.linear_algebra.positive_kernel import positive_kernel

# A row whose kept pairs have no more than this is left empty: it cannot be scaled.
NOTHING = 1e-30
# Rows that are read at most, so ranks that can differ.
MOST_RANKS = 64

Away = Int[Tensor, "rows keys"]


@dataclass(frozen=True)
class Part:
    """What a structure keeps before scaling: mixed values, weights, visible pairs."""

    mixed: Float[Tensor, "heads rows d"]
    mass: Float[Tensor, "heads rows"]
    pairs: Float[Tensor, " heads"]

    def __add__(self, other: "Part") -> "Part":
        """Both, where they share no pair."""
        return Part(self.mixed + other.mixed, self.mass + other.mass, self.pairs + other.pairs)


@dataclass(frozen=True)
class Errors:
    """Sums over the rows of one window, in the order of `STRUCTURES`, in float64.

    `written` is ‖(A − Ã) V W_O‖², `map` the total variation of the rows, `numbers` what all rows keep, and `low_rank`
    the squared error of the rank with as many numbers. `tails` are those of each rank from 0, `energy` is ‖A V W_O‖².
    The structures that are no set of pairs and no baseline are NaN where they were not asked for.
    """

    written: Float[Tensor, "structures heads"]
    map: Float[Tensor, "structures heads"]
    numbers: Float[Tensor, "structures heads"]
    low_rank: Float[Tensor, "structures heads"]
    tails: Float[Tensor, "ranks heads"]
    energy: Float[Tensor, " heads"]
    rows: int
    visible: int


def errors_of(reading: Reading, *, with_others: bool) -> Errors:
    """All errors of one window."""
    sums = reading.pattern.sum(-1)
    mixed = _mixed(reading)
    vectors = _row_vectors(reading.pattern)
    tails = _tails(vectors, mixed)
    rows = len(reading.positions)
    sums_by_structure = [_of_part(part, mixed, sums) for part in _parts(reading, mixed, sums)]
    sums_by_structure += _others(reading, mixed, vectors, tails) if with_others else [_absent(sums)] * (len(RANKS) + 1)
    sums_by_structure += _baselines(reading, mixed, sums)
    written, variation, numbers = (torch.stack([numbers[index] for numbers in sums_by_structure]) for index in range(3))
    ranks = (numbers // (2 * rows)).nan_to_num(0.0).clamp(max=MOST_RANKS).long()
    visible = int(reading.visible.sum())
    return Errors(written, variation, numbers, tails.gather(0, ranks), tails, tails[0], rows, visible)


Sums = tuple[Tensor, Tensor, Tensor]  # written, map, numbers; each by head


def _of_part(part: Part, mixed: Tensor, sums: Tensor) -> Sums:
    """The errors where each row is scaled to the sum that it had."""
    is_kept = part.mass > NOTHING
    scale = torch.where(is_kept, sums / part.mass.clamp_min(NOTHING), 0.0)
    written = _squared(mixed - part.mixed * scale[..., None])
    # The total variation of a row and its scaled part is the mass left out; an empty row misses half of everything.
    variation = torch.where(is_kept, (sums - part.mass).clamp_min(0.0), sums / 2)
    return written, variation.sum(-1, dtype=torch.float64), part.pairs


def _squared(x: Float[Tensor, "heads rows d"]) -> Float[Tensor, " heads"]:
    return x.square().sum((1, 2)).to(torch.float64)


def _mixed(reading: Reading) -> Float[Tensor, "heads rows d"]:
    return torch.matmul(reading.pattern, reading.values)


def _parts(reading: Reading, mixed: Tensor, sums: Tensor) -> Iterator[Part]:
    """What the sets of pairs keep, in the order of `PAIR_STRUCTURES`."""
    all_pairs = Part(mixed, sums, _constant(int(reading.visible.sum()), len(sums)))
    bands = {width: _near(reading, width) if width < reading.n else all_pairs for width in {*WIDTHS, *ENTRY_WIDTHS}}
    yield from (bands[width] for width in WIDTHS)
    yield from (bands[width] + _first_beyond(reading, width) for width in WIDTHS)
    for width in ENTRY_WIDTHS:
        yield from (bands[width] + entries for entries in _entries(reading, width))
    yield from (_first(reading, size) for size in FIRST_SIZES)
    yield from _columns(reading)
    yield from _offsets(reading)
    yield from (_blocks(reading, size) if size < reading.n else all_pairs for size in BLOCK_SIZES)


def _near(reading: Reading, width: int) -> Part:
    """Pairs at most `width` apart."""
    return _sliced(
        reading,
        lambda positions, keys: (positions[:, None] - keys).abs() <= width,
        lambda first, last: (first - width, last + (0 if reading.causal else width)),
    )


def _blocks(reading: Reading, size: int) -> Part:
    """Pairs in the same of equal blocks."""
    return _sliced(
        reading,
        lambda positions, keys: positions[:, None] // size == keys // size,
        lambda first, last: (first // size * size, -(-last // size) * size),
    )


def _sliced(
    reading: Reading,
    rule: Callable[[Tensor, Tensor], Bool[Tensor, "rows keys"]],
    ends: Callable[[int, int], tuple[int, int]],
) -> Part:
    """What a rule keeps, stretch by stretch, of the keys between the ends."""
    heads = len(reading.pattern)
    mixed, mass, pairs = [], [], 0
    for stretch in reading.stretches:
        low, high = ends(stretch.position, stretch.last)
        rows, keys = slice(stretch.start, stretch.stop), slice(max(low, 0), min(high, reading.n))
        mask = rule(reading.positions[rows], torch.arange(reading.n)[keys]) & reading.visible[rows, keys]
        weights = reading.pattern[:, rows, keys] * mask
        mixed.append(torch.matmul(weights, reading.values[:, keys]))
        mass.append(weights.sum(-1))
        pairs += int(mask.sum())
    return Part(torch.cat(mixed, 1), torch.cat(mass, 1), _constant(pairs, heads))


def _constant(pairs: int, heads: int) -> Float[Tensor, " heads"]:
    return torch.full((heads,), float(pairs), dtype=torch.float64)


def _first(reading: Reading, size: int) -> Part:
    weights = reading.pattern[..., :size]
    pairs = _constant(int(reading.visible[:, :size].sum()), len(weights))
    return Part(torch.matmul(weights, reading.values[:, :size]), weights.sum(-1), pairs)


def _first_beyond(reading: Reading, width: int) -> Part:
    """The first key, for queries whose band does not hold it."""
    is_beyond = (reading.positions > width) & reading.visible[:, 0]
    weights = reading.pattern[..., 0] * is_beyond
    pairs = _constant(int(is_beyond.sum()), len(weights))
    return Part(weights[..., None] * reading.values[:, :1], weights, pairs)


def _entries(reading: Reading, width: int) -> Iterator[Part]:
    """The largest entries of each row outside a band, for each number of them."""
    outside = (reading.away.abs() > width) & reading.visible
    candidates = torch.where(outside, reading.pattern, -1.0)
    keys = falling_order(candidates)[..., : max(ENTRY_SIZES)]
    weights = candidates.gather(2, keys).clamp_min(0.0)
    n_outside = outside.sum(-1)
    for size in ENTRY_SIZES:
        largest = weights[..., :size]
        # A product with zeros costs less than gathering the values of each row.
        alone = torch.zeros_like(reading.pattern).scatter(2, keys[..., :size], largest)
        pairs = _constant(int(n_outside.clamp(max=size).sum()), len(weights))
        yield Part(torch.matmul(alone, reading.values), largest.sum(-1), pairs)


def _values_at(reading: Reading, keys: Int[Tensor, "heads rows chosen"]) -> Float[Tensor, "heads rows chosen d"]:
    heads = torch.arange(len(keys))[:, None, None]
    return reading.values[heads, keys]


def _weighted(
    weights: Float[Tensor, "heads rows chosen"], values: Float[Tensor, "heads rows chosen d"]
) -> Float[Tensor, "heads rows d"]:
    return torch.matmul(weights[:, :, None], values)[:, :, 0]


def _columns(reading: Reading) -> Iterator[Part]:
    """The keys with the largest sums over the rows, for each number of them."""
    sums = reading.pattern.sum(1)
    best = sums.sort(dim=-1, descending=True, stable=True).indices[:, : max(COLUMN_SIZES)]
    weights = reading.pattern.gather(2, best[:, None].expand(-1, len(reading.positions), -1))
    heads = torch.arange(len(best))[:, None]
    values = reading.values[heads, best]
    n_visible = reading.visible.sum(0).to(torch.float64)[best].cumsum(-1)
    for size in COLUMN_SIZES:
        last = min(size, best.shape[1])
        in_columns = weights[..., :last]
        yield Part(torch.matmul(in_columns, values[:, :last]), in_columns.sum(-1), n_visible[:, last - 1])


def _offsets(reading: Reading) -> Iterator[Part]:
    """The distances with the most weight over the rows, for each number of them."""
    heads, rows, n = reading.pattern.shape
    shifted = (reading.away + n).flatten().expand(heads, -1)
    masses = torch.zeros(heads, 2 * n, dtype=torch.float64)
    masses.scatter_add_(1, shifted, reading.pattern.flatten(1).to(torch.float64))
    best = masses.sort(dim=1, descending=True, stable=True).indices[:, : max(OFFSET_SIZES)] - n
    keys = reading.positions[:, None] - best[:, None, :]
    inside = (keys >= 0) & (keys < n)
    keys = keys.clamp(0, n - 1)
    visible = reading.visible[torch.arange(rows)[:, None], keys] & inside
    weights = reading.pattern.gather(2, keys) * visible
    values = _values_at(reading, keys)
    n_visible = visible.sum(1).to(torch.float64).cumsum(1)
    for size in OFFSET_SIZES:
        last = min(size, best.shape[1])
        on_offsets = weights[..., :last]
        yield Part(_weighted(on_offsets, values[:, :, :last]), on_offsets.sum(-1), n_visible[:, last - 1])


def _row_vectors(pattern: Float[Tensor, "heads rows keys"]) -> Float[Tensor, "heads rows rows"]:
    """The left singular vectors, the largest value first."""
    exact = pattern.to(torch.float64)
    vectors: Tensor = torch.linalg.eigh(exact @ exact.mT).eigenvectors
    return vectors.flip(-1)


def _tails(vectors: Float[Tensor, "heads rows rows"], mixed: Tensor) -> Float[Tensor, "ranks heads"]:
    """The squared written error of the nearest map of each rank.

    U_r U_rᵀ A misses the components of the output beyond the first r.
    """
    energies = torch.matmul(vectors.mT, mixed.to(torch.float64)).square().sum(-1)
    tails = energies.flip(-1).cumsum(-1).flip(-1).T
    return torch.cat((tails, tails.new_zeros(MOST_RANKS + 1 - len(tails), tails.shape[1])))


def _others(reading: Reading, mixed: Tensor, vectors: Tensor, tails: Tensor) -> list[Sums]:
    """Low rank, and a kernel of positive features."""
    pattern = reading.pattern
    heads, rows, _ = pattern.shape
    sums_by_structure = []
    for rank in RANKS:
        first = vectors[..., :rank].to(pattern.dtype)
        variation = _variation(pattern, torch.matmul(first, torch.matmul(first.mT, pattern)))
        sums_by_structure.append((tails[rank], variation, _constant(2 * rank * rows, heads)))
    kernel = positive_kernel(pattern, reading.visible, FEATURES)
    written = _squared(mixed - torch.matmul(kernel, reading.values))
    return [*sums_by_structure, (written, _variation(pattern, kernel), _constant(2 * FEATURES * rows, heads))]


def _variation(pattern: Float[Tensor, "heads rows keys"], fitted: Tensor) -> Float[Tensor, " heads"]:
    """The summed total variation of the rows of two maps."""
    return (pattern - fitted).abs().sum((1, 2)).to(torch.float64) / 2


def _absent(sums: Tensor) -> Sums:
    nothing = torch.full((len(sums),), torch.nan, dtype=torch.float64)
    return nothing, nothing, nothing


def _baselines(reading: Reading, mixed: Tensor, sums: Tensor) -> list[Sums]:
    """The zero matrix, and uniform attention over all keys or the visible ones."""
    heads, rows, n = reading.pattern.shape
    scale = sums[..., None]
    zero = (_squared(mixed), sums.sum(-1, dtype=torch.float64) / 2, _constant(0, heads))
    mean = reading.values.mean(1, keepdim=True)
    variation = _variation(reading.pattern, scale / n)
    uniform = (_squared(mixed - mean * scale), variation, _constant(rows * n, heads))
    even = (reading.visible / reading.visible.sum(1, keepdim=True)).to(reading.pattern.dtype)
    written = _squared(mixed - torch.matmul(even, reading.values) * scale)
    visible = (written, _variation(reading.pattern, even * scale), _constant(int(reading.visible.sum()), heads))
    return [zero, uniform, visible]
