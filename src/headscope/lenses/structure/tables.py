"""The tables of the lens `structure`, and names that its files share."""

from collections.abc import Mapping

import numpy as np
import polars as pl

from headscope.core import HeadCurve, HeadQuantity
from headscope.lenses.shared.plots import label_of
from headscope.lenses.structure.structures import BAND, BAND_FIRST, Structure

POSITIONAL, SYNTACTIC, RARE, FIRST_TOKEN, NONE = "positional", "syntactic", "rare token", "first token", "none"
WITHIN = (1, 5, 10)  # percent of what a head writes
USUAL_BOUND = 5
USUAL_WIDTH = 16  # of the band that the grid of heads shows, or the widest narrower one

_PLACE = {"stack": pl.String, "kind": pl.String, "layer": pl.Int64, "head": pl.Int64}
_FORM = {"form": pl.String, "size": pl.Int64, "entries": pl.Int64}
# Texts stand after the first number: what stands before it is the heading of a column in a report.
SCHEMAS = {
    "smallest": pl.Schema(
        _PLACE
        | {"within": pl.Int64, "kept": pl.Float64, "structure": pl.String}
        | dict.fromkeys(("kept_low", "kept_high", "visible", "share", "low_rank", "value", "low", "high"), pl.Float64)
        | {"windows": pl.Int64}
        | _FORM
    ),
    "families": pl.Schema(
        _PLACE
        | {"value": pl.Float64, "family": pl.String}
        | dict.fromkeys(
            (
                *("low", "high", "null", "width", "width_low", "width_high", "positions", "positions_low"),
                *("positions_high", "block_width", "positional", "positional_null", "near", "near_null", "rare_token"),
                *("rare_token_null", "first", "first_null", "offset_mass"),
            ),
            pl.Float64,
        )
        | {"offset": pl.Int64, "windows": pl.Int64}
    ),
    "structures": pl.Schema(
        _PLACE
        | {"structure": pl.String}
        | dict.fromkeys(
            (
                *("kept", "value", "low", "high", "map_error", "map_low", "map_high"),
                *("low_rank", "zero", "uniform", "visible_uniform"),
            ),
            pl.Float64,
        )
        | {"windows": pl.Int64}
        | _FORM
    ),
}


def head_quantities(tables: Mapping[str, pl.DataFrame]) -> tuple[HeadQuantity, ...]:
    """The fewest pairs that carry a head, masses of families, errors of bands."""
    quantities = [
        *(
            HeadQuantity(
                key=f"pairs_{within}",
                label=f"keys per query for an output error of {within} %",
                table="smallest",
                column="kept",
                where={"within": within},
                null="visible",
                unit="keys",
                scale="log",
                notable="low",
                highest="carried by the most keys" if within == USUAL_BOUND else "",
                lowest="carried by the fewest keys" if within == USUAL_BOUND else "",
            )
            for within in (USUAL_BOUND, *(bound for bound in WITHIN if bound != USUAL_BOUND))
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
    labels = {BAND_FIRST: "output missed by a band of {} and the first", BAND: "output missed by a band of {}"}
    for form, label in labels.items():
        width = shared_width(tables["structures"], form)
        if width is not None:
            quantities.append(
                HeadQuantity(
                    key=form.replace(" ", "_"),
                    label=label.format(width),
                    table="structures",
                    where={"structure": Structure(form, width).words},
                    null="visible_uniform",
                    unit="share",
                    notable="low",
                    lowest="best carried by a band" if form == BAND_FIRST else "",
                    highest="worst carried by a band" if form == BAND_FIRST else "",
                )
            )
    return tuple(quantities)


def shared_width(structures: pl.DataFrame, form: str) -> int | None:
    """The widest band of at most `USUAL_WIDTH` that every head has a row of."""
    rows = structures.filter(pl.col("form") == form, pl.col("size") <= USUAL_WIDTH)
    heads = structures.select("stack", "kind", "layer", "head").unique().height
    counts = rows.group_by("size").len().filter(pl.col("len") == heads)
    return None if counts.is_empty() else int(counts["size"].to_numpy().max())


def head_curves(structures: pl.DataFrame) -> tuple[HeadCurve, ...]:
    """What bands with the first token miss of each head, against their half-width."""
    rows = structures.filter(pl.col("form") == BAND_FIRST, pl.col("size") > 0)
    if rows.is_empty():
        return ()
    widths = sorted(set(rows["size"].to_list()))
    heads = rows.partition_by(["stack", "kind", "layer", "head"], maintain_order=True)
    values, ranks = (np.full((len(heads), len(widths)), np.nan) for _ in range(2))
    for index, of_head in enumerate(heads):
        for row in of_head.iter_rows(named=True):
            column = widths.index(row["size"])
            values[index, column] = np.nan if row["value"] is None else row["value"]
            ranks[index, column] = np.nan if row["low_rank"] is None else row["low_rank"]
    return (
        HeadCurve(
            key="band_errors",
            label="output missed by a band with the first token",
            x_axis="half-width of the band",
            y_axis="share of the output",
            heads=tuple(label_of(of_head.row(0, named=True)) for of_head in heads),
            x=np.array(widths, dtype=np.float64),
            values=values,
            law=ranks,
            law_label="best rank with as many numbers",
            log_x=True,
        ),
    )
