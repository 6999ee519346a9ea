"""Figures of the lens `roles`: the strongest heads by role, and a heat map of layers and heads for each role."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from headscope.core import Figure, HeatMap, Site
from headscope.lenses.roles.tables import REPEATED, TEXT
from headscope.lenses.shared.plots import head_map, label_of

_TOP = 3  # heads of each role in the picture of the strongest heads

# Role → source, title, what the picture says.
_MAPS = {
    "induction": (REPEATED, "Induction", "Mass on the token that followed the earlier copy of the query's token."),
    "prefix matching": (TEXT, "Prefix matching in text", "Mass on all tokens that followed earlier copies."),
    "previous token": (REPEATED, "Previous token", "Mass on the token before the query."),
    "duplicate token": (REPEATED, "Duplicate token", "Mass on the earlier copy of the query's token."),
    "first token": (REPEATED, "First token", "Mass on the first token of the window."),
}


def figures(table: pl.DataFrame, sites: Sequence[Site]) -> tuple[Figure, ...]:
    """The strongest heads of every role, then one map per role that was measured."""
    maps = [_role_map(table, sites, role, *text) for role, text in _MAPS.items()]
    return (_strongest(table), *(picture for picture in maps if picture is not None))


def _strongest(table: pl.DataFrame) -> HeatMap:
    """Rows: the heads with the most of some role; columns: all roles, each on its first kind of windows."""
    rows = table.filter((pl.col("source") == REPEATED) | (pl.col("role") == "prefix matching"))
    roles = rows["role"].unique(maintain_order=True).to_list()
    columns = ["stack", "kind", "layer", "head"]
    top = (
        rows.sort("value", descending=True, maintain_order=True)
        .group_by("role", maintain_order=True)
        .head(_TOP)
        .select(columns)
        .unique(maintain_order=True)
    )
    in_order = rows.select(columns).unique(maintain_order=True).join(top, on=columns, how="semi", maintain_order="left")
    values = np.full((in_order.height, len(roles)), np.nan)
    places = {place: index for index, place in enumerate(in_order.iter_rows())}
    for row in rows.iter_rows(named=True):
        index = places.get(tuple(row[name] for name in columns))
        if index is not None:
            values[index, roles.index(row["role"])] = row["value"]
    return HeatMap(
        name="strongest",
        title="The strongest heads of each role",
        caption=f"The {_TOP} heads with the most mass of each role, and their mass of every role. All roles but prefix "
        "matching are measured on repeated random tokens.",
        values=values,
        row_labels=tuple(label_of(row) for row in in_order.iter_rows(named=True)),
        column_labels=tuple(roles),
        row_axis="head",
        column_axis="role",
        unit="mass",
        limits=(0.0, 1.0),
    )


def _role_map(
    table: pl.DataFrame, sites: Sequence[Site], role: str, source: str, title: str, says: str
) -> HeatMap | None:
    rows = table.filter(pl.col("source") == source, pl.col("role") == role)
    if rows.is_empty():
        return None
    parts = rows.partition_by(["stack", "kind", "layer"], as_dict=True)
    cells = {
        site: parts[key].sort("head")["value"].to_list()
        for site in sites
        if (key := (site.stack, site.kind, site.layer)) in parts
    }
    threshold = float(rows["threshold"][0])
    return head_map(
        cells,
        name=role.replace(" ", "_"),
        title=title,
        caption=f"{says} A head has the role where its whole interval lies above {threshold:.2f}.",
        unit="mass",
        reference=threshold,
        limits=(0.0, 1.0),
    )
