"""The mechanisms that a search tries on a head: windows that keep the first token, and what the user names.

Heads that have nothing to say rest on the first token, so a window without it is no candidate: on smollm2 a plain
window of 256 multiplies the perplexity by 2.3. There are few candidates: heads of a layer that share one are
computed in one call. Windows are masks of positions, so that plans of them can be exported and cached steps stay cheap.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from headscope.attention.call import Call
from headscope.attention.kept_keys import stored_keys
from headscope.attention.mechanism import Mechanism
from headscope.attention.mechanism_spelling import spelled, spelling_of
from headscope.attention.mechanisms.band_sparse import BandSparse
from headscope.core import Site

WIDTHS = (64, 256, 1024, 2048)
TWO_SIDED_WIDTHS = (8, 16, 32, 64, 128, 256, 1024)  # on each side: encoders read short texts
SAMPLED = 256  # queries on which pairs are counted


@dataclass(frozen=True)
class Candidate:
    """A mechanism in its spelling, and what heads that attend through it spend: pairs, or numbers in the cache."""

    spelling: str
    mechanism: Mechanism
    spent: float


def candidates(site: Site, searched: int, target: int, named: Sequence[str] = ()) -> tuple[Candidate, ...]:
    """The mechanisms for the heads of a site, the cheapest first, with the pairs that they compute at `target` tokens.

    `named` are the spellings of further ones. Each window hides some keys of a text of `searched` tokens: otherwise the
    search would not see what it costs. There are none for a site whose scores have more in them than queries and keys,
    or that limits its keys already.
    """
    if not _can_be_searched(site):
        return ()
    listed = [
        Candidate(spelling_of(mechanism), mechanism, computed_pairs(mechanism, site, target))
        for mechanism in _mechanisms(site, searched, named)
    ]
    return _cheaper(listed, full_pairs(site, target))


def cache_candidates(site: Site, searched: int, target: int, named: Sequence[str] = ()) -> tuple[Candidate, ...]:
    """The mechanisms for the kv groups of a site, the smallest cache first, with the numbers it holds of one group.

    Properties:
        - those that the cache really holds  (tested: test_the_numbers_of_a_cache_are_those_that_it_holds)
    """
    if not _can_be_searched(site) or not site.causal:
        return ()
    listed = [
        Candidate(
            spelling_of(mechanism),
            mechanism,
            cached_numbers(site, len(stored_keys(frozenset({mechanism}), target, target))),
        )
        for mechanism in _mechanisms(site, searched, named)
    ]
    return _cheaper(listed, cached_numbers(site, target))


def cached_numbers(site: Site, keys: int) -> float:
    """The numbers that these keys of one kv group and their values hold."""
    return float(keys * (site.d_head + site.d_value))


def _can_be_searched(site: Site) -> bool:
    return site.kind == "self" and not site.extras and site.window is None


def _mechanisms(site: Site, searched: int, named: Sequence[str]) -> list[Mechanism]:
    return [*_bands(site, searched), *map(spelled, named)]


def _bands(site: Site, searched: int) -> list[Mechanism]:
    if site.causal:
        return [BandSparse(width, 0, (0,)) for width in WIDTHS if 2 * width <= searched]
    return [BandSparse(width, width, (0,)) for width in TWO_SIDED_WIDTHS if 4 * width <= searched]


def _cheaper(listed: list[Candidate], full: float) -> tuple[Candidate, ...]:
    return tuple(sorted((entry for entry in listed if entry.spent < full), key=lambda entry: entry.spent))


def full_pairs(site: Site, n: int) -> float:
    """The pairs that a head of the model computes: every key that it may see."""
    return n * (n + 1) / 2 if site.causal else float(n * n)


def computed_pairs(mechanism: Mechanism, site: Site, n: int) -> float:
    """The pairs of queries and keys that a mechanism computes on a head of a site, at n tokens.

    The limits of the site count: a window without a right end sees no later key in a causal model. Pairs are counted
    on `SAMPLED` queries, evenly spread, or on all of a shorter text. Where queries and keys decide, or where the
    mechanism is no softmax over a set of keys, it is the stated work of calls without limits, as pairs; never more
    than all pairs.

    Properties:
        - those of the mask for every mechanism that has one  (tested: test_pairs_are_those_of_the_mask)
    """
    full = full_pairs(site, n)
    d = site.d_head
    stated = min(full, mechanism.cost(n, d).flops / (4.0 * d))  # two products of two operations for each channel
    if mechanism.needs_all_queries:
        return stated
    count = min(n, SAMPLED)
    queries = (torch.arange(count)[None] * n + n // 2) // count
    keys = torch.arange(n)[None]
    right = 0 if site.causal else None
    call = Call(torch.zeros(1, 1, count, 1), torch.zeros(1, 1, n, 1), torch.zeros(1, 1, n, 1), 1.0, queries, keys,
                right=right)  # fmt: skip
    softmax_call = mechanism.seen(call) if mechanism.supports(call) is None else None
    return stated if softmax_call is None else float(softmax_call.visible().sum()) * n / count
