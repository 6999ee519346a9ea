"""Whether a checkpoint and a model belong together: missing, unexpected, mismatched, non-finite weights.

transformers draws missing weights at random and goes on; here that is an error, because every number that is
computed from such a model would be noise.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headscope.errors import CheckpointError
from headscope.model.formats.checkpoint import TensorEntry

Report = Mapping[str, Any]  # what transformers tells about a load: missing_keys, unexpected_keys, mismatched_keys

_OTHER_MODEL = "the configuration describes another model than the one these weights are of"

# What older versions of transformers stored beside the weights; the model computes these itself.
_LEGACY = ("inv_freq", "masked_bias", "position_ids", "token_type_ids", "cos_cached", "sin_cached")


def n_numbers(model: nn.Module) -> int:
    """How many numbers a model holds, buffers included."""
    return sum(weight.numel() for weight in (*model.parameters(), *model.buffers()))


def check_size(empty: nn.Module, stored_count: int, entries: Mapping[str, TensorEntry], where: str) -> None:
    """Raise if a model would need far more numbers than its checkpoint holds, before memory is taken for it.

    A head, a pooler or a tied matrix may be missing; that never doubles a model.
    """
    needed = sum(weight.numel() for weight in empty.parameters())
    if needed <= 2 * stored_count:
        return
    _refuse_mismatched(_other_shapes(empty, entries), where)
    raise CheckpointError(
        f"{where} holds {stored_count} numbers, but {type(empty).__name__} needs {needed} by its configuration",
        hint=_OTHER_MODEL,
    )


def lacks_only_its_head(report: Report, model: Any) -> bool:
    """Whether something is missing, and all of it lies outside the family's base model."""
    missing = report["missing_keys"] - _pooler(report)
    prefix = f"{model.base_model_prefix}."
    return _base(model) is not model and bool(missing) and not any(name.startswith(prefix) for name in missing)


def check(report: Report, model: Any, where: str, entries: Mapping[str, TensorEntry] | None = None) -> tuple[str, ...]:
    """Raise on whatever would make numbers wrong; what is harmless comes back as sentences."""
    _refuse_mismatched(report["mismatched_keys"], where)
    pooler = _pooler(report)
    if missing_names := report["missing_keys"] - pooler:
        raise CheckpointError(
            f"{where} lacks {len(missing_names)} tensors that {type(model).__name__} needs: {names(missing_names)}",
            hint=_wrapper_hint(missing_names, entries or {}) or "a file is missing, or " + _OTHER_MODEL,
        )
    unused = set(report["unexpected_keys"])
    if strange := {name for name in unused if _changes_the_model(name, model, entries or {})}:
        raise CheckpointError(
            f"{where}: {len(strange)} tensors have no place in {type(model).__name__}: {names(strange)}",
            hint=_OTHER_MODEL,
        )
    notes = [f"missing from the checkpoint and not used: {names(pooler)}"] if pooler else []
    return (*notes, *([f"in the checkpoint but not used: {names(unused)}"] if unused else []))


def _wrapper_hint(missing_names: set[str], entries: Mapping[str, TensorEntry]) -> str:
    """What to do where a wrapper such as DataParallel or torch.compile was saved: its name precedes every tensor's."""
    prefixes = {name.partition(".")[0] for name in entries}
    prefix = next(iter(prefixes)) if len(prefixes) == 1 else ""
    if not prefix or not all(f"{prefix}.{name}" in entries for name in missing_names):
        return ""
    return f"all names in the file begin with {prefix!r}: save the model inside that wrapper, or remove the prefix"


def names(tensor_names: Iterable[str], most: int = 3) -> str:
    """A few names, and how many more there are."""
    ordered = sorted(tensor_names)
    more = f" and {len(ordered) - most} more" if len(ordered) > most else ""
    return ", ".join(ordered[:most]) + more


