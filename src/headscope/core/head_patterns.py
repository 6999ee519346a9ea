"""HeadPatterns: the attention maps of every head on the first tokens of one window."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headscope.core.card import Card, Shown
from headscope.core.numbers import counted
from headscope.core.site import Kind, Site, Stack
from headscope.errors import UsageError

LARGEST_LEVEL = 255


@dataclass(frozen=True, eq=False, repr=False)
class SitePatterns(Shown):
    r"""The maps of the heads of one site, one byte per weight.

    Definition:
        A level $b$ of head $h$ means the weight $\mathrm{largest}_h \cdot (b / 255)^2$: small weights are rounded less
        than large ones. `levels` is heads × queries × keys. `query_text` and `key_text` are places in
        `HeadPatterns.texts`.
    """

    stack: Stack
    kind: Kind
    layer: int
    causal: bool
    levels: NDArray[Any]  # uint8: checked below, since a stored run may come from a stranger
    largest: NDArray[np.float64]
    query_text: int = 0
    key_text: int = 0

    def __post_init__(self) -> None:
        if self.levels.ndim != 3 or self.levels.dtype != np.uint8:
            raise UsageError(
                f"the patterns of layer {self.layer} have the shape {self.levels.shape} of {self.levels.dtype}, "
                "expected heads × queries × keys of uint8"
            )
        n_heads = len(self.levels)
        if self.largest.shape != (n_heads,) or not bool(((self.largest >= 0) & np.isfinite(self.largest)).all()):
            raise UsageError(
                f"the largest weights of layer {self.layer} have the shape {self.largest.shape}, expected a finite "
                f"number of at least 0 for each of {n_heads} heads"
            )

    def weights(self, head: int) -> NDArray[np.float64]:
        """The weights of one head: queries × keys, within the rounding of the levels."""
        shares: NDArray[np.float64] = (self.levels[head] / LARGEST_LEVEL) ** 2
        return shares * float(self.largest[head])

    def _card(self) -> Card:
        n_heads, n_queries, n_keys = self.levels.shape
        return Card(
            f"patterns of {counted(n_heads, 'head')} in layer {self.layer}: {n_queries} queries × {n_keys} keys"
        )


@dataclass(frozen=True, eq=False, repr=False)
class HeadPatterns(Shown):
    """The maps of all sites on one window, and the tokens of their queries and keys.

    `texts` holds the spelling of tokens, with a blank where a word begins; most sites share one entry.
    """

    texts: tuple[tuple[str, ...], ...]
    sites: tuple[SitePatterns, ...]

    def __post_init__(self) -> None:
        for patterns in self.sites:
            for side, text, size in (
                ("queries", patterns.query_text, patterns.levels.shape[1]),
                ("keys", patterns.key_text, patterns.levels.shape[2]),
            ):
                if not 0 <= text < len(self.texts) or len(self.texts[text]) != size:
                    raise UsageError(
                        f"the patterns of layer {patterns.layer} have {size} {side}, and text {text} of "
                        f"{len(self.texts)} does not name a token for each"
                    )

    def at(self, site: Site) -> SitePatterns | None:
        """The maps of a site; None where it has none."""
        place = (site.stack, site.kind, site.layer)
        return next((part for part in self.sites if (part.stack, part.kind, part.layer) == place), None)

    def _card(self) -> Card:
        n_heads = sum(len(part.levels) for part in self.sites)
        tokens = counted(max(map(len, self.texts), default=0), "token")
        return Card(
            f"patterns of {counted(n_heads, 'head')} at {counted(len(self.sites), 'site')}, on {tokens} of one window",
            end=("`patterns.at(site).weights(head)` gives the weights of one head.",),
        )
