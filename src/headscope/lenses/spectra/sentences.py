"""The sentences of the lens `spectra`."""

import numpy as np
import polars as pl
from scipy import stats

from headscope.core import Headline
from headscope.lenses.lens import Tables
from headscope.lenses.shared.effects import ratio_effect
from headscope.lenses.shared.plots import label_of

_FALSE_DISCOVERIES = 0.05


def sentences(tables: Tables) -> tuple[Headline, ...]:
    """What stands out, in numbers."""
    heads, layers, fed = (tables.get(name) for name in ("heads", "layers", "feed_forward"))
    if heads is None or layers is None:
        return ()
    noise = "" if heads["weights"].str.starts_with("as stored").all() else ", rounding noise included"
    headlines = (_rank_headline(heads, noise), _edge_headline(layers, noise))
    return headlines if fed is None else (*headlines, _feed_forward_headline(fed, layers, noise))


def _rank_headline(heads: pl.DataFrame, noise: str) -> Headline:
    (compared, lowest_qk), (moved, lowest_ov) = _ranks(heads, "QK"), _ranks(heads, "OV")
    full = (
        f"The median head compares tokens along {compared[0]:.1f} effective directions of W_QK (random: "
        f"{compared[1]:.1f}{noise}) and moves information along {moved[0]:.1f} of W_OV (random: {moved[1]:.1f}); the "
        f"narrowest are {lowest_qk} and {lowest_ov}."
    )
    short = (
        f"The median head compares tokens along {compared[0]:.1f} effective directions; a random head would use "
        f"{compared[1]:.1f}."
    )
    return Headline(full, short, ratio_effect(*compared))


def _ranks(heads: pl.DataFrame, matrix: str) -> tuple[tuple[float, float], str]:
    """Effective rank and its null, as medians over heads; and the head that has the lowest, with it."""
    rows = heads.filter(pl.col("matrix") == matrix, pl.col("quantity") == "effective_rank")
    lowest = rows.sort("value", maintain_order=True).row(0, named=True)
    value, null = (float(np.median(rows[column].to_numpy())) for column in ("value", "null"))
    return (value, null), f"{label_of(lowest)} with {lowest['value']:.1f}"


def _edge_headline(layers: pl.DataFrame, noise: str) -> Headline:
    (of_q, q_energy), (of_v, v_energy) = _beyond(layers, "Q"), _beyond(layers, "V")
    full = (
        f"In the median layer {of_q:.0f} singular values of W_Q lie beyond the edge of a random matrix and hold "
        f"{100 * q_energy:.0f} % of its energy; of W_V it is {of_v:.0f} with {100 * v_energy:.0f} %{noise}. The "
        f"largest value is {_times(layers)} times that of a random matrix in the median projection, and beyond "
        f"chance (Tracy–Widom, false discovery rate 5 %) in {_rare_count(layers)} projections"
        f"{_bulks(layers, 'W_')}."
    )
    return Headline(full, *_strongest(layers, "projection of attention", "projections of attention"))


def _feed_forward_headline(fed: pl.DataFrame, layers: pl.DataFrame, noise: str) -> Headline:
    spikes, attention = (_median(table, "energy_in_spikes") for table in (fed, layers))
    full = (
        f"The largest value is {_times(fed)} times that of a random matrix in the median feed-forward matrix, and "
        f"beyond chance in {_rare_count(fed)} feed-forward matrices; in the median one the spikes above the bulk hold "
        f"{100 * spikes:.0f} % of the energy{noise} (in the projections of attention {100 * attention:.0f} %)"
        f"{_bulks(fed, '')}."
    )
    return Headline(full, *_strongest(fed, "feed-forward matrix", "feed-forward matrices"))


def _strongest(table: pl.DataFrame, matrix: str, matrices: str) -> tuple[str, float | None]:
    """The short form about the largest singular value, and its effect: 0 where no matrix is beyond chance."""
    ratio, rare = _largest(table), _rare(table)
    if ratio is None:
        zeros = table.filter(pl.col("quantity") == "largest").height
        return f"All {zeros} {matrices} are 0: they have no strongest direction.", None
    if not any(rare):
        return (
            f"{_rare_count(table)} {matrices} stretch a direction beyond chance; the median stretches {ratio:.2f} "
            "times as much as random.",
            0.0,
        )
    short = f"The median {matrix} stretches its strongest direction {ratio:.2f} times as much as a random matrix would."
    return short, ratio_effect(ratio, 1.0)


def _largest(table: pl.DataFrame) -> float | None:
    """The largest singular value over that of the null, in the median matrix; None where all are 0."""
    rows = table.filter(pl.col("quantity") == "largest", pl.col("null") > 0)
    return float(np.median((rows["value"] / rows["null"]).to_numpy())) if rows.height else None


def _times(table: pl.DataFrame) -> str:
    ratio = _largest(table)
    return "an unknown number of" if ratio is None else f"{ratio:.2f}"


def _rare(table: pl.DataFrame) -> list[bool]:
    """Whether each matrix has a largest value beyond chance, adjusted for their number."""
    tested = table.filter(pl.col("quantity") == "largest_p_value", pl.col("value").is_not_null())
    adjusted = stats.false_discovery_control(tested["value"].to_numpy()) if tested.height else np.zeros(0)
    return [bool(p < _FALSE_DISCOVERIES) for p in adjusted]


def _rare_count(table: pl.DataFrame) -> str:
    rare = _rare(table)
    return f"{sum(rare)} of {len(rare)}"


def _median(table: pl.DataFrame, quantity: str) -> float:
    return float(np.median(table.filter(pl.col("quantity") == quantity)["value"].to_numpy()))


def _bulks(table: pl.DataFrame, prefix: str) -> str:
    """Which of the matrices has the most, and which the least random bulk, in the median layer."""
    rows = table.filter(pl.col("quantity") == "bulk_distance", pl.col("value").is_not_null())
    if rows.is_empty():
        return ""
    ratio = (pl.col("value") / pl.col("null")).median().alias("ratio")
    by_matrix = rows.group_by("matrix", maintain_order=True).agg(ratio).sort("ratio", maintain_order=True)
    first, last = by_matrix.row(0, named=True), by_matrix.row(-1, named=True)
    least = f" and least in {prefix}{last['matrix']} ({last['ratio']:.1f} times)" if by_matrix.height > 1 else ""
    return (
        f"; what is left below the spikes is most random in {prefix}{first['matrix']} ({first['ratio']:.1f} times as "
        f"far from its law as a random matrix){least}"
    )


def _beyond(layers: pl.DataFrame, matrix: str) -> tuple[float, float]:
    """Of the layer with the median share of energy above the edge: how many singular values, which share."""
    rows = layers.filter(pl.col("matrix") == matrix)
    counts, shares = (
        rows.filter(pl.col("quantity") == name)["value"].to_list() for name in ("above_edge", "energy_above_edge")
    )
    # Both from one layer: the medians of each apart may belong to no layer at all.
    share, count = sorted(zip(shares, counts, strict=True))[len(shares) // 2]
    return count, share
