"""The tables of the lens `maps`, and names that its files share."""

import polars as pl

from headscope.core import HeadQuantity

SCHEMA = pl.Schema(
    {"stack": pl.String, "kind": pl.String, "layer": pl.Int64, "head": pl.Int64, "quantity": pl.String}
    | dict.fromkeys(("value", "low", "high", "null", "most"), pl.Float64)
    | {"windows": pl.Int64}
)


HEAD_QUANTITIES = ("apart", "shown", "written", "weight")

_LABELS = {
    "apart": "attention elsewhere than the average's",
    "weight": "share of what the heads write",
    "written": "mean length of what it writes",
}


def head_quantities(table: pl.DataFrame) -> tuple[HeadQuantity, ...]:
    """The quantities of the table `heads` that a grid of heads can show."""
    names = set(table["quantity"].to_list())
    return tuple(
        HeadQuantity(
            key=name,
            label=label,
            table="heads",
            where={"quantity": name},
            null="" if name == "written" else "null",
            unit="" if name == "written" else "share",
            notable="high" if name == "apart" else "both",
            highest="most unlike its layer" if name == "apart" else "",
        )
        for name, label in _LABELS.items()
        if name in names
    )
