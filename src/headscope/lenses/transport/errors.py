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
from functools import partial
from math import nan

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headscope.lenses.shared.table import Row, number
from headscope.lenses.transport.half_laws import PER_DIMENSION, Frame, Law, entropies, informations, principal_axes
from headscope.maths.resampling.jackknife import jackknife

# Numbers of a field, in all sets of windows, that are computed at a time.
NUMBERS = 2**16
# Quantities whose error is a length, relative to that of what is measured; the others are differences in nats.
LENGTHS = ("mean", "covariance", "vector")


@dataclass(frozen=True)
class Draws:
    """Draws of the Gaussian of each half behind a stage that is not linear, two tokens of a pair in each.

    `position` is the place of the pair's first token among the positions; the second lies `distance` before it.
    """

    position: tuple[Tensor, Tensor]
    y: tuple[Tensor, Tensor]


@dataclass(frozen=True)
class StageVectors:
    """One stage: measured, with the fixed weights of either half, with uniform ones, and what came before it."""

    measured: Float[Tensor, "windows positions d"]
    fixed: Float[Tensor, "halves windows positions d"]
    uniform: Float[Tensor, "windows positions d"] | None
    before: Float[Tensor, "windows positions d"] | None
    draws: Draws | None = None


@dataclass(frozen=True)
class Estimate:
    """One quantity in every set of windows: squares and products for lengths, plain numbers for the others."""

    parts: Mapping[str, Float[Tensor, "sets"]]
    dimensions: int | None
    variance_share: float
    counts: Mapping[str, int] = field(default_factory=dict)


def estimates(stage: StageVectors, odd: Bool[Tensor, "windows"], components: int, distance: int) -> dict[str, Estimate]:
    """Every quantity of a stage that can be estimated."""
    counts = {"samples": stage.measured.shape[0] * stage.measured.shape[1], "windows": len(odd)}
    if min(int(odd.sum()), int((~odd).sum())) < 2:
        # No mean of a position: every token counts as a window of its own.
        stage, odd = _one_by_one(stage), odd.repeat_interleave(stage.measured.shape[1])
        distance = 0
    frame, variance_share = _frame(stage, odd, components, distance)
    laws = _Laws(stage, frame)
    k, c = frame.axes.shape[1], frame.pairs
    by_quantity = {"mean": Estimate(_mean(laws), None, nan, counts)}
    if k:
        by_quantity["covariance"] = Estimate(_covariance(laws), k, variance_share, counts)
        by_quantity["entropy"] = Estimate(_entropy(laws), k, variance_share, counts)
    if c:
        by_quantity["information"] = Estimate(_information(laws), c, variance_share, counts)
    if stage.uniform is not None:
        by_quantity["vector"] = Estimate(_vector(stage, stage.uniform, frame), None, nan, counts)
    return by_quantity


def joined(several: Sequence[Mapping[str, Estimate]]) -> dict[str, Estimate]:
    """The heads of a layer together: squares, products and numbers averaged over the heads that have them.

    Errors are then lengths of all heads' differences over that of all that is measured: a head that hardly varies, and
    whose own relative error may be anything, counts little.
    """
    by_quantity = {}
    for name in ("mean", "covariance", "entropy", "information", "vector"):
        keys = ("error",) if name in LENGTHS else ("measured", "predicted")
        estimates_of_heads = [by_name[name] for by_name in several if name in by_name]
        finite = [
            estimate
            for estimate in estimates_of_heads
            if all(bool(torch.isfinite(estimate.parts[key]).all()) for key in keys)
        ]
        if finite:
            parts = {key: torch.stack([estimate.parts[key] for estimate in finite]).mean(0) for key in finite[0].parts}
            dimensions = [estimate.dimensions for estimate in finite if estimate.dimensions is not None]
            variance_share = sum(estimate.variance_share for estimate in finite) / len(finite)
            by_quantity[name] = Estimate(parts, min(dimensions, default=None), variance_share, finite[0].counts)
    return by_quantity


