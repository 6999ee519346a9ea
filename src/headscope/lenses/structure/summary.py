"""From sums over windows to rows of tables."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.core import Site
from headscope.lenses.shared.plots import place
from headscope.lenses.shared.table import Row, number
from headscope.lenses.structure.errors import Errors
from headscope.lenses.structure.families import MASSES, Masses, family_of
from headscope.lenses.structure.packing import Window
from headscope.lenses.structure.structures import (
    BASELINES,
    OTHERS,
    PAIR_STRUCTURES,
    STRUCTURES,
    Structure,
)
from headscope.lenses.structure.tables import WITHIN
from headscope.maths.resampling.jackknife import jackknife

# Windows behind low rank and the kernel as structures: a fit of the kernel costs as much as all sets of pairs.
COMPARED = 4
# Queries that `positions` counts shared keys of.
COUNTED_QUERIES = 16


@dataclass(frozen=True)
class Estimate:
    """Values with 95 % intervals over windows; the ends are NaN for one window."""

    value: Tensor
    low: Tensor
    high: Tensor


def _left_out(values: Float[Tensor, "windows *rest"]) -> Float[Tensor, "sets *rest"]:
    """Sums over all windows, then without each one of several."""
    total = values.sum(0)
    return torch.cat((total[None], total - values)) if len(values) > 1 else total[None]


def _ratio(
    parts: Float[Tensor, "windows *rest"], wholes: Float[Tensor, "windows *rest"], most: float = torch.inf
) -> Estimate:
    """Sums of parts over sums of wholes."""
    return _estimate(_left_out(parts) / _left_out(wholes), most)


def _estimate(estimates: Float[Tensor, "sets *rest"], most: float) -> Estimate:
    value, half = jackknife(estimates)
    return Estimate(value, (value - half).clamp_min(0.0), (value + half).clamp_max(most))


@dataclass(frozen=True)
class _Pooled:
    """The errors of all structures over some windows."""

    numbers: Float[Tensor, "structures heads"]
    written: Estimate
    map: Estimate
    low_rank: Float[Tensor, "structures heads"]
    rows: int
    windows: int


def _pooled(errors: Sequence[Errors]) -> _Pooled:
    written, variation, low_rank = (
        torch.stack([getattr(part, name) for part in errors]) for name in ("written", "map", "low_rank")
    )
    energy = torch.stack([part.energy for part in errors])[:, None].expand_as(written)
    rows = torch.tensor([float(part.rows) for part in errors], dtype=torch.float64)[:, None, None].expand_as(variation)
    share = (_left_out(written) / _left_out(energy)).clamp_min(0.0).sqrt()
    return _Pooled(
        numbers=torch.stack([part.numbers for part in errors]).sum(0),
        written=_estimate(share, torch.inf),
        map=_ratio(variation, rows, 1.0),
        low_rank=(low_rank.sum(0) / energy.sum(0)).clamp_min(0.0).sqrt(),
        rows=sum(part.rows for part in errors),
        windows=len(errors),
    )


def structure_rows(site: Site, windows: Sequence[Window]) -> Iterator[Row]:
    """One row for each head and structure; a set of pairs that is everything has none."""
    errors = [window.errors for window in windows]
    visible_pairs = sum(part.visible for part in errors)
    everywhere, compared = _pooled(errors), _pooled(errors[:COMPARED])
    baselines = {name: everywhere.written.value[STRUCTURES.index(Structure(name))] for name in BASELINES}
    for head in range(site.n_heads):
        for index, structure in enumerate(STRUCTURES):
            pooled = compared if structure in OTHERS else everywhere
            numbers = float(pooled.numbers[index, head])
            if structure.keeps_pairs and numbers == visible_pairs:
                continue
            yield {
                **place(site, head),
                **_named(structure),
                "kept": numbers / pooled.rows,
                "value": number(pooled.written.value[index, head]),
                "low": number(pooled.written.low[index, head]),
                "high": number(pooled.written.high[index, head]),
                "map_error": number(pooled.map.value[index, head]),
                "map_low": number(pooled.map.low[index, head]),
                "map_high": number(pooled.map.high[index, head]),
                "low_rank": number(pooled.low_rank[index, head]),
                **{name.replace(" ", "_"): number(errors_of_baseline[head])
                   for name, errors_of_baseline in baselines.items()},
                "windows": pooled.windows,
            }  # fmt: skip


def _named(structure: Structure) -> Row:
    return {
        "structure": structure.words,
        "form": structure.form,
        "size": structure.size,
        "entries": structure.entries,
    }


def smallest_rows(site: Site, windows: Sequence[Window], structures: Sequence[Row]) -> Iterator[Row]:
    """The structure with the fewest pairs within each bound, for each head."""
    errors = [window.errors for window in windows]
    rows = sum(part.rows for part in errors)
    visible = sum(part.visible for part in errors) / rows
    energy = torch.stack([part.energy for part in errors]).sum(0)
    tails = (torch.stack([part.tails for part in errors]).sum(0) / energy).clamp_min(0.0).sqrt()
    most_rows = max(part.rows for part in errors)
    all_keys: Row = {**_named(Structure("all keys")), "kept": visible, "value": 0.0, "low": None, "high": None}
    sets_of_pairs = {structure.form for structure in PAIR_STRUCTURES}
    for head in range(site.n_heads):
        candidates = [row for row in structures if row["head"] == head and row["form"] in sets_of_pairs]
        for within in WITHIN:
            bound = within / 100
            best = _fewest(candidates, "value", bound, all_keys)
            has_ends = len(windows) > 1
            rank = int((tails[:most_rows, head].nan_to_num(0.0) > bound).sum())
            yield {
                **place(site, head),
                "within": within,
                **{
                    name: best[name]
                    for name in ("structure", "form", "size", "entries", "kept", "value", "low", "high")
                },
                "kept_low": _fewest(candidates, "low", bound, all_keys)["kept"] if has_ends else None,
                "kept_high": _fewest(candidates, "high", bound, all_keys)["kept"] if has_ends else None,
                "visible": visible,
                "share": _number(best["kept"]) / visible,
                "low_rank": 2.0 * rank,
                "windows": len(windows),
            }


def _fewest(candidates: Sequence[Row], column: str, bound: float, all_keys: Row) -> Row:
    fitting = [row for row in candidates if _number(row[column]) <= bound]
    return min([*fitting, all_keys], key=lambda row: _number(row["kept"]))


def _number(cell: object) -> float:
    return float(cell) if isinstance(cell, (int, float)) else torch.inf


def family_rows(site: Site, windows: Sequence[Window]) -> Iterator[Row]:
    """The family of each head, its masses and those by chance, w and num-pos."""
    measured = {name: _stacked([window.measured for window in windows], name) for name in _FIELDS}
    permuted = {name: _stacked([window.permuted for window in windows], name) for name in _FIELDS}
    rows = torch.tensor([float(window.errors.rows) for window in windows], dtype=torch.float64)
    rows = rows[:, None].expand_as(measured["later_mass"])
    shares = {name: _share(measured[name], measured["later_mass"]) for name in MASSES}
    shares["first"] = _share(measured["first"], measured["all_mass"])
    chances = {name: _share(permuted[name], permuted["later_mass"]).value for name in MASSES}
    chance = sum(window.first_chance for window in windows) / rows[:, 0].sum()
    chances["first"] = torch.full_like(chances["near"], float(chance))
    width = _ratio(measured["width"], torch.ones_like(rows))
    positions = _ratio(COUNTED_QUERIES * measured["blocks"], rows)
    block_width = measured["in_blocks"].sum(0) / measured["blocks"].sum(0)
    near_at = _stacked([window.measured for window in windows], "near_at")
    # numpy takes the first of equal masses.
    offsets = torch.from_numpy(near_at.sum(0).numpy().argmax(0))
    offset_mass = _share(near_at, measured["later_mass"][:, None].expand_as(near_at)).value
    for head in range(site.n_heads):
        masses = {name: float(share.value[head]) for name, share in shares.items()}
        by_chance = {name: float(values[head]) for name, values in chances.items()}
        family, decisive = family_of(masses, by_chance, float(measured["blocks"][:, head].sum()))
        yield {
            **place(site, head),
            "family": family,
            **_ends(shares[decisive], head),
            "null": by_chance[decisive],
            **_ends(width, head, "width"),
            **_ends(positions, head, "positions"),
            "block_width": number(block_width[head]),
            **masses,
            **{f"{name}_null": value for name, value in by_chance.items()},
            "offset": int(offsets[head]),
            "offset_mass": float(offset_mass[offsets[head], head]),
            "windows": len(windows),
        }


_FIELDS = ("later_mass", "all_mass", "first", *MASSES, "width", "blocks", "in_blocks")


def _stacked(parts: Sequence[Masses], name: str) -> Float[Tensor, "windows *rest"]:
    return torch.stack([getattr(part, name) for part in parts])


def _share(parts: Tensor, wholes: Tensor) -> Estimate:
    """A share of the mass; where there is none it is 0."""
    share = _ratio(parts, wholes, 1.0)
    return Estimate(share.value.nan_to_num(0.0), share.low, share.high)


def _ends(estimate: Estimate, head: int, name: str = "") -> Row:
    low, high = (f"{name}_low", f"{name}_high") if name else ("low", "high")
    return {
        name or "value": number(estimate.value[head]),
        low: number(estimate.low[head]),
        high: number(estimate.high[head]),
    }
