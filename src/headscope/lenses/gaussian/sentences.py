"""What the lens `gaussian` says in words: its method, its warnings and its headlines."""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
import polars as pl
from scipy import stats

from headscope.core import Headline
from headscope.lenses.gaussian.information import SHUFFLES
from headscope.lenses.gaussian.normality import ROW_SPACING
from headscope.lenses.gaussian.stream import PER_DIMENSION, Layer
from headscope.lenses.shared.effects import clear_effect, information_effect, ratio_effect
from headscope.lenses.shared.phrases import (
    detectable_effect,
    interval_phrase,
    percent,
    two_digits,
    undetected,
    windows_phrase,
)
from headscope.maths.gaussians import normality
from headscope.maths.resampling.jackknife import detectable


def method(layers: Sequence[Layer], skipped: int, step: int) -> str:
    """How the numbers were obtained."""
    sampled_windows, windows_in_text = max((layer.n_windows, layer.windows_in_text) for layer in layers)
    rows = max(len(layer.position) for layer in layers)
    has_every_row = rows == max(layer.moments.count for layer in layers)
    sampled = (
        f"every row of all {windows_in_text} windows"
        if has_every_row
        else f"a sample of {rows} rows per layer from {sampled_windows} of {windows_in_text} windows, drawn by a hash "
        "of their tokens"
    )
    left = f" The first {f'{skipped} tokens' if skipped > 1 else 'token'} of each window left out." if skipped else ""
    layered = f" Every {step}th layer only: covariances of all would not fit." if step > 1 else ""
    return (
        "Layers: every row, moments in float64, Ledoit–Wolf shrinkage for the entropy; intervals from the sample. "
        f"Divergence, positions, normality, information and joint Gaussian: {sampled}; for normality rows at least "
        f"{ROW_SPACING} tokens apart; kurtosis in several numbers of components: all of the sample. "
        f"At least {PER_DIMENSION} samples per dimension everywhere. Null of the information: up to {SHUFFLES} "
        f"pairings of each window with another.{left}{layered}"
    )


def warnings(
    tables: Mapping[str, pl.DataFrame], unseen: Sequence[str], distances: Sequence[int], components: int
) -> tuple[str, ...]:
    """What could not be estimated, and why."""
    messages = []
    if unseen:
        messages.append(f"Too few rows of {', '.join(unseen)} were seen.")
    entropy = tables["layers"].filter(pl.col("quantity") == "entropy_nats")
    full = tables["layers"].filter(pl.col("quantity") == "effective_dimension")
    p, n, d = (min(column.to_list()) for column in (entropy["dimensions"], entropy["samples"], full["dimensions"]))
    if p < d:
        messages.append(
            f"Entropy in the {p} largest of {d} principal components: {n} samples allow no more, or the others have "
            "no variance."
        )
    measured_distances = set(tables["information"]["distance"].to_list())
    if missing := [str(distance) for distance in distances if distance not in measured_distances]:
        messages.append(
            f"No information of tokens at distance {', '.join(missing)}: too few pairs, or one determines the other."
        )
    if tables["normality"].is_empty():
        messages.append(f"Normality was not tested: it needs {normality.FEWEST} rows {ROW_SPACING} tokens apart.")
    k = components
    used = min(tables["information"]["dimensions"].to_list(), default=k)
    if used < k:
        messages.append(f"Information in {used} principal components, not {k}: there are too few pairs for more.")
    if tables["joint"].is_empty():
        messages.append("No joint Gaussian of neighbouring tokens: too few of them, or one determines the others.")
    return tuple(messages)


def sentences(tables: Mapping[str, pl.DataFrame]) -> tuple[Headline, ...]:
    """The effects with interval, null and number of windows."""
    headlines = (
        _kurtosis_headline(tables["components"]),
        _dimension_headline(tables["layers"]),
        _information_headline(tables),
    )
    return tuple(headline for headline in headlines if headline is not None)


_ENDS = ("low", "high")


