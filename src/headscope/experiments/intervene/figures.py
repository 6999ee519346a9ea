"""The figures of an intervention: the maps before and after, rows over depth, the cost against α."""

from collections.abc import Sequence

import numpy as np
import polars as pl
import torch

from headscope.core import Curves, Figure, HeatMap, Series, Site
from headscope.core.figure import Array, Role
from headscope.experiments.intervene.change_spelling import Change
from headscope.experiments.intervene.effects import Heads
from headscope.experiments.intervene.tables import Variant

MAPS_ACROSS = 6
LAYERS_DOWN = 3
_TOP = 0.5  # weights above this share one colour, so that the small ones can be told apart
_ROLES: dict[str, Role] = {"original": "null", "control": "theory"}


def figures(variants: Sequence[Variant], heads: Heads, tables: dict[str, pl.DataFrame], tokens: Sequence[str]) -> (
    tuple[Figure, ...]
):  # fmt: skip
    """Everything that is drawn."""
    return (
        *_costs(variants, tables["effects"]),
        *_kept(tables["effects"]),
        *_maps(variants, heads, tokens),
        *_depths(tables["heads"]),
    )


def _maps(variants: Sequence[Variant], heads: Heads, tokens: Sequence[str]) -> list[HeatMap]:
    """One grid per few changes: layers down, the original and the changes across."""
    sites = spread([site for site in heads if site in variants[0].effects.maps], LAYERS_DOWN)
    changes = [variant for variant in variants if variant.state == "change"]
    if len(changes) == 1:
        changes = [variant for variant in variants if variant.state != "original"]
    parts = [changes[i : i + MAPS_ACROSS - 1] for i in range(0, len(changes), MAPS_ACROSS - 1)]
    return [_grid([variants[0], *part], sites, tokens, f"maps_{i}") for i, part in enumerate(parts)] if sites else []


def _grid(across_variants: Sequence[Variant], sites: Sequence[Site], tokens: Sequence[str], name: str) -> HeatMap:
    n = len(tokens)
    cells: Array = np.full((len(sites) * (n + 1) - 1, len(across_variants) * (n + 1) - 1), np.nan)
    for down, site in enumerate(sites):
        for across, variant in enumerate(across_variants):
            values = variant.effects.maps[site].numpy().copy()
            if site.causal:
                values[np.triu_indices(n, 1)] = np.nan
            cells[down * (n + 1) :][:n, across * (n + 1) :][:, :n] = values
    labels = [f"{position}: {token}" for position, token in enumerate(tokens)]
    columns = [
        variant.label if variant.state != "control" else f"{variant.label}, control" for variant in across_variants
    ]
    return HeatMap(
        name=name,
        title="Attention maps before and after",
        caption=f"Layers down, states of the model across; in each map queries down and keys across, the first {n} "
        f"tokens of the text, averaged over the changed heads of the layer. Weights above {_TOP} have one colour.",
        values=cells,
        row_labels=_gapped([[f"{site.label} {label}" for label in labels] for site in sites]),
        column_labels=_gapped([labels for _ in across_variants]),
        row_axis="query",
        column_axis="key",
        unit="weight",
        limits=(0.0, _TOP),
        panels=(tuple(site.label for site in sites), tuple(columns)),
    )


