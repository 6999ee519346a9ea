"""Model: a real transformer opened for measuring, and the functions that open one."""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from headscope.core.card import Card, Shown
from headscope.core.model_spec import ModelSpec
from headscope.core.model_summary import model_card
from headscope.core.selection import Selection
from headscope.core.site import Site, Stack
from headscope.core.token_map import TokenMap
from headscope.core.weights import HeadWeights, WeightSource, WeightStatus
from headscope.errors import CaptureError, CheckpointError, HeadscopeError, UsageError, WeightsRefused
from headscope.model import language as texts
from headscope.model import token_maps
from headscope.model.built_stream import BuiltStream
from headscope.model.devices import device_named
from headscope.model.edit import Edit
from headscope.model.formats.completeness import check_file
from headscope.model.load import load
from headscope.model.model_builder import LoadedModel
from headscope.model.rest_of_layer import RestOfLayer
from headscope.model.session.cache import Cache, Forward
from headscope.model.session.captures import QUANTITIES, WatchedQuantity
from headscope.model.session.live_model import LiveModel
from headscope.model.session.places import Spots
from headscope.model.session.session import Filter, Session, Where
from headscope.model.session.softmax_model import SoftmaxModel
from headscope.model.session.stream_map import StreamMap
from headscope.model.session.stream_sum import StreamSum, find_stream_sum
from headscope.model.session.written_stream import WrittenStream, written_stream
from headscope.model.sources.names import Source, resolve
from headscope.model.spec import describe
from headscope.model.tracing.attention_sites import check_agreement, find_sites
from headscope.model.tracing.meta_model import build_skeleton
from headscope.model.tracing.projections import Plan, make_blueprint
from headscope.model.tracing.random_codes import coded
from headscope.model.tracing.skip_connections import Branches, find_branches
from headscope.model.transformers.adapter_merge import plain_model
from headscope.model.transformers.attention_products import AttentionProducts
from headscope.model.transformers.classes import model_class
from headscope.model.transformers.library_messages import quiet, reason
from headscope.model.transformers.model_state import Change, restored
from headscope.model.transformers.probe_inputs import read_by, unavailable_inputs
from headscope.model.transformers.softmax_watch import SoftmaxSites, find_softmax_sites, softmaxes_observed
from headscope.model.weight_reader import FileMatrices, ModelMatrices, OtherWeights, PlannedWeights, file_sources
from headscope.progress import Step

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
log = logging.getLogger("headscope")

_BUILD_IT = "`headscope report` builds the model itself: it may be able to read it, and says what is wrong if not"
NOT_DISPATCHING = "the family does not compute attention through transformers' attention interface"


