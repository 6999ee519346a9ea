"""A live model of a family that computes its attention itself: what of it can be shown and changed, and why not."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from headscope.attention.mechanism import Mechanism
from headscope.core.site import Site
from headscope.errors import CaptureError
from headscope.model.session import axes
from headscope.model.session.attention_calls import AttentionCalls
from headscope.model.session.captures import (
    QUANTITIES,
    InputQuantity,
    MapQuantity,
    OutputQuantity,
    Quantity,
    WatchedQuantity,
)
from headscope.model.session.live_model import LiveModel, Reached
from headscope.model.session.softmax_calls import SoftmaxCalls
from headscope.model.transformers.attention_hook import implementation
from headscope.model.transformers.attention_products import AttentionHandler, ProductWatch
from headscope.model.transformers.softmax_watch import SoftmaxSites

if TYPE_CHECKING:
    from headscope.model.model import Model


class SoftmaxModel(LiveModel):
    """A live model whose attention is watched at its softmaxes and products."""

    def __init__(self, model: "Model", softmax_sites: SoftmaxSites) -> None:
        self._softmax_sites = softmax_sites
        self._products = softmax_sites.products
        super().__init__(model)
        self.key_dropping.obstacle = "this family computes its attention itself"

    def _answers(self) -> AttentionCalls:
        calls = SoftmaxCalls(self.registered, self.windows, self._softmax_sites, self.attended_to)
        self._watch = ProductWatch(self._products, calls, self.model.spec.family, self.is_live)
        return calls

    def _open(self, stack: ExitStack) -> None:
        stack.enter_context(implementation(self.hf, "eager"))
        self._open_forwards(stack)
        stack.enter_context(self._watch)

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super()._begin(module, args, kwargs)
        if self.is_live():
            self._watch.begin()

    def _end(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        super()._end(module, args, output)
        if self.is_live():
            self._watch.end(output)

    def interrupted(self) -> None:
        """A forward ended, maybe in the middle: nothing of it is left."""
        super().interrupted()
        self._watch.end(None)

    @property
    def shown(self) -> frozenset[str]:
        """What can be captured of this model."""
        return frozenset(
            name
            for name, quantity in QUANTITIES.items()
            if not self._obstacle(quantity)
            and (not isinstance(quantity, WatchedQuantity) or self.model.spots(quantity).by_site)
        )

    def _obstacle(self, quantity: Quantity) -> str:
        """Why a quantity cannot be captured at any site; empty where it can.

        Places say themselves at which sites they are missing.
        """
        if isinstance(quantity, InputQuantity):
            # Values are known without queries and keys.
            return self._products.refusal if axes.D_VALUE in quantity.axes else self._products.score_refusal
        if isinstance(quantity, OutputQuantity):
            return self._products.refusal
        if isinstance(quantity, MapQuantity):
            return self._map_obstacle(quantity)
        if not isinstance(quantity, WatchedQuantity):
            return "it is not known where it could be read"
        if quantity.needs == "layers" and not self._softmax_sites.streams:
            return "its layers are not given what the ones before them gave, so the stream between them is not known"
        return ""

    def _map_obstacle(self, quantity: MapQuantity) -> str:
        if quantity.cut is None or (quantity.of == "scores" and self._softmax_sites.scores):
            return self._call_obstacle()
        return ""

    def _call_obstacle(self) -> str:
        """Why not all that shapes the scores is known."""
        if self._products.score_refusal:
            return self._products.score_refusal
        places = [place.scores for place in self._products.products.values()]
        return self._softmax_sites.scores if any(place is None or place.adds != "nothing" for place in places) else ""

    def entries(self, names: tuple[str, ...]) -> tuple[Quantity, ...]:
        """The entries of these names; raises where the model does not show one of them."""
        quantities = super().entries(names)
        for quantity in quantities:
            if why := self._obstacle(quantity):
                raise self._refusal(f"the {quantity.name}", "captured", why)
        return quantities

    def check_change(self, verb: str, quantity: Quantity) -> None:
        """Raise where a quantity cannot be changed."""
        why = self._obstacle(quantity)
        if isinstance(quantity, InputQuantity) and axes.D_VALUE not in quantity.axes:
            why = why or self._products.change_refusal
        if isinstance(quantity, MapQuantity):
            why = why or self._products.refusal or (self._softmax_sites.scores if quantity.of == "scores" else "")
        if why:
            raise self._refusal(f"the {quantity.name}", verb, why)

    def check_gradient(self, quantity: Quantity) -> None:
        """Raise where the gradient by a quantity cannot be followed: where it could not be changed."""
        self.check_change("followed by a gradient", quantity)

    def check_replacement(self, mechanism: Mechanism) -> None:
        """Raise where heads cannot attend through another mechanism."""
        if why := self._call_obstacle():
            raise self._refusal("the attention", f"replaced by {mechanism!r}", why)

    def _refusal(self, what: str, verb: str, why: str) -> CaptureError:
        return CaptureError(
            f"{what} of {self.model.spec.family} models cannot be {verb}: {why}",
            hint=f"what can be captured: {', '.join(name for name in QUANTITIES if name in self.shown)}",
        )

    def inputs_of(
        self, site: Site, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Mapping[str, Tensor]:
        """Queries, keys and values of a second run of the module that attends."""
        if why := self._products.score_refusal or self._products.change_refusal:
            raise self._refusal("the inputs of the attention", "changed for one head", why)
        inputs = _Inputs()
        with self.suspended(), self._watch.again(inputs):
            try:
                module(*args, **kwargs)
            except Reached:
                return inputs.tensors
        raise CaptureError(f"{site.label}: its module does not attend")


class _Inputs(AttentionHandler):
    """Keeps queries, keys and values, and ends the run."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    def inputs(self, site: Site, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Keep queries and keys."""
        self.tensors = {"q": q, "k": k}
        return q, k

    def values(self, site: Site, v: Tensor) -> Tensor:
        """Keep the values; all is known now."""
        self.tensors["v"] = v
        raise Reached
