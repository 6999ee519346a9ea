"""Refuses heads that a checkpoint does not have, from its configuration alone; loads no torch."""

from collections.abc import Sequence
from pathlib import Path

from headscope.core.head_selection import chosen_heads
from headscope.core.selection import Selection
from headscope.core.site import Site
from headscope.model.sources.names import Source, local_source


def check_heads(name: str | Path, spellings: Sequence[str | Selection], *, hub: bool = False) -> None:
    """Refuse heads that a named model does not have; nothing is refused where it has to be fetched first."""
    source = local_source(name, hub=hub)
    if source is not None:
        check_heads_of(source, spellings)


def check_heads_of(source: Source, spellings: Sequence[str | Selection]) -> None:
    """Refuse heads beyond the layers and heads that the configuration states.

    Where the configuration leaves a doubt nothing is refused: the opened model decides.

    Raises:
        UsageError: There is no such head.
    """
    grid = source.checkpoint.stated_grid()
    if grid is not None:
        # Sizes and masks do not matter here.
        sites = [Site("only", "self", layer, grid.n_heads, grid.n_heads, 0, 0, False) for layer in range(grid.n_layers)]
        chosen_heads(source.name, sites, spellings)
