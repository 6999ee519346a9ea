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
from headscope.lenses.shared.answers import answered, pictured, side
from headscope.lenses.shared.effects import clear_effect, information_effect, ratio_effect
from headscope.lenses.shared.estimates import (
    compared,
    estimate,
    fixed,
    how_many,
    no_detection,
    rounded,
    untested,
    window_count,
)
from headscope.lenses.shared.phrases import detectable_effect, windows_phrase
from headscope.lenses.shared.written_numbers import counted
from headscope.maths.gaussians import normality


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
    return pictured(headlines, ("tails", "effective_dimension", "information"))


_ENDS = ("low", "high")


def _of(table: pl.DataFrame, quantity: str) -> pl.DataFrame:
    """The rows of a quantity that were measured."""
    return table.filter(pl.col("quantity") == quantity, pl.col("value").is_finite())


def _of_layer(table: pl.DataFrame, place: Mapping[str, object]) -> pl.DataFrame:
    return table.filter(*(pl.col(key) == place[key] for key in ("stack", "kind", "layer")))


def _where(row: Mapping[str, object]) -> str:
    stack = "" if row["stack"] == "only" else f"{row['stack']}."
    return f"{stack}L{row['layer']}"


def _has_intervals(rows: pl.DataFrame) -> bool:
    return rows.filter(pl.col("low").is_finite()).height > 0


def _percent(value: float, *, signed: bool = False) -> str:
    return f"{rounded(100 * value, signed=signed)} %"


