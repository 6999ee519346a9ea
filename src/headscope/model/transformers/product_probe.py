"""Forwards on a few random tokens that show what a model multiplies, or change some of it.

`ProbeForward` only notes softmaxes and products. `SilencedScores` sets the queries of chosen products to 0 and
`OtherOutputs` replaces what heads give, to see what follows from them. Each forward reads the same tokens.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headscope.core.site import Site
from headscope.model.transformers.attention_hook import implementation
from headscope.model.transformers.attention_products import SOFTMAX, ScoreProduct, ValueProduct
from headscope.model.transformers.matrix_products import Product, read_product
from headscope.model.transformers.probe_inputs import forward_options, probe_inputs

# Functions by which a model multiplies what heads give by a matrix.
_READERS = {nn.functional.linear, torch.addmm, Tensor.addmm, torch.mm, Tensor.mm, torch.matmul, Tensor.matmul,
            Tensor.__matmul__, torch.bmm, Tensor.bmm, torch.einsum, torch.conv1d}  # fmt: skip


class Unclear(Exception):
    """Why a product was not found, or does not pass a check."""


@dataclass(frozen=True)
class ProductStep:
    """One product of a forward, with its result."""

    product: Product
    result: Tensor


@dataclass(frozen=True)
class SoftmaxStep:
    """One softmax of a forward: what reached it, and what it gave."""

    reached: Tensor
    result: Tensor


class ProbeForward(TorchFunctionMode):
    """One forward: its softmaxes, and the products before each of them and after the last."""

    def __init__(self) -> None:
        super().__init__()
        self.softmaxes: list[SoftmaxStep] = []
        self.products: list[list[ProductStep]] = [[]]
        self._running = False

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of products before each softmax, and after the last."""
        return tuple(len(steps) for steps in self.products)

    def run(self, model: Any) -> None:
        """Run the model, and note what its body does."""
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(implementation(model, "eager"))
            # Either may run without the other: some heads call the parts of the body, not the body itself.
            for module in {id(part): part for part in (model, model.base_model)}.values():
                stack.callback(module.register_forward_pre_hook(self._begin).remove)
                stack.callback(module.register_forward_hook(self._end, always_call=True).remove)
            stack.enter_context(self)
            model(**probe_inputs(model, batch=2), **forward_options(model))

    def _begin(self, module: nn.Module, args: Any) -> None:
        self._running, self.softmaxes, self.products = True, [], [[]]

    def _end(self, module: nn.Module, args: Any, output: Any) -> None:
        self._running = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if not self._running:
            return func(*args, **options)
        self._read(func, args)
        if func in SOFTMAX:
            reached = args[0] if args else options["input"]
            result = self._softmax(func(*args, **options))
            # Copies: a family may go on in place.
            self.softmaxes.append(SoftmaxStep(reached.clone(), result.clone()))
            self.products.append([])
            return result
        product = read_product(func, args, options)
        if product is None:
            return func(*args, **options)
        before = replace(product, left=product.left.clone(), right=product.right.clone())
        result = self._product(product)
        self.products[-1].append(ProductStep(before, result.clone()))
        return result

    def _read(self, func: Any, args: tuple[Any, ...]) -> None:
        """See the operands of a function before it runs."""

    def _softmax(self, result: Tensor) -> Tensor:
        return result

    def _product(self, product: Product) -> Tensor:
        return product.run()


class SilencedScores(ProbeForward):
    """The queries of some products are 0, and every softmax gives what it gave in a plain forward.

    So nothing changes but what reaches each softmax.
    """

    def __init__(self, plain: ProbeForward, silenced: Mapping[int, ScoreProduct]) -> None:
        super().__init__()
        self._plain, self._silenced = plain, silenced

    def _softmax(self, result: Tensor) -> Tensor:
        before = self._plain.softmaxes[len(self.softmaxes)].result
        if before.shape != result.shape:
            raise Unclear("it attends in another way from one forward to the next")
        return before.clone()

    def _product(self, product: Product) -> Tensor:
        place = self._silenced.get(len(self.softmaxes))
        if place is None or place.number != len(self.products[-1]):
            return product.run()
        if place.q_is_left:
            return product.compute(torch.zeros_like(product.left), product.right)
        return product.compute(product.left, torch.zeros_like(product.right))


class OtherOutputs(ProbeForward):
    """Random numbers take the place of what the heads give; those of one head are 0.

    `read` holds the softmaxes of the sites after which a matrix reads 0 as often as this head gives it.
    """

    def __init__(self, values: Mapping[int, ValueProduct], sites: Mapping[int, Site]) -> None:
        super().__init__()
        self._values, self._sites = values, sites
        self._generator = torch.Generator().manual_seed(0)
        self._awaited: tuple[int, int] | None = None
        self.read: set[int] = set()

    def _product(self, product: Product) -> Tensor:
        result = product.run()
        number = len(self.softmaxes) - 1
        place = self._values.get(number)
        if place is None or place.number != len(self.products[-1]):
            return result
        z = place.z.read(result)
        other = (torch.rand(z.shape, generator=self._generator) + 0.5).to(z.device, z.dtype)
        other[:, number % self._sites[number].n_heads] = 0.0
        self._awaited = number, int((other == 0).sum())
        return place.z.write(other).contiguous()

    def _read(self, func: Any, args: tuple[Any, ...]) -> None:
        if self._awaited is None or func not in _READERS:
            return
        number, zeros = self._awaited
        if any(isinstance(value, Tensor) and int((value == 0).sum()) == zeros for value in args):
            self.read.add(number)
            self._awaited = None
