"""The tables of the lens `spectra`, and names that its files share."""

import polars as pl

from headscope.core import HeadQuantity

_PLACE = {"stack": pl.String, "kind": pl.String, "layer": pl.Int64, "head": pl.Int64, "matrix": pl.String}


_NUMBERS = {
    "quantity": pl.String,
    "value": pl.Float64,
    "null": pl.Float64,
    "initial": pl.Float64,
    "status": pl.String,
    "weights": pl.String,
}


SCHEMA = pl.Schema(_PLACE | _NUMBERS)


FEED_FORWARD_SCHEMA = pl.Schema(_PLACE | {"shape": pl.String} | _NUMBERS)


def _quantity(matrix: str, quantity: str, label: str, unit: str) -> HeadQuantity:
    return HeadQuantity(
        key=f"{matrix.lower()}_{quantity}",
        label=f"W_{matrix}: {label}",
        table="heads",
        where={"matrix": matrix, "quantity": quantity},
        null="null",
        unit=unit,
        scale="log" if quantity == "largest" else "linear",
        notable="low" if quantity == "effective_rank" else "high",
        lowest="compares along fewest directions" if (matrix, quantity) == ("QK", "effective_rank") else "",
    )


# The quantities of the table `heads` that a grid of heads can show.
head_quantities = tuple(
    _quantity(matrix, quantity, label, unit)
    for matrix in ("QK", "OV")
    for quantity, label, unit in (
        ("effective_rank", "effective rank", "directions"),
        ("largest", "largest singular value", ""),
        ("energy_above_edge", "energy beyond the random edge", "share"),
    )
)
