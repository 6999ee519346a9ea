"""The tables of the lens `alignment`, and names that its files share."""

import polars as pl

from headscope.core import HeadQuantity

SCHEMA = pl.Schema(
    {"stack": pl.String, "kind": pl.String, "layer": pl.Int64, "head": pl.Int64, "quantity": pl.String}
    | dict.fromkeys(("value", "null", "sd", "z"), pl.Float64)
    | {"status": pl.String, "weights": pl.String}
)


Row = tuple[float | None, float | None, float | None, float | None]  # value, null, sd, z

_LABELS = {
    "trace_share": "match of like tokens, share of the maximum",
    "symmetric_share": "symmetry of query and key",
    "subspace_overlap": "overlap of what queries and keys read",
    "weighted_overlap": "overlap weighted by strength",
    "leading_cosine": "cosine of the leading directions",
}
_SIGNED = ("trace_share", "leading_cosine", "symmetric_share")

# The quantities of the table `heads` that a grid of heads can show.
head_quantities = tuple(
    HeadQuantity(
        key=name,
        label=label,
        table="heads",
        where={"quantity": name},
        null="null",
        unit="" if "cosine" in name else "share",
        notable="both" if name in _SIGNED else "high",
        lowest="avoids like tokens most" if name == "trace_share" else "",
        highest="matches like tokens most" if name == "trace_share" else "",
    )
    for name, label in _LABELS.items()
)
