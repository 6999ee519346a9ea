"""Lets a function answer every attention call of a model: from q, k and v to z, in any family.

Families of the attention interface are answered there (`attention_hook`), the others where they multiply
(`attention_products`).
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from headscope.core.site import Site
from headscope.model.transformers.attention_hook import as_transformers, implementation, tapped
from headscope.model.transformers.attention_products import AttentionHandler, AttentionProducts, ProductWatch
from headscope.model.transformers.call_reader import RawCall

# From the site (None where it is not among those given), q, k and v, all by heads, to what the heads give.
Answer = Callable[[Site | None, Tensor, Tensor, Tensor], Tensor]


@contextmanager
def answered(
    model: Any, sites: tuple[Site, ...], answer: Answer, products: AttentionProducts | None = None
) -> Iterator[None]:
    """Let `answer` attend in place of the model; `products` are those of a family that computes attention itself."""
    if products is None:
        with tapped(model, _Dispatched(model, sites, answer)):
            yield
        return
    watch = ProductWatch(products, _Multiplied(answer), model.config.model_type)
    with implementation(model, "eager"), watch.on(model):
        yield


class _Dispatched:
    """Answers calls of the attention interface."""

    def __init__(self, model: Any, sites: tuple[Site, ...], answer: Answer) -> None:
        self._names = {id(module): name for name, module in model.named_modules()}
        self._sites = {(site.module, site.call): site for site in sites}
        self._calls: Counter[str] = Counter()
        self._answer = answer

    def __call__(self, raw: RawCall) -> Tensor:
        name = self._names[id(raw.module)]
        site = self._sites.get((name, self._calls[name]))
        self._calls[name] += 1
        return as_transformers(self._answer(site, raw.query, raw.key, raw.value))


class _Multiplied(AttentionHandler):
    """Answers where pattern and values are multiplied, with the queries and keys that were multiplied before."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._inputs: list[Tensor] = []

    def inputs(self, site: Site, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Keep queries and keys."""
        self._inputs = [q, k]
        return q, k

    def values(self, site: Site, v: Tensor) -> Tensor:
        """Keep the values."""
        self._inputs.append(v)
        return v

    def output(self, site: Site, z: Tensor) -> Tensor:
        """Answer the call."""
        q, k, v = self._inputs
        return self._answer(site, q, k, v)
