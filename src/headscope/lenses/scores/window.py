"""The rows of scores of one site in one window, with the queries, keys and tokens behind them."""

from dataclasses import dataclass
from math import inf

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headscope.attention.maps import sampled_rows
from headscope.core import Site
from headscope.lenses.lens import Batch


@dataclass(frozen=True)
class Window:
    """Scores, queries and keys of one site in one window."""

    site: Site
    scale: float
    skip: int
    q: Float[Tensor, "heads n d"]
    k: Float[Tensor, "kv_heads keys d"]
    rows: Float[Tensor, "heads rows keys"]
    real: Bool[Tensor, " n"]
    x: Float[Tensor, "n m"] | None

    @property
    def index(self) -> Int[Tensor, " rows"]:
        """The queries of the rows."""
        return torch.arange(self.q.shape[1])[sampled_rows(self.q.shape[1])]

    @property
    def real_keys(self) -> Bool[Tensor, " keys"]:
        """Keys that are not padding; in another stack, keys that some query sees."""
        if self.site.kind == "self" and len(self.real) == self.k.shape[1]:
            return self.real
        return torch.isfinite(self.rows).any(0).any(0)

    def products(self) -> Float[Tensor, "heads rows keys"]:
        """scale · q·k, −∞ where masked: the rows themselves, unless a bias or a cap was put on them."""
        if not bent(self.site):
            return self.rows
        k = self.k.double().repeat_interleave(self.site.n_heads // self.site.n_kv_heads, 0)
        raw = self.scale * self.q[:, self.index].double() @ k.mT
        return raw.masked_fill(~torch.isfinite(self.rows), -inf)

    def counted(self) -> Bool[Tensor, "heads rows"]:
        """Rows that count: real, not left out, with two keys that are not left out."""
        visible = torch.isfinite(self.rows)
        visible[..., : self.skip] = False
        return (self.real[self.index] & (self.index >= self.skip)) & (visible.sum(-1) >= 2)


def windows_of(site: Site, batch: Batch, skip: int) -> list[Window]:
    """The windows of a batch at one site."""
    captured = batch.captures
    q, k, rows = captured["q"][site], captured["k"][site], captured["rows"][site].double()
    scale = float(captured["scale"][site])
    x = captured.get("x", {}).get(site) if site.kind == "self" else None
    all_real = torch.ones(q.shape[0], q.shape[2], dtype=torch.bool)
    real = batch.real if batch.real.shape == all_real.shape else all_real
    return [Window(site, scale, skip, q[b], k[b], rows[b], real[b], None if x is None else x[b]) for b in range(len(q))]


def bent(site: Site) -> bool:
    """Whether something else than the product enters the scores."""
    return "bias" in site.extras or "softcap" in site.extras
