"""Dense masks made by hand, and what a mechanism gives against them, with gradients, in float64."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from headscope.attention.call import Call, Output
from headscope.attention.sparse.explicit_softmax import explicit_attention


def with_gradients(call: Call, run: Callable[[Call], Output]) -> list[Tensor]:
    """Output, log-sum-exp, and the gradients of q, k and v through both."""
    leaves = {name: getattr(call, name).detach().clone().requires_grad_() for name in ("q", "k", "v")}
    output = run(replace(call, **leaves))
    assert output.lse is not None
    seen = output.lse != -torch.inf
    total = output.out.square().sum() + output.lse[seen].sin().sum()
    return [output.out.detach(), output.lse.detach(), *torch.autograd.grad(total, list(leaves.values()))]


def assert_same(call: Call, run: Callable[[Call], Output], allowed: Tensor, atol: float = 1e-11) -> None:
    """That `run` is attention over the pairs that the mask and the call allow."""
    exact = with_gradients(call, lambda given: explicit_attention(given, given.visible() & allowed))
    for got, wanted in zip(with_gradients(call, run), exact, strict=True):
        assert torch.allclose(got, wanted, atol=atol)
