"""A lens that makes its windows: do heads look, from a repeated token, at what followed it before?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import polars as pl
import torch
from torch import Tensor

from headscope.core import About, Headline, ModelSpec, Site, WeightSource
from headscope.lenses.lens import Batch, MadeWindows, Measurement, Needs, NotApplicable, Tables, TextLens, TextSize

NAME = "repeated tokens"


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    count: int = field(default=6, metadata={"help": "how many windows are made"})
    length: int = field(default=40, metadata={"help": "tokens of a window: random ones, and the same again"})


@dataclass(frozen=True)
class State:
    """The weights summed by head, and the windows that they are of."""

    params: Params
    size: TextSize
    sums: Mapping[Site, Tensor] = field(default_factory=dict)
    windows: Mapping[Site, tuple[Tensor, ...]] = field(default_factory=dict)


def repeated(ids: Tensor, generator: torch.Generator, count: int, length: int) -> Tensor:
    """Random tokens, and the same again."""
    first = ids[torch.randint(len(ids), (count, -(-length // 2)), generator=generator)]
    return torch.cat((first, first), 1)[:, :length]


class PrefixMatching(TextLens[Params, State]):
    """The mean weight from the second copy of a token to what followed the first."""

    name = "prefixes"
    params = Params
    about = About(
        "Prefix matching", "Do heads look at what followed?", "A mean of weights.", (), "More is more.", "none"
    )

    def needs(self, params: Params) -> Needs:
        """The maps of the windows that it makes, and no text."""
        made = MadeWindows(NAME, params.count, params.length, repeated)
        return Needs(captures=frozenset({"pattern"}), pieces=True, made=(made,), reads_text=False)

    def start(self, params: Params, model: ModelSpec, sites: tuple[Site, ...], text: TextSize) -> State:
        """Nothing seen yet."""
        return State(params, text)

    def update(self, state: State, batch: Batch) -> State:
        """Add the windows of one batch."""
        assert batch.made == NAME
        half = -(-batch.tokens.shape[1] // 2)
        sums, windows = dict(state.sums), dict(state.windows)
        for site, pattern in batch.captures["pattern"].items():
            after = pattern.double().diagonal(1 - half, dim1=2, dim2=3)[..., 1:]
            sums[site] = sums.get(site, 0) + after.mean(-1).sum(0)
            windows[site] = (*windows.get(site, ()), batch.tokens)
        return replace(state, sums=sums, windows=windows)

    def merge(self, a: State, b: State) -> State:
        """The sums of both."""
        sums = {site: a.sums.get(site, 0) + total for site, total in b.sums.items()}
        windows = {site: (*a.windows.get(site, ()), *tokens) for site, tokens in b.windows.items()}
        return replace(a, sums={**a.sums, **sums}, windows={**a.windows, **windows})

    def finish(self, state: State, weights: WeightSource | None) -> Measurement:
        """A mean for each head."""
        if not state.sums:
            raise NotApplicable("nothing was shown to the lens")
        rows = [
            {"layer": site.layer, "head": head, "value": float(value) / sum(map(len, state.windows[site]))}
            for site, total in state.sums.items()
            for head, value in enumerate(total)
        ]
        return Measurement({"heads": pl.DataFrame(rows)}, method="exact")

    def definition(
        self, params: Params, weights: WeightSource | None, batches: Sequence[Batch]
    ) -> dict[str, pl.DataFrame]:
        """Nothing: the test computes it."""
        return {}

    def sentences(self, tables: Tables) -> tuple[Headline, ...]:
        """The largest weight."""
        largest = tables["heads"]["value"].max()
        return (Headline(f"The largest mean weight is {largest}.", f"The largest weight is {largest:.2g}.", largest),)


LENS = PrefixMatching()
