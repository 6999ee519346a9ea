"""Converts frozen dataclasses to JSON and named arrays, and back, by annotations.

There is no pickle and no table of classes. Arrays go to a dictionary on the side (later a safetensors file) and leave
`{"array": name}` behind. Data of a union of dataclasses carries its class name. Numbers that JSON lacks become
`{"number": "nan"}`.
"""

import math
import re
import sys
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from headscope.errors import UsageError

Arrays = dict[str, NDArray[Any]]

DAMAGED = "the run folder was changed or damaged after the run: make it again, or get another copy of it"

_MOST = 2**63 - 1  # the largest whole number that tables and arrays can hold
_NOT_FINITE = ("nan", "inf", "-inf")
_SURROGATE = re.compile("[\ud800-\udfff]")
_WORDS = {int: "a whole number", bool: "true or false"}


def to_json(node: Any, arrays: Arrays, name: str) -> Any:
    """Convert to what `json.dumps` accepts.

    Arrays go into `arrays` under names that begin with `name`.
    """
    if is_dataclass(node):
        parts = {f.name: to_json(getattr(node, f.name), arrays, f"{name}.{f.name}") for f in fields(node)}
        return {"type": type(node).__name__, **parts}
    if isinstance(node, np.ndarray):
        arrays[name] = np.ascontiguousarray(node)
        return {"array": name}
    if isinstance(node, Mapping):
        return {str(key): to_json(value, arrays, f"{name}.{key}") for key, value in node.items()}
    if isinstance(node, (tuple, list, frozenset)):
        items = sorted(node) if isinstance(node, frozenset) else node
        return [to_json(item, arrays, f"{name}.{i}") for i, item in enumerate(items)]
    return _scalar(node)


def from_json(data: Any, kind: Any, arrays: Mapping[str, NDArray[Any]], source: str) -> Any:
    """Convert JSON back, by the annotated type; the inverse of `to_json`.

    Data may come from a stranger: a value of another type is refused, with its place in `source`.

    Properties:
        - the result of `to_json` is read back  (tested: test_round_trip)
        - any other data is read or refused with a `UsageError`  (tested: test_findings)
    """
    return _Reader(arrays, source).value(data, kind, "")


class _Reader:
    """Reads values of annotated types.

    Its errors name the file.
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]], source: str) -> None:
        self._arrays = arrays
        self._source = source

    def value(self, data: Any, kind: Any, place: str) -> Any:
        """Read the value of one annotated type; `place` is its path in the file."""
        origin, arguments = get_origin(kind), get_args(kind)
        if origin in (Union, types.UnionType):
            return self._member(data, arguments, place)
        if origin is Literal:
            return data if data in arguments else self._refuse(data, " or ".join(map(repr, arguments)), place)
        if is_dataclass(kind) and isinstance(kind, type):
            return self._record(data, kind, place)
        if origin is np.ndarray:
            return self._array(data, place)
        if origin is tuple:
            return self._items(data, arguments, place)
        if origin is not None and issubclass(origin, Mapping):
            return self._mapping(data, arguments[1], place)
        return self._scalar(data, kind, place)

    def _record(self, data: Any, kind: Any, place: str) -> Any:
        if not isinstance(data, dict) or data.get("type", kind.__name__) != kind.__name__:
            self._refuse(data, f"an object of the type {kind.__name__}", place)
        hints, values = get_type_hints(kind), dict[str, Any]()
        for field in fields(kind):
            if field.name in data:
                values[field.name] = self.value(data[field.name], hints[field.name], f"{place}.{field.name}")
            elif field.default is MISSING and field.default_factory is MISSING:
                self._refuse(data, f"an object with the field {field.name!r}", place)
        return kind(**values)

    def _array(self, data: Any, place: str) -> NDArray[Any]:
        name = data["array"] if isinstance(data, dict) and data.keys() == {"array"} else None
        if not isinstance(name, str) or name not in self._arrays:
            self._refuse(data, "the name of a stored array", place)
        return self._arrays[name]

    def _items(self, data: Any, arguments: tuple[Any, ...], place: str) -> tuple[Any, ...]:
        endless = len(arguments) == 2 and arguments[1] is Ellipsis
        if not isinstance(data, list) or not (endless or len(data) == len(arguments)):
            self._refuse(data, "a list" if endless else f"a list of {len(arguments)}", place)
        kinds = arguments[:1] * len(data) if endless else arguments
        pairs = zip(data, kinds, strict=True)
        return tuple(self.value(item, kind, f"{place}[{i}]") for i, (item, kind) in enumerate(pairs))

    def _mapping(self, data: Any, kind: Any, place: str) -> dict[str, Any]:
        if not isinstance(data, dict):
            self._refuse(data, "an object", place)
        return {self._text(key, place): self.value(value, kind, f"{place}.{key}") for key, value in data.items()}

    def _member(self, data: Any, members: tuple[Any, ...], place: str) -> Any:
        """Read a value of a union: None, the class that it names, or a scalar."""
        alternatives = [member for member in members if member is not type(None)]
        if data is None and len(alternatives) < len(members):
            return None
        if len(alternatives) == 1:
            return self.value(data, alternatives[0], place)
        if any(is_dataclass(member) for member in alternatives):
            class_name = data.get("type") if isinstance(data, dict) else None
            return self.value(data, self._class_named(class_name, data, alternatives, place), place)
        fitting = [member for member in alternatives if type(data) is member]
        return self.value(data, fitting[0] if fitting else float, place)

    def _class_named(self, name: Any, data: Any, classes: list[Any], place: str) -> Any:
        names = {member.__name__: member for member in classes}
        if not isinstance(name, str) or name not in names:
            self._refuse(data, f"an object of the type {', '.join(names)}", place)
        return names[name]

    def _scalar(self, data: Any, kind: Any, place: str) -> Any:
        if kind is float:
            return self._number(data, place)
        if kind is str:
            return self._text(data, place)
        if kind is int and type(data) is int and -_MOST <= data <= _MOST:
            return data
        return data if kind is bool and type(data) is bool else self._refuse(data, _WORDS[kind], place)

    def _number(self, data: Any, place: str) -> float:
        if isinstance(data, dict) and data.keys() == {"number"} and data["number"] in _NOT_FINITE:
            return float(data["number"])
        if type(data) in (int, float) and abs(data) <= sys.float_info.max:
            return float(data)
        return self._refuse(data, "a number", place)

    def _text(self, data: Any, place: str) -> str:
        # A lone surrogate is not a character: it could never be written to a file again.
        if isinstance(data, str) and not _SURROGATE.search(data):
            return data
        return self._refuse(data, "a text", place)

    def _refuse(self, data: Any, expected: str, place: str) -> NoReturn:
        raise UsageError(
            f"{self._source} is damaged: {place.lstrip('.') or 'it'} is {_brief(data)}, expected {expected}",
            hint=DAMAGED,
        )


def _brief(data: Any) -> str:
    """A short description of the data, whatever its size."""
    if isinstance(data, (dict, list)):
        return f"{'an object' if isinstance(data, dict) else 'a list'} of {len(data)}"
    if type(data) is int and abs(data) > _MOST:
        return f"a whole number of {data.bit_length()} bits"
    text = ascii(data)
    return text if len(text) <= 60 else f"{text[:60]} …"


def _scalar(scalar: Any) -> Any:
    value = scalar.item() if isinstance(scalar, np.generic) else scalar
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": repr(value)}
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise UsageError(
        f"{type(scalar).__name__} cannot be kept in a run: {scalar!r}",
        hint="keep numbers, texts, arrays and tables",
    )
