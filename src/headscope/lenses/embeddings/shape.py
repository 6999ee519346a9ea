"""The shape of a table of vectors: lengths, cosines of all pairs, spectrum, and their nulls."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, reduce
from math import sqrt

import torch
from jaxtyping import Bool, Float
from scipy import stats
from torch import Tensor

from headscope.core import Embedding
from headscope.maths.attention.sinusoidal_positions import similarity
from headscope.maths.gaussians.moments import Moments
from headscope.maths.geometry.cosines import Directions, blocks, null_deviations
from headscope.maths.random_matrices.null_spectrum import Comparison
from headscope.maths.random_matrices.wishart import mean_length

Number = dict[str, object]
# Rows whose cosines the histogram shows; the moments are over all rows.
SAMPLED_ROWS = 1024


@dataclass(frozen=True)
class Table:
    """One table: the rows that the model reaches, and the nonzero ones among them."""

    embedding: Embedding
    reached: Float[Tensor, "all d"]
    rows: Float[Tensor, "rows d"]

    @classmethod
    def of(cls, embedding: Embedding, stored: Float[Tensor, "rows d"]) -> "Table":
        """From the table as it is stored; copied only where it has empty rows."""
        reached = stored[embedding.first :]
        filled = _filled(reached)
        return cls(embedding, reached, reached if bool(filled.all()) else reached[filled])

    @property
    def empty(self) -> int:
        """Rows that are zero."""
        return len(self.reached) - len(self.rows)

    @property
    def sizes(self) -> tuple[int, int]:
        """Rows and dimensions."""
        return len(self.rows), self.rows.shape[1]

    @cached_property
    def lengths(self) -> Float[Tensor, " rows"]:
        """Length of every row."""
        return torch.cat([block.to(torch.float64).norm(dim=1) for block in blocks(self.rows)])

    @cached_property
    def moments(self) -> Moments:
        """Mean and scatter of the rows; by block, since all rows in float64 may be a gigabyte."""
        return reduce(Moments.merge, map(Moments.of, blocks(self.rows)))

    @cached_property
    def directions(self) -> Directions:
        """Sums that give the moments of all cosines."""
        return Directions.of(self.rows)

    @cached_property
    def centred(self) -> Directions:
        """The same sums about the mean of the rows."""
        return Directions.of(self.rows, self.moments.mean)

    @cached_property
    def spectrum(self) -> Comparison:
        """Singular values of the centred rows and of a random matrix; centring costs one row."""
        n, d = self.sizes
        values = torch.linalg.eigvalsh(self.moments.scatter).flip(0)[: min(n - 1, d)]
        return Comparison((n - 1, d), values.clamp_min(0.0).sqrt())


@dataclass(frozen=True)
class Summary:
    """Numbers of a table that its figures and sentences need, without its vectors.

    `cosines` and `centred_cosines` are those of all pairs of `sampled_rows` rows at equal steps.
    """

    embedding: Embedding
    sizes: tuple[int, int]
    empty: int
    lengths: Float[Tensor, " rows"]
    spectrum: Comparison
    sampled_rows: int
    cosines: Float[Tensor, " pairs"]
    centred_cosines: Float[Tensor, " pairs"]

    @classmethod
    def of(cls, table: Table) -> "Summary":
        """The summary of a table."""
        step = -(-len(table.rows) // SAMPLED_ROWS)
        sampled = table.rows[::step].to(torch.float64)
        pairs = torch.tril_indices(len(sampled), len(sampled), -1)

        def cosines(x: Float[Tensor, "rows d"]) -> Float[Tensor, " pairs"]:
            u = torch.nn.functional.normalize(x, dim=1)
            return (u @ u.mT)[pairs[0], pairs[1]]

        around = cosines(sampled - table.moments.mean)
        return cls(
            table.embedding,
            table.sizes,
            table.empty,
            table.lengths,
            table.spectrum,
            len(sampled),
            cosines(sampled),
            around,
        )


def shape_numbers(table: Table) -> Iterator[Number]:
    """Lengths, cosines and isotropy, and the same of random vectors."""
    n, d = table.sizes
    mean, scatter = table.moments.mean, table.moments.scatter / n
    lengths, mean_norm_square = table.lengths, float(table.moments.mean.square().sum())
    average, trace = float(lengths.mean()), float(scatter.diagonal().sum())

    chi = mean_length(d)
    null = sqrt(d - chi * chi) / chi
    # Var |x|² of a Gaussian with this mean and covariance; half of its relative root is the spread of the length.
    variance = 2 * float(scatter.square().sum()) + 4 * float(mean @ scatter @ mean)
    spread = float(lengths.std(correction=0)) / average
    yield _number("length_mean", average)
    yield _number("length_spread", spread, null, null / sqrt(2 * n), sqrt(variance) / (2 * (mean_norm_square + trace)))
    for name, share in (("length_low", 0.05), ("length_high", 0.95)):
        yield _number(name, float(lengths.quantile(share)) / average, float(stats.chi.ppf(share, d)) / chi)
    yield _number("mean_share", mean_norm_square / (mean_norm_square + trace), 1 / n, sqrt(2 / d) / n)

    deviations = null_deviations(d, table.directions.pairs)
    yield _number("cosine_mean", table.directions.mean, 0.0, deviations[0])
    yield _number("cosine_square", table.directions.mean_square, 1 / d, deviations[1])
    if table.centred.count > 1:
        yield _number("centred_cosine_mean", table.centred.mean, -1 / (n - 1))
        yield _number("centred_cosine_square", table.centred.mean_square, 1 / d, deviations[1])
    second_moment = scatter + torch.outer(mean, mean)
    yield _number("participation", _participation(second_moment), (n * d + 2) / (n + d + 1))
    if trace > 0:
        yield _number("centred_participation", _participation(scatter), ((n - 1) * d + 2) / (n + d))


def cross_numbers(table: Table, tokens: Table) -> Iterator[Number]:
    """Cosines of every row with every token vector."""
    mean, square = table.directions.with_others(tokens.directions)
    deviations = null_deviations(table.sizes[1], table.directions.count * tokens.directions.count)
    yield _number("cosine_mean", mean, 0.0, deviations[0])
    yield _number("cosine_square", square, 1 / table.sizes[1], deviations[1])


def own_cosine_number(table: Table, tokens: Table) -> Iterator[Number]:
    """Mean cosine of a token's output and input vectors, and of any two vectors as null."""
    if table.reached.shape != tokens.reached.shape:
        return
    pairs = zip(blocks(table.reached), blocks(tokens.reached), strict=True)
    cosines = torch.cat([torch.cosine_similarity(a.double(), b.double(), dim=1) for a, b in pairs])
    cosines = cosines[_filled(table.reached) & _filled(tokens.reached)]
    mean, square = table.directions.with_others(tokens.directions)
    yield _number("own_cosine", float(cosines.mean()), mean, sqrt(max(0.0, square - mean**2) / len(cosines)))


