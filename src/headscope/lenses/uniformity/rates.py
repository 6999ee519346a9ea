"""How fast differences fade from layer to layer, beside what averaging predicts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, nan, sqrt

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.core import Site, WeightSource
from headscope.errors import WeightsRefused
from headscope.lenses.lens import AS_IS
from headscope.lenses.shared.plots import place
from headscope.lenses.shared.table import Row
from headscope.lenses.uniformity.records import AVERAGED, READ, STREAM, Key, Rows, rounding_bound
from headscope.lenses.uniformity.tables import cell, estimate, named
from headscope.maths.attention.token_collapse import averaging_rate
from headscope.maths.linear_algebra.spectrum import form_singular_values

INITIALISED = "initialised"
WITHOUT_SKIPS, WITHOUT_MLP, WITHOUT_ATTENTION = "without skips", "without mlp", "without attention"
ATTENTION_ALONE = "attention alone"
VARIANTS = (AS_IS, INITIALISED, WITHOUT_SKIPS, WITHOUT_MLP, WITHOUT_ATTENTION, ATTENTION_ALONE)

# Skip connections of each variant; the weights of the initialised model are not at hand.
_STRENGTH = {AS_IS: 1.0, WITHOUT_MLP: 1.0, WITHOUT_SKIPS: 0.0, ATTENTION_ALONE: 0.0}


@dataclass(frozen=True)
class ValueMap:
    """The map of a layer whose heads all average alike: the sum of its heads' W_OV.

    `typical` is what it enlarges a vector by, root mean square over directions; `largest` its operator norm.
    """

    typical: float
    largest: float
    null: float  # largest over typical of random factors of the same shape

    @property
    def stretch(self) -> float:
        """The operator norm of the map scaled to a typical gain of 1."""
        return self.largest / self.typical if self.typical > 0 else nan


def value_maps(weights: WeightSource | None, sites: Sequence[Site]) -> dict[Site, ValueMap]:
    """Of the sites whose weights are known."""
    map_by_site: dict[Site, ValueMap] = {}
    nulls: dict[tuple[int, int, int], float] = {}
    for site in sites:
        try:
            w = None if weights is None else weights.weights(site)
        except WeightsRefused:
            w = None
        if w is None:
            continue
        groups = site.n_heads // site.n_kv_heads
        # Heads that share their values add up behind them: [d, kv · width] and [d_out, kv · width].
        read = (w.w_v.double() * w.gain_v.double()[:, None]).permute(1, 0, 2).flatten(1)
        write = w.w_o.double().reshape(site.n_kv_heads, groups, *w.w_o.shape[1:]).sum(1).permute(2, 0, 1).flatten(1)
        sigma = form_singular_values(read, write)
        shape = (read.shape[0], write.shape[0], read.shape[1])
        if shape not in nulls:
            nulls[shape] = _random_stretch(*shape)
        map_by_site[site] = ValueMap(float(sigma.norm()) / sqrt(read.shape[0]), float(sigma.max()), nulls[shape])
    return map_by_site


def _random_stretch(rows: int, columns: int, width: int) -> float:
    """One draw; its largest singular value fluctuates by about a percent at these sizes."""
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    b = torch.randn(columns, width, generator=generator, dtype=torch.float64)
    sigma = form_singular_values(a, b)
    return float(sigma.max() / sigma.norm()) * sqrt(rows)


@dataclass(frozen=True)
class Step:
    """One layer of one variant, window by window; not a number where something was not seen.

    `factor`: difference ratio behind it over that in front of it. `kept_differences`, `common`: shares of differences
    and common part that attention keeps of its values. `gain`: of the value map on the stream.
    """

    site: Site
    factor: Float[Tensor, "windows"]
    kept_differences: Float[Tensor, "windows"]
    common: Float[Tensor, "windows"]
    gain: Float[Tensor, "windows"]

    def predicted(self, variant: str) -> Float[Tensor, "windows"]:
        """The factor that averaging makes; feed-forward parts are not in it."""
        unknown = torch.full_like(self.factor, nan)
        if variant == WITHOUT_ATTENTION:
            return torch.ones_like(self.factor)
        strength = _STRENGTH.get(variant)
        if strength is None:
            return unknown
        if strength == 0.0:
            return averaging_rate(0.0, torch.ones_like(self.kept_differences), self.kept_differences, self.common)
        return averaging_rate(strength, self.gain, self.kept_differences, self.common)


def steps(
    rows_by_key: Mapping[Key, Rows], sites: Sequence[Site], behind: Mapping[Site, Site], maps: Mapping[Site, ValueMap]
) -> Iterator[Step]:
    """The layers of one variant: each from its stream to the next one of the stack."""
    for site in sites:
        later = [later_site for later_site in sites if later_site.stack == site.stack and later_site.layer > site.layer]
        follower = later[0] if later else behind.get(site)
        entering, leaving = rows_by_key.get(("resid", site)), _stream(rows_by_key, follower, behind)
        if entering is None or leaving is None:
            continue
        windows = min(len(entering.values), len(leaving.values))

        before, after = (rows.column(STREAM, "differences")[:windows] for rows in (entering, leaving))
        width = float(entering.column(STREAM, "dimensions")[:windows].max()) if windows else 1.0
        floor = rounding_bound(max(entering.rounding, leaving.rounding), width)
        above_rounding = (before > floor) & (after > floor) & before.isfinite() & after.isfinite()
        kept_differences, common = (
            (
                _of(rows_by_key, ("z", site), AVERAGED, name, windows)
                / _of(rows_by_key, ("v", site), AVERAGED, name, windows)
            ).sqrt()
            for name in AVERAGED
        )
        scale = _of(rows_by_key, ("x", site), READ, "length", windows) / entering.column(STREAM, "length")[:windows]
        typical = maps[site].typical if site in maps else nan
        yield Step(site, torch.where(above_rounding, after / before, nan), kept_differences, common, scale * typical)


def _of(
    rows_by_key: Mapping[Key, Rows], key: Key, names: tuple[str, ...], name: str, windows: int
) -> Float[Tensor, "windows"]:
    """A number of the first windows; none where it was not seen."""
    rows = rows_by_key.get(key)
    if rows is None or len(rows.values) < windows:
        return torch.full((windows,), nan, dtype=torch.float64)
    return rows.column(names, name)[:windows]


def _stream(rows_by_key: Mapping[Key, Rows], site: Site | None, behind: Mapping[Site, Site]) -> Rows | None:
    if site is None:
        return None
    return rows_by_key.get(("final" if site in behind.values() else "resid", site))


def rate_rows(variant: str, layer_steps: Sequence[Step]) -> list[Row]:
    """Every layer's factor beside the predicted one, and the mean over depth of each stack."""
    rows: list[Row] = []
    for step in layer_steps:
        rows.append(_factor_row(step.site, variant, step.factor[:, None], step.predicted(variant)[:, None]))
        for quantity, values in (
            ("kept_differences", step.kept_differences),
            ("kept_common", step.common),
            ("gain", step.gain),
        ):
            finite = values[values.isfinite()]
            if len(finite) and not (quantity == "gain" and variant == INITIALISED):
                rows.append(_other_row(step.site, variant, quantity, finite))
    for stack in dict.fromkeys(step.site.stack for step in layer_steps):
        stack_steps = [step for step in layer_steps if step.site.stack == stack]
        factor = torch.stack([step.factor for step in stack_steps], 1)
        predicted = torch.stack([step.predicted(variant) for step in stack_steps], 1)
        mean_row = _factor_row(stack_steps[0].site, variant, factor, predicted)
        rows.append({**mean_row, "layer": None, "quantity": "factor_over_depth"})
    return [row for row in rows if row["value"] is not None]


