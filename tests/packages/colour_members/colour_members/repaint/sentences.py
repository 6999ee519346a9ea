"""The sentence of the experiment `repaint`."""


def sentences(table):
    """The strength that moves the model most."""
    top = table.sort("change", descending=True).row(0, named=True)
    return (f"Strength {top['strength']:g} moves the last states by {top['change']:.2f} of their norm.",)
