"""Causal linear attention by the kernel, for one sequence."""

import ctypes

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.attention.compiled.build import library
from headscope.attention.compiled.row_kernel import integers, pointers

FEATURES = {"identity": 0, "elu": 1, "relu": 2}
WIDEST = 512


def causal_linear(
    q: Float[Tensor, "heads n d_head"],
    k: Float[Tensor, "kv_heads n d_head"],
    v: Float[Tensor, "kv_heads n d_value"],
    *,
    feature: str,
    normalise: bool,
) -> Float[Tensor, "heads n d_value"]:
    r"""$\sum_{j \le i} (\varphi(q_i) \cdot \varphi(k_j))\, v_j$.

    With `normalise` it is divided by its weights.

    Everything is float32, the state is carried on in float64 now and then; no gradients.
    """
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    out = q.new_empty(q.shape[1], len(q), v.shape[-1]).transpose(0, 1)
    library().headscope_linear(
        *pointers(q, k, v, out),
        integers(*(stride for x in (q, k, v, out) for stride in x.stride()[:2])),
        integers(len(q), len(k), q.shape[1], q.shape[2], v.shape[2], FEATURES[feature], int(normalise)),
        ctypes.c_int64(torch.get_num_threads()),
    )
    return out
