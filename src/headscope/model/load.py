"""From a `Source` to a transformers model in memory, checked: whole, of the right shapes, finite.

The weights of a folder reach transformers only through `Checkpoint`, as tensors: transformers never looks for
weight files by itself, so nothing but checked safetensors (or a GGUF file) can be opened.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from headscope.errors import WeightsRefused
from headscope.model.formats import completeness, gguf
from headscope.model.formats.adapter import hash_of_lines, read_adapter
from headscope.model.formats.checkpoint_file import sha256_of
from headscope.model.formats.config_json import generation_config, read_config
from headscope.model.formats.gguf_header import read_gguf_header
from headscope.model.formats.memory import check_memory
from headscope.model.formats.quantisation import plain_checkpoint
from headscope.model.formats.safetensors_folder import Checkpoint, open_checkpoint
from headscope.model.formats.safetensors_header import BITS
from headscope.model.sources.names import Source
from headscope.model.tokenizer import open_tokenizer
from headscope.model.transformers import classes
from headscope.model.transformers.adapter_merge import merge_adapter
from headscope.model.transformers.library_messages import quiet
from headscope.progress import Step


@dataclass(frozen=True)
class LoadedModel:
    """A model in eval mode, without gradients, with what is known about where it came from.

    `checkpoint` is None where no safetensors lie behind the model. `dequantised` names the quantised types
    that the weights were expanded from, with their shares of all numbers; it is empty for exact weights.
    `sha256` is of the weight file (see `Checkpoint.sha256` for shards); empty when freshly initialised.
    """

    model: Any  # transformers.PreTrainedModel
    tokenizer: Any | None  # transformers.PreTrainedTokenizerBase
    checkpoint: Checkpoint | None = None
    sha256: str = ""
    dtype_on_disk: str = ""
    dequantised: str = ""
    notes: tuple[str, ...] = ()


def load(source: Source, *, dtype: torch.dtype = torch.float32, progress: Step | None = None) -> LoadedModel:
    """Open what `resolve` found; every weight is there, has the expected shape and is finite, or else."""
    if source.adapter is not None:
        return _with_adapter(load(replace(source, adapter=None), dtype=dtype, progress=progress), source.adapter)
    if source.gguf_file is not None:
        return _from_gguf(source, source.gguf_file, dtype, progress)
    if source.kind == "random":
        raw, where = read_config(source.folder), str(source.folder / "config.json")
        config = classes.parsed_config(raw, where)
        tokenizer, notes = open_tokenizer(source.folder, config)
        return _initialised(config, where, source.seed, dtype, tokenizer, notes)
    loaded = _from_folder(source.folder, dtype)
    return loaded if loaded.checkpoint is None else replace(loaded, sha256=loaded.checkpoint.sha256())


def _with_adapter(loaded: LoadedModel, folder: Path) -> LoadedModel:
    """The model with an adapter merged into its weights; its hash is that of the two hashes, base first."""
    adapter = read_adapter(folder)
    note = merge_adapter(loaded.model, adapter)
    completeness.check_finite(loaded.model, str(folder))
    return replace(
        loaded,
        model=_ready(loaded.model),
        checkpoint=None,
        sha256=hash_of_lines(((loaded.sha256, "base"), (adapter.sha256(), "adapter"))),
        notes=(note, *loaded.notes),
    )


def _from_folder(folder: Path, dtype: torch.dtype) -> LoadedModel:
    raw = read_config(folder)
    checkpoint = plain_checkpoint(open_checkpoint(folder), raw)
    config = classes.parsed_config(raw, str(folder / "config.json"))
    model, notes = _built(config, raw, checkpoint, dtype)
    completeness.check_stored_as_floats(model, checkpoint.tensors)
    completeness.check_finite(model, str(folder))
    tokenizer, tokenizer_notes = open_tokenizer(folder, config)
    return LoadedModel(
        model=_ready(model),
        tokenizer=tokenizer,
        checkpoint=checkpoint,
        dtype_on_disk=checkpoint.stored,
        dequantised=checkpoint.dequantised,
        notes=(*notes, *checkpoint.notes, *_narrowed(checkpoint, dtype), *tokenizer_notes),
    )


def _narrowed(checkpoint: Checkpoint, dtype: torch.dtype) -> tuple[str, ...]:
    wider = [stored for stored in checkpoint.dtypes if BITS[stored] > 8 * dtype.itemsize]
    name = str(dtype).removeprefix("torch.")
    return (f"stored as {', '.join(wider)} and rounded to {name} on opening",) if wider else ()


def _built(config: Any, raw: dict[str, Any], checkpoint: Checkpoint, dtype: torch.dtype) -> tuple[Any, tuple[str, ...]]:
    where = str(checkpoint.folder)
    cls = classes.model_class(config, str(checkpoint.folder / "config.json"))
    empty = classes.empty_model(cls, config, where)
    completeness.check_size(empty, checkpoint.n_numbers, checkpoint.tensors, where)
    check_memory(completeness.n_numbers(empty), dtype, where)
    model, report = _filled(cls, config, raw, checkpoint, dtype)
    headless = classes.base_class(config)
    if headless is None or not completeness.lacks_only_its_head(report, model):
        return model, completeness.check(report, model, where, checkpoint.tensors)
    # A head that was just drawn at random would give numbers that mean nothing.
    note = f"opened as {headless.__name__}: the checkpoint lacks the head of {cls.__name__}"
    model, report = _filled(headless, config, raw, checkpoint, dtype)
    return model, (note, *completeness.check(report, model, where, checkpoint.tensors))


def _filled(
    cls: Any, config: Any, raw: dict[str, Any], checkpoint: Checkpoint, dtype: torch.dtype
) -> tuple[Any, completeness.Report]:
    # Widening is exact, so it is done while reading, one tensor at a time; anything narrower is left to
    # transformers, which knows the modules that a family keeps wide.
    wide = dtype if dtype in (torch.float32, torch.float64) else None
    state = {name: checkpoint.read(name, wide) for name in checkpoint.tensors}
    generation = generation_config(checkpoint.folder, config, raw) if cls.can_generate() else None
    with quiet():
        try:
            model, report = cls.from_pretrained(
                None,
                config=config,
                state_dict=state,
                dtype=dtype,
                attn_implementation=classes.attention_of(cls, config),
                generation_config=generation,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                local_files_only=True,
                trust_remote_code=False,
            )
        except Exception as error:
            raise classes.build_error(cls, str(checkpoint.folder), error) from error
    return model, report


def _initialised(
    config: Any, where: str, seed: int, dtype: torch.dtype, tokenizer: Any | None, notes: tuple[str, ...]
) -> LoadedModel:
    cls = classes.model_class(config, where)
    attention = classes.attention_of(cls, config)
    check_memory(completeness.n_numbers(classes.empty_model(cls, config, where)), dtype, where)
    try:
        with quiet(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = cls._from_config(config, dtype=dtype, attn_implementation=attention)
    except Exception as error:
        raise classes.build_error(cls, where, error) from error
    note = f"freshly initialised from {where} with seed {seed}: nothing in it is trained"
    return LoadedModel(_ready(model), tokenizer, notes=(note, *notes))


def _ready(model: Any) -> Any:
    """For measuring: no dropout, and no graph kept for gradients that nobody asked for."""
    return model.eval().requires_grad_(False)


def _from_gguf(source: Source, file: Path, dtype: torch.dtype, progress: Step | None) -> LoadedModel:
    try:
        expansion = gguf.expansion(file, progress)
    except WeightsRefused as refusal:
        return _expanded_in_memory(source, file, dtype, refusal.message)
    inner = replace(source, folder=expansion.folder, gguf_file=None)
    if source.kind == "random":
        return load(inner, dtype=dtype)
    loaded = _from_folder(inner.folder, dtype)
    return replace(loaded, sha256=expansion.sha256, dtype_on_disk=expansion.types, dequantised=expansion.dequantised)


def _expanded_in_memory(source: Source, file: Path, dtype: torch.dtype, why: str) -> LoadedModel:
    header, config = read_gguf_header(file), gguf.read_gguf_config(file)
    tokenizer = gguf.read_gguf_tokenizer(file, header)
    if source.kind == "random":
        return _initialised(config, str(file), source.seed, dtype, tokenizer, ())
    check_memory(header.n_numbers, dtype, str(file))
    model, report = gguf.build(file, header, config, dtype)
    notes = (why, *completeness.check(report, model, str(file)))
    completeness.check_finite(model, str(file))
    return LoadedModel(
        model=_ready(model),
        tokenizer=tokenizer,
        sha256=sha256_of(file),
        dtype_on_disk=header.types,
        dequantised=header.dequantised,
        notes=notes,
    )
