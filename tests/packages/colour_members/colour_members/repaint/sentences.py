"""The sentence of the experiment `repaint`."""

from headscope.core import Headline


def sentences(table):
    """The strength that moves the model most."""
    top = table.sort("change", descending=True).row(0, named=True)
    full = f"Strength {top['strength']:g} moves the last states by {top['change']:.2f} of their norm."
    return (Headline(full, full, min(top["change"], 1.0)),)