def _factor_row(
    site: Site, variant: str, factor: Float[Tensor, "windows layers"], predicted: Float[Tensor, "windows layers"]
) -> Row:
    """Geometric means over the layers whose differences are above rounding, and over windows."""
    logs = _mean_log(factor, factor.isfinite() & (factor > 0))
    predictable = factor.isfinite() & (factor > 0) & predicted.isfinite() & (predicted > 0)
    # The mean of the predictions is over the same layers as that of the measurements, or there is none.
    complete = bool((predictable == (factor.isfinite() & (factor > 0))).all())
    guess = _mean_log(predicted, predictable) if complete else logs[:0]
    gaps = (logs - guess)[logs.isfinite() & guess.isfinite()] if complete else logs[:0]
    logs, guess = logs[logs.isfinite()], guess[guess.isfinite()]
    ratios = [cell(end) for end in estimate(gaps).exp().tolist()] if len(gaps) else [None] * 3
    return {
        **named(site, variant, "factor", estimate(logs).exp()),
        "predicted": cell(exp(float(guess.mean()))) if len(guess) else None,
        **dict(zip(("ratio", "ratio_low", "ratio_high"), ratios, strict=True)),
        "windows": len(logs),
    }


def _mean_log(values: Tensor, of: Tensor) -> Float[Tensor, "windows"]:
    logs = torch.where(of, values.clamp_min(1e-300).log(), 0.0)
    return torch.where(of.any(1), logs.sum(1) / of.sum(1).clamp_min(1), nan)


def _other_row(site: Site, variant: str, quantity: str, values: Float[Tensor, "windows"]) -> Row:
    return {**named(site, variant, quantity, estimate(values)), "predicted": None, "windows": len(values)}


def layer_rows(layer_steps: Sequence[Step], maps: Mapping[Site, ValueMap]) -> list[Row]:
    """Where each layer of the model lies in the plane of skip strength and operator norm."""
    rows: list[Row] = []
    for step in layer_steps:
        value_map, gains = maps.get(step.site), step.gain[step.gain.isfinite()]
        if value_map is None or not len(gains) or not value_map.stretch > 0:
            continue
        gain = float(gains.mean())
        pair = torch.tensor([gain, gain * value_map.stretch], dtype=torch.float64)
        flat, fastest = averaging_rate(1.0, pair, torch.zeros(2), torch.ones(2)).tolist()
        cells = (
            ("operator_norm", value_map.largest, value_map.typical * value_map.null),
            ("stretch", value_map.stretch, value_map.null),
            ("skip_share", 1 / (1 + gain), nan),
            ("flat_factor", flat, nan),
            ("fastest_factor", fastest, nan),
        )
        rows += [
            {**place(step.site, None), "quantity": name, "value": cell(value), "null": cell(null)}
            for name, value, null in cells
        ]
    return rows
