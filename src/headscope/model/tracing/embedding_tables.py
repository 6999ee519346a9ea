"""Finds the tables of token, position and output vectors by name and shape.

transformers names the table of tokens and the output head; a table of positions is an embedding whose name says so and
that is as wide as the tokens. Only names and shapes are read, so a model without weights is enough.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from headscope.core.site import Site, Stack
from headscope.core.weights import Embedding

# A factor that differs from 1 only by rounding does not count.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class EmbeddingTables:
    """The tables of a model, tokens first, and sentences about them."""

    tables: tuple[Embedding, ...] = ()
    notes: tuple[str, ...] = ()


def find_tables(model: Any, sites: Sequence[Site]) -> EmbeddingTables:
    """The tables of a model, real or on the meta device."""
    names = {id(module): name for name, module in model.named_modules()}
    ties = _Ties(model)
    tokens: dict[str, nn.Embedding] = {}
    readers: dict[str, set[Stack | None]] = {}
    for reader in (model, *_stacks(model)):
        module = token_table(reader)
        if isinstance(module, nn.Embedding) and id(module) in names:
            name = names[id(module)]
            tied_name = next((other for other in tokens if ties.same(name, other)), name)
            tokens.setdefault(tied_name, module)
            readers.setdefault(tied_name, set()).add(_stack(name, sites))
    if not tokens:
        return EmbeddingTables(notes=("The model has no table of token vectors.",))
    tables = [
        Embedding("token", next(iter(stacks)) if len(stacks := readers[name]) == 1 else None, name, _sizes(embedding))
        for name, embedding in tokens.items()
    ]
    notes = [*_scale_notes(tokens)]
    head = output_head(model)
    if isinstance(head, nn.Linear) and id(head) in names:
        name = names[id(head)]
        if any(ties.same(name, other) for other in tokens):
            notes.append("The output head reads with the table of token vectors itself: there is no second one.")
        else:
            tables.append(Embedding("output", None, name, _sizes(head)))
    positions, more = _positions(model, sites, {embedding.embedding_dim for embedding in tokens.values()}, ties)
    return EmbeddingTables((*tables, *positions), (*notes, *more))


def _positions(
    model: Any, sites: Sequence[Site], widths: set[int], ties: "_Ties"
) -> tuple[list[Embedding], tuple[str, ...]]:
    tables: list[Embedding] = []
    notes: list[str] = []
    for name, module in model.named_modules():
        last = name.rpartition(".")[2].lower()
        if not isinstance(module, nn.Embedding) or not ("position" in last or last == "wpe") or "relative" in last:
            continue
        stack = _stack(name, sites)
        if stack in ("image", "sound"):
            notes.append(f"Left out: {name}, whose rows are places in an image or a sound, not in a text.")
        elif "sinusoid" in type(module).__name__.lower():
            notes.append(f"{name} is the sinusoidal formula, not learned: nothing in it was trained.")
        elif module.embedding_dim not in widths:
            notes.append(f"Left out: {name}, which is {module.embedding_dim} wide and so not added to token vectors.")
        elif not any(ties.same(name, table.module) for table in tables):
            tables.append(Embedding("position", stack, name, _sizes(module), _first(module)))
    return tables, tuple(notes)


def _first(module: Any) -> int:
    """The row of the first position; some families reserve rows for padding first."""
    offset = getattr(module, "offset", None)
    if isinstance(offset, int):
        return offset
    return 0 if module.padding_idx is None else int(module.padding_idx) + 1


class _Ties:
    """Which parameters are shared.

    By identity; on a model without weights, by the ties that transformers would make.
    """

    def __init__(self, model: Any) -> None:
        self._parameters = dict(model.named_parameters(remove_duplicate=False))
        self._keys = dict(getattr(model, "all_tied_weights_keys", None) or {})

    def same(self, a: str, b: str) -> bool:
        """Whether two modules share their weight."""
        a, b = f"{a}.weight", f"{b}.weight"
        return self._parameters.get(a) is self._parameters.get(b) or self._root(a) == self._root(b)

    def _root(self, name: str) -> str:
        visited = {name}
        while (name := self._keys.get(name, name)) not in visited:
            visited.add(name)
        return name


def _stacks(model: Any) -> Iterator[Any]:
    """Encoder and decoder of a model that has both; each may have its own tables."""
    if getattr(model.config, "is_encoder_decoder", False):
        for name in ("get_encoder", "get_decoder"):
            if (part := _method_result(model, name)) is not None:
                yield part


def token_table(model: Any) -> Any:
    """The module that turns tokens into vectors; None where the family has none."""
    return _method_result(model, "get_input_embeddings")


def output_head(model: Any) -> Any:
    """The module that turns the stream into logits; None where the family has none."""
    return _method_result(model, "get_output_embeddings")


def _method_result(model: Any, name: str) -> Any:
    """The result of a transformers method; None where the family does not have it."""
    method = getattr(model, name, None)
    try:
        return method() if callable(method) else None
    except (AttributeError, NotImplementedError, TypeError):
        return None


def _stack(module: str, sites: Sequence[Site]) -> Stack | None:
    """The stack whose attention modules share the longest prefix of the name.

    None where all stacks share the same.
    """
    stacks = list(dict.fromkeys(site.stack for site in sites))
    if len(stacks) == 1:
        return stacks[0]
    common_prefix = {
        stack: max(_common(module, site.module) for site in sites if site.stack == stack) for stack in stacks
    }
    nearest = [stack for stack, count in common_prefix.items() if count == max(common_prefix.values())]
    return nearest[0] if len(nearest) == 1 else None


def _common(a: str, b: str) -> int:
    parts = list(zip(a.split("."), b.split("."), strict=False))
    return next((at for at, (x, y) in enumerate(parts) if x != y), len(parts))


def _scale_notes(tokens: dict[str, nn.Embedding]) -> Iterator[str]:
    for name, module in tokens.items():
        scale = getattr(module, "scalar_embed_scale", getattr(module, "embed_scale", None))
        if isinstance(scale, int | float) and abs(scale - 1) > _ROUNDING:
            yield f"The model multiplies what it reads from {name} by {scale:.4g}; the lengths here are without that."


def _sizes(module: Any) -> tuple[int, int]:
    rows, width = module.weight.shape
    return int(rows), int(width)
