"""One site: its kept windows stacked, and what its heads give with constant weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headscope.core import Site
from headscope.lenses.transport.sums import Shape, WindowSums


@dataclass(frozen=True)
class Counts:
    """How much of a site was used; `same_shape` windows have their shape, `other_shape` another one."""

    skip: int
    queries: int
    windows: int
    fewest: int
    same_shape: int
    other_shape: int


@dataclass(frozen=True)
class Stacked:
    """The windows of the commonest shape, in float64 head by head; the first `skip` queries are left out of all laws.

    `same_shape` windows have this shape, `other_shape` another one. `weights` are the mean weights over the even and
    over the odd windows, `uniform` those of uniform attention.
    """

    site: Site
    skip: int
    same_shape: int
    other_shape: int
    odd: Bool[Tensor, "windows"]
    x: Float[Tensor, "windows queries d_model"]
    z: Float[Tensor, "windows heads queries d_value"]
    v: Float[Tensor, "windows kv_heads keys d_value"]
    weights: Float[Tensor, "halves heads queries keys"]
    uniform: Float[Tensor, "queries keys"]

    @classmethod
    def of(cls, sums_by_shape: Mapping[Shape, WindowSums], site: Site, skip: int) -> "Stacked | None":
        """Stacked; None where a half has no window, or no window two tokens behind those left out."""
        shape = max(sums_by_shape, key=lambda size: (sums_by_shape[size].count, size), default=None)
        if shape is None or shape[0] < skip + 2:
            return None
        sums = sums_by_shape[shape]
        odd = torch.tensor([part.index % 2 == 1 for part in sums.parts])
        if bool(odd.all()) or not bool(odd.any()):
            return None
        counts = torch.tensor([-(-sums.count // 2), sums.count // 2], dtype=torch.float64)
        visible = (sums.weights > 0).any(0).any(0).to(torch.float64)
        return cls(
            site,
            skip,
            sums.count,
            sum(other.count for other in sums_by_shape.values()) - sums.count,
            odd,
            torch.stack([part.x for part in sums.parts]),
            torch.stack([part.z for part in sums.parts]),
            torch.stack([part.v for part in sums.parts]),
            sums.weights / counts[:, None, None, None],
            visible / visible.sum(-1, keepdim=True).clamp_min(1.0),
        )

    @property
    def queries(self) -> int:
        """Tokens of each window that are looked at, those left out included."""
        return self.x.shape[1]

    @property
    def windows(self) -> int:
        """Windows in the sample."""
        return len(self.x)

    @property
    def fewest(self) -> int:
        """Windows of the smaller half."""
        return min(int(self.odd.sum()), int((~self.odd).sum()))

    @property
    def counts(self) -> "Counts":
        """What is said about it."""
        return Counts(self.skip, self.queries, self.windows, self.fewest, self.same_shape, self.other_shape)

    def values(self, head: int) -> Float[Tensor, "windows keys d_value"]:
        """The values that a head reads."""
        return self._values[self.site.kv_head(head)]

    @cached_property
    def _values(self) -> Float[Tensor, "kv_heads windows keys d_value"]:
        return self.v.movedim(1, 0).to(torch.float64)

    @cached_property
    def mixed(self) -> Float[Tensor, "halves windows heads queries d_value"]:
        """What heads would give with the mean weights of the even windows, and with those of the odd ones."""
        heads = range(self.site.n_heads)
        return torch.stack([self.weights[:, None, head] @ self.values(head) for head in heads], 2)

    def flat(self, head: int) -> Float[Tensor, "windows queries d_value"]:
        """What it would give with uniform attention over the keys that are visible."""
        return self._flat[self.site.kv_head(head)]

    @cached_property
    def _flat(self) -> Float[Tensor, "kv_heads windows queries d_value"]:
        return self.uniform @ self._values
