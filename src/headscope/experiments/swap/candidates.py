"""The mechanisms that a search tries on a head: windows that keep the first token, from narrow to wide.

Heads that have nothing to say rest on the first token, so a window without it is no candidate: on smollm2 a plain
window of 256 multiplies the perplexity by 2.3.
"""

from dataclasses import dataclass

from headscope.attention.mechanism import Mechanism
from headscope.attention.mechanism_spelling import spelling_of
from headscope.attention.mechanisms.band_sparse import BandSparse
from headscope.core import Site

WIDTHS = (32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class Candidate:
    """A mechanism in its spelling, and the pairs of queries and keys that a head then computes."""

    spelling: str
    mechanism: Mechanism
    pairs: float


def candidates(site: Site, searched: int, target: int) -> tuple[Candidate, ...]:
    """The mechanisms for the heads of a site, the cheapest first, with the pairs that they compute at `target` tokens.

    Each hides some keys of a text of `searched` tokens: otherwise the search would not see what it costs. There are
    none for a site whose scores have more in them than queries and keys, or that limits its keys already.
    """
    if site.kind != "self" or site.extras or site.window is not None:
        return ()
    mechanisms = [BandSparse(width, 0 if site.causal else width, (0,)) for width in WIDTHS if 2 * width <= searched]
    listed = [Candidate(spelling_of(mechanism), mechanism, _pairs(mechanism, target)) for mechanism in mechanisms]
    return tuple(candidate for candidate in listed if candidate.pairs < full_pairs(site, target))


def full_pairs(site: Site, n: int) -> float:
    """The pairs that a head of the model computes: every key that it may see."""
    return n * (n + 1) / 2 if site.causal else float(n * n)


def _pairs(mechanism: Mechanism, n: int) -> float:
    return mechanism.cost(n, 1).flops / 4.0  # two products of two operations for each pair and channel
