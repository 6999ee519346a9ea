"""What is measured and what is predicted at each stage of a layer: heads, W_O, skip, norm, and the layer's output."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.attention.float32_products import product
from headscope.core import WeightSource
from headscope.errors import WeightsRefused
from headscope.lenses.transport.constant_weights import Stacked
from headscope.lenses.transport.errors import Draws, StageVectors

# Draws for each position at least, in pairs of opposite sign, and the rows on which a norm is recognised.
DRAWS, ROWS = 4, 256
# A norm is recognised where it leaves less of the variance than this.
RECOGNISED = 1e-4


@dataclass
class Stages:
    """The stages of one site; `omissions` says why some are missing."""

    stacked: Stacked
    source: WeightSource | None
    distance: int
    omissions: list[str] = field(default_factory=list)

    def heads(self) -> Iterator[StageVectors]:
        """Each head: what it gives, and what it would give with other weights."""
        for head in range(self.stacked.site.n_heads):
            positions = slice(self.stacked.skip, self.stacked.queries)
            yield StageVectors(
                self.stacked.z[:, head, positions].to(torch.float64),
                self.stacked.mixed[:, :, head, positions],
                self.stacked.flat(head)[:, positions],
                self.stacked.values(head)[:, positions],
            )

    def layer(self) -> Iterator[tuple[str, StageVectors]]:
        """The stages behind the heads, as far as they can be had."""
        stacked, positions = self.stacked, slice(self.stacked.skip, self.stacked.queries)
        written = self._written()
        if written is None:
            return
        measured, fixed, uniform = written
        x = stacked.x.to(torch.float64)
        output = StageVectors(measured[:, positions], fixed[:, :, positions], uniform[:, positions], x[:, positions])
        yield "output", output
        skipped = StageVectors(
            (x + measured)[:, positions], (x + fixed)[:, :, positions], (x + uniform)[:, positions], x[:, positions]
        )
        later = self._later(x + measured)
        if later is None:
            yield "skip", skipped
            return
        normed, out = later
        if normed is not None:
            yield "skip", skipped
            yield "norm", normed
        yield "layer", out

    def _written(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """What the heads write together through W_O: measured, with fixed weights, and with uniform ones."""
        stacked = self.stacked
        if self.source is None or self.source.status(stacked.site).status == "refused":
            reason = "no weights" if self.source is None else self.source.status(stacked.site).reason
            self.omissions.append(f"{stacked.site.label}: everything behind the heads ({reason})")
            return None
        weights = self.source.weights(stacked.site)
        w_o, b_o = weights.w_o.to(torch.float64), weights.b_o.to(torch.float64)
        shape = (stacked.windows, stacked.queries, w_o.shape[-1])
        flat = torch.stack([stacked.flat(head) for head in range(stacked.site.n_heads)], 1)

        def written(z: Float[Tensor, "*halves windows heads queries d_value"]) -> Tensor:
            """All heads in one product: W_O of the heads below one another."""
            side_by_side = z.to(torch.float64).movedim(-3, -2).flatten(-2)
            return torch.addmm(b_o, side_by_side.flatten(0, -2), w_o.flatten(0, 1))

        return (
            written(stacked.z).reshape(shape),
            written(stacked.mixed).reshape(2, *shape),
            written(flat).reshape(shape),
        )

    def _later(self, summed: Float[Tensor, "windows queries d"]) -> tuple[StageVectors | None, StageVectors] | None:
        """The input of the feed-forward part, where it is a norm of the sum with the skip, and the layer's output."""
        stacked, label = self.stacked, self.stacked.site.label
        if stacked.fewest < 2 or stacked.queries - stacked.skip <= self.distance:
            self.omissions.append(f"{label}: norm and layer (too few windows or tokens to draw from their Gaussian)")
            return None
        x = stacked.x.to(torch.float64)
        try:
            runs = [self._run(x, stacked.z), *(self._run(x, stacked.mixed[half]) for half in (0, 1))]
            inputs = [self._gaussian_draws(x, stacked.mixed[half], half) for half in (0, 1)]
            draws = [self._run(*drawn_input[1:]) for drawn_input in inputs]
        except WeightsRefused as refusal:
            self.omissions.append(f"{refusal.message} (norm and layer)")
            return None
        at = (inputs[0][0], inputs[1][0])
        positions = slice(stacked.skip, stacked.queries)
        stage_vectors: list[StageVectors | None] = []
        for stage in (0, 1):
            rows = [run[stage] for run in (*runs, *draws)]
            missing = stage == 0 and not self._recognised(rows[0], summed)
            if missing or any(row is None for row in rows):
                stage_vectors.append(None)
                continue
            measured, even, odd, first, second = (row.to(torch.float64) for row in rows if row is not None)
            stage_vectors.append(
                StageVectors(
                    measured[:, positions],
                    torch.stack((even, odd))[:, :, positions],
                    None,
                    x[:, positions],
                    Draws(at, (first, second)),
                )
            )
        return (stage_vectors[0], stage_vectors[1]) if stage_vectors[1] is not None else None

    def _run(self, x: Tensor, z: Tensor) -> tuple[Tensor | None, Tensor]:
        if self.source is None:
            raise WeightsRefused("no weights")
        after = self.source.after_heads(self.stacked.site, x, z.to(x.dtype))
        return after.normed, after.out

    def _recognised(self, normed: Tensor | None, summed: Float[Tensor, "windows queries d"]) -> bool:
        """Whether the feed-forward part reads a norm of the sum: that with or without its mean, times a gain."""
        label = self.stacked.site.label
        if normed is None:
            self.omissions.append(
                f"{label}: skip and norm (no feed-forward matrices that would show what is normalised)"
            )
            return False
        d = summed.shape[-1]
        every = max(1, summed.shape[0] * summed.shape[1] // ROWS)
        y, r = (x.to(torch.float64).reshape(-1, d)[::every] for x in (normed, summed))
        y = y - y.mean(0)
        for centre in (r - r.mean(-1, keepdim=True), r):
            unit = centre / centre.square().mean(-1, keepdim=True).sqrt().clamp_min(1e-300)
            unit = unit - unit.mean(0)
            gain = (unit * y).sum(0) / unit.square().sum(0).clamp_min(1e-300)
            if float((y - gain * unit).square().sum()) <= RECOGNISED * float(y.square().sum()):
                return True
        self.omissions.append(
            f"{label}: skip and norm (its feed-forward part does not read a norm of the sum of stream and W_O's output)"
        )
        return False

    def _gaussian_draws(self, x: Tensor, z: Tensor, half: int) -> tuple[Tensor, Tensor, Tensor]:
        """Pairs of tokens from the joint Gaussian of stream and heads with fixed weights, in one half.

        Every draw is a random combination of the pairs of that half around the means of their positions. The
        coefficients are orthonormal columns, taken with both signs: so the draws have the covariance exactly, pooled
        over positions, and the mean of every position, and only what is not linear is left to chance.
        """
        stacked, t = self.stacked, self.distance
        in_half = stacked.odd if half else ~stacked.odd
        stream_and_heads = torch.cat((x, z.movedim(1, 2).flatten(2)), -1)[in_half][:, stacked.skip :]
        mean = stream_and_heads.mean(0)
        centred = stream_and_heads - mean
        n, positions, width = stream_and_heads.shape
        pairs = torch.cat((centred[:, t:], centred[:, : positions - t]), -1).reshape(-1, 2 * width)
        n_draws = max(DRAWS * (positions - t), len(pairs))
        # In the dtype of the stream, in which the layer is run on the draws: this product is larger than the others.
        columns = _orthonormal_columns(n_draws, len(pairs), half).to(stacked.x.dtype)
        gap = product(columns, pairs.to(columns.dtype)) * sqrt(n_draws / ((n - 1) * (positions - t)))
        at = t + torch.arange(n_draws) % (positions - t)
        centre = torch.cat((mean[at], mean[at - t]), -1)
        drawn_pairs = torch.cat((centre + gap, centre - gap)).reshape(-1, 2, width)
        d, heads = x.shape[-1], stacked.site.n_heads
        return (
            torch.cat((at, at)),
            drawn_pairs[..., :d],
            drawn_pairs[..., d:].reshape(len(drawn_pairs), 2, heads, -1).movedim(2, 1),
        )


@lru_cache(maxsize=2)
def _orthonormal_columns(n_draws: int, n_pairs: int, seed: int) -> Float[Tensor, "draws pairs"]:
    """Random orthonormal columns; all layers share those of a half, whose decomposition would take half of the time."""
    noise = torch.randn(n_draws, n_pairs, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    q, r = torch.linalg.qr(noise)
    columns: Tensor = q * torch.sign(torch.diagonal(r))
    return columns
