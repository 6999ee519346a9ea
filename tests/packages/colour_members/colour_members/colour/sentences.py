"""The sentence of the lens `colour`."""


def sentences(tables):
    """The head with the most colour."""
    top = tables["heads"].sort("value", descending=True).row(0, named=True)
    return (f"L{top['layer']}.H{top['head']} gives {top['value']:.2f} of its attention to the token itself.",)
