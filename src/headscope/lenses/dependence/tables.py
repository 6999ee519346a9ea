"""The tables of the lens `dependence`: their columns, and how a cell is written."""

from collections.abc import Mapping

import polars as pl

from headscope.core import HeadQuantity
from headscope.lenses.shared.table import with_values

_PLACE = [("stack", pl.String), ("kind", pl.String), ("layer", pl.Int64), ("head", pl.Int64)]
_NAMED = [*_PLACE, ("quantity", pl.String)]
_COUNTS = [("samples", pl.Int64), ("windows", pl.Int64)]
_CORRELATIONS = (
    "value low high null given_distance beyond beyond_low beyond_high beyond_null excess excess_low excess_high "
    "detectable p adjusted"
)
_JOINT = "value low high null p detectable"
_SCORES = "value low high predicted shift shift_low shift_high p adjusted variance predicted_variance attention uniform"
_INFORMATION = "value low high null raw covariance"
SCHEMAS = {
    "heads": pl.Schema(
        [*_NAMED, *((name, pl.Float64) for name in _CORRELATIONS.split()), ("dimensions", pl.Int64), *_COUNTS]
    ),
    "joint": pl.Schema(
        [
            *_NAMED,
            *((name, pl.Float64) for name in _JOINT.split()),
            *((name, pl.Int64) for name in ("positive", "heads", "windows")),
        ]
    ),
    "pairs": pl.Schema([*_NAMED, *((name, pl.Float64) for name in _SCORES.split()), *_COUNTS]),
    "profile": pl.Schema(
        [
            *_PLACE,
            ("distance", pl.Int64),
            ("upto", pl.Int64),
            *((name, pl.Float64) for name in _INFORMATION.split()),
            ("dimensions", pl.Int64),
            *_COUNTS,
        ]
    ),
}

_QUANTITIES = (
    HeadQuantity(
        key="pointwise_beyond",
        label="attention by dependence, beyond distance",
        table="heads",
        column="beyond",
        where={"quantity": "pointwise"},
        null="beyond_null",
        unit="rank correlation",
        notable="both",
    ),
    HeadQuantity(
        key="cosine_beyond",
        label="attention by likeness, beyond distance",
        table="heads",
        column="beyond",
        where={"quantity": "cosine"},
        null="beyond_null",
        unit="rank correlation",
        notable="both",
    ),
    HeadQuantity(
        key="nearness",
        label="attention by nearness",
        table="heads",
        where={"quantity": "nearness"},
        null="null",
        unit="rank correlation",
        notable="both",
    ),
    HeadQuantity(
        key="trace",
        label="attention by the predicted score of a distance",
        table="heads",
        where={"quantity": "trace"},
        null="null",
        unit="rank correlation",
        notable="both",
    ),
    HeadQuantity(
        key="neighbour_attention",
        label="attention to a token 1 to 8 away",
        table="pairs",
        column="attention",
        where={"quantity": "dependent"},
        null="uniform",
        unit="share",
    ),
)


def head_quantities(tables: Mapping[str, pl.DataFrame]) -> tuple[HeadQuantity, ...]:
    """The quantities of single heads that a grid of heads can show."""
    return with_values(_QUANTITIES, tables)
