r"""The stream of a pre-norm model as a sum of what its parts write.

A layer whose output is its input plus what its parts add leaves the stream a sum:
$r_L = r_0 + \sum_{l<L} \left(\sum_h \phi_l(z_h W_{O,h}) + \phi_l(b_O) + m_l\right)$, with $\phi$ the identity in most
families, a factor in some, a norm at its scale in others (Gemma 2 norms what its parts add). Whether this holds is read
off one short forward: from the output of each layer, additions alone must lead back to its input, and what they add
must be its attention and its feed-forward part. A model that norms the stream itself (BERT) is refused.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from headscope.core.site import Site, Stack
from headscope.errors import HeadscopeError, VariantRefused
from headscope.model.session.places import first_of_layers, layer_inputs, layer_outputs
from headscope.model.tracing.norms import Norm, recognise
from headscope.model.tracing.tensor_trail import Key, constant_factor

if TYPE_CHECKING:
    from headscope.model.model import Model


@dataclass(frozen=True)
class Route:
    """What happens to the output of an attention on its way into the stream: a factor, or a norm."""

    factor: float = 1.0
    norm: Norm | None = None

    def followed(self, part: Tensor, attn_out: Tensor, attn_add: Tensor) -> Tensor:
        """What a part of `attn_out` adds to the stream, where the whole of it adds `attn_add`."""
        if self.norm is None:
            return part if self.factor == 1.0 else part * self.factor
        return self.norm.linear(part, self.norm.scale(attn_out, attn_add))


@dataclass(frozen=True)
class StreamSum:
    """The layers of one stack, by their sites, and the route of each attention into the stream.

    A route is None where it is not known what each head writes: then the attention of the site writes as a whole.
    `without_mlp`: the sites of layers that add no feed-forward part.
    """

    stack: Stack
    layers: tuple[tuple[Site, ...], ...]
    routes: dict[Site, Route | None]
    without_mlp: frozenset[Site]


def find_stream_sum(model: "Model", stack: Stack) -> StreamSum:
    """The stream of a stack as a sum.

    Raises:
        VariantRefused: It is not the sum of what its parts write; the message says why.
    """
    finder = _SumFinder(model, stack)
    return StreamSum(stack, finder.layers, finder.check(), frozenset(finder.without_mlp))


class _SumFinder:
    """Checks each layer of a stack in the forward that was followed."""

    def __init__(self, model: "Model", stack: Stack) -> None:
        self._model, self._map = model, model.stream_map
        self._trail = self._map.trail
        sites = [site for site in model.sites if site.stack == stack]
        numbers = dict.fromkeys(site.layer for site in sites)
        self.layers = tuple(tuple(site for site in sites if site.layer == number) for number in numbers)
        self._terms = {sum_.result: sum_.operands for sum_ in self._trail.sums.values()}
        self.without_mlp: list[Site] = []

    def check(self) -> dict[Site, Route | None]:
        inputs, outputs = layer_inputs(self._model).by_site, layer_outputs(self._model).by_site
        before: Key | None = None
        routes: dict[Site, Route | None] = {}
        first_sites = [site for site in first_of_layers(self._model) if site.stack == self.layers[0][0].stack]
        for first, sites in zip(first_sites, self.layers, strict=True):
            entered = self._trail.step(inputs[first].module, inputs[first].call)
            left = self._trail.step(outputs[first].module, outputs[first].call)
            if entered is None or left is None or entered.incoming is None or left.gave is None:
                raise self._refusal(first, "no tensor of the stream was seen there")
            if before is not None and entered.incoming != before:
                raise self._refusal(first, "something happens to the stream between two layers")
            self._check_layer(first, sites, entered.incoming, left.gave)
            routes |= {site: self._route(site) for site in sites}
            before = left.gave
        return routes

    def _check_layer(self, first: Site, sites: tuple[Site, ...], entered: Key, left: Key) -> None:
        joins = [self._map.attention_join(site) for site in sites]
        try:
            joins.append(self._map.feed_forward_join(first))
        except HeadscopeError:
            self.without_mlp.append(first)
        expected = [entered, *(self._map.sum_of(join).operands[join.operand] for join in joins)]
        terms = self._leaves(left, frozenset(expected))
        if entered not in terms:
            raise self._refusal(first, "its output is not its input plus what its parts add (it norms the stream)")
        if sorted(terms) != sorted(expected):
            raise self._refusal(first, "it adds something else than its attention and its feed-forward part")

    def _leaves(self, key: Key, known_keys: frozenset[Key]) -> list[Key]:
        """The summands of a tensor: additions are opened until a known one, or something that is no sum, is reached."""
        if key in known_keys or key not in self._terms:
            return [key]
        a, b = self._terms[key]
        return [*self._leaves(a, known_keys), *self._leaves(b, known_keys)]

    def _route(self, site: Site) -> Route | None:
        """What is between the output projection of a site and the stream; None where the projection is not known."""
        projections = self._model.plan(site).projections
        if projections is None:
            return None
        join = self._map.attention_join(site)
        added = self._map.sum_of(join).operands[join.operand]
        incoming = self._trail.step(projections.o.module, join.call)
        if incoming is None or incoming.gave is None:
            raise self._refusal(site, "the output of its attention was not seen")
        if incoming.gave == added:
            return Route()
        for step in self._trail.givers(added, join.block):
            if step.incoming == incoming.gave:
                norm = recognise(step.module, self._model.hf.get_submodule(step.module), self._model.spec.d_model)
                if norm is not None:
                    return Route(norm=norm)
        factor = constant_factor(self._trail.tensor(incoming.gave), self._trail.tensor(added))
        if factor is None:
            raise self._refusal(site, "what happens to the output of its attention before it is added is not known")
        return Route(factor)

    def _refusal(self, site: Site, why: str) -> VariantRefused:
        return VariantRefused(
            f"the stream of {self._model.spec.family} models is not known as a sum of what its parts write: at "
            f"{site.label} {why}"
        )
