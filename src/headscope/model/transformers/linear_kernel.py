"""The products of linear layers by oneDNN (`attention.float32_products`); without it layers compute as always."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from headscope.attention.float32_products import has_kernel, kernel, serves
from headscope.attention.sparse.shared_heads import Fill, Share

# Products of more multiplications are computed in parts of so many rows, whatever the number of threads.
LARGE = 2**26
ROWS = 256


def _one_after_the_other(fill: Fill, parts: Iterable[slice]) -> None:
    for part in parts:
        fill(part)


@contextmanager
def onednn_linear(model: nn.Module, share: Share = _one_after_the_other) -> Iterator[None]:
    """Let the linear layers of a model multiply by oneDNN, in this thread and as long as the context lasts.

    Args:
        model: The model, or a part of it.
        share: Computes the parts of a large product.

    Properties:
        - the product of the layer up to rounding  (tested: test_the_product_up_to_rounding)
        - the same bytes however large products are shared  (tested: test_sharing_changes_no_byte)
        - other threads, gradients and other precisions see torch's own product
          (tested: test_what_the_kernel_does_not_serve_is_as_always)
        - nothing is left of it afterwards  (tested: test_nothing_is_left)
    """
    # A layer of another class, or with a forward of its own, computes more than a product.
    layers = [module for module in model.modules() if type(module) is nn.Linear and "forward" not in vars(module)]
    patched = layers if has_kernel() else []
    owner = threading.get_ident()
    for layer in patched:
        vars(layer)["forward"] = _forward(layer, owner, share)
    try:
        yield
    finally:
        for layer in patched:
            del vars(layer)["forward"]


def _forward(layer: nn.Linear, owner: int, share: Share) -> Callable[[Tensor], Tensor]:
    plain_forward = layer.forward

    def forward(x: Tensor) -> Tensor:
        if threading.get_ident() != owner or not serves(x, layer.weight):
            return plain_forward(x)
        return _product(x, layer.weight, layer.bias, share)

    return forward


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, share: Share) -> Tensor:
    rows = x.reshape(-1, x.shape[-1])
    if len(rows) * weight.numel() < LARGE or len(rows) <= ROWS:
        return _multiplied(x, weight, bias)
    product = x.new_empty(len(rows), len(weight))

    def fill(part: slice) -> None:
        product[part] = _multiplied(rows[part], weight, bias)

    share(fill, [slice(first, first + ROWS) for first in range(0, len(rows), ROWS)])
    return product.view(*x.shape[:-1], -1)


def _multiplied(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = kernel()(x, weight, bias, "none", [], "")
    return product
