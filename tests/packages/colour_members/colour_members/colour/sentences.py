"""The sentence of the lens `colour`."""

from statistics import median

from headscope.core import Headline
from headscope.lenses.lens import Tables
from headscope.lenses.shared.effects import share_effect
from headscope.lenses.shared.phrases import interval_phrase, percent, windows_phrase
from headscope.lenses.shared.plots import label_of


def sentences(tables: Tables) -> tuple[Headline, ...]:
    """The median head, and the head with the most colour."""
    table = tables["heads"]
    top = table.sort("value", descending=True, maintain_order=True).row(0, named=True)
    colour, uniform = median(table["value"].to_list()), median(table["uniform"].to_list())
    full = (
        f"The median head gives {percent(colour)} of its attention to the token itself (uniform attention: "
        f"{percent(uniform)}; {windows_phrase(table)}); {label_of(top)} gives the most, {percent(top['value'])} "
        f"({interval_phrase(top, percent, ('low', 'high'))})."
    )
    short = f"The median head gives {percent(colour)} to the token itself; uniform attention gives {percent(uniform)}."
    return (Headline(full, short, share_effect(colour, uniform)),)
