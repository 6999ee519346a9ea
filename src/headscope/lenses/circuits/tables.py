"""The tables of the lens `circuits`, and names that its files share."""

import polars as pl

from headscope.core import HeadQuantity

STREAM, VOCABULARY, CENTRED = "stream", "vocabulary", "centred"
QUANTITIES = (STREAM, VOCABULARY, CENTRED)
_PLACE = {"stack": pl.String, "kind": pl.String, "layer": pl.Int64, "head": pl.Int64}
NUMBERS = ("value", "null", "null_low", "null_high", "null_sd", "z", "size")

SCHEMA = pl.Schema(
    _PLACE
    | {"quantity": pl.String}
    | dict.fromkeys(NUMBERS, pl.Float64)
    | {"rotations": pl.Int64, "status": pl.String, "weights": pl.String}
)
TOKENS = pl.Schema(
    _PLACE
    | {"circuit": pl.String, "rank": pl.Int64, "source": pl.String, "query": pl.String, "target": pl.String}
    | {"score": pl.Float64, "null": pl.Float64, "tokens": pl.Int64}
)
SUCCESSORS = pl.Schema(
    _PLACE
    | {"list": pl.String}
    | dict.fromkeys(("value", "null", "null_low", "null_high", "null_largest"), pl.Float64)
    | {"has_role": pl.Boolean, "pairs": pl.Int64}
)
ALL_LISTS = "all lists"
# 95 % of a normal law lie within so many standard deviations.
WIDTH = 1.959963984540054

_LABELS = {
    CENTRED: "copying of tokens, their mean removed",
    VOCABULARY: "copying of tokens",
    STREAM: "copying within the stream",
}


def head_quantities(heads: pl.DataFrame, successors: pl.DataFrame) -> tuple[HeadQuantity, ...]:
    """The quantities that a grid of heads can show; a model may lack some."""
    copying = tuple(
        HeadQuantity(
            key=f"copying_{name}",
            label=label,
            table="heads",
            where={"quantity": name},
            null="null",
            notable="both",
            highest="copies tokens most" if name == CENTRED else "",
            lowest="suppresses tokens most" if name == CENTRED else "",
        )
        for name, label in _LABELS.items()
        if heads.filter(pl.col("quantity") == name).height
    )
    successor = HeadQuantity(
        key="successor",
        label="successor first among its ordinal list",
        table="successors",
        where={"list": ALL_LISTS},
        null="null",
        unit="share",
        highest="writes successors most",
        role="successor head",
    )
    return copying if successors.is_empty() else (*copying, successor)