def check_file(empty: Any, entries: Mapping[str, TensorEntry], where: str) -> None:
    """The same checks for a checkpoint whose model is never filled: names, shapes and dtypes from the headers.

    Tensors that transformers renames on loading cannot be compared by name; where all names agree, a tensor
    without a place is one.
    """
    _refuse_mismatched(_other_shapes(empty, entries), where)
    check_stored_as_floats(empty, entries)
    if all(name in entries for name, _ in empty.named_parameters()):
        every = empty.state_dict().keys()
        unused = {name for name in entries if name not in every}
        check({"missing_keys": set(), "mismatched_keys": (), "unexpected_keys": unused}, empty, where, entries)


def check_stored_as_floats(model: nn.Module, entries: Mapping[str, TensorEntry]) -> None:
    """Raise where a weight is stored as integers: those are codes of a quantiser, not values."""
    for name, parameter in model.named_parameters():
        entry = entries.get(name)
        if entry is not None and parameter.is_floating_point() and not entry.is_floating:
            raise CheckpointError(
                f"{entry.file}: tensor {name!r} is stored as {entry.dtype}, expected floating values",
                hint="the checkpoint is quantised: convert it to float16, bfloat16 or float32",
            )


def check_finite(model: nn.Module, where: str) -> None:
    """Raise, naming the tensor, if any weight is NaN or infinite."""
    for name, parameter in model.named_parameters():
        # One bad value makes the sum bad, and a sum is cheap; a sum that overflows is looked at more closely.
        if math.isfinite(_total(parameter.detach())):
            continue
        bad = int((~torch.isfinite(parameter)).sum())
        if bad:
            kind = "NaN" if bool(torch.isnan(parameter).any()) else "infinite"
            narrow = parameter.dtype in (torch.float16, torch.bfloat16)
            raise CheckpointError(
                f"tensor {name!r} in {where} has {bad} of {parameter.numel()} values not finite ({kind})",
                hint="the training diverged or the file is damaged"
                + (f"; or its values are too large for {parameter.dtype}: open it in float32" if narrow else ""),
            )


def _total(weight: Tensor) -> float:
    if weight.dtype != torch.float32:
        return float(weight.sum())
    # Many small sums: numpy's do not wait for a second thread, which on a busy machine takes far longer.
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.add.reduce(weight.numpy(), axis=None))


def _pooler(report: Report) -> set[str]:
    """The missing weights of a pooler, which sits behind the last layer: attention does not depend on it."""
    return {name for name in report["missing_keys"] if "pooler" in name.split(".")}


def _base(model: Any) -> Any:
    return getattr(model, model.base_model_prefix or "", model)


def _other_shapes(empty: nn.Module, entries: Mapping[str, TensorEntry]) -> list[tuple[str, Any, Any]]:
    pairs = [(name, entries[name].shape, weight.shape) for name, weight in empty.named_parameters() if name in entries]
    return [pair for pair in pairs if tuple(pair[1]) != tuple(pair[2])]


def _refuse_mismatched(mismatched: Iterable[tuple[str, Any, Any]], where: str) -> None:
    for name, got, expected in sorted(mismatched, key=lambda item: item[0]):
        raise CheckpointError(
            f"{where}: tensor {name!r} has shape {tuple(got)}, expected {tuple(expected)} by the configuration",
            hint=_OTHER_MODEL,
        )


def _changes_the_model(name: str, model: Any, entries: Mapping[str, TensorEntry]) -> bool:
    """Whether an unused tensor sits where the model computes, so that leaving it out changes the function.

    A second head beside the model is harmless; a bias, a norm or a whole layer inside it is not.
    """
    *path, leaf = name.split(".")
    entry = entries.get(name)
    if leaf in _LEGACY or (entry is not None and (not entry.is_floating or _is_mask(entry))):
        return False
    module = model
    for part in path:
        if (child := dict(module.named_children()).get(part)) is None:
            break
        module = child
    base = _base(model)
    return module is not model and module is not base and any(module is inner for inner in base.modules())


def _is_mask(entry: TensorEntry) -> bool:
    """GPT-2 and its kin stored their causal mask, [1, 1, n, n], as `attn.bias`."""
    return len(entry.shape) == 4 and entry.shape[:2] == (1, 1) and entry.shape[2] == entry.shape[3]