class Model(Shown):
    """A transformer opened for measuring: its sites, weights, sessions, edits and text.

    Open one with `headscope.open`. `hf` is the transformers model itself, which is never changed for good. `origin` is
    where its checkpoint was found; None for a model that was given in memory.
    """

    def __init__(
        self,
        hf: Any,
        tokenizer: Any | None,
        spec: ModelSpec,
        sites: tuple[Site, ...],
        softmax: SoftmaxSites | None,
        origin: Source | None = None,
    ) -> None:
        self.hf = hf
        self.origin = origin
        self.tokenizer = tokenizer
        self.spec = spec
        self.sites = sites
        self.edited = False
        self._softmax = softmax
        self._plans: dict[Site, Plan] | None = None
        self._branches: Branches | None = None
        self._spots: dict[str, Spots] = {}
        self._stream_sums: dict[Stack, StreamSum] = {}
        # The open sessions by thread. Who runs the model and then restores it, or changes its hooks, holds the lock.
        self._live: dict[int, LiveModel] = {}
        self.lock = threading.RLock()

    def _card(self) -> Card:
        return model_card(self.spec, self.sites)

    @property
    def reads_text(self) -> bool:
        """Whether the model can be run on text, and on text alone."""
        return self.tokenizer is not None and self.reads_tokens

    @property
    def reads_tokens(self) -> bool:
        """Whether the model can be run on token ids alone, whoever makes them."""
        return read_by(self.hf) == ("input_ids",)

    def sites_of_stack(self, stack: Stack) -> tuple[Site, ...]:
        """The sites of one stack, in order."""
        return tuple(site for site in self.sites if site.stack == stack)

    def plan(self, site: Site) -> Plan:
        """Where the weights of a site are; traced once, when first asked for."""
        if self._plans is None:
            products = None if self._softmax is None else self._softmax.products
            with self.outside_sessions():
                self._plans = _traced(self.hf, self.sites, products)
        return self._plans[site]

    def branches(self) -> Branches:
        """Where its layers add, looked up once; raises `VariantRefused` where that is not understood."""
        if self._branches is None:
            observed = None if self._softmax is None else partial(softmaxes_observed, self.hf, self._softmax)
            with self.outside_sessions(), quiet(), restored(self.hf):
                self._branches = find_branches(self.hf, self.sites, observed)
        return self._branches

    @cached_property
    def stream_map(self) -> StreamMap:
        """Where the tensors between the parts of its layers pass."""
        return StreamMap(self)

    @cached_property
    def overwrites(self) -> bool:
        """Whether a forward writes over tensors that its modules were given or gave."""
        with self.outside_sessions(), quiet(), restored(self.hf):
            return self.stream_map.trail.overwrites

    def spots(self, quantity: WatchedQuantity) -> Spots:
        """Where a quantity passes, looked up once; a registry that changes is asked anew."""
        if QUANTITIES.get(quantity.name) is not quantity:
            return quantity.place(self)
        if quantity.name not in self._spots:
            with self.outside_sessions(), quiet(), restored(self.hf):
                self._spots[quantity.name] = quantity.place(self)
        return self._spots[quantity.name]

    def stream_sum(self, stack: Stack) -> StreamSum:
        """The stream of a stack as a sum of what its parts write, checked once; refused where it is none."""
        if stack not in self._stream_sums:
            with self.outside_sessions(), quiet(), restored(self.hf):
                self._stream_sums[stack] = find_stream_sum(self, stack)
        return self._stream_sums[stack]

    def written(self, text: str | Tensor, stack: Stack | None = None) -> WrittenStream:
        """Run a text and take its stream apart: what each part writes, and what each reader receives from it."""
        return written_stream(self, text, stack)

    @property
    def dispatches(self) -> bool:
        """Whether its attention goes through transformers' attention interface, where it can be changed."""
        return self._softmax is None

    def weights(self, site: Site) -> HeadWeights:
        """The projections of one site in canonical form; raises `WeightsRefused` where there is none."""
        return self.weight_source().weights(site)

    def weight_status(self, site: Site) -> WeightStatus:
        """Whether the projections of a site are known: exact, normed or refused, with the reason."""
        return self.plan(site).status

    def weight_source(self, method: str = "read from the built model") -> WeightSource:
        """The weights of the built model, for lenses; `method` says where they come from."""
        plans = {site: self.plan(site) for site in self.sites}
        other_weights = OtherWeights.of(self.hf, plans)
        rest_of_layer = RestOfLayer(self, other_weights.feed_forward.matrices)
        stream = BuiltStream(self, None if self._softmax is None else self._softmax.products)
        matrices = ModelMatrices(self.hf)
        return PlannedWeights(
            self.spec, plans, other_weights, matrices, method, lambda: self.tokenizer, rest_of_layer, stream
        )

    def session(self) -> Session:
        """Read and change the attention while the model runs: `with model.session() as s:`."""
        return Session(self)

    def enter_session(self) -> LiveModel:
        """The open sessions of this thread, with one more."""
        with self.lock:
            live = self._live.get(threading.get_ident())
            if live is None:
                live = LiveModel(self) if self._softmax is None else SoftmaxModel(self, self._softmax)
                live.open()
                self._live[threading.get_ident()] = live
            live.n_sessions += 1
            return live

    def leave_session(self, live: LiveModel) -> None:
        """One session less; the last one leaves the model as it was."""
        with self.lock:
            live.n_sessions -= 1
            if live.n_sessions:
                live.refresh()
                return
            self._live = {thread: other for thread, other in self._live.items() if other is not live}
            live.close()

    @contextmanager
    def outside_sessions(self) -> Iterator[None]:
        """Run the model as if this thread had no session open."""
        live = self._live.get(threading.get_ident())
        if live is None:
            yield
            return
        with self.lock, live.suspended():
            yield

    def run(
        self,
        text: str | Tensor,
        *quantities: str | Filter,
        at: Where = None,
        positions: int | slice | Sequence[int] | None = None,
    ) -> Forward:
        """Run a text (or tokens) once: the logits, and a cache of what was captured.

        Quantities are named as in `Session.capture`; without any, everything is captured that is not a part of
        something else.
        """
        with self.session() as session:
            names = quantities or session.everything(at)
            capture = session.capture(*names, at=at, positions=positions)
            answer = session.run(text)
        return Forward(getattr(answer, "logits", None), Cache(capture.take(), capture.at))

    def edit(self) -> Edit:
        """Change the attention weights, undone on exit: `with model.edit() as e:`."""
        return Edit(self)

    def encode(self, text: str) -> Int[Tensor, " tokens"]:
        """The tokens of a text, with the special ones that the tokenizer adds."""
        return texts.encode(self, text)

    def tokens(self, text: str) -> list[str]:
        """The tokens of a text as strings, special ones included."""
        return token_maps.token_texts(self, text)

    def pattern(self, text: str, at: Selection | str) -> TokenMap:
        """The attention pattern of one head (`"L1.H3"`) on a text, as a map that shows itself in a notebook."""
        return token_maps.head_pattern(self, text, at)

    def perplexity(self, text: str, *, window: int = 1024, stride: int | None = None) -> texts.Perplexity:
        """How well the model predicts a text: tokens, nats per token and an interval."""
        return texts.perplexity(self, text, window=window, stride=stride)

    def generate(
        self,
        prompt: str,
        *,
        max_new_tokens: int = 40,
        temperature: float = 0.0,
        cache: bool = True,
        seed: int = 0,
    ) -> str:
        """What the model writes after `prompt`; greedy at temperature 0."""
        return texts.generate(
            self, prompt, max_new_tokens=max_new_tokens, temperature=temperature, cache=cache, seed=seed
        )


