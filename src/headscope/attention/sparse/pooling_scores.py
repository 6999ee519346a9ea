r"""Scores of attention pooling: how well a key answers a query.

| name | score of q and k |
|---|---|
| `dot` | $q \cdot k$ |
| `scaled_dot` | $\text{scale}\; q \cdot k$, the scale of the call |
| `general` | $q^\top W k$ (Luong et al., Effective Approaches to Attention-based Neural Machine Translation) |
| `additive` | $u \cdot \tanh(W_q q + W_k k)$ (Bahdanau et al., Neural Machine Translation by Jointly Learning) |
| `gaussian` | $-|q - k|^2 / (2 \sigma^2)$, the kernel of Nadaraya and Watson |

All but `additive` are products, and are taken in float64: without a scale that keeps them small, a float32 score of
some hundreds would leave a weight with five digits. The additive one is bounded by $\sum |u|$.
"""

from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.attention.sparse.grouped_heads import grouped_products

SCORES = ("scaled_dot", "dot", "general", "additive", "gaussian")

Heads = Float[Tensor, "batch heads queries d_head"]
Keys = Float[Tensor, "batch kv_heads keys d_head"]
Pairs = Float[Tensor, "batch heads queries keys"]


def dot(q: Heads, k: Keys, scale: float) -> Pairs:
    """Scaled products; `general` is this with W on the side of the query."""
    return grouped_products(q.double() * scale, k.double())


def gaussian(q: Heads, k: Keys, sigma: float) -> Pairs:
    """Minus half the squared distance, in units of sigma."""
    q, k = q.double() / sigma, k.double() / sigma
    groups = q.shape[1] // k.shape[1]
    lengths = k.square().sum(dim=-1).repeat_interleave(groups, dim=1)
    return grouped_products(q, k) - (q.square().sum(dim=-1)[..., None] + lengths[:, :, None, :]) / 2


def additive(
    queries: Float[Tensor, "batch heads queries hidden"],
    keys: Float[Tensor, "batch kv_heads keys hidden"],
    u: Float[Tensor, "some_heads hidden"],
) -> Pairs:
    """The additive scores of projected queries and keys.

    Holds one number for each pair and hidden unit, so the caller gives few rows.
    """
    keys = keys.repeat_interleave(queries.shape[1] // keys.shape[1], dim=1)
    hidden = torch.tanh(queries[:, :, :, None] + keys[:, :, None])
    return (hidden @ u[None, :, None, :, None])[..., 0]


@cache
def random_weight(*shape: int, seed: int) -> Tensor:
    """A Gaussian weight where none was learnt, of variance one over the last width."""
    generator = torch.Generator().manual_seed(seed)
    weight: Tensor = torch.randn(*shape, generator=generator, dtype=torch.float64) * shape[-1] ** -0.5
    return weight
