"""Saves the state of a model except its weights, and restores it after a forward.

A forward may change the model that it runs: BigBird leaves its sparse attention for good when the text is short,
dynamic rotary positions keep the longest text, some modules keep masks. So headscope saves, around every forward that
it runs, everything that belongs to the model: attributes of modules and of their configurations, the modules
themselves, buffers, lists and dictionaries (hooks too: transformers installs some when it is asked for attentions), and
the states of the random number generators. Weights are not copied: a forward that writes into one is refused.
"""

import random
import types
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain, compress, filterfalse
from operator import is_, methodcaller, not_
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headscope.errors import CaptureError

_MISSING = object()
_CONTAINERS: frozenset[type] = frozenset({dict, OrderedDict, list, set})
_LEAVES: frozenset[type] = frozenset(
    {type(None), bool, int, float, str, bytes, torch.dtype, torch.device, nn.Parameter, types.FunctionType}
)
_LEAVES_AND_CONTAINERS = _LEAVES | _CONTAINERS


@dataclass(frozen=True)
class Change:
    """One attribute that a forward has changed."""

    attribute: str
    before: Any
    after: Any


class ModelState:
    """The state of a model at one moment; `restore` brings it back.

    Properties:
        - `restore` brings back every attribute, buffer and module  (tested: test_everything_is_restored)
        - a weight that was written into is an error  (tested: test_a_forward_that_writes_weights_is_refused)
    """

    def __init__(self, model: nn.Module, modules: list[nn.Module] | None = None) -> None:
        self._model = model
        modules = _modules_of(model) if modules is None else modules
        self._packages = {kind.__module__.partition(".")[0] for kind in set(map(type, modules))} - {"torch"}
        self._packages.add("transformers")
        self._owners: list[tuple[Any, dict[str, Any]]] = []
        self._containers: list[tuple[Any, Any]] = []
        self._tensors: list[tuple[Tensor, Tensor, int | None]] = []
        self._empty: list[Any] = []
        self._weights = _weights_of(modules)
        self._versions = list(map(_version, self._weights))
        self._walk(model)
        # Most forwards change nothing: one comparison of everything then spares those of each object.
        self._contents = _contents(self._attributes(), [container for container, _ in self._containers])

    def _walk(self, model: nn.Module) -> None:
        """Copy all that can be reached, level by level.

        A model has ten thousand attributes, nearly all of them numbers, words and dictionaries without an entry. A
        forward must not wait for them, so they are sorted out by functions that need no line of Python for each.
        """
        visited: set[int] = set()
        level: list[Any] = [model]
        while level:
            parts: list[Any] = []
            for value in level:
                if id(value) not in visited:
                    visited.add(id(value))
                    parts += self._save(value)
            # Classes first: whether a tensor is empty cannot be asked.
            containers = list(_of_kinds(_CONTAINERS, parts))
            self._empty += filterfalse(None, containers)
            level = [*_of_other_kinds(_LEAVES_AND_CONTAINERS, parts), *filter(None, containers)]

    def _save(self, value: Any) -> Iterable[Any]:
        """Copy one value; gives what is inside it."""
        if isinstance(value, nn.Module):
            return self._save_attributes(value)
        if isinstance(value, dict):
            self._containers.append((value, dict(value)))
            return value.values()
        if isinstance(value, nn.Parameter):
            return ()
        if isinstance(value, Tensor):
            self._tensors.append((value, value.detach().clone(), _version(value)))
            return ()
        if isinstance(value, list | set):
            self._containers.append((value, value.copy()))
            return value
        if isinstance(value, tuple):
            return value
        return self._save_attributes(value) if self._is_part(value) else ()

    def _save_attributes(self, owner: Any) -> Iterable[Any]:
        attributes = dict(owner.__dict__)
        self._owners.append((owner, attributes))
        return attributes.values()

    def _attributes(self) -> list[dict[str, Any]]:
        return [owner.__dict__ for owner, _ in self._owners]

    def _is_part(self, value: Any) -> bool:
        """Whether an object that is no module belongs to the model: it is of a package that defines its modules."""
        if isinstance(value, type | types.FunctionType | types.MethodType | types.ModuleType):
            return False
        return type(value).__module__.partition(".")[0] in self._packages and hasattr(value, "__dict__")

    def restore(self) -> tuple[Change, ...]:
        """Restore everything; returns the attributes that had changed.

        Raises:
            CaptureError: The forward wrote into a weight, which was not copied.
        """
        changes = self._restore_contents()
        for container in filter(None, self._empty):
            container.clear()
        with torch.no_grad():
            for tensor, numbers, version in self._tensors:
                if version is None or _version(tensor) != version:
                    tensor.copy_(numbers)
        versions = zip(self._weights, self._versions, strict=True)
        overwritten = {id(weight) for weight, version in versions if _version(weight) != version}
        if overwritten:
            names = [name for name, weight in self._model.named_parameters() if id(weight) in overwritten]
            raise CaptureError(
                f"a forward of this model writes into its own weights ({', '.join(names[:4])}), so a second "
                "measurement would differ",
                hint="headscope measures models whose forward leaves their weights alone",
            )
        return tuple(changes)

    def _restore_contents(self) -> list[Change]:
        """Restore attributes, lists, sets and dictionaries."""
        containers = [container for container, _ in self._containers]
        if _are_same(self._contents, _contents(self._attributes(), containers)):
            return []
        changes: list[Change] = []
        for owner, before in self._owners:
            if not _is_same(owner.__dict__, before):
                changes += _restore_attributes(owner, before)
        for container, contents in self._containers:
            _restore_container(container, contents)
        return changes


