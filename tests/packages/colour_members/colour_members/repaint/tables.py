"""The table of the experiment `repaint`."""

from collections.abc import Mapping

import polars as pl


def changes_table(changes: Mapping[float, float]) -> pl.DataFrame:
    """One row per strength."""
    return pl.DataFrame({"strength": [*changes], "change": [*changes.values()]})
