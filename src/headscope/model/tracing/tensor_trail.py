"""Follows the tensors of one short forward: which modules were given them, which gave them, which were added.

A place of a model (the stream between two parts, what the feed-forward part adds) is one tensor of a forward. Where a
module is given that very tensor, or gives it, a hook on the module shows the place in every later forward. Tensors are
the same when they hold the same memory in the same version: a view with other axes is the same tensor, and an addition
in place makes a new one.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from headscope.model.rounding import agreement
from headscope.model.tracing.skip_connections import AdditionWatch, Place
from headscope.model.transformers.probe_inputs import forward_options, probe_inputs

Key = tuple[int, int, int]  # address, version and size of a tensor


@dataclass(frozen=True)
class Step:
    """One call of a module: the first tensor it was given and the first it gave, where there are any.

    `n_axes` and `widths`: of what it was given, and of what it gave. A width is the length of the last axis.
    """

    module: str
    call: int
    incoming: Key | None
    gave: Key | None
    n_axes: tuple[int, int] = (0, 0)
    widths: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Sum:
    """One addition of two tensors of the stream's shape."""

    operands: tuple[Key, Key]
    result: Key


@dataclass
class TensorTrail:
    """Every call of every module in the order in which they ended, and every addition inside the blocks."""

    steps: list[Step] = field(default_factory=list)
    sums: dict[tuple[Place, int], Sum] = field(default_factory=dict)
    n_calls: Counter[str] = field(default_factory=Counter)
    tensors: dict[Key, Tensor] = field(default_factory=dict)

    def key(self, tensor: Tensor) -> Key:
        """The name of a tensor; it is kept alive, so that no other one can have it.

        A tensor that only wraps others has no address (0): there the object itself is the name.
        """
        address = tensor.data_ptr() if tensor.is_contiguous() else 0
        key = address or id(tensor), tensor._version, tensor.numel() if address else -1
        self.tensors[key] = tensor
        return key

    def tensor(self, key: Key) -> Tensor | None:
        """The numbers of a tensor; None where they were overwritten later."""
        tensor = self.tensors.get(key)
        return tensor if tensor is not None and tensor._version == key[1] else None

    @property
    def overwrites(self) -> bool:
        """Whether the forward wrote over a tensor that a module was given or gave."""
        return any(tensor._version != version for (_, version, _), tensor in self.tensors.items())

    def step(self, module: str, call: int = 0) -> Step | None:
        """One call of a module."""
        return next((step for step in self.steps if (step.module, step.call) == (module, call)), None)

    def steps_of(self, module: str, call: int = 0) -> list[Step]:
        """The calls inside one call of a module, which is the last of them."""
        ends = [number for number, step in enumerate(self.steps) if step.module == module]
        if call >= len(ends):
            return []
        start = ends[call - 1] + 1 if call else 0
        steps = self.steps[start : ends[call] + 1]
        return [step for step in steps if step.module == module or _is_inside(step.module, module)]

    def givers(self, key: Key | None, inside: str = "") -> list[Step]:
        """The calls that gave a tensor, innermost first: a module ends before the one around it."""
        return [step for step in self.steps if step.gave == key and key is not None and _is_inside(step.module, inside)]

    def readers(self, key: Key | None, inside: str = "") -> list[Step]:
        """The calls that were given a tensor."""
        return [
            step for step in self.steps if step.incoming == key and key is not None and _is_inside(step.module, inside)
        ]


def follow(hf: Any, blocks: Iterable[str]) -> TensorTrail:
    """Run a few random tokens and keep what passed where."""
    trail = TensorTrail()
    with ExitStack() as stack:
        for name, module in hf.named_modules():
            follower = _Follower(trail, name)
            stack.callback(module.register_forward_pre_hook(follower.enter, with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(follower.leave).remove)
        _Additions(hf, tuple(blocks), trail).open(stack)
        with torch.no_grad():
            hf(**probe_inputs(hf, batch=1), **forward_options(hf))
    return trail


class _Follower:
    """The hooks of one module."""

    def __init__(self, trail: TensorTrail, name: str) -> None:
        self._trail, self._name = trail, name
        self._given: list[tuple[Key | None, int, int]] = []

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._given.append(self._first((*args, *kwargs.values())))

    def leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        call = self._trail.n_calls[self._name]
        self._trail.n_calls[self._name] += 1
        (incoming, n_given, from_width), (gave, n_gave, to_width) = self._given.pop(), self._first(values_of(output))
        step = Step(self._name, call, incoming, gave, (n_given, n_gave), (from_width, to_width))
        self._trail.steps.append(step)

    def _first(self, values: Iterable[Any]) -> tuple[Key | None, int, int]:
        tensor = next((value for value in values if isinstance(value, Tensor)), None)
        return (None, 0, 0) if tensor is None else (self._trail.key(tensor), tensor.ndim, (1, *tensor.shape)[-1])


class _Additions(AdditionWatch):
    """Keeps the operands and the result of every addition."""

    def __init__(self, hf: Any, blocks: tuple[str, ...], trail: TensorTrail) -> None:
        super().__init__(hf, blocks)
        self._trail = trail

    def added(self, place: Place, func: Any, a: Tensor, b: Tensor, kwargs: dict[str, Any]) -> Tensor:
        operands = self._trail.key(a), self._trail.key(b)
        result: Tensor = func(a, b, **kwargs)
        # A module runs once in a call of its block, so that the calls of the block number its own.
        self._trail.sums[place, self.block_call()] = Sum(operands, self._trail.key(result))
        return result


def values_of(output: Any) -> Iterator[Any]:
    """What a module gave, one by one: a tensor, a tuple, or an output of transformers."""
    if isinstance(output, Mapping):
        yield from output.values()
    elif isinstance(output, tuple | list):
        yield from output
    else:
        yield output


def constant_factor(before: Tensor | None, after: Tensor | None) -> float | None:
    """c where `after` is c times `before`; None where it is not."""
    if before is None or after is None or before.numel() != after.numel():
        return None
    a, b = before.cpu().double().flatten(), after.cpu().double().flatten()
    factor = float((a * b).sum() / a.square().sum())
    difference = float((b - factor * a).abs().max())
    return factor if difference <= agreement(after.dtype, 1) * float(b.abs().max()) else None


def _is_inside(module: str, part: str) -> bool:
    return not part or module.startswith(f"{part}.")
