"""What the lens `embeddings` says in words: its method, its warnings and its headlines."""

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

import polars as pl
import torch
from scipy import stats

from headscope.core import Headline, WeightSource
from headscope.lenses.embeddings.meaning import ALL
from headscope.lenses.embeddings.shape import Summary
from headscope.lenses.shared.answers import answered, pictured, side
from headscope.lenses.shared.effects import correlation_effect, ratio_effect, share_effect
from headscope.lenses.shared.estimates import apart, estimate, fixed, rounded
from headscope.lenses.shared.phrases import undetected
from headscope.lenses.shared.written_numbers import counted
from headscope.maths.resampling.jackknife import LEVEL, POWER, detectable

# Up to this relative spread lengths are called nearly equal.
NEARLY = 0.1
# A sphere is as thick as that of random vectors up to this factor, either way.
ALIKE = 1.2
# What a test of many units detects, over half of its 95 % interval; one of fewer units detects no less.
DETECTABLE_HALVES = 1 + float(stats.norm.ppf(POWER) / stats.norm.ppf((1 + LEVEL) / 2))
_LEFT_OUT = "Left out"


def method(weights: WeightSource, tables: Sequence[Summary]) -> str:
    """How the numbers came about."""
    sizes = ", ".join(
        f"{summary.embedding.label} {summary.sizes[0]} × {summary.sizes[1]} ({summary.embedding.module})"
        for summary in tables
    )
    stored = weights.method[:1].upper() + weights.method[1:].rstrip(".")
    notes = " ".join(note for note in weights.embedding_notes if not note.startswith(_LEFT_OUT))
    return (
        "Exact, in float64: moments of cosines over all pairs from sums and Gram matrices, spectra from covariances, "
        f"ranks among all tokens. Tables: {sizes}. {stored}. {notes}"
    ).strip()


def warnings(
    weights: WeightSource, tables: Sequence[Summary], rows: Mapping[str, pl.DataFrame], words: Sequence[str]
) -> tuple[str, ...]:
    """What could not be measured, and why."""
    spec = weights.spec
    lines = [spec.weight_warning] if spec.weight_warning else []
    lines += [note for note in weights.embedding_notes if note.startswith(_LEFT_OUT)]
    for summary in tables:
        if summary.empty:
            empty = "1 row" if summary.empty == 1 else f"{summary.empty} rows"
            lines.append(f"Zero, and not counted: {empty} of the table of {summary.embedding.label} vectors.")
    if not any(summary.embedding.role == "position" for summary in tables):
        lines.append(_no_positions(spec.positions))
    vocabulary = weights.vocabulary
    if vocabulary is None:
        lines.append(
            "The checkpoint has no tokenizer that can be used: nearest tokens, related words and analogies are left "
            "out, because nothing tells what a row spells."
        )
        return tuple(lines)
    beyond = (
        next(summary.sizes[0] + summary.empty for summary in tables if summary.embedding.role == "token")
        - vocabulary.size
    )
    if beyond > 0:
        idle = "1 row" if beyond == 1 else f"{beyond} rows"
        lines.append(f"Of no token of the tokenizer: {idle} of the table of token vectors.")
    missing = [word for word in words if vocabulary.token(word) is None]
    if missing:
        lines.append(f"No nearest tokens of {', '.join(missing)}: not one token each in this vocabulary.")
    for name, subject in (("related", "related words"), ("analogies", "analogies")):
        if name not in rows:
            lines.append(f"No {subject}: fewer than two pairs of the list are single tokens of this vocabulary.")
    return tuple(lines)


def _no_positions(positions: str) -> str:
    why = {
        "rotary": "positions are rotary: they turn queries and keys inside the heads",
        "relative bias": "positions enter as a bias of the scores",
        "sinusoidal": "positions are the sinusoidal formula, and no table of them was learned",
    }.get(positions, "the model has no table of learned positions as wide as its token vectors")
    return f"No position vectors: {why}, so nothing is added to the token vectors that could be measured."


def sentences(tables: Mapping[str, pl.DataFrame]) -> tuple[Headline, ...]:
    """What stands out, in numbers."""
    shape = tables["tables"]
    headlines = (_sphere_headline(shape), _directions_headline(shape), _meaning_headline(tables))
    return pictured(headlines, ("lengths_token", "cosines_token", "analogies"))


