"""Figures of the lens `circuits`: copying by head, and with and without the mean of the tokens."""

from math import nan

import numpy as np
import polars as pl

from headscope.core import Curves, Figure, Series, Site
from headscope.lenses.circuits.tables import ALL_LISTS, CENTRED, QUANTITIES, STREAM, VOCABULARY
from headscope.lenses.lens import Tables
from headscope.lenses.shared.plots import head_map

_TITLES = {
    CENTRED: "Copying of tokens, with their mean removed",
    VOCABULARY: "Copying of tokens",
    STREAM: "Copying within the stream",
}


def figures(tables: Tables, sites: list[Site]) -> tuple[Figure, ...]:
    """A map for each basis that was measured, the headline's first, then the scores in order."""
    heads = tables["heads"]
    names = [name for name in reversed(QUANTITIES) if heads.filter(pl.col("quantity") == name).height]
    maps = tuple(_map(heads.filter(pl.col("quantity") == name), name, sites) for name in names)
    successors = tables["successors"].filter(pl.col("list") == ALL_LISTS)
    written = () if successors.is_empty() else (_successor_map(successors, sites),)
    return (*maps, *written, _sorted_scores(heads, names))


def _cells(rows: pl.DataFrame, sites: list[Site]) -> dict[Site, list[float]]:
    scores = {(row["stack"], row["layer"], row["head"]): row["value"] for row in rows.to_dicts()}
    return {
        site: [_number(scores.get((site.stack, site.layer, head))) for head in range(site.n_heads)] for site in sites
    }


def _successor_map(rows: pl.DataFrame, sites: list[Site]) -> Figure:
    null, limit = float(np.median(rows["null"].to_numpy())), float(rows["null_largest"][0])
    return head_map(
        _cells(rows, sites),
        name="successors",
        title="Successors in ordinal lists",
        caption=f"Share of {rows['pairs'][0]} pairs of neighbours in lists, such as days and letters, of which the "
        f"head raises the second most when it reads the first. Permuted lists give {null:.2g} (median over heads); in "
        f"95 % of permutations no head exceeds {limit:.2g}.",
        unit="share",
        reference=limit,
        limits=(0.0, 1.0),
    )


def _map(rows: pl.DataFrame, name: str, sites: list[Site]) -> Figure:
    sd = float(np.median(rows["null_sd"].to_numpy()))
    return head_map(
        _cells(rows, sites),
        name=f"copying_{name}",
        title=_TITLES[name],
        caption="1: every eigenvalue is positive, the head writes what it reads; −1: it writes the opposite. Heads "
        f"turned at random have a standard deviation of {sd:.2g} around 0.",
        unit="Σ Re λ / Σ |λ|",
        reference=0.0,
        limits=(-1.0, 1.0),
    )


def _number(score: float | None) -> float:
    return nan if score is None else score


def _sorted_scores(heads: pl.DataFrame, names: list[str]) -> Figure:
    series = []
    for name in names:
        scores = np.sort(heads.filter(pl.col("quantity") == name)["value"].drop_nulls().to_numpy())
        share = (np.arange(len(scores)) + 0.5) / max(len(scores), 1)
        series.append(Series(_TITLES[name], share, scores, points=len(scores) < 40))
    rows = heads.filter(pl.col("quantity") == names[0])
    ends = [float(np.median(rows[name].to_numpy())) for name in ("null_low", "null_high")]
    share = np.array([0.0, 1.0])
    series += [
        Series(label, share, np.full(2, end), role="null")
        for label, end in zip(("turned heads, lower end", "turned heads, upper end"), ends, strict=True)
    ]
    return Curves(
        name="sorted_scores",
        title="Copying scores of all heads in order",
        caption=f"Dotted: the range of 95 % of turned heads ({_TITLES[names[0]].lower()}, median over layers).",
        x_axis="share of heads",
        y_axis="copying score",
        series=tuple(part for part in series if len(part.x)),
    )