def open_model(
    what: Any,
    *,
    tokenizer: Any | None = None,
    dtype: str = "float32",
    device: str | None = None,
    hub: bool = False,
    seed: int = 0,
    progress: Step | None = None,
) -> Model:
    """Open a checkpoint by name or path (see `headscope models`), or wrap a transformers model already loaded.

    `device` says where it runs ("cuda", "mps"): by default a checkpoint on the CPU, and a loaded model where it is.
    """
    if dtype not in DTYPES:
        raise UsageError(f"unknown dtype {dtype!r}", hint=f"one of {', '.join(DTYPES)}")
    place = None if device is None else device_named(device)
    if not isinstance(what, str | Path):
        model = what if isinstance(what, Model) else _wrapped(what, tokenizer)
        _check_place(model.hf.device, place)
        return model
    source = resolve(what, hub=hub, seed=seed, progress=progress)
    loaded = load(source, dtype=DTYPES[dtype], progress=progress)
    if place is not None:
        loaded.model.to(place)
    return _opened(loaded, source, tokenizer)


def _check_place(current: torch.device, target: torch.device | None) -> None:
    """A model in memory is the caller's own: it is measured where it is, and not moved."""
    if target is not None and (current.type, current.index or 0) != (target.type, target.index or 0):
        raise UsageError(
            f"this model is on {current}, and {target} was asked for",
            hint=f"move it first with model.to({str(target)!r}), or leave the device out",
        )


def open_weights(what: str | Path, *, hub: bool = False, seed: int = 0, progress: Step | None = None) -> WeightSource:
    """The weights of a checkpoint, straight from its file where that is possible; otherwise from a built model."""
    source = resolve(what, hub=hub, seed=seed, progress=progress)
    if source.kind != "random" and source.adapter is None:
        try:
            return _from_file(source)
        except WeightsRefused as refusal:
            log.info("the model is built, because the file alone does not tell: %s", refusal.message)
    return _opened(load(source, progress=progress), source, None).weight_source(source.weights_method)


def _from_file(source: Source) -> WeightSource:
    files, where = source.checkpoint, str(source.checkpoint.config_file)
    checkpoint = files.checkpoint()
    with quiet():
        config = files.config()
        skeleton, sites, plans = trace_skeleton(model_class(config, where), config, where)
        check_file(skeleton, checkpoint.tensors, str(checkpoint.folder))
        sources, other_weights = file_sources(skeleton, checkpoint, plans, OtherWeights.of(skeleton, plans))
        spec = describe(
            skeleton,
            sites,
            name=source.name,
            source=source.kind,
            dtype=checkpoint.stored,
            dequantised=checkpoint.dequantised,
            sha256=checkpoint.sha256(),
            licence=source.licence,
            tells_initialisation=source.tells_initialisation,
            notes=checkpoint.notes,
        )
    matrices, method = FileMatrices(skeleton, checkpoint, sources), source.weights_method
    return PlannedWeights(spec, plans, other_weights, matrices, method, lambda: files.tokenizer(config)[0])


