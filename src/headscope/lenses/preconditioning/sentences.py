"""What the lens `preconditioning` says in words: its method, its warnings and its headlines."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import polars as pl
import torch

from headscope.core import Headline
from headscope.lenses.preconditioning.conditional_gaussians import GROUPS as GAUSSIANS
from headscope.lenses.preconditioning.conditional_gaussians import PER_DIMENSION, ROWS, SHUFFLES, Stream
from headscope.lenses.preconditioning.followers import DRAWS, FEW, GROUPS, Followers
from headscope.lenses.preconditioning.pairs import Pairs
from headscope.lenses.shared.absences import absence, limit_clause
from headscope.lenses.shared.answers import answered, pictured
from headscope.lenses.shared.effects import clear_effect, ratio_effect, share_effect
from headscope.lenses.shared.phrases import percent, windows_phrase
from headscope.lenses.shared.written_numbers import counted, interval, percents, side_by_side, significant
from headscope.maths.resampling.jackknife import detectable


def method(pairs: Pairs, followers: Followers, streams: Sequence[Stream], skipped: int) -> str:
    """How the numbers were obtained."""
    counting = (
        f"Counts of all {pairs.following.total} pairs of neighbours in one window, special tokens included"
        f"{f'; the first {skipped} of each window are no previous tokens' if skipped else ''}. Previous tokens: "
        f"{len(followers.tokens)}{f' (the {GROUPS} most frequent)' if len(followers.tokens) == GROUPS else ''}. Null: "
        f"{DRAWS} draws of as many tokens from the whole text. Intervals: jackknife over {len(followers.left_out)} of "
        f"{followers.windows} windows."
    )
    if not streams:
        return counting
    rows = len(streams[0].rows)
    every = "every row" if rows == pairs.following.total else f"a sample of {rows} rows, drawn by a hash of windows"
    return (
        f"{counting} Gaussians: {every}; up to {GAUSSIANS} previous tokens and {ROWS} rows of each; entropy in "
        f"{streams[0].dimensions} principal components with Ledoit–Wolf shrinkage, at least {PER_DIMENSION} rows per "
        f"component. Null: {SHUFFLES} exchanges of the previous tokens."
    )


def warnings(
    pairs: Pairs,
    followers: Followers,
    streams: Sequence[Stream],
    components: int,
    tables: Mapping[str, pl.DataFrame],
) -> tuple[str, ...]:
    """What could not be estimated, and why."""
    texts = []
    if pairs.halvings:
        texts.append(
            f"The text has more different pairs than are kept: only one of {2**pairs.halvings} previous tokens is "
            "counted, chosen by a hash of its number."
        )
    share = float(followers.sizes.sum()) / max(1, pairs.following.total)
    if share < 0.8:
        subject, more = (
            (f"The {GROUPS} most frequent previous tokens", "")
            if len(followers.tokens) == GROUPS
            else ("The previous tokens that are frequent enough", " A longer text covers more.")
        )
        texts.append(f"{subject} make up {100 * share:.0f} % of all pairs: the others say nothing here.{more}")
    if not streams:
        texts.append(
            f"No Gaussian given the previous token: none has {PER_DIMENSION} rows of a stream that varies. Take a "
            "longer text."
        )
    elif (used := min(stream.dimensions for stream in streams)) < components:
        texts.append(
            f"Entropy in {used} instead of {components} principal components: the most frequent previous token has "
            f"fewer than {PER_DIMENSION * components} rows."
        )
    if "gaussians" in tables:
        still = tables["gaussians"].filter(pl.col("quantity") == "entropy_nats", pl.col("value").is_null()).height
        if still:
            texts.append(
                f"{still} Gaussians have no variance (one continuation only) and no entropy; they are left out."
            )
    return tuple(texts)


def sentences(tables: Mapping[str, pl.DataFrame]) -> tuple[Headline, ...]:
    """What the text tells and what it cannot, and the Gaussians; each with interval, null and windows."""
    text = {row["quantity"]: row for row in tables["text"].iter_rows(named=True)}
    windows = windows_phrase(tables["text"])
    gaussians = _gaussian_headline(tables["layers"]) if "layers" in tables else None
    headlines = (_information_headline(text, windows), _continuations_headline(text, windows), gaussians)
    return pictured(headlines, ("carried", "carried", "effective_dimension"))


# A short headline has room for one number and its comparison: this one is a word there.
_FEW_IN_WORDS = {5: "five"}[FEW]
_Row = Mapping[str, Any]


def _nats(value: float) -> str:
    return f"{significant(value, 2)} nats"


def _information_texts(left: _Row, gain: _Row) -> tuple[str, str, str, str, str]:
    """What is told with its interval, what is left, and the null; the first is the last less what is left.

    The difference of two rounded numbers is off by one in its last digit at most, and where the interval has a width
    its ends lie at least that far from the value as it is written.
    """
    _, low, high, zero = side_by_side((gain["value"], gain["low"], gain["high"], 0.0), decimals=2)
    decimals = len(zero.partition(".")[2])
    left_over, null = (_fixed(left[name], decimals) for name in ("value", "null"))
    return _fixed(float(null) - float(left_over), decimals), low, high, left_over, null


def _fixed(value: float, decimals: int) -> str:
    """So many decimals, and never −0."""
    return f"{round(value, decimals) + 0.0:.{decimals}f}"


def _information_headline(text: Mapping[str, _Row], windows: str) -> Headline:
    left, gain, share = (text[name] for name in ("conditional_entropy_nats", "information_nats", "counted_share"))
    gained, low, high, left_over, null = _information_texts(left, gain)
    # The interval reaches up by a bias as well: a test against 0 is about its lower half.
    limit = None if gain["low"] is None else _detectable(gain["value"] - gain["low"], gain["windows"])
    detected = gain["low"] is None or gain["low"] > 0
    verdict = (
        f"the last token tells {gained} nats about the next"
        if detected
        else f"no information of the last token about the next is detected: {gained} nats"
    )
    unseen = "" if detected else f", {limit_clause(limit, _nats, reach=left['null'])}"
    full = (
        f"In the text, where nothing of the model enters, {verdict} ({interval(low, high, gain['windows'])}; "
        f"{windows}){unseen}. The entropy of the next token is {left_over} nats, and {null} for as many tokens drawn "
        f"from the whole text. This is about the {counted(left['groups'], 'previous token')} frequent enough to be "
        f"counted, {percent(share['value'])} of the pairs."
    )
    effect = share_effect(max(gain["value"], 0.0) / left["null"]) if left["null"] > 0 else None
    if detected:
        unsure = " (no interval)" if gain["low"] is None else ""
        short = (
            f"In the text alone, the last token removes {gained} of {null} nats of uncertainty about the next{unsure}."
        )
    else:
        subject = "information of the last token about the next"
        short = absence(subject, limit, _nats, windows=gain["windows"], reach=left["null"])
    headline = Headline(full, short, clear_effect(effect, gain["low"], gain["high"]))
    return answered(headline, "it narrows the next one down", f"{gained} of {null} nats", "0 nats")


def _detectable(half: float, units: int) -> float:
    """The effect that four of five texts would have shown."""
    return float(detectable(torch.tensor(half, dtype=torch.float64), units))


def _continuations_headline(text: Mapping[str, _Row], windows: str) -> Headline:
    carry, excluded, share = (text[name] for name in ("continuations_90", "five_excluded_90", "counted_share"))
    decided, by_chance = percents((excluded["value"], excluded["null"]))
    tested = percent(share["value"])
    verdict = (
        f"In at least {decided} of the pairs the {FEW} likeliest continuations of the last token cannot carry 90 % "
        f"(drawn tokens: {by_chance}); for the other {_complement(decided)} this text does not decide ({windows})"
        if excluded["value"] > 0
        else f"That {FEW} continuations carry 90 % is excluded in {decided} of the pairs (drawn tokens: {by_chance}); "
        f"it was tested for {tested} ({windows})"
    )
    value, low, high, null = side_by_side([carry[name] for name in ("value", "low", "high", "null")], decimals=0)
    full = (
        f"{verdict}. After the frequent tokens {value} of the continuations that were seen carry 90 % "
        f"({interval(low, high, carry['windows'])}; drawn tokens: {null}), a number that grows with the text."
    )
    short = (
        f"After at least {decided} of tokens, the {_FEW_IN_WORDS} likeliest continuations cannot make up nine tenths; "
        f"random draws: {by_chance}."
        if excluded["value"] > 0
        else f"After {decided} of tokens, {_FEW_IN_WORDS} continuations are too few to make up nine tenths; this text "
        f"tests {tested}."
    )
    # A longer text decides more pairs: the share that is excluded is no size of an effect.
    return Headline(full, short)


def _complement(written: str) -> str:
    """The rest to 100 %, as it follows from the rounded number."""
    number = written.removesuffix(" %")
    return f"{100 - float(number):.{len(number.partition('.')[2])}f} %"


def _gaussian_headline(layers: pl.DataFrame) -> Headline:
    first, last = layers.row(0, named=True), layers.row(-1, named=True)
    parts = []
    for where, row in (("at the embeddings", first), ("after the last layer", last)):
        rows = layers.filter(pl.col("stack") == row["stack"], pl.col("layer") == row["layer"])
        parts.append(f"{where} {_narrowed({line['quantity']: line for line in rows.iter_rows(named=True)})}")
    tokens = f"{counted(first['groups'], 'previous token')}, {windows_phrase(layers)}"
    full = f"The Gaussian of a token's vector given the token before it has {'; '.join(parts)} ({tokens})."
    entering = layers.filter(pl.col("stack") == first["stack"], pl.col("layer") == first["layer"])
    size = entering.filter(pl.col("quantity") == "effective_dimension").row(0, named=True)
    effect = ratio_effect(size["value"], size["null"]) if _below(size) else 0.0
    return Headline(full, _gaussian_short(size), clear_effect(effect, size["low"], size["high"], size["null"]))


def _gaussian_short(size: _Row) -> str:
    """How many directions the embeddings use after one token, beside random groups."""
    if _below(size) or not _is_tested(size):
        unsure = "" if _below(size) else " (no interval)"
        value, null = side_by_side((size["value"], size["null"]), decimals=1)
        return (
            f"After the same token, embeddings effectively use {value} dimensions{unsure}; random groups of them use "
            f"{null}."
        )
    return absence(
        "narrowing of the embeddings that follow the same token",
        _group_limit(size),
        lambda fewer: f"{significant(fewer, 2)} dimensions fewer",
        windows=size["groups"],
        reach=_narrowest(size),
        unit="previous token",
    )


def _narrowed(numbers: Mapping[str, _Row]) -> str:
    """The size of a conditional Gaussian against random groups, and a verdict."""
    size, entropy = numbers["effective_dimension"], numbers.get("entropy_nats")
    value, low, high, null = side_by_side([size[name] for name in ("value", "low", "high", "null")], decimals=1)
    dimensions = f"{value} effective dimensions ({_over_groups(low, high, size)}; random groups: {null})"
    nats = ""
    if entropy is not None:
        gaps = [None if entropy[name] is None else entropy[name] - entropy["null"] for name in ("value", "low", "high")]
        gap, low, high, _ = side_by_side((*gaps, 0.0), decimals=1)
        nats = f" and an entropy that differs from theirs by {gap} nats ({_over_groups(low, high, entropy)})"
    return f"{dimensions}{nats}: {_narrowing_verdict(size, entropy)}"


def _over_groups(low: str, high: str, row: _Row) -> str:
    """The interval over previous tokens."""
    return interval(low, high, row["groups"]).replace("window", "previous token") if low else "no interval"


def _narrowing_verdict(size: _Row, entropy: _Row | None) -> str:
    fewer, smaller = _below(size), entropy is not None and _below(entropy)
    if fewer and smaller:
        return "conditioning narrows it to fewer directions"
    if fewer:
        unseen = _unseen(entropy=entropy)
        return f"conditioning narrows it to fewer directions{unseen and f', but a smaller entropy {unseen}'}"
    unseen = _unseen(size) if smaller else _unseen(size, entropy)
    return (
        f"conditioning makes it smaller, but a narrowing to fewer directions {unseen}"
        if smaller
        else f"a narrowing {unseen}"
    )


def _unseen(size: _Row | None = None, entropy: _Row | None = None) -> str:
    """Why something was not detected: it cannot be tested, or which difference would have been."""
    rows = [(row, unit) for row, unit in ((size, "dimensions"), (entropy, "nats")) if row is not None]
    tested = [(row, unit) for row, unit in rows if _is_tested(row)]
    if not tested:
        return "cannot be tested without an interval" if rows else ""
    detectable: list[str] = []
    missed: list[str] = []
    for row, unit in tested:
        limit, reach = _group_limit(row), _narrowest(row) if unit == "dimensions" else inf
        (detectable if limit <= reach else missed).append(f"{significant(min(limit, reach), 2)} {unit}")
    limits = [f"{' or '.join(detectable)} less would have been in four of five texts"] if detectable else []
    limits += [f"even {text} less could have been missed" for text in missed]
    return f"was not detected ({'; '.join(limits)})"


def _narrowest(size: _Row) -> float:
    """By how much the effective dimension can lie below its null: no Gaussian has less than one."""
    return max(float(size["null"]) - 1.0, 0.0)


def _is_tested(row: _Row) -> bool:
    return row["low"] is not None and row["high"] is not None and row["groups"] > 1


def _group_limit(row: _Row) -> float:
    return _detectable((row["high"] - row["low"]) / 2, row["groups"])


def _below(row: _Row) -> bool:
    """Whether the interval lies below the null."""
    return row["high"] is not None and bool(row["high"] < row["null"])