def _kurtosis_headline(table: pl.DataFrame) -> Headline | None:
    """Tails compared with Gaussian ones: in few and many components of the median layer, and in all layers."""
    rows = _of(table, "relative_kurtosis")
    if rows.is_empty():
        return None
    sizes = sorted(set(rows["dimensions"].to_list()))
    most = rows.filter(pl.col("dimensions") == sizes[-1]).sort("value", maintain_order=True)
    median = most.row(most.height // 2, named=True)
    effects = [_kurtosis_effect(median)]
    fewer = _of_layer(rows, median).filter(pl.col("dimensions").is_in(sizes[:-1]))
    picked = {size: fewer.filter(pl.col("dimensions") == size) for size in (8, sizes[0])}
    first = next((rows_of_size for rows_of_size in picked.values() if rows_of_size.height), None)
    if first is not None:
        effects.insert(0, _kurtosis_effect(first.row(0, named=True)))
    layer = "the median layer" if most.height > 1 else "the only layer"
    full = (
        f"{_tails_verdict(most)}: in {layer}, {_where(median)}, Mardia's kurtosis differs from that of Gaussian "
        f"samples by {' and by '.join(effects)} ({windows_phrase(rows)}). {_tails_span(most, sizes[-1])}"
    )
    headline = Headline(full.strip(), _kurtosis_short(most, median), _kurtosis_size(most, median))
    answer = side(median["value"], 0.0, "lighter tails than a Gaussian", "heavier tails than a Gaussian")
    return answered(headline, answer, f"{_percent(median['value'], signed=True)} kurtosis", "0 %")


def _sides(most: pl.DataFrame) -> tuple[int, int]:
    """How many layers have heavier tails by their interval, and how many lighter ones."""
    return most.filter(pl.col("low") > 0).height, most.filter(pl.col("high") < 0).height


def _tails_verdict(most: pl.DataFrame) -> str:
    heavier, lighter = _sides(most)
    if not _has_intervals(most):
        windows = "One window" if window_count(most) == 1 else windows_phrase(most)
        return f"{windows} cannot tell the tails of residual streams from those of a Gaussian"
    if heavier > most.height / 2:
        return "Residual streams have heavier tails than a Gaussian"
    if lighter > most.height / 2:
        return "Residual streams have lighter tails than a Gaussian"
    if heavier + lighter:
        return (
            f"Tails unlike a Gaussian's were detected in {how_many(heavier + lighter, most.height, 'residual stream')}"
        )
    return "No tails unlike a Gaussian's were detected"


def _tails_span(most: pl.DataFrame, components: int) -> str:
    """The layers at both ends, and how many differ from a Gaussian; or what would have been detected."""
    if most.height == 1 and not _has_intervals(most):
        return ""
    least, largest = (most.row(place, named=True) for place in (0, -1))
    span = (
        f"it runs from {_percent(least['value'], signed=True)} in {_where(least)} to "
        f"{_percent(largest['value'], signed=True)} in {_where(largest)}"
    )
    parts = [span] if most.height > 1 else []
    heavier, lighter = _sides(most)
    if _has_intervals(most):
        lie = f"{how_many(heavier, most.height, 'layer')} {'lie' if heavier > 1 else 'lies'}"
        parts.append(f"{lie} above 0 and {lighter or 'none'} below, intervals included (chance: one in forty each)")
    if _has_intervals(most) and not heavier + lighter and (size := detectable_effect(most)) is not None:
        parts.append(f"{_percent(size)} would have been detected in four of five texts")
    return f"In {counted(components, 'component')} {'; '.join(parts)}."


def _kurtosis_short(most: pl.DataFrame, median: Mapping[str, Any]) -> str:
    value, windows = median["value"], window_count(most)
    heavier, lighter = _sides(most)
    if not _has_intervals(most):
        differs = f"differs from a Gaussian's by {_percent(value, signed=True)}"
        return f"Kurtosis of token vectors {differs} in the median layer; {untested(windows)}."
    if not heavier + lighter:
        size = detectable_effect(most)
        written = "" if size is None else f"{_percent(size)} more kurtosis"
        return no_detection("difference of token vectors from Gaussian tails", size, written, windows)
    if max(heavier, lighter) > most.height / 2:
        kind, side = ("heavier", "higher") if value > 0 else ("lighter", "lower")
        return (
            f"Token vectors have {kind} tails than a Gaussian: their kurtosis is {_percent(abs(value))} {side} in the "
            "median layer."
        )
    layers = how_many(heavier + lighter, most.height, "layer")
    return f"Tails unlike a Gaussian's were detected in {layers}; chance gives one in twenty."


def _kurtosis_size(most: pl.DataFrame, median: Mapping[str, Any]) -> float | None:
    """The effect of the median layer, where most layers differ from a Gaussian."""
    low, high = (_median_end(most, end) for end in _ENDS)
    return clear_effect(ratio_effect(1.0 + median["value"], 1.0), low, high)


def _median_end(rows: pl.DataFrame, end: str) -> float | None:
    """The median of one end of the intervals; beyond 0 where most of them are."""
    ends = rows[end].drop_nulls().to_numpy()
    return float(np.median(ends)) if len(ends) else None


def _kurtosis_effect(row: Mapping[str, Any]) -> str:
    components = counted(row["dimensions"], "principal component")
    return f"{estimate(row, percent=True, signed=True)} in {components}"


def _dimension_headline(table: pl.DataFrame) -> Headline | None:
    """How many dimensions token vectors effectively use, and how far their entropy is below the largest."""
    rows = _of(table, "effective_dimension").filter(pl.col("null").is_finite()).sort("value", maintain_order=True)
    if rows.is_empty():
        return None
    least, most = rows.row(0, named=True), rows.row(-1, named=True)
    if rows.height == 1:
        span = f"is {estimate(least, digits=3)} in {_where(least)}"
    else:
        span = (
            f"runs from {estimate(least, digits=3)} in {_where(least)} to {estimate(most, digits=3)} in {_where(most)}"
        )
    full = (
        f"The effective dimension of token vectors {span}, of {least['dimensions']} (as many isotropic samples: "
        f"{rounded(least['null'], 3)}; {windows_phrase(rows)}).{_entropy_sentence(table)}"
        f"{_first_sentence(table)}"
    )
    return _dimension_size(full, rows[[rows.height // 2]])


def _entropy_sentence(table: pl.DataFrame) -> str:
    """How far the entropy of the median layer is from that of the isotropic Gaussian."""
    rows = _of(table, "entropy_nats").filter(pl.col("null").is_finite())
    if rows.is_empty():
        return ""
    gap = float(np.median((rows["null"] - rows["value"]).to_numpy() / rows["dimensions"].to_numpy()))
    layer = "the median layer" if rows.height > 1 else "the only layer"
    side = "above" if gap < 0 else "below"
    return (
        f" The entropy of {layer} lies {rounded(abs(gap))} nats per dimension {side} that of the isotropic "
        "Gaussian with its variance."
    )


def _dimension_size(full: str, median_row: pl.DataFrame) -> Headline:
    """The median layer, next to samples without preferred directions."""
    median = median_row.row(0, named=True)
    size = ratio_effect(median["value"], median["null"])
    effect = clear_effect(size, median["low"], median["high"], median["null"])
    if effect == 0.0:
        # The interval ends where dimensions do, so its wider side counts.
        half = pl.max_horizontal(pl.col("high") - pl.col("value"), pl.col("value") - pl.col("low"))
        limit = detectable_effect(median_row.with_columns(low=pl.col("value") - half, high=pl.col("value") + half))
        fewer = "" if limit is None else f"{rounded(limit)} dimensions fewer"
        subject = "narrowing of token vectors in the median layer"
        return Headline(full, no_detection(subject, limit, fewer, median["windows"], most=median["null"]), effect)
    value, null = compared(median["value"], median["null"], 3)
    used = f"In the median layer token vectors effectively use {value} of {median['dimensions']} dimensions"
    if effect is None:
        return Headline(full, f"{used}, random vectors {null}; {untested(median['windows'])}.", effect)
    return Headline(full, f"{used}; random vectors would use {null}.", effect)


def _first_sentence(table: pl.DataFrame) -> str:
    """The share of the first tokens, where it would be more than a tenth of the variance."""
    rows = _of(table, "first_share").filter(pl.col("null").is_finite())
    top = rows.sort("value", descending=True, maintain_order=True).row(0, named=True) if rows.height else None
    if top is None or top["value"] < max(0.1, 2 * top["null"]):
        return ""
    return (
        f" The first tokens, which are left out, would be {_percent(top['value'])} of the variance in {_where(top)}; "
        f"they are {_percent(top['null'])} of the rows."
    )


def _information_headline(tables: Mapping[str, pl.DataFrame]) -> Headline | None:
    """What neighbours share beyond tokens of different windows, how far that reaches, and in other components."""
    rows = tables["information"].filter(pl.col("value").is_finite())
    if rows.is_empty():
        return None
    layers = rows.select("stack", "kind", "layer").unique(maintain_order=True)
    place = layers.row(layers.height // 2, named=True)
    layer = _of_layer(rows, place).sort("distance")
    near = layer.row(0, named=True)
    shared = estimate(near)
    lines = (
        f"In {counted(near['dimensions'], 'principal component')} of {_where(place)}, tokens at distance "
        f"{near['distance']} share {shared.value} nats ({shared.interval}; {windows_phrase(layer)}) "
        f"{_beyond(near)}.",
        _curve_sentence(tables["components"], place, near),
        _reach_sentence(layer),
        _fall_sentence(rows),
        _joint_sentence(tables["joint"], place),
    )
    size = information_effect(near["value"], near["dimensions"])
    effect = clear_effect(size, near["low"], near["high"])
    return Headline(" ".join(line for line in lines if line), _information_short(layer[:1], place), effect)


def _beyond(near: Mapping[str, Any]) -> str:
    """What the information is counted from."""
    if near["null"] is None:
        return "less the bias of independent pairs, since one window cannot be shuffled"
    return f"beyond tokens of different windows, which seem to share {rounded(near['null'])}"


def _information_short(nearest: pl.DataFrame, place: Mapping[str, object]) -> str:
    near = nearest.row(0, named=True)
    tokens = "neighbouring tokens" if near["distance"] == 1 else f"tokens {near['distance']} tokens apart"
    components = f"{counted(near['dimensions'], 'component')} of {_where(place)}"
    value = f"{tokens.capitalize()} share {rounded(near['value'])} nats"
    if not _has_intervals(nearest):
        return f"{value} in {components}; {untested(near['windows'])}."
    if near["low"] <= 0:
        size = _detectable_information(nearest)
        written = "" if size is None else f"{rounded(size)} nats"
        subject = f"information shared by {tokens} in {_where(place)}"
        return no_detection(subject, size, written, near["windows"])
    return f"{value} of information beyond unrelated tokens, in {components}."


def _detectable_information(rows: pl.DataFrame) -> float | None:
    """What one test detects; the upper side of an interval also allows for a bias, so the lower side counts."""
    return detectable_effect(rows.with_columns(high=2 * pl.col("value") - pl.col("low")))


def _curve_sentence(table: pl.DataFrame, place: Mapping[str, object], near: Mapping[str, Any]) -> str:
    """The same in the smallest and in the largest number of components."""
    rows = _of_layer(_of(table, "information_nats"), place)
    rows = rows.filter(pl.col("dimensions") != near["dimensions"]).sort("dimensions")
    ends = rows[[0, -1]] if rows.height > 1 else rows
    values = [f"{rounded(row['value'])} nats in {row['dimensions']}" for row in ends.iter_rows(named=True)]
    return f"The number depends on how many components are used: {' and '.join(values)}." if values else ""


def _reach_sentence(layer: pl.DataFrame) -> str:
    """Up to which distance the interval lies above 0."""
    if not _has_intervals(layer):
        return ""
    rows = layer.to_dicts()
    # From the nearest distance on: one clear distance behind an unclear one is no reach.
    clear = [row["distance"] for row in takewhile(lambda row: row["low"] is not None and row["low"] > 0, rows)]
    if len(clear) == len(rows):
        return f"The interval lies above 0 at every distance up to {clear[-1]}."
    if clear:
        following = rows[len(clear)]
        shared = estimate(following)
        return (
            f"The interval lies above 0 at every distance up to {clear[-1]} and not at the next, "
            f"{following['distance']}: {shared.value} nats ({shared.interval})."
        )
    size = _detectable_information(layer[:1])
    would = "" if size is None else f"; {rounded(size)} nats would have been in four of five texts"
    return f"Nothing was detected even at the nearest distance{would}."


def _fall_sentence(rows: pl.DataFrame) -> str:
    """Whether information falls with distance, as the theory assumes: rank correlations of the layers."""
    correlations = []
    for _, layer_rows in rows.group_by(["stack", "kind", "layer"], maintain_order=True):
        if layer_rows["distance"].n_unique() > 2 and layer_rows["value"].n_unique() > 1:
            correlations.append(
                float(stats.spearmanr(layer_rows["distance"].to_numpy(), layer_rows["value"].to_numpy()).statistic)
            )
    if not correlations:
        return ""
    falling = sum(correlation < 0 for correlation in correlations)
    return (
        f"It falls with distance in {how_many(falling, len(correlations), 'layer')} (the theory assumes all, chance "
        f"gives half); the median rank correlation is {fixed(float(np.median(correlations)), 2)}."
    )


def _joint_sentence(joint: pl.DataFrame, place: Mapping[str, object]) -> str:
    """What a token shares with its neighbours, in as many components as there are samples for."""
    rows = _of_layer(_of(joint, "last_token_nats"), place)
    if rows.is_empty():
        return ""
    row = rows.row(0, named=True)
    shared = estimate(row)
    before = f"the {row['tokens'] - 1} before it" if row["tokens"] > 2 else "the one before it"
    return (
        f"In {counted(row['dimensions'], 'component')} a token shares {shared.value} nats ({shared.interval}) with "
        f"{before}."
    )
