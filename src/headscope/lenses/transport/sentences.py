"""What the lens `transport` says in words: its method, its warnings and its headlines."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from headscope.core import Headline, Site
from headscope.lenses.shared.effects import clear_effect, excludes_null, majority_effect, nats_effect, share_effect
from headscope.lenses.shared.phrases import detectable_effect, interval_phrase, undetected, windows_phrase
from headscope.lenses.transport.constant_weights import Counts
from headscope.lenses.transport.half_laws import PER_DIMENSION
from headscope.lenses.transport.sums import KEYS
from headscope.lenses.transport.tables import STAGES

# Errors of the entropy, in nats per component, up to which constant weights are called right, or rough.
SMALL, ROUGH = 0.05, 0.2
# Fewer windows in a half than these are called few.
FEW = 8
_NAMES = {"output": "W_O", "skip": "the skip", "norm": "the norm", "layer": "the whole layer"}


def method(counts: Counts, step: int, distance: int) -> str:
    """How the numbers were obtained."""
    layers = f" Every {step}th layer only: the windows of all would not fit." if step > 1 else ""
    sample = (
        f"all {counts.same_shape} windows"
        if counts.windows == counts.same_shape
        else f"{counts.windows} of {counts.same_shape} windows, drawn by a hash of their tokens"
    )
    skipped = counts.skip
    left = f" without the first {f'{skipped} tokens' if skipped > 1 else 'token'}" if skipped else ""
    return (
        f"Sampled: the first {counts.queries} tokens{left} of {sample}; mean weights over all {counts.same_shape}. "
        "Even and odd windows predict each other, and numbers are means over both directions. Covariances are averaged "
        f"over positions, with at least {PER_DIMENSION} tokens of the smaller half per dimension; principal axes of "
        f"measured and predicted tokens together. Mutual information of tokens {distance} apart, with its bias, which "
        "predicted and measured share. The part of the weights, and its share, are less what differences between "
        "windows give by chance (jackknife). Up to the sum with the skip everything is linear and the formula is "
        "applied as it stands; behind it draws from the predicted Gaussian go through the model's own modules, two "
        f"tokens at a time, in pairs of opposite sign, with mean and covariance matched exactly.{layers}"
    )


def warnings(
    tables: Mapping[str, pl.DataFrame],
    counts_by_site: Mapping[Site, Counts],
    omissions: Sequence[str],
    unseen: Sequence[str],
    params: Mapping[str, int],
) -> tuple[str, ...]:
    """What could not be estimated, and why."""
    first, fewest = next(iter(counts_by_site.values())), min(counts.fewest for counts in counts_by_site.values())
    texts = []
    if fewest < 2:
        texts.append(
            "Fewer than two windows in a half: no mean of a position could be told from its tokens, so all positions "
            "were taken together, and there are no intervals."
        )
    elif fewest < FEW:
        texts.append(
            f"Only {fewest} windows in the smaller half: mean weights and means of positions are rough, which shows "
            "under sampling. A longer text helps."
        )
    if fewest == 2:
        texts.append("Two windows in a half give no intervals and no share: they need three.")
    if first.other_shape:
        unused = (
            f"{first.other_shape} windows of other length were"
            if first.other_shape > 1
            else "1 window of other length was"
        )
        texts.append(f"{unused} not used: positions must be comparable.")
    return (*texts, *_small(tables, counts_by_site, params["components"]), *_grouped(omissions), *unseen)


def _small(tables: Mapping[str, pl.DataFrame], counts_by_site: Mapping[Site, Counts], components: int) -> Iterator[str]:
    rows = tables["heads"].filter(pl.col("quantity") == "covariance")
    if rows.is_empty():
        yield f"Too few tokens for a covariance: {PER_DIMENSION} are needed in each half for every dimension."
        return
    width = max(site.d_value for site in counts_by_site)
    low = rows.filter(pl.col("dimensions") < width)
    if low.height:
        least, share = min(low["dimensions"].to_list()), min(low["held"].drop_nulls().to_list(), default=0.0)
        yield (
            f"Covariance and entropy of heads in {least} of {width} principal components, which hold at least "
            f"{100 * share:.0f} % of the variance: there are too few tokens for more, or no variance in the others."
        )
    pairs = tables["heads"].filter(pl.col("quantity") == "information")
    used = min(pairs["dimensions"].to_list(), default=0)
    if used < min(components, width):
        yield (
            f"Mutual information in {used} components, not {components}: too few pairs of tokens."
            if used
            else "No mutual information: too few pairs of tokens."
        )


def _grouped(omissions: Sequence[str]) -> Iterator[str]:
    """One sentence for each reason, with the sites it is about."""
    reasons: dict[str, list[str]] = {}
    for omission in omissions:
        label, _, reason = omission.partition(": ")
        reasons.setdefault(reason, []).append(label)
    for reason, labels in reasons.items():
        site_list = ", ".join(labels[:4]) + (f" and {len(labels) - 4} more" if len(labels) > 4 else "")
        yield f"Left out in {site_list}: {reason}."


def not_seen(crossed: Sequence[Site], missing: Sequence[str], long: Sequence[str]) -> Iterator[str]:
    """Which sites there is nothing about, and why."""
    if crossed:
        names = ", ".join(site.label for site in crossed)
        yield f"Left out: {names}. Which keys of cross-attention are padding is not shown."
    if long:
        yield f"Left out: {', '.join(long)}, whose queries see more than {KEYS} keys. Use a shorter window."
    if missing:
        yield f"Too few windows or tokens of {', '.join(missing)} were seen."


def sentences(tables: Mapping[str, pl.DataFrame]) -> tuple[Headline, ...]:
    """How well the formula predicts, in numbers."""
    heads, layers = tables["heads"], tables["layers"]
    candidates = (_answer(heads, layers), _causes(heads, layers), _through(layers))
    return tuple(headline for headline in candidates if headline is not None)


def _middle(rows: pl.DataFrame, column: str) -> float:
    """The median of what is known; 0 where nothing is."""
    values = rows[column].drop_nulls().to_numpy()
    return float(np.median(values)) if len(values) else 0.0


def _of(table: pl.DataFrame, quantity: str) -> pl.DataFrame:
    return table.filter(pl.col("quantity") == quantity, pl.col("value").is_not_null())


def _two(value: float) -> str:
    """Two decimals, and never −0.00."""
    return f"{round(value, 2) + 0.0:.2f}"


def _answer(heads: pl.DataFrame, layers: pl.DataFrame) -> Headline | None:
    entropy, rows = _of(heads, "entropy"), _of(heads, "covariance")
    if entropy.is_empty() or rows.is_empty():
        vectors = _of(heads, "vector")
        return None if vectors.is_empty() else _vector_headline(vectors)
    median = _middle(entropy, "value")
    verdict = (
        f"carry the entropy of tokens through attention {_nearly(layers)}"
        if abs(median) < SMALL
        else "carry the entropy of tokens through attention only roughly"
        if abs(median) < ROUGH
        else "do not carry the entropy of tokens through attention"
    )
    flat = f"; with uniform attention: {_signed(_middle(entropy, 'null'))}" if entropy["null"].count() else ""
    ratio = float(np.median(rows["predicted"].to_numpy() / np.maximum(rows["measured"].to_numpy(), 1e-300)))
    full = (
        f"Constant weights {verdict}: for windows that they were not taken from, the entropy of a head's output is "
        f"predicted {_signed(median)} per component in the median of {entropy.height} heads "
        f"({windows_phrase(entropy)}{flat}){_pooled_clause(layers)}{_clear_clause(entropy)}; "
        f"the mean is off by {_beside(_of(heads, 'mean'))} and the covariance by {_beside(rows)}, with {_two(ratio)} "
        f"of the variance{_shared(heads)}."
    )
    effect = majority_effect(nats_effect(median), excludes_null(entropy, 0.0))
    return Headline(full, _entropy_short(entropy, effect), effect)


def _entropy_short(entropy: pl.DataFrame, effect: float | None) -> str:
    """The error of the median head, next to that of uniform attention."""
    if effect == 0.0:
        size = f"{_two(detectable_effect(entropy) or 0.0)} nats per component"
        return undetected("error of averaged weights in a head's output entropy", size)
    error = _off(_middle(entropy, "value"), " nats per component")
    off = f"Weights averaged over texts predict a head's output entropy {error}"
    if effect is None:
        return f"{off} (no interval)."
    return f"{off}; uniform ones {_off(_middle(entropy, 'null'))}." if entropy["null"].count() else f"{off}."


def _off(value: float, unit: str = "") -> str:
    return f"{_two(abs(value))}{unit} too {'high' if value > 0 else 'low'}"


def _vector_headline(vectors: pl.DataFrame) -> Headline:
    """Single outputs, of which constant weights would have no error at all."""
    off, flat = (_two(_middle(vectors, name)) for name in ("value", "null"))
    full = (
        f"With mean weights a head's output is off by {off} of its spread in the median of {vectors.height} heads "
        f"(uniform attention: {flat}; {windows_phrase(vectors)}); there are too few windows to say more."
    )
    short = f"Weights averaged over texts miss the median head's output by {off} of its spread; uniform ones by {flat}."
    return Headline(full, short, share_effect(_middle(vectors, "value")))


def _pooled_row(layers: pl.DataFrame) -> dict[str, Any] | None:
    """The error of the entropy over all heads of the median layer; None where no layer has an interval."""
    rows = _of(layers, "entropy").filter(pl.col("stage") == "heads", pl.col("low").is_not_null())
    return rows.sort("value", maintain_order=True).row(rows.height // 2, named=True) if rows.height else None


def _nearly(layers: pl.DataFrame) -> str:
    """A small error is called one only where the interval is as small."""
    row = _pooled_row(layers)
    if row is None:
        return "with a small error, of which too few windows give no interval"
    if max(abs(row["low"]), abs(row["high"])) < SMALL:
        return "nearly right"
    return "with a small error in the median head, but one that the windows do not bound as tightly"


def _pooled_clause(layers: pl.DataFrame) -> str:
    """The error of the entropy over all heads of the median layer, with its interval."""
    row = _pooled_row(layers)
    if row is None:
        return ""
    ends = interval_phrase(row, _two, ("low", "high"))
    return f", over all heads of {_where(row)}, the median layer, {_two(row['value'])} ({ends})"


def _clear_clause(entropy: pl.DataFrame) -> str:
    """In how many heads the interval of the error leaves 0 out, and how wide it is."""
    rows = entropy.filter(pl.col("low").is_not_null())
    if rows.is_empty():
        return ""
    clear = rows.filter((pl.col("low") > 0) | (pl.col("high") < 0)).height
    half = float(np.median((rows["high"] - rows["low"]).to_numpy())) / 2
    return (
        f"; the interval of {clear} of {rows.height} heads leaves 0 out (by chance: one in twenty; half of it is "
        f"{_two(half)} nats in the median head)"
    )


def _beside(rows: pl.DataFrame) -> str:
    """An error with what it is to be compared with."""
    value, null, floor = (_two(_middle(rows, name)) for name in ("value", "null", "floor"))
    return f"{value} of its size (uniform attention: {null}; what was measured in the other half: {floor})"


def _shared(heads: pl.DataFrame) -> str:
    rows = _of(heads, "information")
    if rows.is_empty():
        return ""
    before, measured, predicted = (_two(_middle(rows, name)) for name in ("before", "measured", "predicted"))
    return (
        f"; mutual information of neighbours, {before} nats in the values, becomes {measured} where {predicted} are "
        "predicted"
    )


def _signed(value: float) -> str:
    return f"{_two(abs(value))} nats too {'high' if value > 0 else 'low'}"


def _causes(heads: pl.DataFrame, layers: pl.DataFrame) -> Headline | None:
    """What the error is made of, whether the pattern helps, and what is left of single outputs."""
    rows, vectors = _of(heads, "covariance").filter(pl.col("share").is_not_null()), _of(heads, "vector")
    if rows.is_empty() or vectors.is_empty():
        return None
    shares_of_error = []
    entropy = _of(heads, "entropy").filter(pl.col("share").is_not_null())
    if entropy.height:
        share = _middle(entropy, "share")
        shares_of_error.append(
            f"{'all' if share > 0.995 else _percent(share)} of the error of the entropy in the median head"
        )
    low, median, high = np.quantile(rows["share"].to_numpy(), (0.05, 0.5, 0.95))
    pooled = _of(layers, "covariance").filter(pl.col("stage") == "heads", pl.col("share_low").is_not_null())
    inside = ""
    if pooled.height:
        ordered = pooled.sort("share", maintain_order=True)
        row = ordered.row(ordered.height // 2, named=True)
        inside = (
            f"; all heads of {_where(row)}, the median layer: {_percent(row['share'])}, 95 % interval over windows "
            f"{_percent(row['share_low'])} to {_percent(row['share_high'])}"
        )
    shares_of_error.append(
        f"{_percent(median)} of the squared error of the covariance ({_percent(low)} to {_percent(high)} in nine of "
        f"ten heads{inside})"
    )
    better = rows.filter(pl.col("value") < pl.col("null")).height
    missed = _middle(vectors, "value") ** 2
    full = (
        f"Weights that depend on the data make up {' and '.join(shares_of_error)}, the rest is that windows differ; "
        "the mean pattern predicts the covariance better than uniform attention in "
        f"{better} of {rows.height} heads (chance: half), and "
        f"leaves {_percent(missed)} of the variance of single outputs unexplained in the median one "
        f"({windows_phrase(rows)})."
    )
    ends = ("share_low", "share_high")
    effect = majority_effect(share_effect(float(median)), excludes_null(rows, 0.0, ends))
    if effect == 0.0:
        size = f"{_percent(detectable_effect(rows, ends) or 0.0)} of it"
        return Headline(full, undetected("error of covariances from weights that follow the text", size), effect)
    short = (
        f"Weights that follow the text make up {_percent(median)} of the squared error of predicted covariances; "
        "constant weights: 0 %."
    )
    return Headline(full, short, effect)


def _percent(value: float) -> str:
    return f"{100 * value + 0.0:.0f} %"


def _where(row: Mapping[str, object]) -> str:
    stack = "" if row["stack"] == "only" else f"{row['stack']}."
    return f"{stack}L{row['layer']}"


def _through(layers: pl.DataFrame) -> Headline | None:
    """The error behind each stage of the median layer, and what it is made of at the end."""
    errors_by_stage, last = [], ""
    for stage in STAGES[1:]:
        rows = _of(layers, "covariance").filter(pl.col("stage") == stage)
        if rows.height:
            errors_by_stage.append(f"{_two(_middle(rows, 'value'))} behind {_NAMES[stage]}")
            last = stage
    if not errors_by_stage:
        return None
    rows = _of(layers, "covariance").filter(pl.col("stage") == last)
    parts = [
        f"{words} {_two(_middle(rows, name))}"
        for name, words in (("weights", "weights"), ("sampling", "other windows"), ("shape", "tokens not Gaussian"))
        if rows[name].count()
    ]
    entropy = _of(layers, "entropy").filter(pl.col("stage") == last)
    nats = f"; entropy is predicted {_signed(_middle(entropy, 'value'))} per component" if entropy.height else ""
    row = rows.sort("value", maintain_order=True).row(rows.height // 2, named=True)
    ends = f"{interval_phrase(row, _two, ('low', 'high'))} in {_where(row)}, {windows_phrase(rows)}"
    full = (
        f"Through a layer the covariance is off by {', '.join(errors_by_stage)} (median layer; {ends}); the parts at "
        f"the end are {', '.join(parts)}{nats}."
    )
    return _through_headline(full, row, rows, _NAMES[last])


def _through_headline(full: str, row: Mapping[str, Any], rows: pl.DataFrame, stage: str) -> Headline:
    """The last stage of the median layer, next to other windows as measured."""
    value, floor = _middle(rows, "value"), _middle(rows, "floor")
    effect = clear_effect(share_effect(value, min(floor, 1.0)), row["low"], row["high"], floor)
    if effect == 0.0:
        subject = f"error of covariances behind {stage} beyond other windows'"
        return Headline(full, undetected(subject, _two(detectable_effect(rows) or 0.0)), effect)
    short = (
        f"Behind {stage} the predicted covariance is off by {_two(value)} of its size; that of other windows by "
        f"{_two(floor)}."
    )
    return Headline(full, short, effect)
