"""Products of query heads with shared key/value heads, without copies."""

from jaxtyping import Float
from torch import Tensor


def grouped_products(
    q: Float[Tensor, "batch heads queries width"], k: Float[Tensor, "batch kv_heads keys width"]
) -> Float[Tensor, "batch heads queries keys"]:
    r"""$q_i \cdot k_j$ for every pair, each query head with its own key head."""
    batch, heads, queries, width = q.shape
    stacked = q.reshape(batch, k.shape[1], heads // k.shape[1] * queries, width)
    return (stacked @ k.transpose(-1, -2)).reshape(batch, heads, queries, k.shape[2])


def grouped_mix(
    weights: Float[Tensor, "batch heads queries keys"], v: Float[Tensor, "batch kv_heads keys d_value"]
) -> Float[Tensor, "batch heads queries d_value"]:
    r"""$\sum_j w_{ij} v_j$, each query head with its own value head."""
    batch, heads, queries, keys = weights.shape
    stacked = weights.reshape(batch, v.shape[1], heads // v.shape[1] * queries, keys)
    return (stacked @ v).reshape(batch, heads, queries, v.shape[-1])