@contextmanager
def restored(model: nn.Module) -> Iterator[list[Change]]:
    """Restore the model and the random number generators on exit.

    The list then holds the attributes that had changed.
    """
    changes: list[Change] = []
    with random_restored(model) as modules:
        state = ModelState(model, modules)
        try:
            yield changes
        finally:
            changes += state.restore()


@contextmanager
def random_restored(model: nn.Module) -> Iterator[list[nn.Module]]:
    """Restore the generators of torch (on the model's devices), numpy and Python; gives the modules of the model."""
    # Before anything else runs: a checker of types draws which entry of a list it looks at.
    python, arrays = random.getstate(), np.random.get_state()  # noqa: NPY002  the generator that models draw from
    modules = _modules_of(model)
    devices = {weight.device for weight in _weights_of(modules)}
    devices = {device for device in devices if device.type not in ("cpu", "meta") and _has_generator(device)}
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        for device in devices:
            stack.enter_context(torch.random.fork_rng(devices=[device.index or 0], device_type=device.type))
        try:
            yield modules
        finally:
            random.setstate(python)
            np.random.set_state(arrays)  # noqa: NPY002


def _modules_of(model: nn.Module) -> list[nn.Module]:
    """A module and all inside it, each once; `Module.modules` asks generators within generators."""
    modules = {id(model): model}
    waiting = [model]
    while waiting:
        parts = [part for part in waiting.pop()._modules.values() if part is not None and id(part) not in modules]
        modules.update((id(part), part) for part in parts)
        waiting += parts
    return list(modules.values())


def _weights_of(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    return [weight for module in modules for weight in module._parameters.values() if weight is not None]


def _has_generator(device: torch.device) -> bool:
    """Whether torch has a random number generator for a device.

    It has no module for XLA, for instance.
    """
    try:
        torch.get_device_module(device.type).get_rng_state(device.index or 0)
    except (RuntimeError, AttributeError):
        return False
    return True


def _version(tensor: Tensor) -> int | None:
    """The number of writes into a tensor.

    None for tensors of inference mode, which do not count them.
    """
    return None if tensor.is_inference() else tensor._version


def _of_kinds(kinds: frozenset[type], values: Sequence[Any]) -> Iterator[Any]:
    """The values whose class is exactly one of these."""
    return compress(values, map(kinds.__contains__, map(type, values)))


def _of_other_kinds(kinds: frozenset[type], values: Sequence[Any]) -> Iterator[Any]:
    """The values whose class is none of these."""
    return compress(values, map(not_, map(kinds.__contains__, map(type, values))))


def _contents(attributes: list[dict[str, Any]], containers: list[Any]) -> tuple[list[int], list[Any]]:
    """How much each dictionary, list and set holds, and all that they hold."""
    dictionaries = [*attributes, *(container for container in containers if isinstance(container, dict))]
    lengths = list(map(len, [*attributes, *containers]))
    values = chain.from_iterable(map(methodcaller("values"), dictionaries))
    # The names of dictionaries are what these give as iterables.
    return lengths, [*chain.from_iterable(attributes), *chain.from_iterable(containers), *values]


def _are_same(before: tuple[list[int], list[Any]], after: tuple[list[int], list[Any]]) -> bool:
    return before[0] == after[0] and len(before[1]) == len(after[1]) and all(map(is_, before[1], after[1]))


def _is_same(values: dict[Any, Any], before: dict[Any, Any]) -> bool:
    """Whether a dictionary holds the same objects under the same names, in the same order."""
    return (
        len(values) == len(before) and all(map(is_, values, before)) and all(map(is_, values.values(), before.values()))
    )


def _restore_attributes(owner: Any, before: dict[str, Any]) -> Iterator[Change]:
    attributes = owner.__dict__
    for name in [name for name in attributes if name not in before]:
        yield Change(name, None, attributes.pop(name))
    for name, value in before.items():
        after = attributes.get(name, _MISSING)
        if after is not value:
            attributes[name] = value
            if after is not _MISSING and not (isinstance(value, int | float | str) and after == value):
                yield Change(name, value, after)


def _restore_container(container: Any, before: Any) -> None:
    if isinstance(container, list):
        if len(container) != len(before) or any(a is not b for a, b in zip(container, before, strict=True)):
            container[:] = before
    elif isinstance(container, set):
        if container != before:
            container.clear()
            container.update(before)
    elif not _is_same(container, before):
        container.clear()
        container.update(before)
