"""Figures of the lens `preconditioning`: what the likeliest continuations carry, and Gaussians over depth."""

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl

from headscope.core import Curves, Figure, Series
from headscope.lenses.preconditioning.followers import RANKS, SHARE, Followers


def figures(followers: Followers, tables: Mapping[str, pl.DataFrame]) -> tuple[Figure, ...]:
    """All figures, the most telling first."""
    return (_carried(followers), *_depth(tables))


def _carried(followers: Followers) -> Curves:
    weight = (followers.sizes / followers.sizes.sum())[:, None]
    most = max(len(counts.values) for counts in followers.after)
    x = np.array([float(rank) for rank in RANKS if rank <= most] or [1.0])
    ours, null = ((weight * values).sum(0).numpy()[: len(x)] for values in (followers.carried, followers.carried_null))
    carried_by_text = (
        followers.following.counts.sort(descending=True).values.cumsum(0).double() / followers.following.total
    )
    text = [float(carried_by_text[min(int(rank), len(carried_by_text)) - 1]) for rank in x]
    return Curves(
        "carried",
        "What the likeliest continuations carry",
        f"Share of what follows a token that its r likeliest continuations make up, mean over {len(followers.tokens)} "
        "previous tokens, each as often as it was seen. Dotted: as many tokens drawn from the whole text, and the most "
        f"frequent tokens of the whole text. The dashed line is {SHARE:g}: where it is crossed, r continuations carry "
        "it.",
        "likeliest continuations r",
        "share",
        (
            Series("given the last token", x, ours),
            Series("drawn tokens", x, null, role="null"),
            Series("whole text", x, np.array(text), role="null"),
            Series(f"{SHARE:g}", x, np.full_like(x, SHARE), role="theory"),
        ),
        log_x=True,
    )


def _depth(tables: Mapping[str, pl.DataFrame]) -> Iterator[Curves]:
    if "layers" not in tables:
        return
    labels_by_quantity = {
        "effective_dimension": ("Effective dimension", "effective dimension", "directions that hold the variance"),
        "entropy_nats": ("Entropy", "entropy in nats", "in the same principal components"),
    }
    for quantity, (title, axis, meaning) in labels_by_quantity.items():
        rows = tables["layers"].filter(pl.col("quantity") == quantity)
        series = []
        for stack in rows["stack"].unique(maintain_order=True):
            of_stack = rows.filter(pl.col("stack") == stack)
            x = of_stack["layer"].to_numpy().astype(float)
            name = "" if stack == "only" else f"{stack}: "
            low, high = (of_stack[end].cast(pl.Float64).to_numpy() for end in ("low", "high"))
            series += [
                Series(f"{name}given the last token", x, of_stack["value"].to_numpy(), low, high),
                Series(f"{name}random groups", x, of_stack["null"].to_numpy(), role="null"),
            ]
        if series:
            yield Curves(
                quantity,
                f"{title} of the Gaussian given the last token, over depth",
                f"Mean over the most frequent previous tokens ({meaning}). Dotted: random groups of the same sizes. "
                "Band: 95 % interval, over previous tokens, of the distance from them.",
                "layer",
                axis,
                tuple(series),
            )
