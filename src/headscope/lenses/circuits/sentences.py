"""The sentences of the lens `circuits`."""

import numpy as np
import polars as pl

from headscope.core import Headline
from headscope.lenses.circuits.tables import ALL_LISTS, CENTRED, STREAM, VOCABULARY
from headscope.lenses.lens import Tables
from headscope.lenses.shared.answers import answered, pictured
from headscope.lenses.shared.effects import correlation_effect, mean_effect, share_effect
from headscope.lenses.shared.estimates import fixed, how_many, rounded
from headscope.lenses.shared.phrases import percent
from headscope.lenses.shared.plots import label_of
from headscope.lenses.shared.written_numbers import counted

_MOST = 3  # headlines of a finding
_NAMES = {CENTRED: "through the vocabulary, with its mean removed", STREAM: "within the stream"}


def sentences(tables: Tables) -> tuple[Headline, ...]:
    """What stands out, in numbers."""
    heads = tables["heads"].filter(pl.col("value").is_finite())
    if heads.is_empty():
        count = tables["heads"].filter(pl.col("quantity") == STREAM).height
        nothing = f"{counted(count, 'head')} {'writes' if count == 1 else 'write'} nothing: W_OV is 0."
        return (Headline(nothing, nothing),)
    main = CENTRED if heads.filter(pl.col("quantity") == CENTRED).height else STREAM
    candidates = {
        f"copying_{main}": _copying(heads, main),
        "successors": _successors(tables["successors"]),
        "sorted_scores": _bases(heads),
        "": _pairs(tables["tokens"]),
    }
    headlines = {figure: headline for figure, headline in candidates.items() if headline is not None}
    first = list(headlines.items())[:_MOST]
    return pictured([headline for _, headline in first], [figure or f"copying_{main}" for figure, _ in first])


def _copying(heads: pl.DataFrame, main: str) -> Headline:
    rows = heads.filter(pl.col("quantity") == main).sort("value", maintain_order=True)
    above, below = _outside(rows)
    low, high = rows.row(0, named=True), rows.row(-1, named=True)
    span = (
        f" It runs from {fixed(low['value'], 2, signed=True)} in {label_of(low)} to "
        f"{fixed(high['value'], 2, signed=True)} in {label_of(high)}."
        if rows.height > 1
        else ""
    )
    null = f"{fixed(_median(rows, 'null_low'), 2)} to {fixed(_median(rows, 'null_high'), 2)}"
    median = fixed(_median(rows, "value"), 2, signed=True)
    subject = f"The median of {counted(rows.height, 'head')}" if rows.height > 1 else f"The only head, {label_of(low)},"
    full = (
        f"{subject} has a copying score of {median} {_NAMES[main]} (95 % of {int(_median(rows, 'rotations'))} heads of "
        f"the layer turned at random: {null}).{span} {how_many(above, rows.height).capitalize()} "
        f"{'copy' if above != 1 else 'copies'} more than that range, {below or 'none'} less."
    )
    effects = [
        correlation_effect(row["value"], row["null"])
        if not row["null_low"] <= row["value"] <= row["null_high"]
        else 0.0
        for row in rows.to_dicts()
    ]
    verb = "copies what it reads" if above == 1 else "copy what they read"
    short = f"{how_many(above, rows.height).capitalize()} {verb} beyond chance; the median score is {median}."
    if not above:
        limit = fixed(_median(rows, "null_high"), 2)
        short = f"No head that copies was detected; a score above {limit} would have been."
    headline = Headline(full, short, mean_effect(effects))
    return answered(headline, f"{how_many(above, rows.height)} {verb}", f"median {median}", null)


def _outside(rows: pl.DataFrame) -> tuple[int, int]:
    above = rows.filter(pl.col("value") > pl.col("null_high")).height
    return above, rows.filter(pl.col("value") < pl.col("null_low")).height