_Short = tuple[str, float | None]  # the short form of a headline, and its effect


def _of(table: pl.DataFrame, quantity: str, name: str = "token") -> dict[str, Any] | None:
    """The first row of a quantity of a table that is a number."""
    rows = table.filter(pl.col("table") == name, pl.col("quantity") == quantity, pl.col("value").is_finite())
    return rows.row(0, named=True) if rows.height else None


def _is_chance(row: Mapping[str, Any]) -> bool:
    """Whether chance could give the value of a row; never where its null is no law."""
    return row["z"] is not None and abs(row["z"]) < float(stats.norm.ppf((1 + LEVEL) / 2))


def _detectable(row: Mapping[str, Any]) -> float:
    """The distance from the null that one test detects four times in five."""
    sd = abs((row["value"] - row["null"]) / row["z"]) if row["z"] else 0.0
    return float(stats.norm.ppf((1 + LEVEL) / 2) + stats.norm.ppf(POWER)) * sd


def _sphere_headline(shape: pl.DataFrame) -> Headline | None:
    """How much the lengths of token vectors differ."""
    spread, mean = _of(shape, "length_spread"), _of(shape, "length_mean")
    if spread is None or mean is None:
        return None
    value, null = apart(100 * spread["value"], 100 * spread["null"], 1)
    gaussian = spread["gaussian"]
    by_covariance = "" if gaussian is None else f"; a Gaussian with their covariance: {fixed(100 * gaussian, 1)} %"
    full = (
        f"The lengths of {counted(spread['rows'], 'token vector')} spread by {value} % around "
        f"{rounded(mean['value'], 3)} (random vectors in {spread['dimensions']} dimensions: {null} %"
        f"{by_covariance}): {_thickness(spread)}.{_output_sentence(shape)}"
    )
    answer = side(spread["value"], spread["null"], "a thinner sphere than random", "a thicker sphere than random")
    return answered(Headline(full, *_sphere_short(spread)), answer, f"lengths spread by {value} %", f"{null} %")


def _thickness(spread: Mapping[str, Any]) -> str:
    """What the spread of lengths says about a sphere."""
    times = spread["value"] / spread["null"]
    if times < 1 / ALIKE:
        return f"a sphere that is thinner than that of random vectors, {fixed(times, 2)} times as thick"
    if times <= ALIKE:
        return f"a sphere about as thin as that of random vectors, {fixed(times, 2)} times as thick"
    kind = "nearly a sphere" if spread["value"] <= NEARLY else "no thin sphere"
    return f"{kind}, {fixed(times, 1)} times as thick as that of random vectors"


def _output_sentence(shape: pl.DataFrame) -> str:
    output = _of(shape, "length_spread", "output")
    if output is None:
        return ""
    value, null = apart(100 * output["value"], 100 * output["null"], 1)
    return f" The output head has a table of its own, with a spread of {value} % (random vectors: {null} %)."


def _sphere_short(spread: Mapping[str, Any]) -> _Short:
    if _is_chance(spread):
        limit = _detectable(spread)
        if not limit:
            spread_of_both = fixed(100 * spread["value"], 1)
            return f"Lengths of token vectors spread by {spread_of_both} %, exactly as those of random vectors.", 0.0
        size = f"{rounded(100 * limit)} points"
        return undetected("spread of token lengths other than that of random vectors", size), 0.0
    value, null = apart(100 * spread["value"], 100 * spread["null"], 1)
    short = f"Lengths of token vectors spread by {value} % of their mean; those of random vectors by {null} %."
    return short, ratio_effect(spread["value"], spread["null"])


def _directions_headline(shape: pl.DataFrame) -> Headline | None:
    """Whether token vectors point everywhere alike, with their mean and without it."""
    mean, square = _of(shape, "cosine_mean"), _of(shape, "cosine_square")
    if mean is None or square is None:
        return None
    value, null = _roots(square)
    full = (
        f"Two of {counted(square['rows'], 'token vector')} have a cosine of {_from_zero(mean, 3)} in the mean (random "
        f"vectors: 0) and of {value} in root mean square (random vectors: {null}). {_centred_sentence(shape)}"
    )
    return Headline(full, *_directions_short(square))


def _from_zero(row: Mapping[str, Any], decimals: int) -> str:
    """A value, with as many decimals as tell it from 0 where chance does not give it."""
    return fixed(row["value"], decimals) if _is_chance(row) else apart(row["value"], 0.0, decimals)[0]


