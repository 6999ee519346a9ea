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
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headscope.errors import CaptureError

_MISSING = object()
_EMPTY: dict[Any, Any] = {}
_DICTIONARIES = frozenset({dict, OrderedDict})
_UNCHANGING = frozenset({type(None), bool, int, float, str, bytes, torch.dtype, torch.device, nn.Parameter})


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

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        modules = _modules_of(model)
        self._packages = {kind.__module__.partition(".")[0] for kind in set(map(type, modules))} - {"torch"}
        self._packages.add("transformers")
        self._attributes: list[tuple[Any, dict[str, Any]]] = []
        self._containers: list[tuple[Any, Any]] = []
        self._tensors: list[tuple[Tensor, Tensor, int | None]] = []
        self._empty: list[Any] = []
        self._weights = [(weight, _version(weight)) for weight in _weights_of(modules)]
        self._walk(model)

    def _walk(self, model: nn.Module) -> None:
        visited: set[int] = set()
        waiting: list[Any] = [model]
        while waiting:
            value = waiting.pop()
            # A model has thousands of attributes, most of them numbers, words and dictionaries without an entry: a
            # forward must not wait for them.
            kind = type(value)
            if kind in _UNCHANGING or id(value) in visited:
                continue
            visited.add(id(value))
            if kind in _DICTIONARIES or isinstance(value, dict):
                self._containers.append((value, dict(value) if value else _EMPTY))
                waiting += value.values()
            elif isinstance(value, nn.Parameter):
                continue
            elif isinstance(value, Tensor):
                self._tensors.append((value, value.detach().clone(), _version(value)))
            elif isinstance(value, list | set):
                self._containers.append((value, value.copy()))
                waiting += value
            elif isinstance(value, tuple):
                waiting += value
            elif self._is_part(value):
                attributes = dict(value.__dict__)
                self._attributes.append((value, attributes))
                # Every module has a dozen dictionaries for hooks, nearly all of them empty.
                self._empty += [part for part in attributes.values() if type(part) in _DICTIONARIES and not part]
                waiting += [
                    part
                    for part in attributes.values()
                    if type(part) not in _UNCHANGING and (type(part) not in _DICTIONARIES or part)
                ]

    def _is_part(self, value: Any) -> bool:
        """Whether an object belongs to the model.

        True for a module, and for an object of the packages that define its modules.
        """
        if isinstance(value, nn.Module):
            return True
        if isinstance(value, type | types.FunctionType | types.MethodType | types.ModuleType):
            return False
        return type(value).__module__.partition(".")[0] in self._packages and hasattr(value, "__dict__")

    def restore(self) -> tuple[Change, ...]:
        """Restore everything; returns the attributes that had changed.

        Raises:
            CaptureError: The forward wrote into a weight, which was not copied.
        """
        changes: list[Change] = []
        for owner, before in self._attributes:
            if not _is_same(owner.__dict__, before):
                changes += _restore_attributes(owner, before)
        for container, contents in self._containers:
            if container or contents:
                _restore_container(container, contents)
        for container in filter(None, self._empty):
            container.clear()
        with torch.no_grad():
            for tensor, numbers, version in self._tensors:
                if version is None or _version(tensor) != version:
                    tensor.copy_(numbers)
        overwritten = {id(weight) for weight, version in self._weights if _version(weight) != version}
        if overwritten:
            names = [name for name, weight in self._model.named_parameters() if id(weight) in overwritten]
            raise CaptureError(
                f"a forward of this model writes into its own weights ({', '.join(names[:4])}), so a second "
                "measurement would differ",
                hint="headscope measures models whose forward leaves their weights alone",
            )
        return tuple(changes)


@contextmanager
def restored(model: nn.Module) -> Iterator[list[Change]]:
    """Restore the model and the random number generators on exit.

    The list then holds the attributes that had changed.
    """
    changes: list[Change] = []
    with random_restored(model):
        state = ModelState(model)
        try:
            yield changes
        finally:
            changes += state.restore()


@contextmanager
def random_restored(model: nn.Module) -> Iterator[None]:
    """Restore the generators of torch (on the model's devices), numpy and Python."""
    python, arrays = random.getstate(), np.random.get_state()  # noqa: NPY002  the generator that models draw from
    devices = {weight.device for weight in _weights_of(_modules_of(model))}
    devices = {device for device in devices if device.type not in ("cpu", "meta") and _has_generator(device)}
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        for device in devices:
            stack.enter_context(torch.random.fork_rng(devices=[device.index or 0], device_type=device.type))
        try:
            yield
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