def _successors(successors: pl.DataFrame) -> Headline | None:
    """How many heads write successors, and which does most."""
    rows = successors.filter(pl.col("list") == ALL_LISTS).sort("value", maintain_order=True)
    if rows.is_empty():
        return None
    top = rows.row(-1, named=True)
    count = rows.filter("has_role").height
    names = successors["list"].unique(maintain_order=True).to_list()[1:]
    share, null, limit = (percent(top[name]) for name in ("value", "null", "null_largest"))
    pairs = f"{share} of {top['pairs']} pairs ({_listed(names)})"
    null_words = f"with permuted lists it does so in {null}, and in 95 % of permutations no head exceeds {limit}"
    if not count:
        full = (
            f"No successor head was detected among {rows.height}: {label_of(top)} comes nearest and raises the next "
            f"word of an ordinal list most in {pairs}; {null_words}. A larger share would have been counted."
        )
        return Headline(full, f"No successor head was detected; a share above {limit} would have been.", 0.0)
    verb = "are successor heads" if count > 1 else "is a successor head"
    full = (
        f"{how_many(count, rows.height).capitalize()} {verb}. {label_of(top)} raises the next word of an ordinal list "
        f"most in {pairs}; {null_words}."
    )
    short = f"{label_of(top)} raises the next word of a list in {share} of pairs; by chance no head exceeds {limit}."
    return Headline(full, short, share_effect(top["value"], top["null_largest"]))


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _bases(heads: pl.DataFrame) -> Headline | None:
    """Why the mean is removed: without that, chance gives large scores."""
    rows = {name: heads.filter(pl.col("quantity") == name) for name in (STREAM, VOCABULARY, CENTRED)}
    if rows[VOCABULARY].is_empty():
        return None
    medians = {name: fixed(_median(part, "value"), 2, signed=True) for name, part in rows.items()}
    spreads = {name: rounded(_median(part, "null_sd")) for name, part in rows.items()}
    keys = ["stack", "layer", "head"]
    pairs = rows[STREAM].join(rows[VOCABULARY], on=keys, suffix="_tokens")
    changed = pairs.filter(pl.col("value").sign() != pl.col("value_tokens").sign()).height
    full = (
        f"The median score is {medians[STREAM]} within the stream, {medians[VOCABULARY]} through the vocabulary and "
        f"{medians[CENTRED]} with its mean removed. By chance these scores spread by {spreads[STREAM]}, "
        f"{spreads[VOCABULARY]} and {spreads[CENTRED]} (standard deviation over turned heads). "
        f"{how_many(changed, pairs.height).capitalize()} {'change' if changed != 1 else 'changes'} sign between the "
        "stream and the vocabulary."
    )
    short = (
        f"By chance, copying scores through the vocabulary spread by {spreads[VOCABULARY]}; with its mean removed by "
        f"{spreads[CENTRED]}."
    )
    return Headline(full, short)


def _pairs(tokens: pl.DataFrame) -> Headline | None:
    """The strongest pair of the first head that is listed."""
    if tokens.is_empty():
        return None
    first = tokens.filter(pl.col("circuit") == "OV").row(0, named=True)
    label = label_of(first)
    keys = ("stack", "layer", "head", "circuit")
    same = tokens.filter(*(pl.col(key) == first[key] for key in keys))
    copied = same.filter(pl.col("source") == pl.col("target")).height
    full = (
        f"Among the {counted(same.height, 'strongest pair')} of {first['tokens']} tokens in the map of {label} from "
        f"source to target, {copied or 'none'} {'has' if copied == 1 else 'have'} the same token on both sides (by "
        f"chance {same.height} in {first['tokens']}). The first is “{first['source'].strip()}” → "
        f"“{first['target'].strip()}”."
    )
    short = (
        f"{copied or 'None'} of {counted(same.height, 'strongest token pair')} of {label} "
        f"{'copies' if copied == 1 else 'copy'} a token; by chance {rounded(same.height / first['tokens'], 1)}."
    )
    return Headline(full, short, share_effect(copied / same.height, 1 / first["tokens"]))


def _median(rows: pl.DataFrame, column: str) -> float:
    return float(np.median(rows[column].to_numpy()))
