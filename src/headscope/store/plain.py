"""Frozen dataclasses ↔ JSON and named arrays, led by the annotations: no pickle, no table of classes.

Arrays go to a dictionary on the side (later a safetensors file) and leave `{"array": name}` behind. Data of a
union of dataclasses carries its class name. Numbers that JSON does not know travel as `{"number": "nan"}`.
"""

import math
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from headscope.errors import UsageError

Arrays = dict[str, NDArray[np.float64]]


def to_json(what: Any, arrays: Arrays, name: str) -> Any:
    """What `json.dumps` accepts; arrays are put into `arrays` under names that begin with `name`."""
    if is_dataclass(what):
        parts = {f.name: to_json(getattr(what, f.name), arrays, f"{name}.{f.name}") for f in fields(what)}
        return {"type": type(what).__name__, **parts}
    if isinstance(what, np.ndarray):
        arrays[name] = np.ascontiguousarray(what)
        return {"array": name}
    if isinstance(what, Mapping):
        return {str(key): to_json(value, arrays, f"{name}.{key}") for key, value in what.items()}
    if isinstance(what, (tuple, list, frozenset)):
        items = sorted(what) if isinstance(what, frozenset) else what
        return [to_json(item, arrays, f"{name}.{i}") for i, item in enumerate(items)]
    return _scalar(what)


def from_json(data: Any, kind: Any, arrays: Mapping[str, NDArray[np.float64]]) -> Any:
    """The inverse of `to_json`, given the annotated type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return from_json(data, _member(data, arguments), arrays)
    if isinstance(data, dict) and data.keys() == {"array"}:
        return arrays[data["array"]]
    if isinstance(data, dict) and data.keys() == {"number"}:
        return float(data["number"])
    if is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind)
        return kind(**{f.name: from_json(data[f.name], hints[f.name], arrays) for f in fields(kind) if f.name in data})
    if origin is tuple:
        return tuple(_items(data, arguments, arrays))
    if isinstance(data, dict) and len(arguments) == 2:
        return {key: from_json(value, arguments[1], arrays) for key, value in data.items()}
    return float(data) if kind is float and isinstance(data, int) else data


def _items(data: list[Any], arguments: tuple[Any, ...], arrays: Mapping[str, NDArray[np.float64]]) -> list[Any]:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return [from_json(item, arguments[0], arrays) for item in data]
    return [from_json(item, kind, arrays) for item, kind in zip(data, arguments, strict=True)]


def _member(data: Any, members: tuple[Any, ...]) -> Any:
    """Which member of a union the stored value belongs to."""
    if data is None:
        return type(None)
    others = [member for member in members if member is not type(None)]
    if isinstance(data, dict) and "type" in data:
        return next(member for member in others if getattr(member, "__name__", "") == data["type"])
    # A union of scalars keeps what JSON kept; only a lone member is converted (1 → 1.0 for `float | None`).
    return others[0] if len(others) == 1 else object


def _scalar(what: Any) -> Any:
    value = what.item() if isinstance(what, np.generic) else what
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": repr(value)}
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise UsageError(
        f"{type(what).__name__} cannot be kept in a run: {what!r}",
        hint="keep numbers, texts, arrays and tables",
    )