def _gapped(parts: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Labels of maps set out in a line with one empty cell between them."""
    joined = [label for part in parts for label in (*part, "")]
    return tuple(joined[:-1])


def spread(sites: Sequence[Site], count: int) -> list[Site]:
    """The first, the last and some between."""
    if len(sites) <= count:
        return list(sites)
    return [sites[round(i * (len(sites) - 1) / (count - 1))] for i in range(count)]


def _depths(heads: pl.DataFrame) -> list[Curves]:
    """A curve per state over the attention sites, averaged over the heads of each."""
    titles = {
        "entropy_share": ("Entropy of attention over depth", "entropy / ln(visible keys)",
                          "1 is uniform attention, 0 a single key per query."),
        "self": ("Mass on the token itself over depth", "mass on the diagonal", "Mean over all rows."),
        "first": ("Mass on the first token over depth", "mass on the first token", "Mean over all rows."),
        "moved": ("How far the maps moved", "share of mass moved",
                  "Half the sum of |difference| of a row, averaged over rows; deeper layers also read changed inputs."),
    }  # fmt: skip
    curves = []
    for quantity, (title, axis, caption) in titles.items():
        series = _by_site(heads, quantity)
        if series:
            has_several_kinds = len({(row["stack"], row["kind"]) for row in heads.iter_rows(named=True)}) > 1
            x = "attention site, in the order of the model" if has_several_kinds else "layer"
            curves.append(Curves(f"depth_{quantity}", title, f"{caption} Mean over heads.", x, axis, tuple(series)))
    return curves


def _by_site(heads: pl.DataFrame, quantity: str) -> list[Series]:
    changes = heads.filter(pl.col("which") == "change")["change"].n_unique()
    series = []
    for (change, state), part in heads.group_by(["change", "which"], maintain_order=True):
        if state == "control" and changes > 1:
            continue
        means = part.group_by(["stack", "kind", "layer"], maintain_order=True).agg(pl.col(quantity).mean())
        y = means[quantity].cast(pl.Float64).fill_null(np.nan).to_numpy()
        if not np.isfinite(y).any():
            continue
        label = str(change) if state != "control" else f"{change}, control"
        role = _ROLES.get(str(state), "measured")
        series.append(Series(label, np.arange(len(y), dtype=float), y, role=role))
    return series if any(curve.role == "measured" for curve in series) else []


def _costs(variants: Sequence[Variant], effects: pl.DataFrame) -> list[Curves]:
    """What scaling costs against α, beside its control."""
    alphas = sorted(
        {variant.change.alpha for variant in variants if variant.change is not None and variant.change.kind == "scale"}
    )
    if len(alphas) < 2:
        return []
    titles = {
        "ratio": ("Perplexity against the scale of the spectra", "perplexity / original", True, 1.0),
        "cosine": ("Sentence embeddings against the scale of the spectra", "cosine with the original", False, 1.0),
    }
    curves = []
    for name, (title, axis, log_y, original) in titles.items():
        if name not in effects.columns:
            continue
        series = [_against_alpha(effects, name, state, original) for state in ("change", "control")]
        level = Series("original", np.array(alphas), np.full(len(alphas), original), role="null")
        caption = (
            "Changes with 95 % intervals over windows of text. Control: a change with the same singular values along "
            "random directions; mean of several draws, and the band from the least to the most of them."
        )
        curves.append(Curves(f"cost_{name}", title, caption, "α", axis, (*series, level), log_x=True, log_y=log_y))
    return curves


def _against_alpha(effects: pl.DataFrame, name: str, state: str, original: float) -> Series:
    points = [(1.0, original, original, original)]
    for row in effects.iter_rows(named=True):
        if row["which"] == state and row["change"].startswith("scale "):
            value = row[name]
            suffixes = ("low", "high") if state == "change" else ("least", "most")
            ends = [row.get(f"{name}_{end}") for end in suffixes]
            points.append((Change.of(row["change"]).alpha, value, *(value if end is None else end for end in ends)))
    x, y, low, high = torch.tensor(sorted(points), dtype=torch.float64).T.numpy()
    label = "all singular values times α" if state == "change" else "control"
    return Series(label, x, y, low, high, role="measured" if state == "change" else "theory")


def _kept(effects: pl.DataFrame) -> list[Curves]:
    """What changes that need fewer numbers cost in quality, beside their controls."""
    name = "ratio" if "ratio" in effects.columns else "cosine"
    smaller = effects.filter(pl.col("numbers") < 1) if {"numbers", name} <= set(effects.columns) else effects.clear()
    changes = smaller.filter(pl.col("which") == "change")["change"].to_list()
    if len(changes) < 2:
        return []
    of_changes = effects.filter(pl.col("change").is_in(changes))
    series = [_points(of_changes, name, change) for change in changes]
    # A control costs what its change does, or the whole matrices: it stands where its change does.
    controls = of_changes.filter(pl.col("which") == "control").drop("numbers")
    places = of_changes.filter(pl.col("which") == "change").select("change", "numbers")
    series.append(_series(controls.join(places, on="change"), name, "controls", ("least", "most"), "theory"))
    shares = np.array([0.0, 1.0])
    caption = (
        "Changes with 95 % intervals over windows of text, at the share of the numbers of the chosen matrices that "
        "they need. Controls: the mean of several draws, from the least to the most, where their change is."
    )
    axis = "perplexity / original" if name == "ratio" else "cosine with the original"
    return [
        Curves("kept", "Quality against the numbers that are kept", caption, "share of the numbers", axis,
               (*series, Series("original", shares, np.ones(2), role="null")), log_y=name == "ratio")
    ]  # fmt: skip


def _points(effects: pl.DataFrame, name: str, change: str) -> Series:
    rows = effects.filter(pl.col("change") == change, pl.col("which") == "change")
    return _series(rows, name, change, ("low", "high"), "measured")


def _series(rows: pl.DataFrame, name: str, label: str, ends: tuple[str, str], role: Role) -> Series:
    x, y, low, high = (
        rows[column].cast(pl.Float64).fill_null(rows[name]).to_numpy()
        for column in ("numbers", name, *(f"{name}_{end}" for end in ends))
    )
    return Series(label, x, y, low, high, role=role, points=True)
