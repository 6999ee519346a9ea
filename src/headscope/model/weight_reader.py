"""Reads a site's projections in canonical form, from a built model or a file."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headscope.core.model_spec import ModelSpec
from headscope.core.site import Site
from headscope.core.stream_reading import Rotary, StreamReading
from headscope.core.weights import AfterHeads, Embedding, FeedForward, HeadWeights, Vocabulary, WeightStatus
from headscope.errors import CheckpointError, WeightsRefused
from headscope.model.formats.checkpoint import Checkpoint
from headscope.model.token_spelling import TokenizerVocabulary
from headscope.model.tracing.embedding_tables import EmbeddingTables, find_tables
from headscope.model.tracing.feed_forward import FeedForwardMatrices, find_feed_forward
from headscope.model.tracing.linear_modules import is_linear
from headscope.model.tracing.projections import Plan, Rows


@dataclass(frozen=True)
class OtherWeights:
    """The weights of a model that are not projections of attention."""

    feed_forward: FeedForwardMatrices
    tables: EmbeddingTables

    @classmethod
    def of(cls, model: Any, plans: dict[Site, Plan]) -> "OtherWeights":
        """Find them in a model, real or on the meta device."""
        return cls(find_feed_forward(model, plans), find_tables(model, tuple(plans)))


@runtime_checkable
class Matrices(Protocol):
    """A source of matrices: a module computes x @ matrix(module) + bias(module)."""

    def matrix(self, module: str) -> Float[Tensor, "in out"]:
        """The module's matrix, rows acting on the right."""
        ...

    def bias(self, module: str) -> Float[Tensor, " out"] | None:
        """The module's bias, if it has one."""
        ...

    def table(self, module: str) -> Float[Tensor, "rows d"]:
        """The module's weight as stored, one row per token or position."""
        ...


class ModelMatrices:
    """The matrices of a built model on the CPU.

    Views where the model is on the CPU, copies elsewhere.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def matrix(self, module: str) -> Float[Tensor, "in out"]:
        """The module's matrix, rows acting on the right."""
        linear: Any = self._model.get_submodule(module)
        weight: Tensor = linear.weight.detach().cpu()
        return weight.T if isinstance(linear, nn.Linear) else weight

    def bias(self, module: str) -> Float[Tensor, " out"] | None:
        """The module's bias, if it has one."""
        bias: Tensor | None = self._model.get_submodule(module).bias  # type: ignore[assignment]
        return None if bias is None else bias.detach().cpu()

    def table(self, module: str) -> Float[Tensor, "rows d"]:
        """The module's weight as stored."""
        weight: Tensor = self._model.get_submodule(module).weight  # type: ignore[assignment]
        return weight.detach().cpu()


class FileMatrices:
    """Matrices read from the files of a checkpoint, one tensor at a time.

    `skeleton` only says which module has which shape. `sources` maps the model's parameter names to the file's tensor
    names. The last tensor is kept, so that a fused projection of q, k and v is read once.
    """

    def __init__(self, skeleton: nn.Module, checkpoint: Checkpoint, sources: dict[str, str]) -> None:
        self._skeleton = skeleton
        self._checkpoint = checkpoint
        self._sources = sources
        self._last: tuple[str, Tensor] | None = None

    def matrix(self, module: str) -> Float[Tensor, "in out"]:
        """The module's matrix, rows acting on the right."""
        weight = self._read(f"{module}.weight")
        return weight.T if isinstance(self._skeleton.get_submodule(module), nn.Linear) else weight

    def bias(self, module: str) -> Float[Tensor, " out"] | None:
        """The module's bias, if it has one."""
        has_bias = getattr(self._skeleton.get_submodule(module), "bias", None) is not None
        return self._checkpoint.read(self._sources[f"{module}.bias"]) if has_bias else None

    def table(self, module: str) -> Float[Tensor, "rows d"]:
        """The module's weight in the dtype of the file.

        It is the largest tensor of many models and is not widened.
        """
        return self._finite(f"{module}.weight", None)

    def _read(self, parameter: str) -> Tensor:
        if self._last is None or self._last[0] != parameter:
            self._last = (parameter, self._finite(parameter, torch.float32))
        return self._last[1]

    def _finite(self, parameter: str, dtype: torch.dtype | None) -> Tensor:
        tensor = self._checkpoint.read(self._sources[parameter], dtype)
        if not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(f"tensor {self._sources[parameter]!r} holds NaN or Inf")
        return tensor


@runtime_checkable
class StreamSource(Protocol):
    """Norms and turns of a built model."""

    def reading(self) -> StreamReading:
        """The norms between the stream and the heads."""
        ...

    def rotary(self, site: Site) -> Rotary | None:
        """How a site turns its queries and keys."""
        ...


