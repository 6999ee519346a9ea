"""The tables of the lens `structure`, and names that its files share."""

from collections.abc import Mapping

import polars as pl

from headscope.core import HeadQuantity
from headscope.lenses.structure.structures import BAND

POSITIONAL, SYNTACTIC, RARE, FIRST_TOKEN, NONE = "positional", "syntactic", "rare token", "first token", "none"
WITHIN = (1, 5, 10)  # percent of what a head writes
USUAL_WIDTH = 16  # of the band that the grid of heads shows, or the widest narrower one

_PLACE = {"stack": pl.String, "kind": pl.String, "layer": pl.Int64, "head": pl.Int64}
_STRUCTURE = {"structure": pl.String, "size": pl.Int64, "entries": pl.Int64}
SCHEMAS = {
    "smallest": pl.Schema(
        _PLACE
        | {"within": pl.Int64}
        | _STRUCTURE
        | dict.fromkeys(
            ("kept", "kept_low", "kept_high", "visible", "share", "low_rank", "value", "low", "high"), pl.Float64
        )
        | {"windows": pl.Int64}
    ),
    "families": pl.Schema(
        _PLACE
        | {"family": pl.String}
        | dict.fromkeys(
            (
                *("value", "low", "high", "null", "width", "width_low", "width_high", "positions", "positions_low"),
                *("positions_high", "block_width", "positional", "positional_null", "near", "near_null", "rare_token"),
                *("rare_token_null", "first", "first_null", "offset_mass"),
            ),
            pl.Float64,
        )
        | {"offset": pl.Int64, "windows": pl.Int64}
    ),
    "structures": pl.Schema(
        _PLACE
        | _STRUCTURE
        | dict.fromkeys(
            (
                *("kept", "value", "low", "high", "map_error", "map_low", "map_high"),
                *("low_rank", "zero", "uniform", "visible_uniform"),
            ),
            pl.Float64,
        )
        | {"windows": pl.Int64}
    ),
}


def head_quantities(tables: Mapping[str, pl.DataFrame]) -> tuple[HeadQuantity, ...]:
    """What a band leaves out, the fewest pairs that carry a head, and the masses that decide families."""
    quantities = [
        HeadQuantity(
            key="pairs_5",
            label="keys per query that carry 95 % of the output",
            table="smallest",
            column="kept",
            where={"within": 5},
            null="visible",
            unit="keys",
            scale="log",
            notable="low",
            highest="carried by the most keys",
            lowest="carried by the fewest keys",
        ),
        HeadQuantity(
            key="near", label="near mass, without the first token", table="families", column="near", null="near_null",
            unit="share",
        ),
        HeadQuantity(
            key="rare_token", label="mass on itself and on shared keys", table="families", column="rare_token",
            null="rare_token_null", unit="share",
        ),
        HeadQuantity(
            key="width", label="half-width of the near mass", table="families", column="width", unit="tokens",
            notable="both",
        ),
        HeadQuantity(
            key="positions", label="shared keys per 16 queries", table="families", column="positions", unit="keys",
            notable="both",
        ),
    ]  # fmt: skip
    width = shared_width(tables["structures"])
    if width is not None:
        quantities.insert(
            0,
            HeadQuantity(
                key="band_error",
                label=f"output that a band of {width} misses",
                table="structures",
                where={"structure": BAND, "size": width},
                null="visible_uniform",
                unit="share",
                notable="low",
                lowest="best carried by a band",
                highest="worst carried by a band",
            ),
        )
    return tuple(quantities)


def shared_width(structures: pl.DataFrame) -> int | None:
    """The widest band of at most `USUAL_WIDTH` that every head has a row of."""
    rows = structures.filter(pl.col("structure") == BAND, pl.col("size") <= USUAL_WIDTH)
    heads = structures.select("stack", "kind", "layer", "head").unique().height
    counts = rows.group_by("size").len().filter(pl.col("len") == heads)
    return None if counts.is_empty() else int(counts["size"].to_numpy().max())
