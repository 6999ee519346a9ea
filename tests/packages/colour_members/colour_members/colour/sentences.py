"""The sentence of the lens `colour`."""

from headscope.core import Headline
from headscope.lenses.shared.effects import share_effect


def sentences(tables):
    """The head with the most colour."""
    top = tables["heads"].sort("value", descending=True).row(0, named=True)
    sentence = f"L{top['layer']}.H{top['head']} gives {top['value']:.2f} of its attention to the token itself."
    return (Headline(sentence, sentence, share_effect(top["value"])),)
