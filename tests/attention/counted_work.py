"""Count what a computation really does: the products that torch runs, and the memory that it allocates."""

import math
from collections.abc import Callable

import torch
from torch.autograd.profiler import profile
from torch.utils.flop_counter import FlopCounterMode

Shape = torch.Size


def _batch(shape: Shape) -> int:
    return math.prod(shape[:-2])


def _flash(q: Shape, k: Shape, v: Shape, *_: object, **__: object) -> float:
    return 2.0 * _batch(q) * q[-2] * k[-2] * (q[-1] + v[-1])


def _cholesky(a: Shape, *_: object, **__: object) -> float:
    return _batch(a) * a[-1] ** 3 / 3


def _two_triangles(b: Shape, factor: Shape, *_: object, **__: object) -> float:
    return _batch(b) * 2.0 * factor[-1] ** 2 * b[-1]


def _svd(a: Shape, *_: object, **__: object) -> float:
    return _batch(a) * 20.0 * a[-1] ** 3


def _pseudo_inverse(a: Shape, *_: object, **__: object) -> float:
    return _svd(a) + _batch(a) * 2.0 * a[-1] ** 3


_ATEN = torch.ops.aten
# What torch's own counter does not know.
_FORMULAS = {
    _ATEN._scaled_dot_product_flash_attention_for_cpu: _flash,
    _ATEN.linalg_cholesky_ex: _cholesky,
    _ATEN.cholesky_solve: _two_triangles,
    _ATEN._linalg_svd: _svd,
    _ATEN.linalg_pinv: _pseudo_inverse,
}


def counted_flops(compute: Callable[[], object]) -> float:
    """The operations of every matrix product, factor and system that the computation runs."""
    with torch.no_grad():
        compute()  # what is found once and cached, such as whether torch has a flash kernel, is not counted
        with FlopCounterMode(display=False, custom_mapping=_FORMULAS) as counter:
            compute()
    return float(counter.get_total_flops())


def counted_bytes(compute: Callable[[], object]) -> int:
    """The most that torch's allocator holds at a time more than the computation leaves behind."""
    with torch.no_grad():
        compute()  # what is made once and cached, such as plans and masks, is not counted
        with profile(profile_memory=True) as recorded:
            result = compute()
    events = sorted((e.start_ns(), e.nbytes()) for e in recorded.kineto_results.events() if e.name() == "[memory]")
    held = peak = 0
    for _, change in events:
        held += change
        peak = max(peak, held)
    del result
    return peak - held
