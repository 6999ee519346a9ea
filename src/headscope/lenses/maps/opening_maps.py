"""The maps of every head on the first tokens of the first window, rounded to bytes as they are seen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from headscope.core import HeadPatterns, Site, SitePatterns
from headscope.core.head_patterns import LARGEST_LEVEL


@dataclass(frozen=True)
class OpeningMap:
    """The maps of one site as `SitePatterns` holds them, and the tokens of its queries and keys."""

    levels: UInt8[Tensor, "heads queries keys"]
    largest: Float[Tensor, " heads"]
    queries: tuple[str, ...]
    keys: tuple[str, ...]


def opening_map(weights: Float[Tensor, "heads queries keys"], spelling: Sequence[str], n_real: int) -> OpeningMap:
    r"""Round the maps of one window: level $\mathrm{round}(255 \sqrt{w / \max w})$.

    Tokens that the spelling does not name, such as those of another source, are known by their numbers.
    """
    inner = weights[:, :n_real].to(torch.float64)
    inner = inner[..., :n_real] if weights.shape[1] == weights.shape[2] else inner
    largest = inner.amax((1, 2))
    shares = inner / largest.clamp_min(torch.finfo(torch.float64).tiny)[:, None, None]
    levels = (shares.clamp_min(0).sqrt() * LARGEST_LEVEL).round().to(torch.uint8)
    queries, keys = (_tokens(size, spelling) for size in inner.shape[1:])
    return OpeningMap(levels, largest, queries, keys)


def head_patterns(maps_by_site: Mapping[Site, OpeningMap]) -> HeadPatterns | None:
    """The maps of all sites with their tokens, each text once; None where there are no maps."""
    texts = {text: place for place, text in enumerate(_texts(maps_by_site))}
    patterns = [
        SitePatterns(
            site.stack,
            site.kind,
            site.layer,
            site.causal,
            opening.levels.numpy(),
            opening.largest.numpy(),
            texts[opening.queries],
            texts[opening.keys],
        )
        for site, opening in maps_by_site.items()
    ]
    return HeadPatterns(tuple(texts), tuple(patterns)) if patterns else None


def _texts(maps_by_site: Mapping[Site, OpeningMap]) -> dict[tuple[str, ...], None]:
    return dict.fromkeys(text for opening in maps_by_site.values() for text in (opening.queries, opening.keys))


def _tokens(size: int, spelling: Sequence[str]) -> tuple[str, ...]:
    return tuple(spelling[:size]) if len(spelling) >= size else tuple(f" {place}" for place in range(size))
