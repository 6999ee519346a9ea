"""What the lens `preconditioning` says in words: its method, its warnings and its headlines."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from headscope.lenses.conditioned.followers import DRAWS, FEW, GROUPS, Followers
from headscope.lenses.conditioned.gaussians import GROUPS as GAUSSIANS
from headscope.lenses.conditioned.gaussians import PER_DIMENSION, ROWS, SHUFFLES, Stream
from headscope.lenses.conditioned.pairs import Pairs

# Standard deviations of the random groups from which a difference is called one.
_CLEAR = 3.0


def method(pairs: Pairs, followers: Followers, streams: Sequence[Stream], skipped: int) -> str:
    """How the numbers were obtained."""
    said = (
        f"Counts of all {pairs.following.total} pairs of neighbours in one window, special tokens included"
        f"{f'; the first {skipped} of each window are no previous tokens' if skipped else ''}. Previous tokens: "
        f"{len(followers.tokens)}{f' (the {GROUPS} most frequent)' if len(followers.tokens) == GROUPS else ''}. Null: "
        f"{DRAWS} draws of as many tokens from the whole text."
    )
    if not streams:
        return said
    rows = len(streams[0].rows)
    every = "every row" if rows == pairs.following.total else f"a sample of {rows} rows, drawn by a hash of windows"
    return (
        f"{said} Gaussians: {every}; up to {GAUSSIANS} previous tokens and {ROWS} rows of each; entropy in "
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
    found = []
    if pairs.halvings:
        found.append(
            f"The text has more different pairs than are kept: only one of {2**pairs.halvings} previous tokens is "
            "counted, chosen by a hash of its number."
        )
    share = float(followers.sizes.sum()) / max(1, pairs.following.total)
    if share < 0.8:
        which, more = (
            (f"The {GROUPS} most frequent previous tokens", "")
            if len(followers.tokens) == GROUPS
            else ("The previous tokens that are frequent enough", " A longer text covers more.")
        )
        found.append(f"{which} make up {100 * share:.0f} % of all pairs: the others say nothing here.{more}")
    if not streams:
        found.append(
            f"No Gaussian given the previous token: none has {PER_DIMENSION} rows of a stream that varies. Take a "
            "longer text."
        )
    elif (used := min(one.dimensions for one in streams)) < components:
        found.append(
            f"Entropy in {used} instead of {components} principal components: the most frequent previous token has "
            f"fewer than {PER_DIMENSION * components} rows."
        )
    if "gaussians" in tables:
        still = tables["gaussians"].filter(pl.col("quantity") == "entropy_nats", pl.col("value").is_null()).height
        if still:
            found.append(
                f"{still} Gaussians have no variance (one continuation only) and no entropy; they are left out."
            )
    return tuple(found)


def sentences(tables: Mapping[str, pl.DataFrame]) -> tuple[str, ...]:
    """What stands out, in numbers."""
    text = {row["quantity"]: row for row in tables["text"].iter_rows(named=True)}
    found = [_told(text), _few(text)]
    return (*found, _gaussian(tables["layers"])) if "layers" in tables else tuple(found)


def _told(text: Mapping[str, Mapping[str, Any]]) -> str:
    left, told = text["conditional_entropy_nats"], text["information_nats"]
    return (
        f"Given the last token, {left['value']:.2f} nats of entropy are left about the next one ({left['groups']} "
        f"previous tokens; {left['null']:.2f} for as many tokens drawn from the whole text): it tells "
        f"{told['value']:.2f} nats{_beyond(told['z'])}."
    )


def _few(text: Mapping[str, Mapping[str, Any]]) -> str:
    carry, five = text["continuations_90"], text["five_carry_90"]
    says = (
        "a few tokens dominate, as the thesis supposes"
        if five["value"] > 0.5
        else "a few tokens do not dominate, although the thesis supposes it"
        if five["value"] < 0.2
        else "a few tokens dominate only after some"
    )
    return (
        f"On average {carry['value']:.0f} continuations carry 90 % (drawn tokens: {carry['null']:.0f}); {FEW} are "
        f"enough in {100 * five['value']:.0f} % of the cases (drawn tokens: {100 * five['null']:.0f} %): {says}."
    )


def _gaussian(layers: pl.DataFrame) -> str:
    first, last = layers.row(0, named=True), layers.row(-1, named=True)
    parts = []
    for where, row in (("at the embeddings", first), ("behind the last layer", last)):
        own = layers.filter(pl.col("stack") == row["stack"], pl.col("layer") == row["layer"])
        parts.append(f"{where} {_narrowed({one['quantity']: one for one in own.iter_rows(named=True)})}")
    return f"The Gaussian of a token's vector given the token before it has {'; '.join(parts)}."


def _narrowed(numbers: Mapping[str, Mapping[str, Any]]) -> str:
    """The size of a conditional Gaussian beside that of random groups, and what follows."""
    size, entropy = numbers["effective_dimension"], numbers.get("entropy_nats")
    fewer = size["z"] is not None and size["z"] < -_CLEAR
    smaller = entropy is not None and entropy["z"] is not None and entropy["z"] < -_CLEAR
    says = {
        (True, True): "conditioning narrows it to fewer directions",
        (True, False): "conditioning narrows it to fewer directions, but does not clearly make it smaller",
        (False, True): "conditioning makes it smaller, but not in fewer directions",
        (False, False): "conditioning does not clearly narrow it",
    }[fewer, smaller]
    gap = "" if entropy is None else f" and {entropy['value'] - entropy['null']:+.1f} nats of entropy from theirs"
    return f"{size['value']:.1f} effective dimensions (random groups: {size['null']:.1f}){gap}: {says}"


def _beyond(z: float | None) -> str:
    return "" if z is None else f", {abs(z):.0f} standard deviations {'beyond' if z > 0 else 'below'} chance"
