"""What the lens `preconditioning` says in words: its method, its warnings and its headlines."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import torch

from headscope.core import Headline
from headscope.lenses.preconditioning.conditional_gaussians import GROUPS as GAUSSIANS
from headscope.lenses.preconditioning.conditional_gaussians import PER_DIMENSION, ROWS, SHUFFLES, Stream
from headscope.lenses.preconditioning.followers import DRAWS, FEW, GROUPS, Followers
from headscope.lenses.preconditioning.pairs import Pairs
from headscope.lenses.shared.effects import clear_effect, ratio_effect, share_effect
from headscope.lenses.shared.phrases import interval_phrase, percent, undetected, windows_phrase
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
    headlines = [_information_headline(text, windows_phrase(tables["text"])), _continuations_headline(text)]
    return (*headlines, _gaussian_headline(tables["layers"])) if "layers" in tables else tuple(headlines)


_ENDS = ("low", "high")
# A short headline has room for one number and its comparison: this one is a word there.
_FEW_IN_WORDS = {5: "five"}[FEW]


def _nats(value: float) -> str:
    return f"{round(value, 2) + 0.0:.2f}"


def _information_headline(text: Mapping[str, Mapping[str, Any]], windows: str) -> Headline:
    left, gain, share = (text[name] for name in ("conditional_entropy_nats", "information_nats", "counted_share"))
    # Rounded first, so that the numbers of the sentence subtract.
    difference = round(left["null"], 2) - round(left["value"], 2)
    groups = f"{left['groups']} previous token{'s' if left['groups'] > 1 else ''}"
    full = (
        f"In the text, where nothing of the model enters, the last token tells {_nats(difference)} nats about the next "
        f"({interval_phrase(gain, _nats, _ENDS)}; {windows}): {_nats(left['value'])} nats of entropy are left, and "
        f"{_nats(left['null'])} for as many tokens drawn from the whole text. This is about the {groups} that are "
        f"frequent enough, {percent(share['value'])} of the pairs."
    )
    size = share_effect(max(gain["value"], 0.0) / left["null"]) if left["null"] > 0 else None
    short = _information_short(_nats(difference), _nats(left["null"]), gain)
    return Headline(full, short, clear_effect(size, gain["low"], gain["high"]))


def _information_short(difference: str, uncertainty: str, gain: Mapping[str, Any]) -> str:
    if gain["low"] is None:
        return (
            f"In the text the last token tells {difference} of {uncertainty} nats about the next; there is no interval."
        )
    if gain["low"] <= 0:
        return undetected("information of the last token about the next", f"{_nats(_detectable(gain))} nats")
    removed = f"{difference} of the {uncertainty} nats of uncertainty"
    return f"In the text alone, the last token removes {removed} about the next."


def _detectable(row: Mapping[str, Any], units: str = "windows") -> float:
    """The change that four of five texts would have shown; needs an interval."""
    half = torch.tensor((row["high"] - row["low"]) / 2, dtype=torch.float64)
    return float(detectable(half, row[units]))


def _continuations_headline(text: Mapping[str, Mapping[str, Any]]) -> Headline:
    carry, excluded, share = (text[name] for name in ("continuations_90", "five_excluded_90", "counted_share"))
    decided = excluded["value"]
    verdict = (
        f"{FEW} continuations cannot carry 90 % after the last token in at least {percent(decided)} of the pairs "
        f"(drawn tokens: {percent(excluded['null'])}); for the other {percent(1 - decided)} this text does not decide"
        if decided > 0
        else f"That {FEW} continuations carry 90 % is excluded after no previous token (drawn tokens: "
        f"{percent(excluded['null'])} of the pairs); it could have been for {percent(share['value'])} of the pairs"
    )
    full = (
        f"{verdict}. After the frequent tokens {carry['value']:.0f} of the continuations that were seen carry 90 % "
        f"({interval_phrase(carry, lambda value: f'{value:.0f}', _ENDS)}; drawn tokens: {carry['null']:.0f}), a number "
        "that grows with the text."
    )
    short = (
        f"After at least {percent(decided)} of tokens, the {_FEW_IN_WORDS} likeliest continuations cannot make up nine "
        f"tenths; random draws: {percent(excluded['null'])}."
        if decided > 0
        else f"After {percent(0.0)} of tokens, {_FEW_IN_WORDS} continuations are too few to make up nine tenths; this "
        f"text tests {percent(share['value'])}."
    )
    # A longer text decides more pairs: the share that is excluded is no size of an effect.
    return Headline(full, short)


def _gaussian_headline(layers: pl.DataFrame) -> Headline:
    first, last = layers.row(0, named=True), layers.row(-1, named=True)
    parts = []
    for where, row in (("at the embeddings", first), ("behind the last layer", last)):
        rows = layers.filter(pl.col("stack") == row["stack"], pl.col("layer") == row["layer"])
        parts.append(f"{where} {_narrowed({line['quantity']: line for line in rows.iter_rows(named=True)})}")
    tokens = f"{first['groups']} previous tokens, {windows_phrase(layers)}"
    full = f"The Gaussian of a token's vector given the token before it has {'; '.join(parts)} ({tokens})."
    entering = layers.filter(pl.col("stack") == first["stack"], pl.col("layer") == first["layer"])
    size = entering.filter(pl.col("quantity") == "effective_dimension").row(0, named=True)
    effect = ratio_effect(size["value"], size["null"]) if _below(size) else 0.0
    return Headline(full, _gaussian_short(size), clear_effect(effect, size["low"], size["high"], size["null"]))


def _gaussian_short(size: Mapping[str, Any]) -> str:
    """How many directions the embeddings use after one token, beside random groups."""
    if _below(size) or size["high"] is None or size["groups"] < 2:
        unsure = "" if _below(size) else " (no interval)"
        return (
            f"After the same token, embeddings effectively use {size['value']:.1f} dimensions{unsure}; random groups "
            f"of them use {size['null']:.1f}."
        )
    fewer = f"{_detectable(size, 'groups'):.2g} dimensions fewer"
    return undetected("narrowing of the embeddings that follow the same token", fewer)


def _narrowed(numbers: Mapping[str, Mapping[str, Any]]) -> str:
    """The size of a conditional Gaussian against random groups, and a verdict."""
    size, entropy = numbers["effective_dimension"], numbers.get("entropy_nats")
    fewer, smaller = _below(size), entropy is not None and _below(entropy)
    verdict = {
        (True, True): "conditioning narrows it to fewer directions",
        (True, False): "conditioning narrows it to fewer directions, but a smaller entropy was not detected"
        f"{_limits(entropy=entropy)}",
        (False, True): f"conditioning makes it smaller, but fewer directions were not detected{_limits(size)}",
        (False, False): f"no narrowing was detected{_limits(size, entropy)}",
    }[fewer, smaller]
    gap = ""
    if entropy is not None:
        shifted = {end: None if entropy[end] is None else entropy[end] - entropy["null"] for end in _ENDS}
        gap = f" and {entropy['value'] - entropy['null']:+.1f} nats of entropy from theirs ("
        gap += f"{interval_phrase(shifted, lambda value: f'{value + 0.0:.1f}', _ENDS)})"
    ends = interval_phrase(size, lambda value: f"{value:.1f}", _ENDS)
    return f"{size['value']:.1f} effective dimensions ({ends}; random groups: {size['null']:.1f}){gap}: {verdict}"


def _limits(size: Mapping[str, Any] | None = None, entropy: Mapping[str, Any] | None = None) -> str:
    """What would have been detected where nothing was."""
    parts = []
    for row, unit in ((size, "dimensions"), (entropy, "nats")):
        if row is not None and row["low"] is not None and row["high"] is not None and row["groups"] > 1:
            half = torch.tensor((row["high"] - row["low"]) / 2, dtype=torch.float64)
            parts.append(f"{float(detectable(half, row['groups'])):.2g} {unit}")
    return f" ({' and '.join(parts)} less would have been in four of five texts)" if parts else ": there is no interval"


def _below(row: Mapping[str, Any]) -> bool:
    """Whether the interval lies below the null."""
    return row["high"] is not None and row["high"] < row["null"]
