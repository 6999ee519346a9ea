"""A transformers model filled with the tensors of a checkpoint, or freshly initialised; checked in either case."""

from dataclasses import dataclass
from typing import Any

import torch

from headscope.model.formats import completeness
from headscope.model.formats.checkpoint import BITS, Checkpoint
from headscope.model.formats.config_json import generation_config
from headscope.model.formats.format import Format
from headscope.model.formats.memory import check_memory
from headscope.model.transformers import classes
from headscope.model.transformers.library_messages import quiet


@dataclass(frozen=True)
class LoadedModel:
    """A model in eval mode, without gradients, with what is known about where it came from.

    `checkpoint` is None where the weights are not as its files have them. `dequantised` names the quantised types
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


def filled_model(checkpoint_format: Format, dtype: torch.dtype) -> LoadedModel:
    """The model of a checkpoint whose tensors can be read by name; without the hash of its files."""
    checkpoint, config = checkpoint_format.checkpoint(), checkpoint_format.config()
    model, notes = _built(checkpoint_format, config, checkpoint, dtype)
    return described_model(checkpoint_format, model, checkpoint, dtype, notes)


def described_model(
    checkpoint_format: Format, model: Any, checkpoint: Checkpoint, dtype: torch.dtype, notes: tuple[str, ...] = ()
) -> LoadedModel:
    """A model that holds the tensors of a checkpoint, checked, with its tokenizer and what is known about it."""
    completeness.check_stored_as_floats(model, checkpoint.tensors)
    completeness.check_finite(model, str(checkpoint.folder))
    tokenizer, tokenizer_notes = checkpoint_format.tokenizer(checkpoint_format.config())
    return LoadedModel(
        model=ready(model),
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


def _built(
    checkpoint_format: Format, config: Any, checkpoint: Checkpoint, dtype: torch.dtype
) -> tuple[Any, tuple[str, ...]]:
    where = str(checkpoint.folder)
    cls = classes.model_class(config, str(checkpoint_format.config_file))
    empty = classes.empty_model(cls, config, where)
    completeness.check_size(empty, checkpoint.n_numbers, checkpoint.tensors, where)
    check_memory(completeness.n_numbers(empty), dtype, where)
    model, report = _filled(cls, checkpoint_format, config, checkpoint, dtype)
    headless = classes.base_class(config)
    if headless is None or not completeness.lacks_only_its_head(report, model):
        return model, completeness.check(report, model, where, checkpoint.tensors)
    # A head that was just drawn at random would give numbers that mean nothing.
    note = f"opened as {headless.__name__}: the checkpoint lacks the head of {cls.__name__}"
    model, report = _filled(headless, checkpoint_format, config, checkpoint, dtype)
    return model, (note, *completeness.check(report, model, where, checkpoint.tensors))


def _filled(
    cls: Any, checkpoint_format: Format, config: Any, checkpoint: Checkpoint, dtype: torch.dtype
) -> tuple[Any, completeness.Report]:
    # Widening is exact, so it is done while reading, one tensor at a time; anything narrower is left to
    # transformers, which knows the modules that a family keeps wide.
    wide = dtype if dtype in (torch.float32, torch.float64) else None
    state = {name: checkpoint.read(name, wide) for name in checkpoint.tensors}
    generation = None
    if cls.can_generate():
        generation = generation_config(checkpoint_format.folder, config, checkpoint_format.raw_config())
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


def initialised_model(checkpoint_format: Format, seed: int, dtype: torch.dtype) -> LoadedModel:
    """A model of the same shape with fresh weights; of the checkpoint only configuration and tokenizer are read."""
    config, where = checkpoint_format.config(), str(checkpoint_format.config_file)
    tokenizer, notes = checkpoint_format.tokenizer(config)
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
    return LoadedModel(ready(model), tokenizer, notes=(note, *notes))


def ready(model: Any) -> Any:
    """For measuring: no dropout, and no graph kept for gradients that nobody asked for."""
    return model.eval().requires_grad_(False)