# Runs the rest of a site's layer on a stream and on the outputs of its heads.
LayerRunner = Callable[[Site, Tensor, Tensor], AfterHeads]


class PlannedWeights:
    """The `WeightSource` of the lenses: a blueprint, a source of matrices, and layers.

    Layers are there if the model is built. `tokenizer` is called when a lens first needs the spelling of tokens.
    """

    def __init__(
        self,
        spec: ModelSpec,
        plans: dict[Site, Plan],
        other_weights: OtherWeights,
        matrices: Matrices,
        method: str,
        tokenizer: Callable[[], Any | None],
        rest_of_layer: LayerRunner | None = None,
        stream: StreamSource | None = None,
    ) -> None:
        self._spec, self._plans, self._matrices, self._method = spec, plans, matrices, method
        self._feed_forward, self._tables = other_weights.feed_forward, other_weights.tables
        self._tokenizer, self._rest_of_layer, self._stream = cache(tokenizer), rest_of_layer, stream

    @property
    def spec(self) -> ModelSpec:
        """The model whose weights these are."""
        return self._spec

    @property
    def sites(self) -> tuple[Site, ...]:
        """Every attention site, in the order of the forward pass."""
        return tuple(self._plans)

    @property
    def method(self) -> str:
        """How the weights are read."""
        return self._method

    def status(self, site: Site) -> WeightStatus:
        """Whether this site's projections are known."""
        return self._plans[site].status

    def weights(self, site: Site) -> HeadWeights:
        """The projections of one site.

        Raises `WeightsRefused` where there is no canonical form.
        """
        plan = self._plans[site]
        if plan.projections is None:
            raise WeightsRefused(
                f"{site.label} of {self._spec.name} ({self._spec.family}) has no canonical projections: "
                f"{plan.status.reason}"
            )
        parts = plan.projections
        return HeadWeights(
            site=site,
            w_q=_heads(self._matrices, parts.q),
            w_k=_heads(self._matrices, parts.k),
            w_v=_heads(self._matrices, parts.v),
            w_o=self._matrices.matrix(parts.o.module)[parts.o.row],
            b_q=_biases(self._matrices, parts.q),
            b_k=_biases(self._matrices, parts.k),
            b_v=_biases(self._matrices, parts.v),
            b_o=_output_bias(self._matrices, parts.o.module),
            gain_q=parts.q.gain,
            gain_k=parts.k.gain,
            gain_v=parts.v.gain,
            status=plan.status,
        )

    @property
    def feed_forward(self) -> tuple[FeedForward, ...]:
        """The feed-forward matrices of every layer that can be read separately."""
        return self._feed_forward.matrices

    @property
    def feed_forward_notes(self) -> tuple[str, ...]:
        """Sentences that say which feed-forward matrices are missing, and why."""
        return self._feed_forward.notes

    def feed_forward_matrix(self, matrix: FeedForward) -> Float[Tensor, "d_in d_out"]:
        """One feed-forward matrix, rows acting on the right."""
        return self._matrices.matrix(matrix.module)

    @property
    def embeddings(self) -> tuple[Embedding, ...]:
        """The readable tables of token, output and position vectors."""
        return self._tables.tables

    @property
    def embedding_notes(self) -> tuple[str, ...]:
        """Sentences about tables that are shared, scaled or left out."""
        return self._tables.notes

    def embedding_table(self, table: Embedding) -> Float[Tensor, "rows d"]:
        """One table with all rows, as stored."""
        return self._matrices.table(table.module)

    @property
    def vocabulary(self) -> Vocabulary | None:
        """The spelling of the tokens; None where the checkpoint has no tokenizer."""
        tokenizer = self._tokenizer()
        return None if tokenizer is None else TokenizerVocabulary(tokenizer)

    def after_heads(
        self,
        site: Site,
        stream: Float[Tensor, "windows tokens d_model"],
        z: Float[Tensor, "windows heads tokens d_value"],
    ) -> AfterHeads:
        """What the rest of a site's layer computes from a stream and its heads' outputs."""
        if self._rest_of_layer is None:
            raise WeightsRefused(f"{site.label}: the weights come from a file, so there is no layer to run")
        return self._rest_of_layer(site, stream, z)

    def stream_reading(self) -> StreamReading:
        """The norms between the stream and the heads."""
        return self._built_stream().reading()

    def rotary(self, site: Site) -> Rotary | None:
        """How a site turns its queries and keys with the position; None where it does not."""
        return self._built_stream().rotary(site)

    def _built_stream(self) -> StreamSource:
        if self._stream is None:
            raise WeightsRefused("the weights come from a file, so there are no norms and positions to look at")
        return self._stream


