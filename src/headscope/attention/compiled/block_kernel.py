"""The kernel on blocks of queries over gathered keys, for one sequence.

It has the gradients of bands and blocks too.

Everything is float32 on the CPU; gradients are added to tensors that are contiguous and of one width, which
`padded` makes a whole number of vectors.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headscope.attention.compiled.build import library
from headscope.attention.compiled.row_kernel import FAR, integers, pointers

LANES = 16  # whole vectors on every processor that the kernel knows

Heads = Float[Tensor, "_ _ _"]  # heads or kv heads, rows, width


def block_rows(
    q: Heads,
    k: Heads,
    v: Heads,
    out: Heads,
    lse: Float[Tensor, "heads queries"],
    *,
    queries: Int[Tensor, "blocks rows"],
    keys: Int[Tensor, "blocks run"] | None,
    allowed: Bool[Tensor, "mask_blocks mask_rows run"] | None,
    scale: float,
    merges: bool,
) -> None:
    """Write output and log-sum-exp of the queries of all blocks, or merge with both."""
    run = k.shape[1] if keys is None else keys.shape[1]
    index, mask, shared = _plan(queries, keys, allowed)
    library().headscope_blocks(
        *pointers(q, k, v, out, lse),
        integers(*(stride for x in (q, k, v, out) for stride in x.stride()[:2])),
        integers(len(q), len(k), q.shape[1], q.shape[2], v.shape[2], *queries.shape, run),
        *pointers(*index, mask),
        ctypes.c_int64(shared),
        ctypes.c_int64(merges),
        ctypes.c_float(scale),
        ctypes.c_int64(torch.get_num_threads()),
    )


def block_gradients(
    qkv: tuple[Heads, Heads, Heads],
    rows: tuple[Heads, Float[Tensor, "heads queries"], Float[Tensor, "heads queries"]],
    grads: tuple[Heads, Heads, Heads],
    *,
    queries: Int[Tensor, "blocks rows"],
    keys: Int[Tensor, "blocks run"] | None,
    allowed: Bool[Tensor, "mask_blocks mask_rows run"] | None,
    scale: float,
) -> None:
    """Add the gradients of all blocks; `rows` are `row_values`."""
    q, k, v = qkv
    run = k.shape[1] if keys is None else keys.shape[1]
    index, mask, shared = _plan(queries, keys, allowed)
    library().headscope_block_gradients(
        *pointers(q, k, v, *rows, *grads),
        integers(len(q), len(k), q.shape[1], k.shape[1], q.shape[2], *queries.shape, run),
        *pointers(*index, mask),
        ctypes.c_int64(shared),
        ctypes.c_float(scale),
        ctypes.c_int64(torch.get_num_threads()),
    )


def band_gradients(
    qkv: tuple[Heads, Heads, Heads],
    rows: tuple[Heads, Float[Tensor, "heads queries"], Float[Tensor, "heads queries"]],
    grads: tuple[Heads, Heads, Heads],
    *,
    scale: float,
    left: int | None,
    right: int | None,
    offset: int,
) -> None:
    """Add the gradients of attention inside a band; `rows` as in `block_gradients`."""
    q, k, v = qkv
    limits = [FAR if limit is None else limit for limit in (left, right)]
    library().headscope_row_gradients(
        *pointers(q, k, v, *rows, *grads),
        integers(len(q), len(k), q.shape[1], k.shape[1], q.shape[2], *limits, offset),
        ctypes.c_float(scale),
        ctypes.c_int64(torch.get_num_threads()),
    )


def row_values(
    rows: tuple[Heads, Float[Tensor, "heads queries"]], grads: tuple[Heads, Float[Tensor, "heads queries"] | None]
) -> tuple[Heads, Float[Tensor, "heads queries"], Float[Tensor, "heads queries"]]:
    r"""The output's gradient $g$, the log-sum-exp, and $g_i \cdot o_i$.

    The gradient of the log-sum-exp is subtracted from the last.

    The last is what the softmax takes from the gradient of every weight of a row.
    """
    dots = (grads[0] * rows[0]).sum(dim=-1)
    dots = dots if grads[1] is None else dots - grads[1]
    return _padded(grads[0]), rows[1].contiguous(), dots.contiguous()


def padded(qkv: tuple[Heads, Heads, Heads]) -> tuple[Heads, Heads, Heads]:
    """Contiguous tensors whose width is a number of whole vectors."""
    q, k, v = (_padded(x) for x in qkv)
    return q, k, v


@contextmanager
def added_to(grads: tuple[Heads, Heads, Heads]) -> Iterator[tuple[Heads, Heads, Heads]]:
    """Tensors to which the kernel may add.

    Its additions go to `grads` where these are other tensors.
    """
    if all(grad.is_contiguous() and grad.shape[-1] % LANES == 0 for grad in grads):
        yield grads
        return
    q, k, v = (torch.zeros_like(_padded(grad)) for grad in grads)
    yield q, k, v
    for grad, added in zip(grads, (q, k, v), strict=True):
        grad.add_(added[..., : grad.shape[-1]])


def _padded(x: Heads) -> Heads:
    return F.pad(x, (0, -x.shape[-1] % LANES)).contiguous()


def _plan(
    queries: Tensor, keys: Tensor | None, allowed: Tensor | None
) -> tuple[tuple[Tensor, Tensor | None], Tensor | None, bool]:
    mask = None if allowed is None else allowed.expand(-1, queries.shape[1], -1).contiguous().view(torch.uint8)
    index = queries.long().contiguous(), None if keys is None else keys.long().contiguous()
    return index, mask, mask is not None and len(mask) == 1
