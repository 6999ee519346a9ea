"""The Gaussian of a token's vector given the token before it, and its null."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from math import log, nan, pi

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscope.core import Site
from headscope.lenses.preconditioning.followers import Names, paired
from headscope.lenses.shared.head_threads import mapped
from headscope.lenses.shared.plots import place
from headscope.lenses.shared.table import Row
from headscope.maths.gaussians.gaussian import eigen, fitted
from headscope.maths.gaussians.moments import Moments
from headscope.maths.linear_algebra.symmetric import gram_matrix, symmetric_eigenvalues

PER_DIMENSION = 10
# Previous tokens, the most frequent; rows of each, at equal steps where there are more; random groups of each size.
GROUPS, ROWS, SHUFFLES = 12, 256, 10
SHARE = 0.9
# Variance below this part of the largest is rounding: equal tokens have equal vectors.
ROUNDING = 1e-10
QUANTITIES = ("entropy_nats", "effective_dimension", "components_90", "rank", "variance_share")


@dataclass(frozen=True)
class Stream:
    """Rows of one stream, with the token of each and the one before it."""

    site: Site
    rows: Float[Tensor, "rows d"]
    previous: Int[Tensor, " rows"]
    token: Int[Tensor, " rows"]
    components: int
    windows: int

    @cached_property
    def groups(self) -> list[tuple[int, Int[Tensor, " some"]]]:
        """The most frequent previous tokens with rows for every dimension that is used."""
        tokens, counts = torch.unique(self.previous, return_counts=True)
        order = sorted(zip((-counts).tolist(), tokens.tolist(), strict=True))
        most = max(ROWS, PER_DIMENSION * self.components)
        groups = []
        for minus, token in order[:GROUPS]:
            if self.dimensions and -minus >= PER_DIMENSION * self.dimensions:
                where = (self.previous == token).nonzero()[:, 0]
                groups.append((token, where[:: -(-len(where) // most)]))
        return groups

    @cached_property
    def dimensions(self) -> int:
        """Principal components: ten rows of the most frequent previous token for each."""
        largest = int(torch.unique(self.previous, return_counts=True)[1].max()) if len(self.previous) else 0
        return min(self.components, largest // PER_DIMENSION, self.rows.shape[1])

    @cached_property
    def moments(self) -> Moments:
        """Mean and covariance of all rows."""
        return Moments.of(self.rows)

    @cached_property
    def spectrum(self) -> tuple[Float[Tensor, " d"], Float[Tensor, "d d"]]:
        """Variances, largest first, and principal axes in columns."""
        values, vectors = eigen(self.moments.covariance())
        return values.flip(0), vectors.flip(1)

    @cached_property
    def scores(self) -> Float[Tensor, "rows k"]:
        """The principal components that are used."""
        axes = self.spectrum[1][:, : self.dimensions]
        return (self.rows.to(torch.float64) - self.moments.mean) @ axes

    def numbers(self, where: Int[Tensor, "sets some"]) -> Float[Tensor, "sets quantities"]:
        """The `QUANTITIES` of each set of rows; NaN where it has no entropy."""
        x = self.rows[where].to(torch.float64)
        x = x - x.mean(1, keepdim=True)
        small = gram_matrix(x.mT if x.shape[1] < x.shape[2] else x)
        return self._quantities(symmetric_eigenvalues(small).flip(-1) / (x.shape[1] - 1), where)

    def _quantities(
        self, values: Float[Tensor, "sets some"], where: Int[Tensor, "sets rows"]
    ) -> Float[Tensor, "sets quantities"]:
        """The `QUANTITIES` of sets of rows from the eigenvalues of their covariances, largest first."""
        values = torch.where(values > ROUNDING * self.spectrum[0][0], values, 0.0)
        total = values.sum(-1)
        enough = values.cumsum(-1) >= SHARE * total[:, None] * (1 - 1e-12)
        varies = total > 0
        return torch.stack(
            (
                self.entropy(where),
                torch.where(varies, total.square() / torch.where(varies, values.square().sum(-1), 1.0), 0.0),
                torch.where(varies, enough.to(torch.int64).argmax(-1) + 1.0, 0.0),
                (values > 0).sum(-1).to(torch.float64),
                total / float(self.spectrum[0].sum()),
            ),
            dim=1,
        )

    def entropy(self, where: Int[Tensor, "sets some"]) -> Float[Tensor, " sets"]:
        """The entropy of each set of rows in the principal components (Ledoit–Wolf)."""
        y = self.scores[where]
        varies = (y - y.mean(1, keepdim=True)).square().mean(1).amax(-1) > ROUNDING * self.spectrum[0][0]
        entropies = torch.full((len(y),), nan, dtype=torch.float64)
        if bool(varies.any()):
            values = symmetric_eigenvalues(fitted(Moments.of(y[varies]), "ledoit-wolf").covariance)
            entropies[varies] = 0.5 * (values.log() + log(2 * pi) + 1).sum(-1)
        return entropies

    @cached_property
    def measured(self) -> Float[Tensor, "groups quantities"]:
        """The quantities given each previous token."""
        return torch.cat([self.numbers(where[None]) for _, where in self.groups])

    @cached_property
    def null(self) -> Float[Tensor, "shuffles groups quantities"]:
        """The quantities of groups of the same sizes with previous tokens shuffled."""
        generators = [torch.Generator().manual_seed(shuffle) for shuffle in range(SHUFFLES)]
        orders = torch.stack([torch.randperm(len(self.rows), generator=generator) for generator in generators])
        ends = [0, *accumulate(len(where) for _, where in self.groups)]
        return torch.stack([self.numbers(orders[:, a:b]) for a, b in pairwise(ends)], 1)

    @cached_property
    def sizes(self) -> Float[Tensor, " groups"]:
        """Rows of each group."""
        return torch.tensor([float(len(where)) for _, where in self.groups], dtype=torch.float64)

    @cached_property
    def unconditional(self) -> Float[Tensor, " quantities"]:
        """The quantities of all rows together."""
        return self._quantities(self.spectrum[0][None], torch.arange(len(self.rows))[None])[0]

    def layer_rows(self) -> Iterator[Row]:
        """Means over previous tokens, weighted by their number of rows."""
        for at, quantity in enumerate(QUANTITIES):
            finite = ~self.measured[:, at].isnan() & ~self.null[..., at].isnan().any(0)
            if not bool(finite.any()):
                continue
            n, values = self.sizes[finite], self.measured[finite, at]
            mean, half = paired(values, self.null[:, finite, at].mean(0), n)
            null = float(((self.null[:, finite, at] * n).sum(1) / n.sum()).mean())
            yield {
                **place(self.site, None),
                "quantity": quantity,
                "value": mean,
                "low": _none_if_nan(mean - half),
                "high": _none_if_nan(mean + half),
                "null": null,
                "unconditional": _none_if_nan(float(self.unconditional[at])),
                "dimensions": self.dimensions if quantity == "entropy_nats" else self.rows.shape[1],
                "samples": int(n.sum()),
                "groups": int(finite.sum()),
                "windows": self.windows,
            }

    def token_rows(self, names: Names) -> Iterator[Row]:
        """Every previous token by itself."""
        for group, (token, where) in enumerate(self.groups):
            for at, quantity in enumerate(QUANTITIES):
                value, null = float(self.measured[group, at]), self.null[:, group, at]
                yield {
                    **place(self.site, None),
                    "previous": names(token),
                    "quantity": quantity,
                    "value": _none_if_nan(value),
                    "null": _none_if_nan(float(null.mean())),
                    "continuations": len(torch.unique(self.token[where])),
                    "dimensions": self.dimensions if quantity == "entropy_nats" else self.rows.shape[1],
                    "samples": len(where),
                }


def _none_if_nan(x: float) -> float | None:
    return None if x != x else x


def measured_streams(streams: Sequence[Stream]) -> list[Stream]:
    """The streams that vary and in which a previous token has enough rows."""
    with_groups = [stream for stream in streams if stream.groups]
    varies = mapped(lambda stream: float(stream.spectrum[0][0]) > 0, with_groups)
    return [stream for stream, does in zip(with_groups, varies, strict=True) if does]
