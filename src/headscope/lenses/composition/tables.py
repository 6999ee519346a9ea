"""The tables of the lens `composition`, and names that its files share."""

import polars as pl

from headscope.core import HeadQuantity

KINDS = {"q": "queries", "k": "keys", "v": "values"}
AVERAGE = "average"
# Fewer impossible writers than this give no scale for one reader: those of its layer are pooled, then all.
FEWEST = 20
_PLACE = {"stack": pl.String, "kind": pl.String, "layer": pl.Int64, "head": pl.Int64}

HEADS = pl.Schema(
    _PLACE
    | {"quantity": pl.String}
    | dict.fromkeys(("value", "null", "null_spread", "null_largest", "z", "random", "size"), pl.Float64)
    | {"writers": pl.Int64, "late": pl.Int64, "impossible": pl.Int64, "status": pl.String, "weights": pl.String}
)
PAIRS = pl.Schema(
    _PLACE
    | {"quantity": pl.String, "rank": pl.Int64, "writer": pl.String}
    | dict.fromkeys(("value", "null", "z"), pl.Float64)
)


def head_quantities(heads: pl.DataFrame) -> tuple[HeadQuantity, ...]:
    """The quantities at distance 0 that a grid of heads can show; a model may lack some."""
    return tuple(
        HeadQuantity(
            key=f"composition_{letter}",
            label=f"strongest earlier head that feeds its {name}",
            table="heads",
            where={"quantity": quantity},
            null="null",
            unit="share",
            highest=f"has {name} that an earlier head feeds most" if letter == "k" else "",
        )
        for letter, name in KINDS.items()
        for quantity in ("v" if letter == "v" else f"{letter} at 0",)
        if heads.filter(pl.col("quantity") == quantity).height
    )
