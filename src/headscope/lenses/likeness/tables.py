"""The quantities of the lens `likeness` that a grid of heads can show."""

import polars as pl

from headscope.core import HeadQuantity


def head_quantities(table: pl.DataFrame) -> tuple[HeadQuantity, ...]:
    """How a head scores related tokens, at each distance of the table."""
    return tuple(
        HeadQuantity(
            key=f"score_at_{distance}",
            label=_label(distance),
            table="heads",
            column="effect",
            where={"distance": distance},
            unit="spreads of the scores",
            notable="both",
        )
        for distance in sorted(set(table["distance"].to_list()))
    )


def _label(distance: int) -> str:
    if distance == 0:
        return "score of a token with itself"
    return f"score of tokens {distance} token{'' if distance == 1 else 's'} apart"
