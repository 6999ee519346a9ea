"""Lets the heads of one large attention call be computed by several threads.

torch shares a call among its own threads. A measurement gives torch one thread and keeps the others for lenses; where
these have nothing to do, they take heads.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

Fill = Callable[[slice], None]
# Does the work for each slice, on one or several threads.
Share = Callable[[Fill, Sequence[slice]], object]

# Calls with fewer multiplications of queries and keys are not worth another thread's attention.
LARGE = 2**26


class _OfThisThread(threading.local):
    share: Share | None = None


_here = _OfThisThread()


@contextmanager
def heads_shared(share: Share) -> Iterator[None]:
    """Let `share` distribute the heads of large calls of this thread, as long as the context lasts."""
    before, _here.share = _here.share, share
    try:
        yield
    finally:
        _here.share = before


def share_of(q: Tensor, k: Tensor) -> Share | None:
    """Who distributes the heads of a call; None where it is small, has one key head, or is recorded for gradients."""
    if _here.share is None or k.shape[1] == 1 or q.numel() * k.shape[2] < LARGE or torch.is_grad_enabled():
        return None
    return _here.share
