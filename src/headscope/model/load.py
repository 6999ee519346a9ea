"""From a `Source` to a transformers model in memory, checked: whole, of the right shapes, finite.

The weights reach transformers only through a `Format`: transformers never looks for weight files by itself, so nothing
but what a format has checked can be opened.
"""

from dataclasses import replace
from pathlib import Path

import torch

from headscope.model.formats import completeness
from headscope.model.formats.adapter import hash_of_lines, read_adapter
from headscope.model.model_builder import LoadedModel, initialised_model, ready
from headscope.model.sources.names import Source
from headscope.model.transformers.adapter_merge import merge_adapter
from headscope.progress import Step


def load(source: Source, *, dtype: torch.dtype = torch.float32, progress: Step | None = None) -> LoadedModel:
    """Open what `resolve` found; every weight is there, has the expected shape and is finite, or else."""
    if source.adapter is not None:
        return _with_adapter(load(replace(source, adapter=None), dtype=dtype, progress=progress), source.adapter)
    if source.kind == "random":
        return initialised_model(source.checkpoint.unpacked(progress), source.seed, dtype)
    return source.checkpoint.load(dtype, progress)


def _with_adapter(loaded: LoadedModel, folder: Path) -> LoadedModel:
    """The model with an adapter merged into its weights; its hash is that of the two hashes, base first."""
    adapter = read_adapter(folder)
    note = merge_adapter(loaded.model, adapter)
    completeness.check_finite(loaded.model, str(folder))
    return replace(
        loaded,
        model=ready(loaded.model),
        checkpoint=None,
        sha256=hash_of_lines(((loaded.sha256, "base"), (adapter.sha256(), "adapter"))),
        notes=(note, *loaded.notes),
    )
