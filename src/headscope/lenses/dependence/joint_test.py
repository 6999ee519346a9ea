"""All heads together: the mean over heads, by layer and by stack, with windows as the units of its error.

Heads see the same text and depend on each other, so their number says nothing about the error. Leaving out a window
leaves it out of every head at once.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.core import Site
from headscope.lenses.shared.table import Row, number
from headscope.maths.resampling.jackknife import detectable, jackknife, jackknife_p

# By site and measure: how much the correlation exceeds its null, of all windows and of all but each, by head.
Excess = Mapping[Site, Mapping[str, Float[Tensor, "sets heads"]]]


def joint_rows(excess: Excess) -> Iterator[Row]:
    """A row for all layers of each stack and measure, then one for each layer."""
    names = dict.fromkeys(name for measures in excess.values() for name in measures)
    stacks = dict.fromkeys((site.stack, site.kind) for site in excess)
    for name in names:
        for stack, kind in stacks:
            sites = [site for site in excess if (site.stack, site.kind) == (stack, kind) and name in excess[site]]
            groups: list[tuple[int | None, Sequence[Site]]] = [(None, _comparable(sites, excess, name))]
            groups += [(site.layer, (site,)) for site in sites]
            for layer, members in groups:
                row = _row([excess[site][name] for site in members])
                if row is not None:
                    place = {"stack": stack, "kind": kind, "layer": layer, "head": None}
                    yield {**place, "quantity": name, **row}


def _comparable(sites: Sequence[Site], excess: Excess, name: str) -> Sequence[Site]:
    """The sites with the commonest number of windows: only equal windows can be left out together."""
    sizes = [len(excess[site][name]) for site in sites]
    size = max(sizes, key=lambda length: (sizes.count(length), length), default=0)
    return [site for site in sites if len(excess[site][name]) == size]


def _row(parts: Sequence[Float[Tensor, "sets heads"]]) -> Row | None:
    """The mean over the heads that have a number; None where none has."""
    if not parts:
        return None
    values = torch.cat(list(parts), 1)
    values = values[:, ~values[0].isnan()]
    if not values.shape[1]:
        return None
    windows = len(values) - 1
    mean, half = jackknife(values.mean(1))
    cells: dict[str, Tensor | float] = {
        "value": mean,
        "low": mean - half,
        "high": mean + half,
        "null": 0.0,
        "p": jackknife_p(values.mean(1)),
        "detectable": detectable(half, windows),
    }
    counts = {"positive": int((values[0] > 0).sum()), "heads": values.shape[1], "windows": windows}
    return {**{name: number(cell) for name, cell in cells.items()}, **counts}