def trace_skeleton(cls: Any, config: Any, where: str) -> tuple[Any, tuple[Site, ...], dict[Site, Plan]]:
    """The model without weights, its sites and its blueprint; refused where it cannot be run like that."""
    try:
        skeleton = build_skeleton(cls, config, where)
        with coded(skeleton, lambda _: None):
            sites = find_sites(skeleton)
        plans = make_blueprint(skeleton, sites)
    except CheckpointError:
        raise
    except Exception as error:
        raise WeightsRefused(
            f"{where}: {cls.__name__} cannot be traced without its weights ({reason(error)})", hint=_BUILD_IT
        ) from error
    if not any(plan.projections for plan in plans.values()):
        raise WeightsRefused(
            f"{where}: no attention of {cls.__name__} could be traced without its weights", hint=_BUILD_IT
        )
    return skeleton, sites, plans


def _wrapped(hf: Any, tokenizer: Any | None) -> Model:
    from transformers import PreTrainedModel

    if getattr(hf, "training", False):
        raise UsageError(
            "this model is in training mode: dropout would blur every number", hint="call its eval() first"
        )
    hf, notes = plain_model(hf)
    if not isinstance(hf, PreTrainedModel):
        raise UsageError(
            f"cannot open a {type(hf).__name__}",
            hint="give a name, a path, or a transformers model that is loaded",
        )
    name = getattr(hf.config, "name_or_path", "") or hf.config.model_type
    return _model(
        hf,
        tokenizer,
        name=name,
        source="a transformers model in memory",
        dtype=str(hf.dtype).removeprefix("torch."),
        notes=notes,
    )


def _opened(loaded: LoadedModel, source: Source, tokenizer: Any | None) -> Model:
    return _model(
        loaded.model,
        tokenizer or loaded.tokenizer,
        name=source.name,
        source=source.kind,
        dtype=str(loaded.model.dtype).removeprefix("torch."),
        dequantised=loaded.dequantised,
        sha256=loaded.sha256,
        licence=source.licence,
        tells_initialisation=source.tells_initialisation,
        notes=loaded.notes,
        origin=source,
    )


def _model(hf: Any, tokenizer: Any | None, *, origin: Source | None = None, **facts: Any) -> Model:
    with quiet():
        try:
            with restored(hf) as changes:
                sites, softmax, checks = _probed(hf)
        except HeadscopeError:
            raise
        except Exception as error:
            raise _not_run(hf, error) from error
        notes = (*facts.pop("notes", ()), *checks, *_switches(changes))
        spec = describe(hf, sites, notes=notes, **facts)
    return Model(hf, tokenizer, spec, sites, softmax, origin)


def _switches(changes: list[Change]) -> Iterator[str]:
    """A note on each switch that the model set while it was probed: it computes otherwise on other inputs."""
    names = {(change.attribute, change.before, change.after) for change in changes if isinstance(change.before, str)}
    for attribute, before, after in sorted(names, key=str):
        yield (
            f"on a short input this model sets {attribute} from {before!r} to {after!r}; headscope undoes this after "
            "each forward, so every input is computed as the model as it was loaded computes it"
        )


def _not_run(hf: Any, error: Exception) -> CaptureError:
    other_inputs = unavailable_inputs(hf)
    needs = f"its forward also takes {', '.join(other_inputs)}, which headscope does not make; " if other_inputs else ""
    return CaptureError(
        f"the {hf.config.model_type} model {type(hf).__name__} could not be run on the random "
        f"{' and '.join(read_by(hf))} that headscope makes to see how it attends: {reason(error)}",
        hint=f"{needs}if it runs in transformers on these inputs alone, please report it",
    )


def _probed(hf: Any) -> tuple[tuple[Site, ...], SoftmaxSites | None, tuple[str, ...]]:
    """The sites, how they are watched where that is at their softmax, and what the check of them could not do."""
    sites = find_sites(hf)
    if sites:
        return sites, None, check_agreement(hf, len(sites))
    softmax = find_softmax_sites(hf)
    if isinstance(softmax, str):
        raise CaptureError(
            f"the attention of {hf.config.model_type} models cannot be read: {NOT_DISPATCHING}, and {softmax}",
            hint="ask transformers itself for output_attentions, if the family has them",
        )
    return softmax.sites, softmax, ()


def _traced(hf: Any, sites: tuple[Site, ...], products: AttentionProducts | None) -> dict[Site, Plan]:
    with quiet():
        try:
            with restored(hf):
                return make_blueprint(hf, sites, products)
        except Exception as error:  # noqa: BLE001  a family may do anything with codes; its maps can still be read
            why = WeightStatus("refused", f"the model could not be run on codes ({reason(error)})")
            return {site: Plan(why) for site in sites}