def rows_of(by_quantity: Mapping[str, Estimate]) -> list[Row]:
    """The rows of a table, one for each quantity."""
    return [{"quantity": name, **_numbers(name, estimate)} for name, estimate in by_quantity.items()]


def _numbers(name: str, estimate: Estimate) -> Row:
    parts = estimate.parts
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
    columns: dict[str, Tensor | float] = {
        "value": value[0],
        # A length is not negative.
        "low": (value[0] - half).clamp_min(0.0) if name in LENGTHS else value[0] - half,
        "high": value[0] + half,
        **numbers,
        "share": share[0],
        "share_low": share[0] - wide,
        "share_high": share[0] + wide,
        "held": estimate.variance_share,
    }
    return {**{key: number(x) for key, x in columns.items()}, "dimensions": estimate.dimensions, **estimate.counts}


def _clear(value: Float[Tensor, "sets"]) -> bool:
    """Whether 0 lies outside the interval."""
    return len(value) > 1 and float(value[0].abs()) > float(_half_width(value))


def _half_width(estimates: Float[Tensor, "sets"]) -> Tensor:
    return jackknife(estimates)[1] if len(estimates) > 1 else torch.tensor(nan)


class _Laws:
    """The laws of a stage that the errors are made of; lists are by half."""

    def __init__(self, stage: StageVectors, frame: Frame) -> None:
        self.frame = frame
        self.measured = [Law.of(stage.measured, frame, half) for half in (0, 1)]
        self.same_half = [Law.of(stage.fixed[half], frame, half) for half in (0, 1)]
        self.other_half = [Law.of(stage.fixed[half], frame, 1 - half) for half in (0, 1)]
        self.uniform, self.before = (
            None if x is None else [Law.of(x, frame, half) for half in (0, 1)] for x in (stage.uniform, stage.before)
        )
        self.shapes = (
            None if stage.draws is None else [_Shape.of(stage.draws, self.same_half[half], half) for half in (0, 1)]
        )


@dataclass(frozen=True)
class _Shape:
    """What a Gaussian of the same moments gives more than the tokens themselves, at the same positions."""

    mean: Float[Tensor, "positions d"]
    covariance: Float[Tensor, "k k"]
    entropy: Tensor
    information: Tensor

    @classmethod
    def of(cls, draws: Draws, token_law: Law, half: int) -> "_Shape":
        """Draws of one half against its tokens."""
        frame, at, y = token_law.frame, draws.position[half], draws.y[half]
        t, c, positions = frame.distance, frame.pairs, len(token_law.mean)
        where = torch.stack((at, at - t), 1).reshape(-1)
        rows = y.reshape(-1, y.shape[-1])
        draws_at_position = torch.bincount(where, minlength=positions).to(torch.float64)[:, None]
        mean = torch.zeros_like(token_law.mean).index_add(0, where, rows) / draws_at_position
        gaussian = (rows - mean[where]) @ frame.axes
        tokens = token_law.centred @ frame.axes
        n = len(tokens)

        def spread(x: Float[Tensor, "some k"], count: int) -> Float[Tensor, "k k"]:
            return x.T @ x / count

        late, first = (
            spread(side.flatten(0, 1), (n - 1) * (positions - t))
            for side in (tokens[:, t:], tokens[:, : positions - t])
        )
        token_covariance = (late + first) / 2
        gaussian_covariance = spread(gaussian, len(gaussian))
        gaussian_pairs = gaussian.reshape(-1, 2, gaussian.shape[-1])[..., :c].flatten(1)
        information = informations(spread(gaussian_pairs, len(gaussian_pairs))) - informations(token_law.joint[0])
        return cls(
            mean - token_law.mean,
            gaussian_covariance - token_covariance,
            entropies(gaussian_covariance) - entropies(token_covariance),
            information,
        )


