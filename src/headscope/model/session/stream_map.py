"""Finds the places between the parts of a layer: one short forward is followed tensor by tensor.

A place is where its tensor was seen: as the result of an addition, as what a module was given or gave. The additions
and their roles come from `tracing.skip_connections`. So there is no table of families.
"""

from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING

from torch import Tensor, nn

from headscope.core.site import Site
from headscope.errors import CaptureError, HeadscopeError, VariantRefused
from headscope.model.session.places import (
    Side,
    Spot,
    Spots,
    attention_outputs,
    first_of_layers,
    first_of_stacks,
    last_of_stacks,
    layer_inputs,
    layer_outputs,
    query_inputs,
    stack_outputs,
)
from headscope.model.tracing.embedding_tables import token_table
from headscope.model.tracing.norms import recognise
from headscope.model.tracing.skip_connections import Branches, Join
from headscope.model.tracing.tensor_trail import Key, Step, Sum, TensorTrail, constant_factor, follow

if TYPE_CHECKING:
    from headscope.model.model import Model

_STREAM_AXES = 3  # batch, tokens, d_model


class StreamMap:
    """Where the tensors of the stream pass, found in one short forward of a model."""

    def __init__(self, model: "Model") -> None:
        self._model = model
        self._hf = model.hf

    @cached_property
    def _branches(self) -> Branches | str:
        try:
            return self._model.branches()
        except VariantRefused as refusal:
            return refusal.message

    @cached_property
    def trail(self) -> TensorTrail:
        """The tensors of the forward; dropped with the map of the stream."""
        branches = self._branches
        return follow(self._hf, () if isinstance(branches, str) else branches.blocks)

    def embeddings(self) -> Spots:
        """The vectors of the tokens, at the first self-attention of each stack that reads tokens."""
        spots: dict[Site, Spot] = {}
        missing: dict[Site, str] = {}
        names = {id(module): name for name, module in self._hf.named_modules()}
        for site in first_of_stacks(self._model):
            stack = self._stack_module(site)
            table = token_table(stack)
            # Images and sounds enter by convolutions, which are no table.
            name = names.get(id(table)) if isinstance(table, nn.Embedding) else None
            calls = 0 if name is None else self.trail.n_calls[name]
            if name is None or not calls:
                missing[site] = "no table of token vectors is read"
                continue
            # A table that both stacks share is read by the encoder first.
            call = 0 if calls == 1 or site.stack != "dec" else calls - 1
            spots[site] = Spot((name,), "output", call, calls)
        return Spots(spots, missing)

    def logits(self) -> Spots:
        """The logits, at the last self-attention of the stack that writes."""
        site = last_of_stacks(self._model)[-1]
        head = self._hf.get_output_embeddings()
        names = {id(module): name for name, module in self._hf.named_modules()}
        if head is None or id(head) not in names:
            return Spots({}, {site: "the model has no output head that gives logits"})
        return Spots({site: Spot((names[id(head)],), "output")})

    def sums_after_attention(self) -> Spots:
        """The stream after the attention of each site and before the next part of its layer."""
        return self._joined(self._sum_spot)

    def attention_additions(self) -> Spots:
        """What the attention of each site adds to the stream."""
        return self._joined(self._operand_spot)

    def feed_forward_additions(self) -> Spots:
        """What the feed-forward part of each layer adds to the stream."""
        return self._by_layer(lambda site: self._operand_spot(self._feed_forward_join(site)))

    def feed_forward_inputs(self) -> Spots:
        """What enters the feed-forward part of each layer."""
        return self._by_layer(self._feed_forward_input)

    def feed_forward_activations(self) -> Spots:
        """What enters the matrix that leads back to the stream's width."""
        return self._by_layer(self._feed_forward_activation)

    def feed_forward_outputs(self) -> Spots:
        """What the feed-forward part of each layer gives."""
        return self._by_layer(self._feed_forward_output)

    def attention_inputs(self) -> Spots:
        """What enters the projections of each site, also where the weights are not known by head."""
        return self._completed(query_inputs(self._model), self._attention_input)

    def attention_outputs(self) -> Spots:
        """What the output projection of each site gives, also where the weights are not known by head."""
        return self._completed(attention_outputs(self._model), self._attention_output)

    def attention_norms(self) -> Spots:
        """The norm before the attention of each site."""
        inputs = self.attention_inputs()
        spots: dict[Site, Spot] = {}
        missing = dict(inputs.missing)
        for site, spot in inputs.by_site.items():
            self._into(spots, missing, site, partial(self._norm_before, spot, site))
        return Spots(spots, missing)

    def feed_forward_norms(self) -> Spots:
        """The norm before the feed-forward part of each layer."""
        return self._by_layer(lambda site: self._norm_before(self._feed_forward_input(site), site))

    def final_norms(self) -> Spots:
        """The norm after the last layer of each stack."""
        spots: dict[Site, Spot] = {}
        missing: dict[Site, str] = {}
        for site, spot in stack_outputs(self._model).by_site.items():
            self._into(spots, missing, site, partial(self._norm_after, spot))
        return Spots(spots, missing)

    def feed_forward_join(self, site: Site) -> Join:
        """The addition at which the feed-forward part of a site's layer joins the stream."""
        return self._feed_forward_join(site)

    def attention_join(self, site: Site) -> Join:
        """The addition at which the attention of a site joins the stream."""
        return self._known_branches().attention[site]

    def sum_of(self, join: Join) -> Sum:
        """The tensors of an addition in the forward that was followed."""
        return self.trail.sums[join.place, join.call]

    def reads_the_stream(self, site: Site, read: str) -> bool:
        """Whether a reader of a layer (`x` or `mlp_in`) is given the stream itself, without a norm."""
        if read == "x":
            spot = query_inputs(self._model).by_site.get(site)
            stream = self.trail.step(*self._entry(site))
            return spot is not None and stream is not None and self._given(spot) == stream.incoming
        return read == "mlp_in" and self._given(self._feed_forward_input(site)) == self._sum_before(site)

    def factor_before_logits(self, site: Site) -> float:
        """What the output head's input is of what the last norm gives: 1, or the factor between them (T5).

        Raises:
            CaptureError: Something else stands between the last norm and the output head.
        """
        norm = self._norm_after(stack_outputs(self._model).by_site[site])
        head = self.logits().by_site[site]
        normed, read = self.trail.step(norm.module, norm.call), self.trail.step(head.module, head.call)
        if normed is not None and read is not None and normed.gave is not None and read.incoming is not None:
            factor = (
                1.0
                if normed.gave == read.incoming
                else constant_factor(self.trail.tensor(normed.gave), self.trail.tensor(read.incoming))
            )
            if factor is not None:
                return factor
        raise CaptureError("something stands between the norm after the last layer and the output head")

    # -- how places are found

    def _entry(self, site: Site) -> tuple[str, int]:
        spot = layer_inputs(self._model).by_site[site]
        return spot.module, spot.call

    def _given(self, spot: Spot) -> Key | None:
        step = self.trail.step(spot.module, spot.call)
        return None if step is None else step.incoming

    def _sum_before(self, site: Site) -> Key | None:
        """The stream after the attention of a site's layer."""
        join = self.attention_join(site)
        return self.sum_of(join).result if join.only else None

    def _stack_module(self, site: Site) -> object:
        if site.stack == "enc":
            return self._hf.get_encoder()
        return self._hf.get_decoder() if site.stack == "dec" else self._hf

    def _known_branches(self) -> Branches:
        if isinstance(self._branches, str):
            raise VariantRefused(self._branches)
        return self._branches

    def _joined(self, spot_of: Callable[[Join], Spot]) -> Spots:
        spots: dict[Site, Spot] = {}
        missing: dict[Site, str] = {}
        for site in self._model.sites:
            self._into(spots, missing, site, partial(self._at_attention, spot_of, site))
        return Spots(spots, missing)

    def _at_attention(self, spot_of: Callable[[Join], Spot], site: Site) -> Spot:
        return spot_of(self.attention_join(site))

    def _by_layer(self, spot_of: Callable[[Site], Spot]) -> Spots:
        spots: dict[Site, Spot] = {}
        missing: dict[Site, str] = {}
        for site in first_of_layers(self._model):
            self._into(spots, missing, site, partial(spot_of, site))
        return Spots(spots, missing)

    @staticmethod
    def _into(spots: dict[Site, Spot], missing: dict[Site, str], site: Site, find_spot: Callable[[], Spot]) -> None:
        try:
            spots[site] = find_spot()
        except HeadscopeError as refusal:
            missing[site] = refusal.message

    def _sum_spot(self, join: Join) -> Spot:
        if not join.only:
            raise CaptureError(
                "its layer adds the attention and the feed-forward part together, so there is no stream between them"
            )
        result = self.sum_of(join).result
        readers = [step for step in self.trail.readers(result, join.block) if step.n_axes[0] == _STREAM_AXES]
        view = self._at(readers[:1], "input") if readers else None
        return self._addition(join, "sum", view)

    def _operand_spot(self, join: Join) -> Spot:
        givers = self.trail.givers(self.sum_of(join).operands[join.operand], join.block)
        return self._at(givers[-1:], "output") if givers else self._addition(join, "operand", None)

    def _addition(self, join: Join, side: Side, view: Spot | None) -> Spot:
        module, number = join.place
        calls = self.trail.n_calls[module]
        return Spot((module,), side, join.call, calls, number, join.operand, join.block, view)

    def _at(self, steps: list[Step], side: Side) -> Spot:
        modules = tuple(dict.fromkeys(step.module for step in steps))
        return Spot(modules, side, steps[0].call, self.trail.n_calls[steps[0].module])

    def _feed_forward_join(self, site: Site) -> Join:
        branches = self._known_branches()
        attention = branches.attention[site]
        joins = branches.feed_forward.get((attention.block, attention.call), ())
        if len(joins) != 1:
            raise CaptureError(
                "its layer has no feed-forward part that adds to the stream"
                if not joins
                else f"its layer has {len(joins)} feed-forward parts that add to the stream, not one"
            )
        return joins[0]

    @cached_property
    def _layers(self) -> dict[tuple[str, int], Spot]:
        """The module and the call of each layer."""
        return {(site.stack, site.layer): spot for site, spot in layer_outputs(self._model).by_site.items()}

    def _layer_steps(self, site: Site) -> list[Step]:
        """The calls inside the layer of a site."""
        layer = self._layers[site.stack, site.layer]
        return self.trail.steps_of(layer.module, layer.call)

    def _completed(self, known_keys: Spots, spot_of: Callable[[Site], Spot]) -> Spots:
        """The spots that are known, and those that the forward shows."""
        spots, missing = dict(known_keys.by_site), dict[Site, str]()
        for site, reason in known_keys.missing.items():
            try:
                spots[site] = spot_of(site)
            except HeadscopeError:
                missing[site] = reason
        return Spots({site: spots[site] for site in self._model.sites if site in spots}, missing)

    def _attention_input(self, site: Site) -> Spot:
        """What the first matrices of the attention read."""
        inside = f"{site.module}."
        steps = [step for step in self._layer_steps(site) if step.module.startswith(inside)]
        matrices = [step for step in steps if self._is_matrix(step)]
        if not matrices:
            raise CaptureError("its attention has no matrix")
        return self._at([step for step in matrices if step.incoming == matrices[0].incoming], "input")

    def _attention_output(self, site: Site) -> Spot:
        """What the last matrix of the attention gives; a norm or dropout may stand behind it."""
        join = self.attention_join(site)
        key: Key | None = self.sum_of(join).operands[join.operand]
        while givers := self.trail.givers(key, join.block):
            if self._is_matrix(givers[0]):
                return self._at(givers[:1], "output")
            is_container = next(self._hf.get_submodule(givers[0].module).children(), None) is not None
            key = None if is_container or givers[0].incoming == key else givers[0].incoming
        raise CaptureError("no matrix gives what its attention adds to the stream")

    def _is_matrix(self, step: Step) -> bool:
        """Whether a module multiplies by a matrix, in whatever way."""
        module = self._hf.get_submodule(step.module)
        weight = getattr(module, "weight", None)
        return isinstance(weight, Tensor) and weight.ndim == 2 and not isinstance(module, nn.Embedding)

    def _linears(self, site: Site) -> tuple[list[Step], Step] | None:
        """The calls of the matrices that read the stream, and of the one that leads back.

        None where the layer has other matrices outside its attention (experts have a router), or none.
        """
        sites = [other for other in self._model.sites if (other.stack, other.layer) == (site.stack, site.layer)]
        outputs = self._attention_matrices
        steps = [
            step
            for step in self._layer_steps(site)
            if self._is_matrix(step)
            and step.module not in outputs
            and not any(step.module.startswith(f"{other.module}.") for other in sites)
        ]
        if len(steps) < 2:
            return None
        *wider, back = steps
        width, inner = self._model.spec.d_model, back.widths[0]
        is_pair = back.widths[1] == width and all(
            step.incoming == wider[0].incoming and step.widths in ((width, inner), (width, 2 * inner)) for step in wider
        )
        return (wider, back) if is_pair else None

    @cached_property
    def _attention_matrices(self) -> frozenset[str]:
        """The modules of the output projections: in some families they stand outside the attention module."""
        return frozenset(spot.module for spot in self.attention_outputs().by_site.values())

    def _part(self, site: Site) -> Step:
        """The module that is the whole feed-forward part, where it is one: its output is what is added.

        A norm or a factor may come between.
        """
        join = self._feed_forward_join(site)
        key: Key | None = self.sum_of(join).operands[join.operand]
        names = [name for name, _ in self._hf.named_modules()]
        while givers := self.trail.givers(key, join.block):
            whole_part = givers[-1]
            if any(name.startswith(f"{whole_part.module}.") for name in names):
                return whole_part
            key = givers[0].incoming if givers[0].incoming != key else None
        raise CaptureError("no module is the whole feed-forward part of its layer")

    def _feed_forward_input(self, site: Site) -> Spot:
        linears = self._linears(site)
        if linears is not None:
            return self._at(linears[0], "input")
        return self._at([self._part(site)], "input")

    def _feed_forward_activation(self, site: Site) -> Spot:
        linears = self._linears(site)
        if linears is None:
            raise CaptureError("its feed-forward part is not one matrix out and one back (it has experts, or none)")
        return self._at([linears[1]], "input")

    def _feed_forward_output(self, site: Site) -> Spot:
        linears = self._linears(site)
        return self._at([self._part(site) if linears is None else linears[1]], "output")

    def _norm_before(self, spot: Spot, site: Site) -> Spot:
        """The norm of the layer that gives the input of a part; one before the layer is part of the stream."""
        entered = self.trail.step(spot.module, spot.call)
        steps = [] if entered is None or entered.incoming is None else self._layer_steps(site)
        givers = [step for step in steps if entered is not None and step.gave == entered.incoming]
        norm = next((norm for step in givers if (norm := self._norm(step))), None)
        if norm is None:
            raise CaptureError("no norm stands directly before it")
        return norm

    def _norm_after(self, spot: Spot) -> Spot:
        left = self.trail.step(spot.module, spot.call)
        readers = [] if left is None else self.trail.readers(left.gave)
        norm = next((norm for step in readers if (norm := self._norm(step))), None)
        if norm is None:
            raise CaptureError("no norm stands directly after the last layer")
        return norm

    def _norm(self, step: Step) -> Spot | None:
        norm = recognise(step.module, self._hf.get_submodule(step.module), self._model.spec.d_model)
        calls = self.trail.n_calls[step.module]
        return None if norm is None else Spot((step.module,), "output", step.call, calls, norm=norm)
