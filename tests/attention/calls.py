"""Calls of every kind that a model can make, at odd sizes, for the tests of mechanisms and statistics."""

from collections.abc import Callable
from dataclasses import replace

import torch

from headscope.attention.call import Call


def make(
    queries: int = 37,
    keys: int | None = None,
    *,
    batch: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    d_head: int = 16,
    d_value: int | None = None,
    size: float = 1.0,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    right: int | None = 0,
    left: int | None = None,
) -> Call:
    """Gaussian q, k, v of the given shape; the queries are the last positions of the keys."""
    keys = queries if keys is None else keys
    generator = torch.Generator().manual_seed(seed)

    def normal(some_heads: int, length: int, width: int) -> torch.Tensor:
        return torch.randn(batch, some_heads, length, width, generator=generator, dtype=torch.float64).to(dtype)

    return Call(
        q=normal(heads, queries, d_head) * size,
        k=normal(kv_heads, keys, d_head),
        v=normal(kv_heads, keys, d_value or d_head),
        scale=d_head**-0.5,
        query_positions=torch.arange(keys - queries, keys)[None],
        key_positions=torch.arange(keys)[None],
        left=left,
        right=right,
    )


def _noise(call: Call, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(9)).to(call.q.dtype)


def _padded(call: Call) -> Call:
    real = torch.ones(call.q.shape[0], call.k.shape[2], dtype=torch.bool)
    real[1, -5:] = False
    return replace(call, key_padding=real)


def _left_padded(call: Call) -> Call:
    real = torch.ones(call.q.shape[0], call.k.shape[2], dtype=torch.bool)
    real[1, :5] = False  # the first queries of the second sequence see nothing
    return replace(call, key_padding=real)


def _masked(call: Call) -> Call:
    mask = _noise(call, 1, 1, call.q.shape[2], call.k.shape[2]) > 0
    mask[..., 3, :] = False  # one query that sees nothing
    return replace(call, mask=mask)


def _biased(call: Call) -> Call:
    return replace(call, bias=_noise(call, 1, call.q.shape[1], call.q.shape[2], call.k.shape[2]))


def _gaps(call: Call) -> Call:
    positions = torch.arange(call.k.shape[2])[None] * 3
    return replace(call, query_positions=positions, key_positions=positions)


KINDS: dict[str, Callable[[], Call]] = {
    "causal": make,
    "full": lambda: make(right=None),
    "one token": lambda: make(1),
    "two tokens": lambda: make(2, batch=1, heads=1, kv_heads=1),
    "causal window": lambda: make(left=5),
    "window on both sides": lambda: make(left=4, right=7),
    "decode step": lambda: make(1, 29),
    "chunk after a cache": lambda: make(6, 29),
    "many heads on one": lambda: make(heads=6, kv_heads=1),
    "other value width": lambda: make(d_value=24),
    "padding on the right": lambda: _padded(make()),
    "padding on the left": lambda: _left_padded(make()),
    "stray mask": lambda: _masked(make(right=None)),
    "bias": lambda: _biased(make()),
    "bias in an encoder": lambda: _biased(make(right=None)),
    "softcap": lambda: replace(make(size=5.0), softcap=3.0),
    "sinks": lambda: replace(make(), sinks=_noise(make(), 4)),
    "sinks in a window": lambda: replace(make(left=5), sinks=_noise(make(), 4)),
    "gaps in the positions": lambda: _gaps(make()),
    "cross": lambda: replace(make(11, 23, right=None), query_positions=torch.arange(11)[None]),
    "peaked": lambda: make(size=30.0),
    "longer than a block": lambda: make(300, batch=1, d_head=8),
    "long window": lambda: make(700, batch=1, heads=2, d_head=8, left=40),
    "everything": lambda: replace(_padded(_biased(make(left=20))), softcap=4.0, sinks=_noise(make(), 4)),
}


def non_contiguous(call: Call) -> Call:
    """The same numbers with strides that transformers really passes: heads and positions swapped in memory."""

    def swapped(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2).contiguous().transpose(1, 2)

    return replace(call, q=swapped(call.q), k=swapped(call.k), v=swapped(call.v))
