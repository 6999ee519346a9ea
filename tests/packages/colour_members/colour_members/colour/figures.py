"""The figure of the lens `colour`: a map of layers and heads."""

from collections.abc import Sequence

import polars as pl

from headscope.core import Figure, Site
from headscope.lenses.shared.plots import head_map


def figures(table: pl.DataFrame, sites: Sequence[Site]) -> tuple[Figure, ...]:
    """Colours by layer and head."""
    values = {
        site: table.filter(stack=site.stack, kind=site.kind, layer=site.layer)["value"].to_list() for site in sites
    }
    title, caption = "Colour of every head", "Mean mass on the token itself."
    return (head_map(values, name="colour", title=title, caption=caption, unit="share"),)
