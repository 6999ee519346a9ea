"""What the lens `scores` says in words: its method, its warnings and its headlines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from headscope.attention.maps import SAMPLED_ROWS
from headscope.core import Headline, Site, WeightSource
from headscope.lenses.scores.row_sums import AT
from headscope.lenses.scores.site_sums import SiteSums
from headscope.lenses.scores.terms import NOT_ADDED
from headscope.lenses.scores.window import bent
from headscope.lenses.shared.absences import absence, limit_clause, uncut_effect
from headscope.lenses.shared.answers import answered, pictured, side
from headscope.lenses.shared.effects import excludes_null, majority_effect, ratio_effect, share_effect
from headscope.lenses.shared.phrases import percent, windows_phrase
from headscope.lenses.shared.plots import label_of
from headscope.lenses.shared.table import most_windows
from headscope.lenses.shared.weight_notes import status_warnings
from headscope.lenses.shared.written_numbers import counted, interval, part_of, percents, side_by_side, significant
from headscope.maths.attention.softmax import LARGEST_VARIANCE

# Samples per dimension below which a covariance is called poor.
PER_DIMENSION = 10


def method(positions: str) -> str:
    """How the numbers were obtained."""
    how = (
        f"Scores of up to {SAMPLED_ROWS} equally spaced rows per window with all their keys, in the model's own "
        "precision, statistics in float64. Means and covariances of q and k from every token. Predictions are exact "
        "for Gaussian tokens; expected entropies of Gaussian rows by quadrature, interpolated to 1e-6."
    )
    if positions == "rotary":
        how += " Positions are rotary: q and k are taken after rotation, and predictions are for random positions."
    return how


def warnings(
    positions: str, sites: Sequence[Site], sums_by_site: Mapping[Site, SiteSums], weights: WeightSource
) -> tuple[str, ...]:
    """What could not be measured, or rests on little."""
    texts = list(
        status_warnings(weights.spec, {site: weights.status(site) for site in sums_by_site}, "no bound by weights")
    )
    texts = [text.replace("Left out:", "No bound by weights:") for text in texts]
    unseen = [site.label for site in sites if site not in sums_by_site]
    if unseen:
        texts.append(f"No scores of {', '.join(unseen)} were seen.")
    labels = [site.label for site in sums_by_site if bent(site)]
    if labels:
        texts.append(
            f"{', '.join(labels)}: a bias or a cap is put on the scores. Mean, variance, kurtosis and bound are of the "
            "product before it, everything else of the scores behind it; the Jacobian only at the model's own scale."
        )
    poor = [
        site
        for site, site_sums in sums_by_site.items()
        if min(site_sums.q.count, site_sums.k.count) < PER_DIMENSION * site.d_head
    ]
    if poor:
        least = min(min(sums_by_site[site].q.count, sums_by_site[site].k.count) for site in poor)
        texts.append(
            f"Predictions of {len(poor)} of {len(sums_by_site)} sites rest on {least} tokens or a little more for "
            f"{poor[0].d_head} dimensions: fewer than {PER_DIMENSION} per dimension."
        )
    wide, rows = (
        sum(float(x[:, AT["wide"]].sum()) for site_sums in sums_by_site.values() for x in getattr(site_sums, name))
        for name in ("sums", "counts")
    )
    if wide:
        texts.append(
            f"{100 * wide / rows:.2g} % of the rows have a variance above {LARGEST_VARIANCE:g}: their predicted "
            "entropy is that of this variance, an upper bound."
        )
    if not any(site_sums.groups is not None for site_sums in sums_by_site.values()):
        texts.append(
            f"Positions are not added to the tokens of this model ({positions}): the scores have no terms of "
            "content and position."
            if positions in NOT_ADDED
            else "No self-attention was seen in a first layer: the terms of content and position are left out."
        )
    return tuple(texts)


def sentences(tables: Mapping[str, pl.DataFrame]) -> tuple[Headline, ...]:
    """Whether independent tokens explain the variance, and whether the variance explains the entropy."""
    candidates = (_variance_headline(tables["heads"]), _entropy_headline(tables["heads"]), _last_headline(tables))
    return pictured(candidates, ("row_variance", "entropy_gap", "jacobian_by_layer"))


def _rows_of(table: pl.DataFrame, quantity: str) -> pl.DataFrame:
    return table.filter(pl.col("quantity") == quantity, pl.col("value").is_not_null())


def _median(values: pl.Series) -> float:
    return float(np.median(values.to_numpy()))


def _sides(rows: pl.DataFrame, null: str | float) -> tuple[int, int]:
    """How many intervals lie above the null, and how many below."""
    reference = pl.col(null) if isinstance(null, str) else pl.lit(null)
    above, below = pl.col("low") > reference, pl.col("high") < reference
    return rows.filter(above).height, rows.filter(below).height


def _unsure(effect: float | None) -> str:
    return " (no interval)" if effect is None else ""


def _variance_headline(table: pl.DataFrame) -> Headline:
    """How many predictions lie inside the measured intervals. A variance needs no Gaussian, only independence."""
    rows = _rows_of(table, "row_variance").filter(pl.col("predicted") > 0)
    if rows.is_empty():
        heads = counted(_rows_of(table, "mean").height, "head")
        nothing = f"Scores of {heads} were seen, too few tokens to predict them."
        return Headline(nothing, nothing)
    ratios = rows["value"] / rows["predicted"]
    median, top = _median(ratios), rows.row(int(ratios.to_numpy().argmax()), named=True)
    judged = rows.filter(pl.col("low").is_not_null())
    effect = majority_effect(ratio_effect(median, 1.0), excludes_null(judged, "predicted"))
    ratio, _ = side_by_side((median, 1.0), decimals=2)
    full = (
        f"Over {windows_phrase(rows)}, the variance of scores within a row is {ratio} times that of independent tokens "
        f"in the median of {counted(rows.height, 'head')}, and most in {label_of(top)}: "
        f"{_ratio(top)}.{_variance_tests(judged)}"
    )
    short = f"In the median head the variance of a query's scores is {ratio} times that of independent tokens"
    headline = Headline(full, _variance_absence(judged) if effect == 0.0 else f"{short}{_unsure(effect)}.", effect)
    answer = side(median, 1.0, "less variance than independent tokens", "more variance than independent tokens")
    return answered(headline, answer, f"{ratio} times", "1")


def _ratio(row: Mapping[str, Any]) -> str:
    """Measured over predicted, with the interval."""
    ends = [None if row[name] is None else row[name] / row["predicted"] for name in ("value", "low", "high")]
    value, low, high, _ = side_by_side((*ends, 1.0), decimals=2)
    return f"{value} times ({interval(low, high, row['windows'])})"


def _variance_tests(judged: pl.DataFrame) -> str:
    """How many heads vary more or less than independent tokens, and what one test detects."""
    if judged.is_empty():
        return ""
    more, less = _sides(judged, "predicted")
    limit = limit_clause(uncut_effect(judged, scale="predicted"), percent)
    return (
        f" By the 95 % intervals it is larger in {part_of(more, judged.height, 'head')} and smaller in {less} (by "
        f"chance: one in forty each), and {judged.height - more - less} cannot be told from independence"
        f"{limit and f'; in the median head {limit}'}."
    )


def _variance_absence(judged: pl.DataFrame) -> str:
    size, subject = (
        uncut_effect(judged, scale="predicted"),
        "difference of score variance from independent tokens",
    )
    unclear = judged.height - sum(_sides(judged, "predicted"))
    return _in_heads(unclear, judged, absence(subject, size, percent, windows=most_windows(judged)))


def _in_heads(unclear: int, judged: pl.DataFrame, sentence: str) -> str:
    """The sentence about the heads in which nothing was detected."""
    return f"In {part_of(unclear, judged.height, 'head')} {sentence[0].lower()}{sentence[1:]}"


def _points(share: float) -> str:
    return f"{significant(100 * share, 2)} points"


def _entropy_headline(table: pl.DataFrame) -> Headline | None:
    rows = _rows_of(table, "entropy_share").filter(pl.col("predicted").is_not_null())
    if rows.is_empty():
        return None
    median, expected = _median(rows["value"]), _median(rows["predicted"])
    judged = rows.filter(pl.col("low").is_not_null())
    effect = majority_effect(share_effect(median, expected), excludes_null(judged, "predicted"))
    value, predicted = percents((median, expected))
    (gap,) = side_by_side((100 * _median(rows["value"] - rows["predicted"]),), decimals=1)
    full = (
        f"Over {windows_phrase(rows)}, the median of {counted(rows.height, 'head')} has {value} of the largest "
        f"entropy, and Gaussian scores of the same variance would have {predicted}; head by head the median difference "
        f"is {gap} points{_entropy_tests(judged)}. {_frozen(table)}{_normality(table)}"
    )
    if effect == 0.0:
        size, reach = uncut_effect(judged), max(expected, 1.0 - expected)
        subject, windows = "entropy unlike Gaussian scores'", most_windows(judged)
        unclear = judged.height - sum(_sides(judged, "predicted"))
        short = _in_heads(unclear, judged, absence(subject, size, _points, windows=windows, reach=reach))
    else:
        short = (
            f"The median head has {value} of the largest entropy, Gaussian scores of equal variance have "
            f"{predicted}{_unsure(effect)}."
        )
    return Headline(full, short, effect)


def _entropy_tests(judged: pl.DataFrame) -> str:
    if judged.is_empty():
        return " (no interval)"
    more, less = _sides(judged, "predicted")
    limit = limit_clause(uncut_effect(judged), _points)
    return (
        f", and the 95 % interval lies above the prediction in {part_of(more, judged.height, 'head')}, below it in "
        f"{less}{limit and f' (in the median head {limit})'}"
    )


def _normality(table: pl.DataFrame) -> str:
    """How many rows are not normal, in the median head."""
    rows = _rows_of(table, "rejected_share")
    if rows.is_empty():
        return ""
    rejected, level = percents((_median(rows["value"]), 0.05))
    return f" Normality of a row is rejected in {rejected} of rows of the median head (chance: {level})."


def _frozen(table: pl.DataFrame) -> str:
    """How many heads are beyond freezing, by their intervals where there are any."""
    rows = _rows_of(table, "freezing")
    expected = rows.filter(pl.col("predicted").is_not_null())
    null = f" (independent tokens: {expected.filter(pl.col('predicted') > 1).height})" if expected.height else ""
    judged = rows.filter(pl.col("low").is_not_null())
    if judged.is_empty():
        beyond = rows.filter(pl.col("value") > 1).height
        return f"The freezing number is above 1 in {part_of(beyond, rows.height, 'head')}{null}, without an interval."
    beyond, below = _sides(judged, 1.0)
    return (
        f"By its 95 % interval the freezing number is above 1 in {part_of(beyond, judged.height, 'head')}{null}, and "
        f"{judged.height - beyond - below} cannot be told."
    )


@dataclass(frozen=True)
class _Part:
    """A clause of the last headline, what it would be alone, and its effect."""

    clause: str
    short: str
    windows: int
    effect: float | None = None


def _last_headline(tables: Mapping[str, pl.DataFrame]) -> Headline | None:
    candidates = (_jacobian_part(tables["heads"]), _bounds_part(tables["bounds"]), _terms_part(tables["terms"]))
    parts = [part for part in candidates if part is not None]
    if not parts:
        return None
    windows = counted(max(part.windows for part in parts), "window")
    text = "; ".join(part.clause for part in parts)
    return Headline(f"Over {windows}, {text}.", parts[0].short, parts[0].effect)


def _jacobian_part(heads: pl.DataFrame) -> _Part | None:
    trained, bare = (_rows_of(heads, f"jacobian_{name}") for name in ("trained", "unscaled"))
    trained = trained.filter(pl.col("null").is_not_null())
    if trained.is_empty():
        return None
    median, null = _median(trained["value"]), _median(trained["null"])
    norm, uniform = side_by_side((median, null), digits=2)
    outside = excludes_null(trained, "null")
    tests = f", outside the 95 % interval in {part_of(sum(outside), len(outside), 'head')}" if outside else ""
    unscaled = f"; without the scale: {significant(_median(bare['value']), 2)}" if bare.height else ""
    clause = (
        f"the norm of the softmax's Jacobian is {norm} in the median of {counted(trained.height, 'head')} (uniform "
        f"attention: {uniform}{tests}{unscaled})"
    )
    # No softmax has a norm above one half: twice the norm is a share.
    effect = majority_effect(share_effect(2 * median, 2 * null), outside)
    short = (
        f"In the median head weights change at most {norm} times as much as scores; uniform attention: "
        f"{uniform}{_unsure(effect)}."
    )
    if effect == 0.0:
        subject, reach = "response of weights to scores unlike that of uniform attention", max(0.5 - null, null)
        size, windows = uncut_effect(trained), most_windows(trained)
        short = absence(subject, size, lambda norm: significant(norm, 2), windows=windows, reach=reach)
    return _Part(clause, short, most_windows(trained), effect)


def _bounds_part(bounds: pl.DataFrame) -> _Part | None:
    rows = bounds.filter(pl.col("value").is_not_null(), pl.col("bound") > 0)
    if rows.is_empty():
        return None
    (reached,) = percents((_median(rows["value"] / rows["bound"]),))
    clause = (
        f"the largest score reaches {reached} of its Cauchy–Schwarz bound in the median of "
        f"{counted(rows.height, 'head')}"
    )
    stated = bounds["beyond"].drop_nulls()
    if len(stated):
        beyond = part_of(int((stated > 0).sum()), len(stated), "head")
        clause += f" (with the cosine of the tokens in it the bound fails in {beyond})"
    short = f"The median head's largest score is {reached} of what the lengths of its query and key allow."
    return _Part(clause, short, most_windows(rows))


def _terms_part(terms: pl.DataFrame) -> _Part | None:
    mixed = terms.filter(
        pl.col("quantity").is_in(["position_content", "content_position"]),
        pl.col("share").is_not_null(),
        pl.col("null").is_not_null(),
    )
    if mixed.is_empty():
        return None
    sums = mixed.group_by("stack", "layer", "head", maintain_order=True).agg(pl.col("share", "null").sum())
    share, null = percents([_median(sums[name]) for name in ("share", "null")])
    outside = excludes_null(mixed, "null", ("share_low", "share_high"))
    tests = f", outside the 95 % interval of {part_of(sum(outside), len(outside), 'term')}" if outside else ""
    clause = (
        f"the mixed terms of content and position hold {share} of the first layer's row variance in the median of "
        f"{counted(sums.height, 'head')} (by the sizes of the parts alone: {null}{tests})"
    )
    short = (
        f"Mixed terms of content and position hold {share} of the first layer's variance; random weights give {null}."
    )
    return _Part(clause, short, most_windows(mixed))
