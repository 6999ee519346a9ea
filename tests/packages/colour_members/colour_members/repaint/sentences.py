"""The sentence of the experiment `repaint`."""

import polars as pl

from headscope.core import Headline


def sentences(table: pl.DataFrame) -> tuple[Headline, ...]:
    """The strength that moves the model most."""
    top = table.sort("change", descending=True).row(0, named=True)
    full = f"Strength {top['strength']:g} moves the last states by {top['change']:.2f} of their norm; strength 1 by 0."
    short = f"Strength {top['strength']:g} moves the last states by {top['change']:.2f} of their norm."
    return (Headline(full, short, min(top["change"], 1.0)),)
