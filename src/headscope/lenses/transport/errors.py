r"""Predicted against measured, and what the error is made of.

One half of the windows is predicted from the other. With the formula's weights and moments of half a, and b the other:

    predicted(a) − measured(b) = [fixed(a) on b − measured(b)]      the weights depend on the data
                               + [fixed(a) on a − fixed(a) on b]    the two halves differ: sampling
                               + [Gaussian(a) − fixed(a) on a]      tokens are not Gaussian: 0 where all is linear

where "fixed(a) on b" is what really comes out in half b when the mean weights of half a take the place of its own: its
moments are the formula's, Σ_j P_ij μ_j and Σ_jl P_ij P_kl Σ_jl, with the moments of half b.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headscope.lenses.shared.table import Row, number
from headscope.lenses.transport.half_laws import PER_DIMENSION, Frame, Law, entropies, informations, principal_axes
from headscope.maths.resampling.jackknife import jackknife

# Quantities whose error is a length, relative to that of what is measured; the others are differences in nats.
LENGTHS = ("mean", "covariance", "vector")


@dataclass(frozen=True)
class Drawn:
    """Draws of the Gaussian of each half behind a stage that is not linear, two tokens of a pair in each.

    `position` is the place of the pair's first token among the positions; the second stands `distance` before it.
    """

    position: tuple[Tensor, Tensor]
    y: tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Shown:
    """One stage: measured, with the fixed weights of either half, with uniform ones, and what came before it."""

    measured: Float[Tensor, "windows positions d"]
    fixed: Float[Tensor, "halves windows positions d"]
    uniform: Float[Tensor, "windows positions d"] | None
    before: Float[Tensor, "windows positions d"] | None
    drawn: Drawn | None = None


@dataclass(frozen=True)
class Estimate:
    """One quantity in every set of windows: squares and products for lengths, plain numbers for the others."""

    parts: Mapping[str, Float[Tensor, "sets"]]
    dimensions: int | None
    held: float
    counts: Mapping[str, int] = field(default_factory=dict)


def estimates(shown: Shown, odd: Bool[Tensor, "windows"], components: int, distance: int) -> dict[str, Estimate]:
    """Every quantity of a stage that can be estimated."""
    counts = {"samples": shown.measured.shape[0] * shown.measured.shape[1], "windows": len(odd)}
    if min(int(odd.sum()), int((~odd).sum())) < 2:
        # No mean of a position: every token counts as a window of its own.
        shown, odd = _one_by_one(shown), odd.repeat_interleave(shown.measured.shape[1])
        distance = 0
    frame, held = _frame(shown, odd, components, distance)
    laws = _Laws(shown, frame)
    k, c = frame.axes.shape[1], frame.pairs
    found = {"mean": Estimate(_mean(laws), None, nan, counts)}
    if k:
        found["covariance"] = Estimate(_covariance(laws), k, held, counts)
        found["entropy"] = Estimate(_entropy(laws), k, held, counts)
    if c:
        found["information"] = Estimate(_information(laws), c, held, counts)
    if shown.uniform is not None:
        found["vector"] = Estimate(_vector(shown, shown.uniform, frame), None, nan, counts)
    return found


def joined(several: Sequence[Mapping[str, Estimate]]) -> dict[str, Estimate]:
    """The heads of a layer together: squares, products and numbers averaged over the heads that have them.

    Errors are then lengths of all heads' differences over that of all that is measured: a head that hardly varies, and
    whose own relative error may be anything, counts little.
    """
    found = {}
    for name in ("mean", "covariance", "entropy", "information", "vector"):
        keys = ("error",) if name in LENGTHS else ("measured", "predicted")
        some = [one[name] for one in several if name in one]
        some = [one for one in some if all(bool(torch.isfinite(one.parts[key]).all()) for key in keys)]
        if some:
            parts = {key: torch.stack([one.parts[key] for one in some]).mean(0) for key in some[0].parts}
            dimensions = [one.dimensions for one in some if one.dimensions is not None]
            held = sum(one.held for one in some) / len(some)
            found[name] = Estimate(parts, min(dimensions, default=None), held, some[0].counts)
    return found


def rows_of(found: Mapping[str, Estimate]) -> list[Row]:
    """The numbers of each quantity as they stand in a table."""
    return [{"quantity": name, **_numbers(name, one)} for name, one in found.items()]


def _numbers(name: str, one: Estimate) -> Row:
    parts = one.parts
    if name in LENGTHS:
        names = ("error", "null", "floor", "weights", "sampling", "shape")
        lengths = {key: (parts[key].clamp_min(0.0) / parts["target"]).sqrt() for key in names if key in parts}
        value = lengths.pop("error")
        share = parts["along"] / parts["error"] if "along" in parts else torch.full_like(value, nan)
        numbers = {key: x[0] for key, x in lengths.items()}
        numbers |= {"measured": parts["measured"][0].sqrt(), "predicted": parts["predicted"][0].sqrt()}
        if name != "mean":
            numbers |= {key: numbers[key].square() for key in ("measured", "predicted")}
    else:
        value = parts["predicted"] - parts["measured"]
        # Parts with signs: their share of what may be 0 says nothing.
        share = parts["weights"] / value if _clear(value) else torch.full_like(value, nan)
        numbers = {key: x[0] for key, x in parts.items()}
        if "null" in parts:
            numbers["null"] = parts["null"][0] - parts["measured"][0]
    half, wide = (_half_width(x) for x in (value, share))
    told: dict[str, Tensor | float] = {
        "value": value[0],
        # A length is not negative.
        "low": (value[0] - half).clamp_min(0.0) if name in LENGTHS else value[0] - half,
        "high": value[0] + half,
        **numbers,
        "share": share[0],
        "share_low": share[0] - wide,
        "share_high": share[0] + wide,
        "held": one.held,
    }
    return {**{key: number(x) for key, x in told.items()}, "dimensions": one.dimensions, **one.counts}


def _clear(value: Float[Tensor, "sets"]) -> bool:
    """Whether 0 lies outside the interval."""
    return len(value) > 1 and float(value[0].abs()) > float(_half_width(value))


def _half_width(estimates: Float[Tensor, "sets"]) -> Tensor:
    return jackknife(estimates)[1] if len(estimates) > 1 else torch.tensor(nan)


class _Laws:
    """The laws of a stage that the errors are made of; lists are by half."""

    def __init__(self, shown: Shown, frame: Frame) -> None:
        self.frame = frame
        self.measured = [Law.of(shown.measured, frame, half) for half in (0, 1)]
        self.own = [Law.of(shown.fixed[half], frame, half) for half in (0, 1)]
        self.other = [Law.of(shown.fixed[half], frame, 1 - half) for half in (0, 1)]
        self.uniform, self.before = (
            None if x is None else [Law.of(x, frame, half) for half in (0, 1)] for x in (shown.uniform, shown.before)
        )
        self.shapes = None if shown.drawn is None else [_Shape.of(shown.drawn, self.own[half], half) for half in (0, 1)]


@dataclass(frozen=True)
class _Shape:
    """What a Gaussian of the same moments gives more than the tokens themselves, at the same positions."""

    mean: Float[Tensor, "positions d"]
    covariance: Float[Tensor, "k k"]
    entropy: Tensor
    information: Tensor

    @classmethod
    def of(cls, drawn: Drawn, own: Law, half: int) -> "_Shape":
        """Draws of one half against its tokens."""
        frame, at, y = own.frame, drawn.position[half], drawn.y[half]
        t, c, positions = frame.distance, frame.pairs, len(own.mean)
        where = torch.stack((at, at - t), 1).reshape(-1)
        rows = y.reshape(-1, y.shape[-1])
        many = torch.bincount(where, minlength=positions).to(torch.float64)[:, None]
        mean = torch.zeros_like(own.mean).index_add(0, where, rows) / many
        gaussian = (rows - mean[where]) @ frame.axes
        tokens = own.centred @ frame.axes
        n = len(tokens)

        def spread(x: Float[Tensor, "some k"], count: int) -> Float[Tensor, "k k"]:
            return x.T @ x / count

        late, first = (
            spread(one.flatten(0, 1), (n - 1) * (positions - t)) for one in (tokens[:, t:], tokens[:, : positions - t])
        )
        here = (late + first) / 2
        there = spread(gaussian, len(gaussian))
        both = gaussian.reshape(-1, 2, gaussian.shape[-1])[..., :c].flatten(1)
        information = informations(spread(both, len(both))) - informations(own.joint[0])
        return cls(mean - own.mean, there - here, entropies(there) - entropies(here), information)


def _mean(laws: _Laws) -> dict[str, Tensor]:
    def of(some: Sequence[Law]) -> Field:
        return lambda half: some[half].means()

    shapes = None if laws.shapes is None else [one.mean for one in laws.shapes]
    uniform = None if laws.uniform is None else of(laws.uniform)
    found = _squares(laws.frame, of(laws.measured), of(laws.own), of(laws.other), uniform, shapes)
    positions = len(laws.own[0].mean)
    return {**found, **{key: found[key] / positions for key in ("measured", "predicted")}}


def _covariance(laws: _Laws) -> dict[str, Tensor]:
    def of(some: Sequence[Law]) -> Field:
        return lambda half: some[half].covariance

    shapes = None if laws.shapes is None else [one.covariance for one in laws.shapes]
    uniform = None if laws.uniform is None else of(laws.uniform)
    found = _squares(laws.frame, of(laws.measured), of(laws.own), of(laws.other), uniform, shapes)

    def trace(some: Sequence[Law]) -> Tensor:
        return _both([one.covariance.diagonal(dim1=-2, dim2=-1).sum(-1) for one in some])

    added = 0.0 if shapes is None else float(shapes[0].trace() + shapes[1].trace()) / 2
    return {**found, "measured": trace(laws.measured), "predicted": trace(laws.own) + added}


# A field by half, in every set of windows; made when it is asked for, since those of means are large.
Field = Callable[[int], Float[Tensor, "sets *numbers"]]


def _squares(
    frame: Frame, measured: Field, own: Field, other: Field, uniform: Field | None, shapes: Sequence[Tensor] | None
) -> dict[str, Tensor]:
    """Squared lengths of the error, of its parts, and of what is measured, both halves together.

    What windows differ by is in every part. From that of the weights, and from its product with the whole error, it is
    taken off: the jackknife over the windows of the half that is predicted tells how large it is.
    """
    sums: dict[str, Tensor] = {}

    def add(name: str, x: Tensor, y: Tensor, chance: Tensor | float = 0.0) -> None:
        sums[name] = sums.get(name, torch.zeros(())) + (x * y).sum(-1) - chance

    for half in (0, 1):
        target, a, b = (field(at).flatten(1) for field, at in ((measured, 1 - half), (own, half), (other, half)))
        weights = b - target
        predicted = a if shapes is None else a + shapes[half].flatten()
        error = predicted - target
        add("target", target, target)
        add("error", error, error)
        add("said", predicted, predicted)
        add("sampling", a - b, a - b)
        same = measured(half).flatten(1) - target
        add("floor", same, same)
        if frame.jackknife:
            without = [1 + window for window in frame.members(1 - half)]
            add("weights", weights, weights, _chance(weights[without], weights[without]))
            add("along", weights, error, _chance(weights[without], error[without]))
        if uniform is not None:
            flat = uniform(half).flatten(1) - target
            add("null", flat, flat)
        if shapes is not None:
            added = shapes[half].flatten().expand_as(error)
            add("shape", added, added)
    return {**sums, "measured": sums["target"] / 2, "predicted": sums.pop("said") / 2}


def _chance(x: Float[Tensor, "left numbers"], y: Float[Tensor, "left numbers"]) -> Tensor:
    """The covariance of two estimates by the jackknife, from those that leave out one window each, summed up."""
    n = len(x)
    return (n - 1) / n * ((x - x.mean(0)) * (y - y.mean(0))).sum()


def _entropy(laws: _Laws) -> dict[str, Tensor]:
    shapes = None if laws.shapes is None else [one.entropy for one in laws.shapes]
    return _signed(laws, lambda law: entropies(law.covariance), shapes)


def _information(laws: _Laws) -> dict[str, Tensor]:
    shapes = None if laws.shapes is None else [one.information for one in laws.shapes]
    return _signed(laws, lambda law: informations(law.joint), shapes)


def _signed(laws: _Laws, of: Callable[[Law], Tensor], shapes: Sequence[Tensor] | None) -> dict[str, Tensor]:
    """Numbers instead of fields: each the mean of both halves, and the parts of the error with their sign."""

    def both(some: Sequence[Law]) -> Tensor:
        return _both([of(law) for law in some])

    measured, own, other = (both(some) for some in (laws.measured, laws.own, laws.other))
    found = {"measured": measured, "predicted": own, "weights": other - measured, "sampling": own - other}
    if shapes is not None:
        found["shape"] = _both(shapes).expand_as(own)
        found["predicted"] = own + found["shape"]
    for name, some in (("null", laws.uniform), ("before", laws.before)):
        if some is not None:
            found[name] = both(some)
    return found


def _both(halves: Sequence[Tensor]) -> Tensor:
    return (halves[0] + halves[1]) / 2


def _vector(shown: Shown, uniform: Float[Tensor, "windows positions d"], frame: Frame) -> dict[str, Tensor]:
    """The outputs themselves, token by token, with the mean weights of all windows in the place of their own."""
    n = len(shown.measured)
    even = float((~frame.odd).sum()) / n
    fixed = even * shown.fixed[0] + (1 - even) * shown.fixed[1]
    centred = shown.measured - shown.measured.mean(0)
    spread = centred.square().sum((1, 2))
    gaps = {"error": shown.measured - fixed, "null": shown.measured - uniform}

    def left_out(own: Float[Tensor, "windows"], times: float) -> Float[Tensor, "sets"]:
        total = own.sum()[None]
        return torch.cat((total, total - times * own)) if frame.jackknife else total

    squares = {name: left_out(gap.square().sum((1, 2)), 1.0) for name, gap in gaps.items()}
    # Without a window the mean of the others moves: its part counts n/(n − 1) times.
    target = left_out(spread, n / max(1, n - 1))
    rows = (n - 1) * shown.measured.shape[1]
    return {
        **squares,
        "target": target,
        "measured": target / rows,
        "predicted": (fixed - fixed.mean(0)).square().sum()[None].expand_as(target) / rows,
    }


def _frame(shown: Shown, odd: Bool[Tensor, "windows"], components: int, distance: int) -> tuple[Frame, float]:
    """As many axes as there are ten samples for in the smaller half, and what share of the variance they hold."""
    n = min(int(odd.sum()), int((~odd).sum()))
    positions, d = shown.measured.shape[1:]
    k = min(d, (n - 1) * positions // PER_DIMENSION)
    if not k:
        return Frame(odd, torch.zeros(d, 0, dtype=torch.float64), 0, distance, n > 2 and distance > 0), nan
    halves = [(~odd).nonzero().squeeze(-1), odd.nonzero().squeeze(-1)]
    even = len(halves[0]) / len(odd)
    fixed = even * shown.fixed[0] + (1 - even) * shown.fixed[1]
    centred = [torch.cat([x[half] - x[half].mean(0) for half in halves]).flatten(0, 1) for x in (shown.measured, fixed)]
    axes = principal_axes(centred, k)
    rows = (n - 1) * (positions - distance) if 0 < distance < positions else 0
    pairs = min(components, axes.shape[1], rows // (2 * PER_DIMENSION))
    held = float((centred[0] @ axes).square().sum() / centred[0].square().sum().clamp_min(1e-300))
    return Frame(odd, axes, pairs, distance, n > 2 and distance > 0), held


def _one_by_one(shown: Shown) -> Shown:
    def apart(x: Tensor) -> Tensor:
        return x.flatten(-3, -2).unsqueeze(-2)

    uniform, before = (None if x is None else apart(x) for x in (shown.uniform, shown.before))
    return Shown(apart(shown.measured), apart(shown.fixed), uniform, before)