def _roots(square: Mapping[str, Any]) -> tuple[str, str]:
    """Roots of a mean squared cosine and of its null, told apart."""
    return apart(sqrt(max(0.0, square["value"])), sqrt(square["null"]), 3)


def _centred_sentence(shape: pl.DataFrame) -> str:
    """What is left of the directions with the mean vector taken away."""
    around, directions = _of(shape, "centred_cosine_square"), _of(shape, "centred_participation")
    if around is None or directions is None:
        return "With their mean taken away nothing is left: all vectors are the same."
    value, null = _roots(around)
    has_directions = around["value"] >= 2 * around["null"]
    verdict = "they prefer some directions" if has_directions else "they have almost no preferred direction"
    effective, random = apart(directions["value"], directions["null"], 0)
    return (
        f"With their mean taken away the root mean square is {value} (random vectors: {null}), and {effective} of "
        f"{directions['dimensions']} directions are effectively in use (random vectors: {random}): {verdict}."
    )


def _directions_short(square: Mapping[str, Any]) -> _Short:
    if _is_chance(square):
        limit = _detectable(square)
        if not limit:
            cosine = fixed(sqrt(square["null"]), 3)
            return f"Two token vectors have a cosine of typically {cosine}, exactly as two random vectors.", 0.0
        # The square root stretches a small distance from the null by 1/(2√null).
        size = f"a cosine larger by {rounded(limit / (2 * sqrt(square['null'])))}"
        return undetected("difference of token vectors from random directions", size), 0.0
    value, null = _roots(square)
    short = f"Two token vectors have a cosine of typically {value}; two random vectors of {null}."
    return short, correlation_effect(sqrt(max(0.0, square["value"])), sqrt(square["null"]))


def _meaning_headline(tables: Mapping[str, pl.DataFrame]) -> Headline | None:
    """Related words, analogies and positions; in short the analogies where there are any, else the others."""
    related, analogies, near = _related_row(tables), _analogies_row(tables), _nearest_row(tables)
    headlines = []
    if related is not None:
        headlines.append(Headline(_related(related), *_related_short(related)))
    if analogies is not None:
        headlines.insert(0, Headline(_analogies(analogies), *_analogies_short(analogies)))
    if near is not None:
        headlines.append(Headline(_positions(near, tables["tables"]), *_positions_short(near)))
    if not headlines:
        return None
    return Headline(" ".join(headline.full for headline in headlines), headlines[0].short, headlines[0].effect)


def _related_row(tables: Mapping[str, pl.DataFrame]) -> dict[str, Any] | None:
    return _measured(tables["related"].filter(pl.col("word") == ALL)) if "related" in tables else None


def _analogies_row(tables: Mapping[str, pl.DataFrame]) -> dict[str, Any] | None:
    return _measured(tables["analogies"].filter(pl.col("relation") == ALL)) if "analogies" in tables else None


def _nearest_row(tables: Mapping[str, pl.DataFrame]) -> dict[str, Any] | None:
    return _measured(tables["positions"]) if "positions" in tables else None


def _measured(rows: pl.DataFrame) -> dict[str, Any] | None:
    """The first row whose value is a number."""
    rows = rows.filter(pl.col("value").is_finite())
    return rows.row(0, named=True) if rows.height else None


def _related(row: Mapping[str, Any]) -> str:
    cosine = estimate(row, null=row["null"])
    return (
        f"Related words have a mean cosine of {cosine.value} ({cosine.interval}; {counted(row['pairs'], 'pair')}), the "
        f"same words paired otherwise {fixed(row['null'], 3)}: {_likeness_verdict(row)}."
    )


def _likeness_verdict(row: Mapping[str, Any]) -> str:
    if row["low"] > row["null"]:
        return "related words are more alike"
    if row["high"] < row["null"]:
        return "related words are less alike"
    limit = _detectable_cosine(row)
    if limit >= 1 - row["null"]:
        return "there are too few pairs to detect any likeness"
    return f"no likeness was detected; a cosine larger by {rounded(limit)} would have been"


def _detectable_cosine(row: Mapping[str, Any]) -> float:
    """Which difference from the same words paired otherwise one test detects in four of five lists."""
    half = torch.tensor((row["high"] - row["low"]) / 2, dtype=torch.float64)
    return float(detectable(half, row["pairs"]))


