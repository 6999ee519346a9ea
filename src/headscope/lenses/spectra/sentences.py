"""The sentences of the lens `spectra`."""

import numpy as np
import polars as pl
from scipy import stats

from headscope.core import Headline
from headscope.lenses.lens import Tables
from headscope.lenses.shared.answers import answered, pictured, side
from headscope.lenses.shared.effects import ratio_effect
from headscope.lenses.shared.plots import label_of
from headscope.lenses.shared.written_numbers import counted, part_of, percents, side_by_side, significant

_FALSE_DISCOVERIES = 0.05


def sentences(tables: Tables) -> tuple[Headline, ...]:
    """What stands out, in numbers."""
    heads, layers, fed = (tables.get(name) for name in ("heads", "layers", "feed_forward"))
    if heads is None or layers is None:
        return ()
    noise = "" if heads["weights"].str.starts_with("as stored").all() else ", rounding noise included"
    fed_headline = None if fed is None else _feed_forward_headline(fed, layers, noise)
    headlines = (_rank_headline(heads, noise), _edge_headline(layers, noise), fed_headline)
    return pictured(headlines, ("qk_effective_rank", "largest_square", "feed_forward_largest_square"))


def _of(table: pl.DataFrame, quantity: str, matrix: str | None = None) -> pl.DataFrame:
    rows = table.filter(pl.col("quantity") == quantity, pl.col("value").is_not_null())
    return rows if matrix is None else rows.filter(pl.col("matrix") == matrix)


def _medians(rows: pl.DataFrame) -> tuple[float, float]:
    """Value and null."""
    value, null = (float(np.median(rows[column].to_numpy())) for column in ("value", "null"))
    return value, null


def _rank_headline(heads: pl.DataFrame, noise: str) -> Headline:
    compared, moved = (_of(heads, "effective_rank", matrix) for matrix in ("QK", "OV"))
    along, random_along = side_by_side(_medians(compared), decimals=1)
    of_value, random_value = side_by_side(_medians(moved), decimals=1)
    narrowest = f"; the narrowest are {_narrowest(compared)} and {_narrowest(moved)}" if compared.height > 1 else ""
    full = (
        f"The median of {counted(compared.height, 'head')} compares tokens along {along} effective directions of W_QK "
        f"(random: {random_along}{noise}) and moves information along {of_value} of W_OV (random: "
        f"{random_value}){narrowest}."
    )
    short = (
        f"The median head compares tokens along {along} effective directions; a random head would use {random_along}."
    )
    answer = side(*_medians(compared), "fewer than random weights", "as many as random weights")
    headline = Headline(full, short, ratio_effect(*_medians(compared)))
    return answered(headline, answer, f"{along} directions", random_along)


def _narrowest(rows: pl.DataFrame) -> str:
    """The head with the lowest effective rank, with it."""
    lowest = rows.sort("value", maintain_order=True).row(0, named=True)
    return f"{label_of(lowest)} with {lowest['value']:.1f}"


def _edge_headline(layers: pl.DataFrame, noise: str) -> Headline:
    full = (
        f"In the median layer the number of singular values of W_Q beyond the edge of a random matrix is "
        f"{_beyond(layers, 'Q')}; of W_V it is {_beyond(layers, 'V')}{noise}. "
        f"{_largest_sentence(layers, 'projection', 'projections')}{_bulks(layers, 'W_')}."
    )
    return Headline(full, *_strongest(layers, "projection of attention", "projections of attention"))


def _feed_forward_headline(fed: pl.DataFrame, layers: pl.DataFrame, noise: str) -> Headline:
    (spikes, null), (attention, _) = (_medians(_of(table, "energy_in_spikes")) for table in (fed, layers))
    share, random_share, attention_share = percents((spikes, null, attention))
    full = (
        f"{_largest_sentence(fed, 'feed-forward matrix', 'feed-forward matrices')}; in the median one the spikes above "
        f"the bulk hold {share} of the energy{noise} (random: {random_share}; projections of attention: "
        f"{attention_share}){_bulks(fed, '')}."
    )
    return Headline(full, *_strongest(fed, "feed-forward matrix", "feed-forward matrices"))