def distance_numbers(table: Table) -> Iterator[Number]:
    """Mean cosine of positions by distance, plain and centred, and the sinusoidal formula."""
    n, d = table.reached.shape
    x = table.reached.double()
    u, c = (torch.nn.functional.normalize(rows, dim=1) for rows in (x, x - table.moments.mean))
    distance = 1
    while distance < n:
        cosine = float((u[distance:] * u[:-distance]).sum(1).mean())
        around = float((c[distance:] * c[:-distance]).sum(1).mean())
        pairs = n - distance
        law = float(similarity(torch.tensor(float(distance)), d)) / (d / 2) if d % 2 == 0 else None
        yield {"distance": distance, "value": cosine, "null": 0.0, "z": cosine * sqrt(d * pairs), "centred": around} | {
            "sinusoid": law,
            "pairs": pairs,
            "dimensions": d,
        }
        distance *= 2


def _filled(x: Float[Tensor, "rows d"]) -> Bool[Tensor, " rows"]:
    """Which rows are not zero."""
    return torch.cat([block.any(1) for block in blocks(x)])


def _participation(moment: Float[Tensor, "d d"]) -> float:
    return float(moment.diagonal().sum()) ** 2 / float(moment.square().sum())


def _number(
    quantity: str, value: float, null: float | None = None, sd: float | None = None, gaussian: float | None = None
) -> Number:
    z = (value - null) / sd if null is not None and sd else None
    return {"quantity": quantity, "value": value, "null": null, "z": z, "gaussian": gaussian}
