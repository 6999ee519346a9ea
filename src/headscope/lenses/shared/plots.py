"""The layout of numbers per head: first columns of a table, labels, heat maps."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from headscope.core import HeatMap, Site

Array = NDArray[np.float64]


def place(site: Site, head: int | None) -> dict[str, str | int | None]:
    """The first columns of every table; head is None where a row is about a site."""
    return {"stack": site.stack, "kind": site.kind, "layer": site.layer, "head": head}


def label_of(row: Mapping[str, object]) -> str:
    """The head that a table's row is about, as people write it: `L3.H7`, `dec.L3.cross.H7`."""
    stack = "" if row["stack"] == "only" else f"{row['stack']}."
    kind = ".cross" if row["kind"] == "cross" else ""
    return f"{stack}L{row['layer']}{kind}.H{row['head']}"


def head_map(
    values: Mapping[Site, Sequence[float]],
    *,
    name: str,
    title: str,
    caption: str,
    unit: str = "",
    reference: float | None = None,
    limits: tuple[float, float] | None = None,
) -> HeatMap:
    """A heat map, sites down and heads across; a site with fewer heads leaves cells empty."""
    width = max((len(row) for row in values.values()), default=0)
    cells: Array = np.full((len(values), width), np.nan)
    for index, row in enumerate(values.values()):
        cells[index, : len(row)] = row
    return HeatMap(
        name=name,
        title=title,
        caption=caption,
        values=cells,
        row_labels=tuple(site.label for site in values),
        column_labels=tuple(f"H{head}" for head in range(width)),
        unit=unit,
        reference=reference,
        limits=limits,
    )


def groups(sites: Sequence[Site]) -> dict[str, list[Site]]:
    """Sites by what they are (`enc self`, `dec cross`, …); one nameless group in a model with one stack."""
    sites_by_group: dict[str, list[Site]] = {}
    for site in sites:
        sites_by_group.setdefault("" if site.stack == "only" else f"{site.stack} {site.kind}", []).append(site)
    return sites_by_group