def _heads(matrices: Matrices, rows: Rows) -> Float[Tensor, "some_heads in width"]:
    return matrices.matrix(rows.module)[:, rows.row].permute(1, 0, 2)


def _biases(matrices: Matrices, rows: Rows) -> Float[Tensor, "some_heads width"]:
    bias = matrices.bias(rows.module)
    offset = torch.zeros(rows.row.shape) if bias is None else bias[rows.row]
    return offset if rows.extra_bias is None else offset + rows.extra_bias


def _output_bias(matrices: Matrices, module: str) -> Float[Tensor, " out"]:
    bias = matrices.bias(module)
    return torch.zeros(matrices.matrix(module).shape[1]) if bias is None else bias


def file_sources(
    skeleton: Any, checkpoint: Checkpoint, plans: dict[Site, Plan], other_weights: OtherWeights
) -> tuple[dict[str, str], OtherWeights]:
    """Map each parameter to its tensor in the file.

    Also returns the other weights that can be read. transformers renames, splits and merges tensors on loading; its own
    rules are applied to the names in the file. The file is refused where an attention projection does not correspond to
    exactly one tensor of its shape, unchanged except for the name; a feed-forward matrix or a table of vectors like
    that is left out.
    """
    names_by_parameter: dict[str, list[str]] = {}
    loaded_name = _loading_rules(skeleton)
    for name in checkpoint.tensors:
        target, is_converted = loaded_name(name)
        if not is_converted:
            names_by_parameter.setdefault(target, []).append(name)
    shapes = {name: tuple(parameter.shape) for name, parameter in skeleton.state_dict().items()}

    def source(name: str) -> str:
        return _unique(name, names_by_parameter.get(name, []), shapes[name], checkpoint)

    sources = {name: source(name) for name in _needed_parameters(skeleton, plans)}
    matrices, tables = other_weights.feed_forward.matrices, other_weights.tables.tables
    refusals: dict[str, str] = {}
    for module in dict.fromkeys([matrix.module for matrix in matrices] + [table.module for table in tables]):
        try:
            sources[f"{module}.weight"] = source(f"{module}.weight")
        except WeightsRefused as refusal:
            refusals[module] = refusal.message
    gone = [refusals[matrix.module] for matrix in matrices if matrix.module in refusals]
    note = (f"Left out: {len(set(gone))} feed-forward matrices, because {gone[0]}.",) if gone else ()
    missing = tuple(
        f"Left out: the table of {table.role} vectors, because {refusals[table.module]}."
        for table in tables
        if table.module in refusals
    )
    return sources, OtherWeights(
        FeedForwardMatrices(
            tuple(matrix for matrix in matrices if matrix.module not in refusals),
            (*other_weights.feed_forward.notes, *note),
        ),
        EmbeddingTables(
            tuple(table for table in tables if table.module not in refusals), (*other_weights.tables.notes, *missing)
        ),
    )


def _unique(parameter: str, names: list[str], shape: tuple[int, ...], checkpoint: Checkpoint) -> str:
    if len(names) != 1:
        candidates = f"{len(names)} tensors of the file" if names else "no tensor of the file by name alone"
        raise WeightsRefused(f"parameter {parameter!r} corresponds to {candidates}, expected exactly one")
    got = tuple(checkpoint.tensors[names[0]].shape)
    if got != shape:
        raise WeightsRefused(f"tensor {names[0]!r} has shape {got}, expected {shape} for {parameter!r}")
    return names[0]


def _needed_parameters(skeleton: Any, plans: dict[Site, Plan]) -> list[str]:
    modules: dict[str, None] = {}
    for plan in plans.values():
        if plan.projections is not None:
            parts = plan.projections
            modules.update(dict.fromkeys(part.module for part in (parts.q, parts.k, parts.v, parts.o)))
    names = [f"{module}.weight" for module in modules]
    with_bias = [
        m for m in modules if is_linear(skeleton.get_submodule(m)) and skeleton.get_submodule(m).bias is not None
    ]
    return names + [f"{module}.bias" for module in with_bias]


def _loading_rules(skeleton: Any) -> Callable[[str], tuple[str, bool]]:
    """Map a tensor's name to its parameter, and whether loading changes its values."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    transforms = get_model_conversion_mapping(skeleton)
    renamings = [t for t in transforms if isinstance(t, WeightRenaming)]
    converters = [t for t in transforms if isinstance(t, WeightConverter)]
    parameters = skeleton.state_dict()

    def loaded_name(name: str) -> tuple[str, bool]:
        target, pattern = rename_source_key(name, renamings, converters, skeleton.base_model_prefix, parameters)
        return target, pattern is not None

    return loaded_name
