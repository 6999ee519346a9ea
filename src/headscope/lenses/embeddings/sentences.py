"""What the lens `embeddings` says in words: its method, its warnings and its headlines."""

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

import polars as pl
from scipy import stats

from headscope.core import Headline, WeightSource
from headscope.lenses.embeddings.meaning import ALL
from headscope.lenses.embeddings.shape import Summary
from headscope.lenses.shared.effects import correlation_effect, ratio_effect, share_effect
from headscope.lenses.shared.phrases import percent, undetected
from headscope.maths.resampling.jackknife import LEVEL, POWER

# Up to this relative spread lengths are called nearly equal.
NEARLY = 0.1
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
    lines = (
        Headline(_sphere(shape), *_sphere_short(shape)),
        Headline(_directions(shape), *_directions_short(shape)),
    )
    last = " ".join(sentence for sentence in (_meaning(tables), _positions(tables)) if sentence)
    return (*lines, Headline(last, *_meaning_short(tables))) if last else lines


_Short = tuple[str, float | None]  # the short form of a headline, and its effect


def _is_chance(row: Mapping[str, Any]) -> bool:
    """Whether chance could give the value of a row; never where its null is no law."""
    return row["z"] is not None and abs(row["z"]) < float(stats.norm.ppf((1 + LEVEL) / 2))


def _detectable(row: Mapping[str, Any]) -> float:
    """The distance from the null that one test detects four times in five."""
    sd = abs((row["value"] - row["null"]) / row["z"]) if row["z"] else 0.0
    return float(stats.norm.ppf((1 + LEVEL) / 2) + stats.norm.ppf(POWER)) * sd


def _sphere_short(shape: pl.DataFrame) -> _Short:
    spread = _of(shape, "length_spread")
    value, null = spread["value"], spread["null"]
    if _is_chance(spread):
        size = f"{100 * _detectable(spread):.2g} points"
        return undetected("spread of token lengths other than that of random vectors", size), 0.0
    short = (
        f"Lengths of token vectors spread by {100 * value:.1f} % of their mean; random vectors by {100 * null:.1f} %."
    )
    return short, ratio_effect(value, null)


def _directions_short(shape: pl.DataFrame) -> _Short:
    square = _of(shape, "cosine_square")
    value, null = sqrt(max(0.0, square["value"])), sqrt(square["null"])
    if _is_chance(square):
        # The square root stretches a small distance from the null by 1/(2√null).
        size = f"a cosine larger by {_detectable(square) / (2 * null):.2g}"
        return undetected("difference of token vectors from random directions", size), 0.0
    short = f"Two token vectors have a cosine of typically {value:.3f}; two random vectors of {null:.3f}."
    return short, correlation_effect(value, null)


def _of(table: pl.DataFrame, quantity: str, name: str = "token") -> dict[str, Any]:
    """The first row of a quantity of a table."""
    rows = table.filter(pl.col("table") == name, pl.col("quantity") == quantity)
    return rows.row(0, named=True) if rows.height else {}


def _sphere(shape: pl.DataFrame) -> str:
    spread, mean = _of(shape, "length_spread"), _of(shape, "length_mean")
    value, null, gaussian = spread["value"], spread["null"], spread["gaussian"]
    times = value / null
    if times <= 1.2:
        says = "they lie on a sphere as thin as that of random vectors"
    elif value <= NEARLY:
        says = f"nearly a sphere, {times:.1f} times as thick as that of random vectors"
    else:
        says = f"no thin sphere, {times:.1f} times as thick as that of random vectors"
    output = _of(shape, "length_spread", "output")
    other = (
        f" The output head has a table of its own, with a spread of {100 * output['value']:.1f} %." if output else ""
    )
    return (
        f"The {spread['rows']} token vectors have lengths that spread by {100 * value:.1f} % around "
        f"{mean['value']:.3g} (random vectors in {spread['dimensions']} dimensions: {100 * null:.1f} %; a Gaussian "
        f"with their covariance: {100 * gaussian:.1f} %): {says}.{other}"
    )


def _directions(shape: pl.DataFrame) -> str:
    mean, square = _of(shape, "cosine_mean"), _of(shape, "cosine_square")
    around = _of(shape, "centred_cosine_square")
    directions = _of(shape, "centred_participation")
    centred = (
        f"{sqrt(max(0.0, around['value'])):.3f} with their mean taken away, {directions['value']:.0f} effective "
        f"directions of {directions['dimensions']} (random: {directions['null']:.0f})"
        if around and directions
        else "and nothing is left with their mean taken away"
    )
    close = around and directions and around["value"] < 2 * around["null"]
    says = "almost without preferred directions" if close else "they do not point everywhere alike"
    return (
        f"Two token vectors have a mean cosine of {mean['value']:.3f} (random: 0) with root mean square "
        f"{sqrt(max(0.0, square['value'])):.3f} (random: {sqrt(square['null']):.3f}), {centred}: {says}."
    )


