"""What is measured and what is predicted at each stage of a layer: heads, W_O, skip, norm, and the layer's output."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.core import WeightSource
from headscope.errors import WeightsRefused
from headscope.lenses.transport.constant_weights import Stacked
from headscope.lenses.transport.errors import Drawn, Shown

# Draws for each position at least, in pairs of opposite sign, and the rows on which a norm is recognised.
DRAWS, ROWS = 4, 256
# A norm is recognised where it leaves less of the variance than this.
RECOGNISED = 1e-4


@dataclass
class Stages:
    """The stages of one site; `lost` says why some are missing."""

    stacked: Stacked
    source: WeightSource | None
    distance: int
    seed: int
    lost: list[str] = field(default_factory=list)

    def heads(self) -> Iterator[Shown]:
        """Each head: what it gives, and what it would give with other weights."""
        for head in range(self.stacked.site.n_heads):
            here = slice(self.stacked.skip, self.stacked.queries)
            yield Shown(
                self.stacked.z[:, head, here].to(torch.float64),
                self.stacked.mixed[:, :, head, here],
                self.stacked.flat(head)[:, here],
                self.stacked.values(head)[:, here],
            )

    def layer(self) -> Iterator[tuple[str, Shown]]:
        """The stages behind the heads, as far as they can be had."""
        one, here = self.stacked, slice(self.stacked.skip, self.stacked.queries)
        written = self._written()
        if written is None:
            return
        measured, fixed, uniform = written
        x = one.x.to(torch.float64)
        output = Shown(measured[:, here], fixed[:, :, here], uniform[:, here], x[:, here])
        yield "output", output
        skipped = Shown((x + measured)[:, here], (x + fixed)[:, :, here], (x + uniform)[:, here], x[:, here])
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
        one = self.stacked
        if self.source is None or self.source.status(one.site).status == "refused":
            reason = "no weights" if self.source is None else self.source.status(one.site).reason
            self.lost.append(f"{one.site.label}: everything behind the heads ({reason})")
            return None
        weights = self.source.weights(one.site)
        w_o, b_o = weights.w_o.to(torch.float64), weights.b_o.to(torch.float64)
        shape = (one.windows, one.queries, w_o.shape[-1])
        measured, uniform = b_o.expand(shape).clone(), b_o.expand(shape).clone()
        fixed = b_o.expand(2, *shape).clone()
        for head in range(one.site.n_heads):
            measured += one.z[:, head].to(torch.float64) @ w_o[head]
            fixed += one.mixed[:, :, head] @ w_o[head]
            uniform += one.flat(head) @ w_o[head]
        return measured, fixed, uniform

    def _later(self, summed: Float[Tensor, "windows queries d"]) -> tuple[Shown | None, Shown] | None:
        """The input of the feed-forward part, where it is a norm of the sum with the skip, and the layer's output."""
        one, label = self.stacked, self.stacked.site.label
        if one.fewest < 2 or one.queries - one.skip <= self.distance:
            self.lost.append(f"{label}: norm and layer (too few windows or tokens to draw from their Gaussian)")
            return None
        x = one.x.to(torch.float64)
        try:
            runs = [self._run(x, one.z), *(self._run(x, one.mixed[half]) for half in (0, 1))]
            drawn = [self._drawn(x, one.mixed[half], half) for half in (0, 1)]
            draws = [self._run(*two[1:]) for two in drawn]
        except WeightsRefused as refusal:
            self.lost.append(f"{refusal.message} (norm and layer)")
            return None
        at = (drawn[0][0], drawn[1][0])
        here = slice(one.skip, one.queries)
        found: list[Shown | None] = []
        for stage in (0, 1):
            rows = [run[stage] for run in (*runs, *draws)]
            missing = stage == 0 and not self._recognised(rows[0], summed)
            if missing or any(row is None for row in rows):
                found.append(None)
                continue
            own, even, odd, first, second = (row.to(torch.float64) for row in rows if row is not None)
            found.append(
                Shown(
                    own[:, here],
                    torch.stack((even, odd))[:, :, here],
                    None,
                    x[:, here],
                    Drawn(at, (first, second)),
                )
            )
        return (found[0], found[1]) if found[1] is not None else None

    def _run(self, x: Tensor, z: Tensor) -> tuple[Tensor | None, Tensor]:
        if self.source is None:
            raise WeightsRefused("no weights")
        after = self.source.after_heads(self.stacked.site, x, z.to(x.dtype))
        return after.normed, after.out

    def _recognised(self, normed: Tensor | None, summed: Float[Tensor, "windows queries d"]) -> bool:
        """Whether the feed-forward part reads a norm of the sum: that with or without its mean, times a gain."""
        label = self.stacked.site.label
        if normed is None:
            self.lost.append(f"{label}: skip and norm (no feed-forward matrices that would show what is normalised)")
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
        self.lost.append(
            f"{label}: skip and norm (its feed-forward part does not read a norm of the sum of stream and W_O's output)"
        )
        return False

    def _drawn(self, x: Tensor, z: Tensor, half: int) -> tuple[Tensor, Tensor, Tensor]:
        """Pairs of tokens from the joint Gaussian of stream and heads with fixed weights, in one half.

        Every draw is a random combination of the pairs of that half around the means of their positions. The
        coefficients are orthonormal columns, taken with both signs: so the draws have the covariance exactly, pooled
        over positions, and the mean of every position, and only what is not linear is left to chance.
        """
        one, t = self.stacked, self.distance
        chosen = one.odd if half else ~one.odd
        both = torch.cat((x, z.movedim(1, 2).flatten(2)), -1)[chosen][:, one.skip :]
        mean = both.mean(0)
        centred = both - mean
        n, positions, width = both.shape
        pairs = torch.cat((centred[:, t:], centred[:, : positions - t]), -1).reshape(-1, 2 * width)
        many = max(DRAWS * (positions - t), len(pairs))
        generator = torch.Generator().manual_seed(self.seed + half)
        noise = torch.randn(many, len(pairs), generator=generator, dtype=torch.float64)
        q, r = torch.linalg.qr(noise)
        columns = q * torch.sign(torch.diagonal(r))
        gap = columns @ pairs * sqrt(many / ((n - 1) * (positions - t)))
        at = t + torch.arange(many) % (positions - t)
        centre = torch.cat((mean[at], mean[at - t]), -1)
        drawn = torch.cat((centre + gap, centre - gap)).reshape(-1, 2, width)
        d, heads = x.shape[-1], one.site.n_heads
        return torch.cat((at, at)), drawn[..., :d], drawn[..., d:].reshape(len(drawn), 2, heads, -1).movedim(2, 1)
