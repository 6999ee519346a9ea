"""The table of the experiment `repaint`."""

import polars as pl


def changes_table(changes):
    """One row per strength."""
    return pl.DataFrame({"strength": list(changes), "change": list(changes.values())})
