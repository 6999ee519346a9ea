"""The queries of earlier steps: a cache keeps keys and values only, and some mechanisms need all queries.

A landmark of Nyström attention is a mean of queries, and a truncated map needs all its rows: a row of their output
depends on the other queries. While such a mechanism stands in for heads of a model that generates with a cache, the
session remembers what those heads asked, and hands the mechanism the whole call at every step.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscope.attention.call import Call
from headscope.attention.mechanism import Mechanism
from headscope.core.site import Site
from headscope.errors import CaptureError


@dataclass(frozen=True)
class _EarlierQueries:
    """The queries of one group of heads so far, and the keys that they saw."""

    q: Float[Tensor, "batch heads queries d_head"]
    k: Float[Tensor, "batch kv_heads keys d_head"]
    positions: Int[Tensor, "rows queries"]


class PastQueries:
    """By site and mechanism, the queries since position 0."""

    def __init__(self) -> None:
        self._earlier: dict[tuple[Site, Mechanism], _EarlierQueries] = {}

    def full_call(self, site: Site, mechanism: Mechanism, call: Call, offset: int) -> Call:
        """The call with the queries of earlier steps before its own; `offset` is the position of its first one."""
        earlier = self._earlier.get((site, mechanism))
        if offset:
            call = self._continued(site, mechanism, call, offset, earlier)
        self._earlier[site, mechanism] = _EarlierQueries(call.q, call.k, call.query_positions)
        return call

    def _continued(
        self, site: Site, mechanism: Mechanism, call: Call, offset: int, earlier: _EarlierQueries | None
    ) -> Call:
        if earlier is None or earlier.q.shape[2] < offset:
            raise _refusal(site, mechanism, "it was not there when the earlier tokens were read")
        if call.mask is not None or call.bias is not None:
            raise _refusal(site, mechanism, "this family hands a mask or bias over for the newest queries only")
        n_keys = min(earlier.k.shape[2], call.k.shape[2])
        if not torch.equal(*(_by_heads(k, call.q.shape[1])[:, :, :n_keys] for k in (earlier.k, call.k))):
            raise _refusal(site, mechanism, "the cached keys are not those that it saw then (a beam search moves them)")
        return replace(
            call,
            q=torch.cat([earlier.q[:, :, :offset], call.q], dim=2),
            query_positions=torch.cat([earlier.positions[:, :offset], call.query_positions], dim=1),
        )


def _by_heads(k: Tensor, n_heads: int) -> Tensor:
    """The keys of each head: heads may share them in one call and have copies of their own in another."""
    batch, kv_heads, keys, width = k.shape
    return k[:, :, None].expand(batch, kv_heads, n_heads // kv_heads, keys, width).flatten(1, 2)


def _refusal(site: Site, mechanism: Mechanism, why: str) -> CaptureError:
    return CaptureError(
        f"{site.label}: {mechanism!r} needs the queries of every token, and {why}",
        hint="generate without a cache (cache=False), greedily or by sampling",
    )