def _largest_sentence(table: pl.DataFrame, matrix: str, matrices: str) -> str:
    """The largest singular value of the median matrix, and in how many it is beyond chance."""
    ratio, rare = _largest(table), _adjusted_p(table)
    rows = _of(table, "largest")
    if ratio is None:
        return f"All {counted(rows.height, matrix, matrices)} are 0"
    times, _ = side_by_side((ratio, 1.0), decimals=2)
    beyond = sum(p < _FALSE_DISCOVERIES for p in rare)
    least = f", where the smallest adjusted p-value is {significant(min(rare), 2)}" if rare and not beyond else ""
    return (
        f"The largest singular value is {times} times that of a random matrix in the median of "
        f"{counted(rows.height, matrix, matrices)}, and beyond chance (Tracy–Widom, false discovery rate "
        f"{100 * _FALSE_DISCOVERIES:.0f} %) in {beyond} of {len(rare)}{least}"
    )


def _strongest(table: pl.DataFrame, matrix: str, matrices: str) -> tuple[str, float | None]:
    """The short form about the largest singular value, and its effect: 0 where no matrix is beyond chance."""
    ratio, rare = _largest(table), [p < _FALSE_DISCOVERIES for p in _adjusted_p(table)]
    if ratio is None:
        zeros = counted(_of(table, "largest").height, matrix, matrices)
        return f"All {zeros} are 0: they have no strongest direction.", None
    times, _ = side_by_side((ratio, 1.0), decimals=2)
    if not any(rare):
        return (
            f"{part_of(sum(rare), len(rare), matrix, matrices)} stretch a direction beyond chance; the median "
            f"stretches {times} times as much as random.",
            0.0,
        )
    short = f"The median {matrix} stretches its strongest direction {times} times as much as a random matrix would."
    return short, ratio_effect(ratio, 1.0)


def _largest(table: pl.DataFrame) -> float | None:
    """The largest singular value over that of the null, in the median matrix; None where all are 0."""
    rows = _of(table, "largest").filter(pl.col("null") > 0)
    return float(np.median((rows["value"] / rows["null"]).to_numpy())) if rows.height else None


def _adjusted_p(table: pl.DataFrame) -> list[float]:
    """The chance of each matrix's largest value, adjusted for their number."""
    tested = _of(table, "largest_p_value")
    return [float(p) for p in stats.false_discovery_control(tested["value"].to_numpy())] if tested.height else []


def _bulks(table: pl.DataFrame, prefix: str) -> str:
    """Which of the matrices has the most, and which the least random bulk, in the median layer."""
    rows = _of(table, "bulk_distance").filter(pl.col("null") > 0)
    if rows.is_empty():
        return ""
    ratio = (pl.col("value") / pl.col("null")).median().alias("ratio")
    by_matrix = rows.group_by("matrix", maintain_order=True).agg(ratio).sort("ratio", maintain_order=True)
    first, last = by_matrix.row(0, named=True), by_matrix.row(-1, named=True)
    nearest, farthest = side_by_side((first["ratio"], last["ratio"]), decimals=1)
    least = f" and least in {prefix}{last['matrix']} ({farthest} times)" if by_matrix.height > 1 else ""
    return (
        f"; what is left below the spikes is most random in {prefix}{first['matrix']} ({nearest} times as far from its "
        f"law as a random matrix){least}"
    )


def _beyond(layers: pl.DataFrame, matrix: str) -> str:
    """Of the layer with the median share of energy above the edge: how many singular values, which share."""
    counts, shares = (_of(layers, name, matrix).to_dicts() for name in ("above_edge", "energy_above_edge"))
    # Both from one layer: the medians of each apart may belong to no layer at all.
    order = sorted(range(len(shares)), key=lambda index: (shares[index]["value"], counts[index]["value"]))
    median = order[len(order) // 2]
    count, share = counts[median], shares[median]
    energy, random_energy = percents((share["value"], share["null"]))
    return f"{count['value']:.0f}, with {energy} of its energy (random: {count['null']:.2f}, with {random_energy})"
