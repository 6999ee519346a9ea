r"""Call and Output: the input and the result of an attention mechanism.

One attention call on a batch, as the model makes it:

$s_{ij} = \mathrm{softcap}(\text{scale}\; q_i \cdot k_j) + \text{bias}_{ij}$ over the keys that query i may see,
$p_{ij} = e^{s_{ij}} / (e^{\text{sink}} + \sum_j e^{s_{ij}})$, $\text{out}_i = \sum_j p_{ij} v_j$.

Which keys a query may see goes by positions, never by index, so that a cached decode step and a prefill are
the same thing: key j is visible to query i when

$-\text{right} \le \text{query\_position}_i - \text{key\_position}_j \le \text{left}$,

key j is not padding, and `mask`, where the model has a stranger one, allows it. Causal is `right = 0`; a
sliding window of w keys is `left = w - 1`. None is no limit.
"""

from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headscope.errors import UsageError


@dataclass(frozen=True)
class Call:
    """One attention call: tensors, positions, and everything that shapes the scores."""

    q: Float[Tensor, "batch heads queries d_head"]
    k: Float[Tensor, "batch kv_heads keys d_head"]
    v: Float[Tensor, "batch kv_heads keys d_value"]
    scale: float
    query_positions: Int[Tensor, "rows queries"]  # rows: 1 (shared by the batch) or batch
    key_positions: Int[Tensor, "rows keys"]
    left: int | None = None
    right: int | None = None
    key_padding: Bool[Tensor, "batch keys"] | None = None  # True where the key is real
    mask: Bool[Tensor, "mask_batch mask_heads queries keys"] | None = None  # True where allowed
    bias: Float[Tensor, "bias_batch bias_heads queries keys"] | None = None
    softcap: float | None = None
    sinks: Float[Tensor, " heads"] | None = None

    def __post_init__(self) -> None:
        if self.q.shape[1] % self.k.shape[1]:
            raise UsageError(f"{self.q.shape[1]} query heads cannot share {self.k.shape[1]} key/value heads evenly")

    @property
    def causal(self) -> bool:
        """Whether no query sees a later key."""
        return self.right == 0

    @property
    def groups(self) -> int:
        """Query heads per key/value head."""
        return self.q.shape[1] // self.k.shape[1]

    @cached_property
    def offset(self) -> int | None:
        """`query_position_0 - key_position_0` for positions without gaps, else None.

        The positions must agree within the batch.

        With it the visible set is a band of the index matrix: key index j is visible to query index i when
        `-right ≤ i + offset - j ≤ left`.
        """
        for positions in (self.query_positions, self.key_positions):
            first = positions[:, :1]
            steps = torch.arange(positions.shape[1], device=positions.device)
            if not torch.equal(positions - first, steps.expand_as(positions)):
                return None
        offsets = self.query_positions[:, 0] - self.key_positions[:, 0]
        return int(offsets[0]) if bool((offsets == offsets[0]).all()) else None

    @property
    def plain(self) -> bool:
        """Whether only dot products and a band shape the call.

        There is no padding, stray mask, bias, softcap or sink.
        """
        extras = (self.key_padding, self.mask, self.bias, self.softcap, self.sinks)
        return all(extra is None for extra in extras)

    def visible(self) -> Bool[Tensor, "mask_batch mask_heads queries keys"]:
        """The dense mask of the definition: True where query i may see key j.

        The mask is broadcastable.
        """
        ahead = self.query_positions[:, None, :, None] - self.key_positions[:, None, None, :]
        allowed = torch.ones_like(ahead, dtype=torch.bool)
        if self.left is not None:
            allowed = allowed & (ahead <= self.left)
        if self.right is not None:
            allowed = allowed & (ahead >= -self.right)
        if self.key_padding is not None:
            allowed = allowed & self.key_padding[:, None, None, :]
        return allowed if self.mask is None else allowed & self.mask

    def to(self, device: torch.device) -> "Call":
        """The same call with all its tensors on another device.

        It is the call itself where they are there already.
        """
        if self.q.device == device:
            return self
        tensors = {field.name: getattr(self, field.name) for field in fields(self)}
        tensors_on_device: dict[str, Any] = {
            name: value.to(device) for name, value in tensors.items() if isinstance(value, Tensor)
        }
        return replace(self, **tensors_on_device)

    def within(self, left: int | None, right: int | None) -> "Call":
        """The same call with a narrower band."""
        return replace(self, left=_narrower(self.left, left), right=_narrower(self.right, right))

    def take(self, queries: slice, keys: slice) -> "Call":
        """The part of this call in a block of query and key indices.

        The tensors are views, not copies.
        """
        block = replace(
            self,
            q=self.q[:, :, queries],
            k=self.k[:, :, keys],
            v=self.v[:, :, keys],
            query_positions=self.query_positions[:, queries],
            key_positions=self.key_positions[:, keys],
            key_padding=None if self.key_padding is None else self.key_padding[:, keys],
            mask=None if self.mask is None else self.mask[:, :, queries, keys],
            bias=None if self.bias is None else self.bias[:, :, queries, keys],
        )
        if self.offset is not None and queries.step is None and keys.step is None:
            # Known without looking at the positions again, which would cost more than a small block.
            block.__dict__["offset"] = self.offset + (queries.start or 0) - (keys.start or 0)
        return block

    def part(self, batch: slice, kv_heads: slice) -> "Call":
        """The part of this call for some sequences and some key/value heads.

        The tensors are views, not copies.
        """
        heads = slice(kv_heads.start * self.groups, kv_heads.stop * self.groups)

        def of(x: Tensor | None) -> Tensor | None:
            if x is None:
                return None
            x = x if x.shape[0] == 1 else x[batch]
            return x if x.shape[1] == 1 else x[:, heads]

        shared = self.query_positions.shape[0] == 1
        return replace(
            self,
            q=self.q[batch, heads],
            k=self.k[batch, kv_heads],
            v=self.v[batch, kv_heads],
            query_positions=self.query_positions if shared else self.query_positions[batch],
            key_positions=self.key_positions if shared else self.key_positions[batch],
            key_padding=None if self.key_padding is None else self.key_padding[batch],
            mask=of(self.mask),
            bias=of(self.bias),
            sinks=None if self.sinks is None else self.sinks[heads],
        )

    def heads(self, heads: tuple[int, ...]) -> "Call":
        """The part of this call for some query heads, with one key/value head each."""
        index = list(heads)
        kv = [h // self.groups for h in heads]
        per_head = slice(None) if self.mask is None or self.mask.shape[1] == 1 else index
        bias_heads = slice(None) if self.bias is None or self.bias.shape[1] == 1 else index
        return replace(
            self,
            q=self.q[:, index],
            k=self.k[:, kv],
            v=self.v[:, kv],
            mask=None if self.mask is None else self.mask[:, per_head],
            bias=None if self.bias is None else self.bias[:, bias_heads],
            sinks=None if self.sinks is None else self.sinks[index],
        )


@dataclass(frozen=True)
class Output:
    """The mixed values, and each row's log-sum-exp where the mechanism is a softmax.

    `lse` is over the visible keys without the sink; a row that sees no key has out = 0 and lse = −∞.
    """

    out: Float[Tensor, "batch heads queries d_value"]
    lse: Float[Tensor, "batch heads queries"] | None = None


@lru_cache(maxsize=1024)
def head_index(heads: tuple[int, ...]) -> slice | Int[Tensor, " heads"]:
    """An index of some heads: a slice where they are neighbours, which copies nothing."""
    first, last = heads[0], heads[-1] + 1
    return slice(first, last) if heads == tuple(range(first, last)) else torch.tensor(heads)


def _narrower(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)