def _meaning(tables: Mapping[str, pl.DataFrame]) -> str:
    parts = []
    if "related" in tables:
        row = tables["related"].filter(pl.col("word") == ALL).row(0, named=True)
        parts.append(
            f"Related words have a mean cosine of {row['value']:.3f} (95 % interval {row['low']:.3f} to "
            f"{row['high']:.3f}, {row['pairs']} pairs; the same words paired otherwise: {row['null']:.3f})."
        )
    if "analogies" in tables:
        parts.append(_analogies(tables["analogies"].filter(pl.col("relation") == ALL).row(0, named=True)))
    return " ".join(parts)


def _analogies(row: Mapping[str, Any]) -> str:
    """How often the right answer is nearest, and what the two other words add to the third."""
    if row["gain_low"] is None:
        verdict, gain = "there are too few pairs of words for an interval", ""
    else:
        gain = f", 95 % interval of the difference {percent(row['gain_low'])} to {percent(row['gain_high'])}"
        verdict = (
            "directions add up"
            if row["gain_low"] > 0
            else "that directions add up was not detected; a difference of "
            f"{percent((row['gain_high'] - row['gain_low']) / 2)} would have been"
        )
    return (
        f"In {percent(row['value'])} of {row['analogies']} analogies the right answer is nearest, median rank "
        f"{row['rank']:.0f} of {2 * row['null_rank'] - 1:.0f} (nearest to the third word alone in "
        f"{percent(row['baseline'])}{gain}; random token: {100 * row['null']:.2g} %): {verdict}."
    )


def _meaning_short(tables: Mapping[str, pl.DataFrame]) -> _Short:
    """Of analogies where there are any, else of related words, else of positions."""
    if "analogies" in tables:
        return _analogies_short(tables["analogies"].filter(pl.col("relation") == ALL).row(0, named=True))
    if "related" in tables:
        return _related_short(tables["related"].filter(pl.col("word") == ALL).row(0, named=True))
    near = tables["positions"].row(0, named=True)
    if _is_chance(near):
        return undetected("likeness of neighbouring positions", f"a cosine of {_detectable(near):.2g}"), 0.0
    short = f"Vectors of neighbouring positions have a mean cosine of {near['value']:.2f}; random vectors have 0."
    return short, correlation_effect(near["value"])


def _analogies_short(row: Mapping[str, Any]) -> _Short:
    solved, baseline = percent(row["value"]), percent(row["baseline"])
    if row["gain_low"] is None:
        return f"Adding word vectors solves {solved} of the few analogies; the third word alone {baseline}.", None
    if row["gain_low"] <= 0:
        size = percent((row["gain_high"] - row["gain_low"]) / 2)
        return undetected("gain from adding word vectors in analogies", f"a gain of {size}"), 0.0
    short = f"Adding word vectors solves {solved} of the analogies; the third word alone solves {baseline}."
    return short, share_effect(row["value"], row["baseline"])


def _related_short(row: Mapping[str, Any]) -> _Short:
    if row["low"] <= row["null"] <= row["high"]:
        size = f"a cosine larger by {(row['high'] - row['low']) / 2:.2g}"
        return undetected("likeness of related words", size), 0.0
    short = (
        f"Related words have a mean cosine of {row['value']:.2f}; the same words paired otherwise {row['null']:.2f}."
    )
    return short, correlation_effect(row["value"], row["null"])


def _positions(tables: Mapping[str, pl.DataFrame]) -> str:
    if "positions" not in tables:
        return ""
    near = tables["positions"].row(0, named=True)
    token_cosine = _of(tables["tables"], "cosine_square", "position with token")
    with_tokens = (
        f"; with token vectors the root mean square cosine is {sqrt(token_cosine['value']):.3f} (random: "
        f"{sqrt(token_cosine['null']):.3f})"
        if token_cosine
        else ""
    )
    formula = "" if near["sinusoid"] is None else f" (sinusoidal formula: {near['sinusoid']:.2f})"
    return f"Vectors of neighbouring positions have a mean cosine of {near['value']:.2f}{formula}{with_tokens}."