def _kurtosis_headline(table: pl.DataFrame) -> Headline | None:
    """Tails compared with Gaussian ones: in few and many components of the median layer, and in all layers."""
    rows = table.filter(pl.col("quantity") == "relative_kurtosis", pl.col("value").is_not_null())
    if rows.is_empty():
        return None
    sizes = sorted(set(rows["dimensions"].to_list()))
    most = rows.filter(pl.col("dimensions") == sizes[-1]).sort("value", maintain_order=True)
    median = most.row(most.height // 2, named=True)
    heavier, lighter = most.filter(pl.col("low") > 0).height, most.filter(pl.col("high") < 0).height
    verdict = (
        "Residual streams have heavier tails than a Gaussian"
        if heavier > most.height / 2
        else "Residual streams have lighter tails than a Gaussian"
        if lighter > most.height / 2
        else "Tails that differ from a Gaussian were detected in some residual streams only"
        if heavier + lighter
        else "No tails that differ from a Gaussian were detected"
    )
    effects = [_kurtosis_effect(median)]
    fewer = _of_layer(rows, median).filter(pl.col("dimensions").is_in(sizes[:-1]))
    picked = {size: fewer.filter(pl.col("dimensions") == size) for size in (8, sizes[0])}
    first = next((rows_of_size for rows_of_size in picked.values() if rows_of_size.height), None)
    if first is not None:
        effects.insert(0, _kurtosis_effect(first.row(0, named=True)))
    counts = f"{heavier} of {most.height} layers lie above 0 and {lighter} below (by chance: one in forty each)"
    least, largest = most.row(0, named=True), most.row(-1, named=True)
    span = (
        f", from {percent(least['value'])} in {_where(least)} to {percent(largest['value'])} in {_where(largest)}"
        if most.height > 1
        else ""
    )
    full = (
        f"{verdict}: in the median layer, {_where(median)}, Mardia's kurtosis differs from that of Gaussian samples by "
        f"{' and by '.join(effects)}{span}; in {sizes[-1]} components the intervals of {counts}, "
        f"{windows_phrase(rows)} in all{_detectable_clause(most) if not heavier + lighter else ''}."
    )
    return Headline(full, _kurtosis_short(most, median, heavier, lighter), _kurtosis_size(most, median))


def _kurtosis_short(most: pl.DataFrame, median: Mapping[str, Any], heavier: int, lighter: int) -> str:
    value = median["value"]
    if most["low"].null_count() == most.height:
        return (
            f"Kurtosis of token vectors differs from a Gaussian's by {percent(value)} in the median layer; one window "
            "gives no interval."
        )
    if not heavier + lighter:
        size = detectable_effect(most) or 0.0
        return undetected("difference of token vectors from Gaussian tails", f"{percent(size)} more kurtosis")
    if max(heavier, lighter) > most.height / 2:
        kind, side = ("heavier", "higher") if value > 0 else ("lighter", "lower")
        return (
            f"Token vectors have {kind} tails than a Gaussian: their kurtosis is {percent(abs(value))} {side} in the "
            "median layer."
        )
    return (
        f"Tails unlike a Gaussian's were detected in {heavier + lighter} of {most.height} layers; chance gives one in "
        "twenty."
    )


def _kurtosis_size(most: pl.DataFrame, median: Mapping[str, Any]) -> float | None:
    """The effect of the median layer, where most layers differ from a Gaussian."""
    low, high = (_median_end(most, end) for end in _ENDS)
    return clear_effect(ratio_effect(1.0 + median["value"], 1.0), low, high)


def _median_end(rows: pl.DataFrame, end: str) -> float | None:
    """The median of one end of the intervals; beyond 0 where most of them are."""
    ends = rows[end].drop_nulls().to_numpy()
    return float(np.median(ends)) if len(ends) else None


def _kurtosis_effect(row: Mapping[str, Any]) -> str:
    components = f"{row['dimensions']} principal component{'s' if row['dimensions'] > 1 else ''}"
    return f"{percent(row['value'])} ({interval_phrase(row, percent, _ENDS)}) in {components}"


def _detectable_clause(rows: pl.DataFrame) -> str:
    """What would have been detected where nothing was."""
    widths = ((rows["high"] - rows["low"]) / 2).drop_nulls().to_torch()
    if not len(widths):
        return "; one window detects nothing"
    windows = min(rows["windows"].to_list())
    size = float(detectable(widths, windows).quantile(0.5))
    return f"; {percent(size)} would have been detected in four of five texts"


def _where(row: Mapping[str, object]) -> str:
    stack = "" if row["stack"] == "only" else f"{row['stack']}."
    return f"{stack}L{row['layer']}"


def _dimension_headline(table: pl.DataFrame) -> Headline | None:
    rows = table.filter(pl.col("quantity") == "effective_dimension", pl.col("value").is_not_null())
    if rows.is_empty():
        return None
    rows = rows.sort("value", maintain_order=True)
    least, most = rows.row(0, named=True), rows.row(-1, named=True)
    entropy = table.filter(pl.col("quantity") == "entropy_nats", pl.col("value").is_not_null())
    ends = interval_phrase(least, lambda value: f"{value:.3g}", _ENDS)
    span = f"The effective dimension is {least['value']:.3g} ({ends}) in {_where(least)}"
    if rows.height > 1:
        span = (
            f"The effective dimension goes from {least['value']:.3g} ({ends}) in {_where(least)} to "
            f"{most['value']:.3g} in {_where(most)}"
        )
    lack = ""
    if not entropy.is_empty():
        gaps = (entropy["null"] - entropy["value"]).to_numpy() / entropy["dimensions"].to_numpy()
        lack = (
            f"; the entropy of the median layer lies {float(np.median(gaps)):.2g} nats per dimension below that of the "
            "isotropic Gaussian with its variance"
        )
    full = (
        f"{span} (of {least['dimensions']}; isotropic samples: {least['null']:.3g}; {windows_phrase(rows)}){lack}"
        f"{_first_clause(table)}."
    )
    return _dimension_size(full, rows[[rows.height // 2]])


def _dimension_size(full: str, median_row: pl.DataFrame) -> Headline:
    """The median layer, next to samples without preferred directions."""
    median = median_row.row(0, named=True)
    size = ratio_effect(median["value"], median["null"])
    effect = clear_effect(size, median["low"], median["high"], median["null"])
    if effect == 0.0:
        fewer = f"{two_digits(detectable_effect(median_row) or 0.0)} dimensions fewer"
        return Headline(full, undetected("narrowing of token vectors in the median layer", fewer), effect)
    short = (
        f"In the median layer token vectors effectively use {median['value']:.3g} of {median['dimensions']} "
        f"dimensions; random vectors would use {median['null']:.3g}."
    )
    return Headline(full, short, effect)


def _first_clause(table: pl.DataFrame) -> str:
    """The share of the first tokens, where it would be more than a tenth of the variance."""
    rows = table.filter(pl.col("quantity") == "first_share", pl.col("value").is_not_null())
    top = rows.sort("value", descending=True, maintain_order=True).row(0, named=True) if rows.height else None
    if top is None or top["value"] < max(0.1, 2 * top["null"]):
        return ""
    return (
        f"; the first tokens, which are left out, would be {100 * top['value']:.0f} % of the variance in {_where(top)} "
        f"({100 * top['null']:.1g} % of the rows)"
    )


def _information_headline(tables: Mapping[str, pl.DataFrame]) -> Headline | None:
    """What neighbours share beyond tokens of different windows, how far that reaches, and in other components."""
    rows = tables["information"].filter(pl.col("value").is_not_null())
    if rows.is_empty():
        return None
    layers = rows.select("stack", "kind", "layer").unique(maintain_order=True)
    place = layers.row(layers.height // 2, named=True)
    layer = _of_layer(rows, place).sort("distance")
    near = layer.row(0, named=True)
    effect = f"{two_digits(near['value'])} nats ({interval_phrase(near, two_digits, _ENDS)}; {windows_phrase(rows)})"
    chance = (
        "less the bias of independent pairs, since one window cannot be shuffled"
        if near["null"] is None
        else f"beyond tokens of different windows, which give {two_digits(near['null'])}"
    )
    full = (
        f"In {near['dimensions']} principal components of {_where(place)}, tokens at distance {near['distance']} share "
        f"{effect} {chance}{_curve_clause(tables['components'], place, near)}{_reach_clause(layer)}"
        f"{_fall_clause(rows)}{_joint_clause(tables['joint'], place)}."
    )
    size = information_effect(near["value"], near["dimensions"])
    return Headline(full, _information_short(layer[:1], place), clear_effect(size, near["low"], near["high"]))


def _information_short(nearest: pl.DataFrame, place: Mapping[str, object]) -> str:
    near = nearest.row(0, named=True)
    tokens = "neighbouring tokens" if near["distance"] == 1 else f"tokens {near['distance']} tokens apart"
    components = f"{near['dimensions']} component{'s' if near['dimensions'] > 1 else ''} of {_where(place)}"
    if near["low"] is None:
        shared = f"share {two_digits(near['value'])} nats in {components}"
        return f"{tokens.capitalize()} {shared}; one window gives no interval."
    if near["low"] <= 0:
        size = two_digits(detectable_effect(nearest) or 0.0)
        return undetected(f"information shared by {tokens} in {_where(place)}", f"{size} nats")
    shared = f"share {two_digits(near['value'])} nats of information beyond unrelated tokens"
    return f"{tokens.capitalize()} {shared}, in {components}."


def _curve_clause(table: pl.DataFrame, place: Mapping[str, object], near: Mapping[str, Any]) -> str:
    """The same in the smallest and in the largest number of components."""
    rows = _of_layer(table, place).filter(pl.col("quantity") == "information_nats", pl.col("value").is_not_null())
    rows = rows.filter(pl.col("dimensions") != near["dimensions"]).sort("dimensions")
    ends = rows[[0, -1]] if rows.height > 1 else rows
    values = [f"{two_digits(row['value'])} in {row['dimensions']}" for row in ends.iter_rows(named=True)]
    return f"; the number depends on how many components are used: {' and '.join(values)}" if values else ""


def _reach_clause(layer: pl.DataFrame) -> str:
    """Up to which distance the interval lies above 0."""
    if layer["low"].null_count() == layer.height:
        return ""
    rows = layer.to_dicts()
    # From the nearest distance on: one clear distance behind an unclear one is no reach.
    clear = [row["distance"] for row in takewhile(lambda row: row["low"] is not None and row["low"] > 0, rows)]
    far = rows[-1]
    if far["distance"] in clear:
        return f"; the interval lies above 0 at every distance up to {far['distance']}"
    reach = f"at every distance up to {clear[-1]} and not at the next" if clear else "not even at the nearest distance"
    return (
        f"; the interval lies above 0 {reach} (at {far['distance']}: {two_digits(far['value'])}, "
        f"{interval_phrase(far, two_digits, _ENDS)})"
    )


def _of_layer(table: pl.DataFrame, place: Mapping[str, object]) -> pl.DataFrame:
    return table.filter(*(pl.col(key) == place[key] for key in ("stack", "kind", "layer")))


def _fall_clause(rows: pl.DataFrame) -> str:
    """Whether information falls with distance, as the theory assumes: rank correlations of the layers."""
    correlations = []
    for _, layer_rows in rows.group_by(["stack", "kind", "layer"], maintain_order=True):
        if layer_rows["distance"].n_unique() > 2:
            correlations.append(
                float(stats.spearmanr(layer_rows["distance"].to_numpy(), layer_rows["value"].to_numpy()).statistic)
            )
    falling = [correlation for correlation in correlations if correlation < 0]
    if not correlations:
        return ""
    return (
        f"; it falls with distance in {len(falling)} of {len(correlations)} layers (the theory assumes all, chance "
        f"gives half; median rank correlation {float(np.median(correlations)):.2f})"
    )


def _joint_clause(joint: pl.DataFrame, place: Mapping[str, object]) -> str:
    """What a token shares with its neighbours, in as many components as there are samples for."""
    rows = _of_layer(joint, place).filter(pl.col("quantity") == "last_token_nats", pl.col("value").is_not_null())
    if rows.is_empty():
        return ""
    row = rows.row(0, named=True)
    before = f"the {row['tokens'] - 1} before it" if row["tokens"] > 2 else "the one before it"
    return (
        f"; in {row['dimensions']} components a token shares {two_digits(row['value'])} nats "
        f"({interval_phrase(row, two_digits, _ENDS)}) with {before}"
    )
