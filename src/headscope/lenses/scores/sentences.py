"""What the lens `scores` says in words: its method, its warnings and its headlines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from headscope.attention.maps import SAMPLED_ROWS
from headscope.core import Headline, Site, WeightSource
from headscope.lenses.scores.row_sums import AT
from headscope.lenses.scores.site_sums import SiteSums
from headscope.lenses.scores.terms import NOT_ADDED
from headscope.lenses.scores.window import bent
from headscope.lenses.shared.effects import excludes_null, majority_effect, ratio_effect, share_effect
from headscope.lenses.shared.phrases import detectable_effect, percent, two_digits, undetected
from headscope.lenses.shared.plots import label_of
from headscope.lenses.shared.weight_notes import status_warnings
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
    return tuple(headline for headline in candidates if headline is not None)


def _rows_of(table: pl.DataFrame, quantity: str) -> pl.DataFrame:
    return table.filter(pl.col("quantity") == quantity, pl.col("value").is_not_null())


def _variance_headline(table: pl.DataFrame) -> Headline:
    """How many predictions lie inside the measured intervals. A variance needs no Gaussian, only independence."""
    rows = _rows_of(table, "row_variance").filter(pl.col("predicted") > 0)
    if rows.is_empty():
        nothing = f"Scores of {_rows_of(table, 'mean').height} heads were seen, too few tokens to predict them."
        return Headline(nothing, nothing)
    ratio = (rows["value"] / rows["predicted"]).to_numpy()
    top = rows.row(int(ratio.argmax()), named=True)
    text = (
        f"Over {_windows(rows)}, the variance of scores within a row is {np.median(ratio):.2f} times what independent "
        f"tokens would have, in the median of {rows.height} heads; the most in {label_of(top)}, {ratio.max():.2g} times"
    )
    sure = rows.filter(pl.col("low").is_not_null())
    median_ratio = f"{np.median(ratio):.2f} times that of independent tokens"
    short = f"In the median head the variance of a query's scores is {median_ratio}"
    if sure.is_empty():
        return Headline(f"{text}. One window gives no interval.", f"{short} (no interval).")
    inside = sure.filter(pl.col("predicted").is_between("low", "high")).height
    more, less = (
        sure.filter(side).height for side in (pl.col("low") > pl.col("predicted"), pl.col("high") < pl.col("predicted"))
    )
    size = detectable_effect(sure, scale="predicted")
    limit = "" if size is None else f"; in the median head one test detects {100 * size:.0f} % in four of five texts"
    full = (
        f"{text} ({top['low'] / top['predicted']:.2g} to {top['high'] / top['predicted']:.2g}). By the 95 % intervals "
        f"{inside} of {sure.height} heads are not told from independence, {more} vary more and {less} less (by chance: "
        f"one in forty each{limit})."
    )
    effect = majority_effect(ratio_effect(float(np.median(ratio)), 1.0), excludes_null(sure, "predicted"))
    if effect == 0.0:
        short = (
            f"In {inside} of {sure.height} heads no difference of score variance from independent tokens was detected; "
            f"{percent(size or 0.0)} would have been"
        )
    return Headline(full, f"{short}.", effect)


def _windows(rows: pl.DataFrame) -> str:
    count = max(rows["windows"].to_list())
    return f"{count} window{'' if count == 1 else 's'}"


def _entropy_headline(table: pl.DataFrame) -> Headline | None:
    rows = _rows_of(table, "entropy_share").filter(pl.col("predicted").is_not_null())
    if rows.is_empty():
        return None
    value, predicted = rows["value"].to_numpy(), rows["predicted"].to_numpy()
    gap = value - predicted
    inside = rows.filter(pl.col("predicted").is_between("low", "high")).height
    sure = rows.filter(pl.col("low").is_not_null()).height
    judged = f"; {inside} of {sure} predictions lie inside the 95 % interval of the measurement" if sure else ""
    tested = _rows_of(table, "rejected_share")["value"].to_numpy()
    normal = ""
    if len(tested):
        normal = f" Normality of a row is rejected in {100 * np.median(tested):.0f} % of rows (chance: 5 %)."
    full = (
        f"From the variance of a row alone Gaussian scores would have {100 * np.median(predicted):.0f} % of the "
        f"largest entropy in the median head and {100 * np.median(value):.0f} % are measured, a median difference of "
        f"{100 * np.median(gap):+.1f} points{judged}. {_frozen(table)}{normal}"
    )
    effect = majority_effect(
        share_effect(float(np.median(value)), float(np.median(predicted))), excludes_null(rows, "predicted")
    )
    short = (
        f"The median head has {100 * np.median(value):.0f} % of the largest entropy; Gaussian scores of the same "
        f"variance would have {100 * np.median(predicted):.0f} %."
    )
    if effect == 0.0:
        size = 100 * (detectable_effect(rows) or 0.0)
        short = (
            f"In {inside} of {sure} heads no entropy unlike that of Gaussian scores was detected; {size:.2g} points "
            "would have been."
        )
    return Headline(full, short, effect)


def _frozen(table: pl.DataFrame) -> str:
    """How many heads are beyond freezing, by their intervals where there are any."""
    rows = _rows_of(table, "freezing")
    sure = rows.filter(pl.col("low").is_not_null())
    if sure.is_empty():
        return f"{rows.filter(pl.col('value') > 1).height} of {rows.height} heads are beyond freezing."
    beyond = sure.filter(pl.col("low") > 1).height
    unsure = sure.filter((pl.col("low") <= 1) & (pl.col("high") > 1)).height
    return f"{beyond} of {sure.height} heads are beyond freezing by their 95 % intervals, and {unsure} cannot be told."


@dataclass(frozen=True)
class _Part:
    """A clause of the last headline, what it would be alone, and its effect."""

    clause: str
    short: str
    effect: float | None = None


def _last_headline(tables: Mapping[str, pl.DataFrame]) -> Headline | None:
    candidates = (_jacobian_part(tables["heads"]), _bounds_part(tables["bounds"]), _terms_part(tables["terms"]))
    parts = [part for part in candidates if part is not None]
    if not parts:
        return None
    text = "; ".join(part.clause for part in parts)
    return Headline(text[:1].upper() + text[1:] + ".", parts[0].short, parts[0].effect)


def _jacobian_part(heads: pl.DataFrame) -> _Part | None:
    trained, bare = (_rows_of(heads, f"jacobian_{name}") for name in ("trained", "unscaled"))
    if trained.is_empty():
        return None
    norm = float(np.median(trained["value"].to_numpy()))
    clause = f"the softmax's Jacobian has a median norm of {norm:.2g}"
    if not bare.is_empty():
        clause += f" as trained and {np.median(bare['value'].to_numpy()):.2g} without scale"
    uniform = float(np.median(trained["null"].to_numpy()))
    # No softmax has a norm above one half: twice the norm is a share.
    effect = majority_effect(share_effect(2 * norm, 2 * uniform), excludes_null(trained, "null"))
    short = (
        f"In the median head weights change by up to {two_digits(norm)} times a small change of scores; uniform "
        f"attention: {two_digits(uniform)}."
    )
    if effect == 0.0:
        size = two_digits(detectable_effect(trained) or 0.0)
        short = undetected("response of weights to scores unlike that of uniform attention", size)
    return _Part(clause, short, effect)


def _bounds_part(bounds: pl.DataFrame) -> _Part | None:
    if bounds.is_empty():
        return None
    reached = 100 * float(np.median((bounds["value"] / bounds["bound"]).to_numpy()))
    clause = f"the largest score reaches {reached:.0f} % of its Cauchy–Schwarz bound in the median head"
    stated = bounds["beyond"].drop_nulls().to_numpy()
    if len(stated):
        clause += f" (with the cosine of the tokens in it the bound fails in {int((stated > 0).sum())} heads)"
    short = f"The median head's largest score is {reached:.0f} % of what the lengths of its query and key allow."
    return _Part(clause, short)


def _terms_part(terms: pl.DataFrame) -> _Part | None:
    if terms.is_empty():
        return None
    mixed = terms.filter(pl.col("quantity").is_in(["position_content", "content_position"]))
    sums = mixed.group_by("stack", "layer", "head", maintain_order=True).agg(pl.col("share", "null").sum())
    share, null = (100 * float(np.median(sums[name].to_numpy())) for name in ("share", "null"))
    half = ((mixed["share_high"] - mixed["share_low"]) / 2).drop_nulls().to_numpy()
    margin = f", ± {100 * float(np.median(half)):.1g} for one term of the median head" if len(half) else ""
    clause = (
        f"the mixed terms of content and position hold {share:.0f} % of the first layer's row "
        f"variance{margin} (by the sizes of the parts alone {null:.0f} %)"
    )
    short = (
        f"Mixed terms of content and position hold {share:.0f} % of the first layer's variance; random weights give "
        f"{null:.0f} %."
    )
    return _Part(clause, short)