def _related_short(row: Mapping[str, Any]) -> _Short:
    if row["low"] <= row["null"] <= row["high"]:
        limit = _detectable_cosine(row)
        if limit >= 1 - row["null"]:
            return f"{counted(row['pairs'], 'pair')} are too few to detect any likeness of related words.", 0.0
        return undetected("likeness of related words", f"a cosine larger by {rounded(limit)}"), 0.0
    value, null = apart(row["value"], row["null"], 2)
    short = f"Related words have a mean cosine of {value}; the same words paired otherwise {null}."
    return short, correlation_effect(row["value"], row["null"])


def _analogies(row: Mapping[str, Any]) -> str:
    """How often the right answer is nearest, and what the two other words add to the third."""
    gain, verdict = "", "there are too few pairs of words for an interval"
    if row["gain_low"] is not None:
        points = {name: 100 * row[name] for name in ("gain", "gain_low", "gain_high")}
        difference = estimate(points, "gain", ("gain_low", "gain_high"), signed=True)
        gain = f"; difference {difference.value} points, {difference.interval}"
        verdict = _addition_verdict(row)
    rank = fixed(row["rank"], 0 if row["rank"] % 1 == 0 else 1)
    return (
        f"In {_percent(row['value'])} of {row['analogies']} analogies the right answer is nearest, at the median rank "
        f"{rank} of {2 * row['null_rank'] - 1:.0f} (nearest to the third word alone in {_percent(row['baseline'])}"
        f"{gain}; a random token is right in {_percent(row['null'])}): {verdict}."
    )


def _addition_verdict(row: Mapping[str, Any]) -> str:
    if row["gain_low"] > 0:
        return "directions add up"
    if row["gain_high"] < 0:
        return "adding directions makes answers worse"
    limit = _detectable_gain(row)
    if limit >= 1:
        return "there are too few pairs of words to tell whether directions add up"
    return f"that directions add up was not detected; a difference of {rounded(100 * limit)} points would have been"


def _detectable_gain(row: Mapping[str, Any]) -> float:
    """Which gain would be detected in four of five lists of words.

    Intervals end at −1 and 1, so the wider side counts.
    """
    return DETECTABLE_HALVES * float(max(row["gain_high"] - row["gain"], row["gain"] - row["gain_low"]))


def _analogies_short(row: Mapping[str, Any]) -> _Short:
    solved, baseline = _percent(row["value"]), _percent(row["baseline"])
    if row["gain_low"] is None:
        return f"Adding word vectors solves {solved} of the few analogies; the third word alone {baseline}.", None
    if row["gain_low"] <= 0 <= row["gain_high"]:
        limit = _detectable_gain(row)
        if limit >= 1:
            return f"{row['analogies']} analogies are too few to detect any gain from adding word vectors.", 0.0
        size = f"a gain of {rounded(100 * limit)} points"
        return undetected("gain from adding word vectors in analogies", size), 0.0
    short = f"Adding word vectors solves {solved} of the analogies; the third word alone solves {baseline}."
    return short, share_effect(row["value"], row["baseline"])


def _percent(share: float) -> str:
    return f"{rounded(100 * share)} %"


def _positions(near: Mapping[str, Any], shape: pl.DataFrame) -> str:
    formula = "" if near["sinusoid"] is None else f"; sinusoidal formula: {fixed(near['sinusoid'], 2)}"
    sentence = (
        f"Vectors of neighbouring positions have a mean cosine of {_from_zero(near, 2)} (random vectors: 0{formula}; "
        f"{counted(near['pairs'], 'pair')})."
    )
    with_tokens = _of(shape, "cosine_square", "position with token")
    if with_tokens is None:
        return sentence
    value, null = _roots(with_tokens)
    return f"{sentence} With token vectors their root mean square cosine is {value} (random vectors: {null})."


def _positions_short(near: Mapping[str, Any]) -> _Short:
    if _is_chance(near):
        limit = _detectable(near)
        if not limit:
            return "Neighbouring positions have a mean cosine of 0, as random vectors have.", 0.0
        return undetected("likeness of neighbouring positions", f"a cosine of {rounded(limit)}"), 0.0
    short = f"Vectors of neighbouring positions have a mean cosine of {_from_zero(near, 2)}; random vectors have 0."
    return short, correlation_effect(near["value"])
