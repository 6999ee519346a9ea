"""The kernel on tensors: rows of softmax attention in a band, for one sequence.

The band is one of the index matrix.
"""

import ctypes
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.attention.compiled.build import library

FAR = 1 << 60  # a limit that never bites
MOST_BANDS = 16
BANDS = 12  # the numbers of a row that the kernel keeps before those of the bands


@dataclass(frozen=True)
class RowSums:
    """Output and log-sum-exp of every row, and sums of e = exp(score − top).

    The sums are in float64 and come with statistics only.

    `sums[..., i]` is 0 top, 1 Σe, 2 Σe·(top − s), 3 Σe²; of the keys at or before the query 4 Σe, 5 their mean index
    under e and 6 Σe·(index − mean)²; 7 to 9 the same of the keys after it; 10 e of the first key, 11 e of the query's
    own position; from 12 on Σe over each band.
    """

    out: Float[Tensor, "heads queries d_value"]
    lse: Float[Tensor, "heads queries"]
    sums: Float[Tensor, "heads queries sums"] | None


def row_sums(
    q: Float[Tensor, "heads queries d_head"],
    k: Float[Tensor, "kv_heads keys d_head"],
    v: Float[Tensor, "kv_heads keys d_value"],
    *,
    scale: float,
    left: int | None,
    right: int | None,
    offset: int,
    centre: Float[Tensor, "kv_heads d_head"] | None = None,
    first: int = 0,
    bands: tuple[int, ...] | None = None,
    into: tuple[Float[Tensor, "heads queries d_value"], Float[Tensor, "heads queries"]] | None = None,
) -> RowSums:
    """Run the kernel: query i sees key j when −right ≤ i + offset − j ≤ left.

    It takes float32 on the CPU; `bands` asks for statistics.

    Output and log-sum-exp are written `into` tensors where they are given (the latter contiguous). `centre` is
    subtracted from the keys: the softmax does not change, the log-sum-exp does. No gradients.
    """
    heads, queries, width = q.shape
    kv_heads, keys, d_value = v.shape
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    centre = torch.zeros(kv_heads, width) if centre is None else centre.contiguous()
    # Heads and positions swapped in memory, as torch's own kernel writes.
    if into is None:
        into = q.new_empty(queries, heads, d_value).transpose(0, 1), q.new_empty(heads, queries)
    out, lse = into
    sums = None if bands is None else torch.empty(heads, queries, BANDS + len(bands), dtype=torch.float64)
    limits = [FAR if limit is None else limit for limit in (left, right)]
    library().headscope_rows(
        *pointers(q, k, v, centre, out, lse, sums),
        integers(*(stride for x in (q, k, v, out) for stride in x.stride()[:2])),
        integers(heads, kv_heads, queries, keys, width, d_value, *limits, offset, len(bands or ()), first),
        integers(*(bands or ())),
        ctypes.c_float(scale),
        ctypes.c_int64(torch.get_num_threads()),
    )
    return RowSums(out, lse, sums)


def integers(*values: int) -> "ctypes.Array[ctypes.c_int64]":
    """A pointer of the type `const int64_t*` in C."""
    return (ctypes.c_int64 * max(1, len(values)))(*values)


def pointers(*tensors: Tensor | None) -> tuple[ctypes.c_void_p, ...]:
    """Addresses of the numbers of each tensor; null where there is none."""
    return tuple(ctypes.c_void_p(0 if x is None else x.data_ptr()) for x in tensors)