def _mean(laws: _Laws) -> dict[str, Tensor]:
    positions, d = laws.same_half[0].mean.shape
    # Every part is a sum over positions. A few at a time stay in the processor's cache.
    step = max(1, NUMBERS // (laws.frame.sets * d))
    sums: dict[str, Tensor] = {}
    for first in range(0, positions, step):
        for name, x in _mean_squares(laws, slice(first, first + step)).items():
            sums[name] = sums[name] + x if name in sums else x
    return {**sums, **{key: sums[key] / positions for key in ("measured", "predicted")}}


def _mean_squares(laws: _Laws, part: slice) -> dict[str, Tensor]:
    """The parts of the squares of the means of some positions."""
    of = partial(_field, lambda law: law.means(part))
    shapes = None if laws.shapes is None else [shape.mean[part] for shape in laws.shapes]
    uniform = None if laws.uniform is None else of(laws.uniform)
    return _squares(laws.frame, of(laws.measured), of(laws.same_half), of(laws.other_half), uniform, shapes)


def _covariance(laws: _Laws) -> dict[str, Tensor]:
    of = partial(_field, lambda law: law.covariance)
    shapes = None if laws.shapes is None else [shape.covariance for shape in laws.shapes]
    uniform = None if laws.uniform is None else of(laws.uniform)
    squares = _squares(laws.frame, of(laws.measured), of(laws.same_half), of(laws.other_half), uniform, shapes)

    def trace(laws_by_half: Sequence[Law]) -> Tensor:
        return _both([law.in_every_set(law.covariance.diagonal(dim1=-2, dim2=-1).sum(-1)) for law in laws_by_half])

    added = 0.0 if shapes is None else float(shapes[0].trace() + shapes[1].trace()) / 2
    return {**squares, "measured": trace(laws.measured), "predicted": trace(laws.same_half) + added}


# A field by half, in every set of windows; made when it is asked for, since those of means are large.
Field = Callable[[int], Float[Tensor, "sets *numbers"]]


def _field(of: Callable[[Law], Tensor], laws_by_half: Sequence[Law]) -> Field:
    return lambda half: laws_by_half[half].in_every_set(of(laws_by_half[half]))


def _squares(
    frame: Frame,
    measured: Field,
    on_same_half: Field,
    on_other_half: Field,
    uniform: Field | None,
    shapes: Sequence[Tensor] | None,
) -> dict[str, Tensor]:
    """Squared lengths of the error, of its parts, and of what is measured, both halves together.

    What windows differ by is in every part. From that of the weights, and from its product with the whole error, it is
    taken off: the jackknife over the windows of the half that is predicted tells how large it is.
    """
    sums: dict[str, Tensor] = {}

    def add(name: str, x: Tensor, y: Tensor, chance: Tensor | float = 0.0) -> None:
        sums[name] = sums.get(name, torch.zeros(())) + torch.linalg.vecdot(x, y) - chance

    for half in (0, 1):
        target, a, b = (
            field(at).flatten(1) for field, at in ((measured, 1 - half), (on_same_half, half), (on_other_half, half))
        )
        weights = b - target
        predicted = a if shapes is None else a + shapes[half].flatten()
        error = predicted - target
        add("target", target, target)
        add("error", error, error)
        add("predicted", predicted, predicted)
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
    return {**sums, "measured": sums["target"] / 2, "predicted": sums["predicted"] / 2}


def _chance(x: Float[Tensor, "left numbers"], y: Float[Tensor, "left numbers"]) -> Tensor:
    """The jackknife covariance of two estimates, from their values without each window, summed up."""
    n = len(x)
    products: Tensor = torch.linalg.vecdot(x - x.mean(0), y - y.mean(0))
    return (n - 1) / n * products.sum()


def _entropy(laws: _Laws) -> dict[str, Tensor]:
    shapes = None if laws.shapes is None else [shape.entropy for shape in laws.shapes]
    return _signed(laws, lambda law: entropies(law.covariance), shapes)


def _information(laws: _Laws) -> dict[str, Tensor]:
    shapes = None if laws.shapes is None else [shape.information for shape in laws.shapes]
    return _signed(laws, lambda law: informations(law.joint), shapes)


def _signed(laws: _Laws, of: Callable[[Law], Tensor], shapes: Sequence[Tensor] | None) -> dict[str, Tensor]:
    """Numbers instead of fields: each the mean of both halves, and the parts of the error with their sign."""

    def both(laws_by_half: Sequence[Law]) -> Tensor:
        return _both([law.in_every_set(of(law)) for law in laws_by_half])

    measured, same_half, other_half = (both(by_half) for by_half in (laws.measured, laws.same_half, laws.other_half))
    parts = {
        "measured": measured,
        "predicted": same_half,
        "weights": other_half - measured,
        "sampling": same_half - other_half,
    }
    if shapes is not None:
        parts["shape"] = _both(shapes).expand_as(same_half)
        parts["predicted"] = same_half + parts["shape"]
    for name, by_half in (("null", laws.uniform), ("before", laws.before)):
        if by_half is not None:
            parts[name] = both(by_half)
    return parts


def _both(halves: Sequence[Tensor]) -> Tensor:
    return (halves[0] + halves[1]) / 2


def _vector(stage: StageVectors, uniform: Float[Tensor, "windows positions d"], frame: Frame) -> dict[str, Tensor]:
    """The outputs themselves, token by token, against those with the mean weights of all windows."""
    n = len(stage.measured)
    even = float((~frame.odd).sum()) / n
    fixed = even * stage.fixed[0] + (1 - even) * stage.fixed[1]
    centred = stage.measured - stage.measured.mean(0)
    spread = centred.square().sum((1, 2))
    gaps = {"error": stage.measured - fixed, "null": stage.measured - uniform}

    def left_out(by_window: Float[Tensor, "windows"], times: float) -> Float[Tensor, "sets"]:
        total = by_window.sum()[None]
        return torch.cat((total, total - times * by_window)) if frame.jackknife else total

    squares = {name: left_out(gap.square().sum((1, 2)), 1.0) for name, gap in gaps.items()}
    # Without a window the mean of the others moves: its part counts n/(n − 1) times.
    target = left_out(spread, n / max(1, n - 1))
    rows = (n - 1) * stage.measured.shape[1]
    return {
        **squares,
        "target": target,
        "measured": target / rows,
        "predicted": (fixed - fixed.mean(0)).square().sum()[None].expand_as(target) / rows,
    }


def _frame(stage: StageVectors, odd: Bool[Tensor, "windows"], components: int, distance: int) -> tuple[Frame, float]:
    """As many axes as there are ten samples for in the smaller half, and what share of the variance they hold."""
    n = min(int(odd.sum()), int((~odd).sum()))
    positions, d = stage.measured.shape[1:]
    k = min(d, (n - 1) * positions // PER_DIMENSION)
    if not k:
        return Frame(odd, torch.zeros(d, 0, dtype=torch.float64), 0, distance, n > 2 and distance > 0), nan
    halves = [(~odd).nonzero().squeeze(-1), odd.nonzero().squeeze(-1)]
    even = len(halves[0]) / len(odd)
    fixed = even * stage.fixed[0] + (1 - even) * stage.fixed[1]
    centred = [torch.cat([x[half] - x[half].mean(0) for half in halves]).flatten(0, 1) for x in (stage.measured, fixed)]
    axes = principal_axes(centred, k)
    rows = (n - 1) * (positions - distance) if 0 < distance < positions else 0
    pairs = min(components, axes.shape[1], rows // (2 * PER_DIMENSION))
    variance_share = float((centred[0] @ axes).square().sum() / centred[0].square().sum().clamp_min(1e-300))
    return Frame(odd, axes, pairs, distance, n > 2 and distance > 0), variance_share


def _one_by_one(stage: StageVectors) -> StageVectors:
    def apart(x: Tensor) -> Tensor:
        return x.flatten(-3, -2).unsqueeze(-2)

    uniform, before = (None if x is None else apart(x) for x in (stage.uniform, stage.before))
    return StageVectors(apart(stage.measured), apart(stage.fixed), uniform, before)
