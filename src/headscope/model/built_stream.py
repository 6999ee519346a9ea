"""Finds in a built model how its heads read the stream: norms, and turns by position."""

from functools import cached_property
from typing import TYPE_CHECKING

from headscope.core.site import Site, Stack
from headscope.core.stream_reading import Rotary, StreamNorm, StreamReading
from headscope.errors import HeadscopeError, WeightsRefused
from headscope.model.session.captures import QUANTITIES, WatchedQuantity
from headscope.model.session.places import Spots, first_of_stacks, last_of_stacks, layer_inputs
from headscope.model.tracing.embedding_tables import output_head, token_table
from headscope.model.tracing.norms import Norm
from headscope.model.tracing.rotary_planes import find_rotary
from headscope.model.tracing.tensor_trail import constant_factor
from headscope.model.transformers.attention_products import AttentionProducts
from headscope.model.transformers.library_messages import quiet, reason
from headscope.model.transformers.model_state import restored

if TYPE_CHECKING:
    from headscope.model.model import Model


class BuiltStream:
    """The norms and the turns of a built model, found when they are first asked for."""

    def __init__(self, model: "Model", products: AttentionProducts | None) -> None:
        self._model, self._products = model, products

    def reading(self) -> StreamReading:
        """The norms between the stream and the heads."""
        return self._reading

    @cached_property
    def _reading(self) -> StreamReading:
        model = self._model
        with model.lock:
            norms = self._spots("x_scale")
            before: dict[Site, StreamNorm | None] = {}
            unclear: dict[Site, str] = {}
            for site in model.sites:
                spot = norms.by_site.get(site)
                if spot is not None and spot.norm is not None:
                    before[site] = _plain(spot.norm)
                elif self._reads_the_stream(site):
                    before[site] = None
                else:
                    unclear[site] = norms.missing.get(site, "the norm before it is not known")
            after, not_a_sum = self._sums()
            between = self._between_table_and_layer()
            return StreamReading(before, after, unclear, self._final(), not_a_sum, between, self._output())

    @cached_property
    def _turns(self) -> dict[Site, Rotary | str | None]:
        model = self._model
        with model.lock, model.outside_sessions(), quiet(), restored(model.hf):
            try:
                return find_rotary(model.hf, model.sites, self._products)
            except Exception as error:  # noqa: BLE001  a family may do anything with such codes
                why = f"its positions could not be probed ({reason(error)})"
                return dict.fromkeys(model.sites, why)

    def rotary(self, site: Site) -> Rotary | None:
        """How a site turns its queries and keys; None where it does not."""
        turn = self._turns[site]
        if isinstance(turn, str):
            raise WeightsRefused(f"{site.label}: {turn}")
        return turn

    def _spots(self, name: str) -> Spots:
        quantity = QUANTITIES[name]
        if not isinstance(quantity, WatchedQuantity):
            raise WeightsRefused(f"{name} is not watched at a place")
        return self._model.spots(quantity)

    def _reads_the_stream(self, site: Site) -> bool:
        try:
            with self._model.outside_sessions(), quiet(), restored(self._model.hf):
                return self._model.stream_map.reads_the_stream(site, "x")
        except HeadscopeError:
            return False

    def _sums(self) -> tuple[dict[Site, StreamNorm], dict[Stack, str]]:
        """The norms of what sites add, and the stacks whose stream is no sum."""
        after: dict[Site, StreamNorm] = {}
        not_a_sum: dict[Stack, str] = {}
        for stack in dict.fromkeys(site.stack for site in self._model.sites):
            try:
                routes = self._model.stream_sum(stack).routes
            except HeadscopeError as refusal:
                not_a_sum[stack] = refusal.message
                continue
            after |= {site: _plain(route.norm) for site, route in routes.items() if route and route.norm}
        return after, not_a_sum

    def _final(self) -> StreamNorm | None:
        last_sites = last_of_stacks(self._model)  # empty where attention lies in no list of layers
        spot = self._spots("final_scale").by_site.get(last_sites[-1]) if last_sites else None
        return None if spot is None or spot.norm is None else _plain(spot.norm)

    def _output(self) -> str:
        """The role of the table that logits are read with, directly behind the final norm."""
        model = self._model
        head, table = output_head(model.hf), token_table(model.hf)
        last_sites = last_of_stacks(model)
        if head is None or not last_sites:
            return ""
        try:
            with model.outside_sessions(), quiet(), restored(model.hf):
                model.stream_map.factor_before_logits(last_sites[-1])
        except (HeadscopeError, KeyError):
            return ""
        return "token" if getattr(table, "weight", None) is head.weight else "output"

    def _between_table_and_layer(self) -> str:
        """What the first layer receives besides the vectors of the token table."""
        model, stream = self._model, self._model.stream_map
        with model.outside_sessions(), quiet(), restored(model.hf):
            for site in first_of_stacks(model):
                spot = stream.embeddings().by_site.get(site)
                if spot is None:
                    continue
                layer = layer_inputs(model).by_site[site]
                table, entered = stream.trail.step(spot.module, spot.call), stream.trail.step(layer.module, layer.call)
                if table is None or entered is None or table.gave is None or entered.incoming is None:
                    return "what enters the first layer was not seen"
                vectors, inputs = stream.trail.tensor(table.gave), stream.trail.tensor(entered.incoming)
                if table.gave != entered.incoming and constant_factor(vectors, inputs) is None:
                    return "the first layer receives more than the vectors of the token table (positions, or a norm)"
        return ""


def _plain(norm: Norm) -> StreamNorm:
    return StreamNorm(norm.centred, norm.gain.detach().cpu(), norm.bias.detach().cpu())
