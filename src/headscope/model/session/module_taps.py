"""Hooks at which the tensors of places pass: on one side of a module, or at an addition in a module's own code.

A tap hands each tensor to the function that it was made with, and puts what comes back in its place.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from headscope.core.site import Site
from headscope.errors import CaptureError
from headscope.model.session.captures import WatchedQuantity
from headscope.model.session.places import Spot
from headscope.model.tracing.skip_connections import IN_PLACE, AdditionWatch
from headscope.model.tracing.skip_connections import Place as Addition


@dataclass(frozen=True)
class Watched:
    """A quantity of a site at a spot."""

    quantity: WatchedQuantity
    site: Site
    spot: Spot

    def is_call(self, number: int) -> bool:
        """Whether this call of the module is the one; the remainder covers parts that run on their own."""
        return number % self.spot.calls_per_forward == self.spot.call


# Gets what is watched, the tensor, what the module was given, and the module: gives the tensor that goes on.
Passer = Callable[[Watched, Tensor, Tensor | None, str], Tensor]


class ModuleTap:
    """A tap on one side of a module; calls are counted within a forward."""

    def __init__(self, name: str, watched: Sequence[Watched], passer: Passer, is_live: Callable[[], bool]) -> None:
        self._name, self._watched, self._passer, self._is_live = name, tuple(watched), passer, is_live
        self._n_calls = 0

    def begin(self) -> None:
        """A forward begins: the next call is its first."""
        self._n_calls = 0

    def attach(self, module: nn.Module, side: str) -> RemovableHandle:
        """Watch a module from now on."""
        if side == "input":
            return module.register_forward_pre_hook(self._entered, with_kwargs=True)
        return module.register_forward_hook(self._left, with_kwargs=True)

    def _entered(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if not self._is_live():
            return None
        tensor = first_tensor((*args, *kwargs.values()))
        after = self._passed(tensor, None)
        if after is tensor or after is None:
            return None
        return tuple(after if v is tensor else v for v in args), {
            name: after if v is tensor else v for name, v in kwargs.items()
        }

    def _left(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        if not self._is_live():
            return None
        values = output.values() if isinstance(output, Mapping) else output
        tensor = output if isinstance(output, Tensor) else first_tensor(values)
        after = self._passed(tensor, first_tensor((*args, *kwargs.values())))
        return None if after is tensor or after is None else _replaced(output, tensor, after)

    def _passed(self, tensor: Tensor | None, incoming: Tensor | None) -> Tensor | None:
        number = self._n_calls
        self._n_calls += 1
        for watched in self._watched:
            if watched.is_call(number):
                if tensor is None:
                    raise CaptureError(
                        f"{watched.site.label}: {self._name} has no tensor that could be captured as "
                        f"{watched.quantity.name}"
                    )
                tensor = self._passer(watched, tensor, incoming, self._name)
        return tensor


class AdditionTap(AdditionWatch):
    """A tap on additions inside some blocks."""

    def __init__(
        self, hf: Any, blocks: Sequence[str], watched: Sequence[Watched], passer: Passer, is_live: Callable[[], bool]
    ) -> None:
        super().__init__(hf, blocks)
        self._passer, self._is_live = passer, is_live
        self._watched: dict[Addition, list[Watched]] = {}
        for entry in watched:
            self._watched.setdefault((entry.spot.module, entry.spot.number), []).append(entry)

    def begin(self) -> None:
        """A forward begins: the next call of each block is its first."""
        self.calls.clear()

    def added(self, place: Addition, func: Any, a: Tensor, b: Tensor, kwargs: dict[str, Any]) -> Tensor:
        """The sum, with operands and result as the passer gives them."""
        entries = [entry for entry in self._watched.get(place, ()) if entry.is_call(self.block_call())]
        if not entries or not self._is_live():
            untouched: Tensor = func(a, b, **kwargs)
            return untouched
        operands = [a, b]
        for entry in entries:
            if entry.spot.side == "operand":
                index = entry.spot.operand
                operands[index] = self._passer(entry, operands[index], None, place[0])
        changes_written = func in IN_PLACE and operands[0] is not a
        result: Tensor = operands[0] + operands[1] if changes_written else func(*operands, **kwargs)
        after = result
        for entry in entries:
            if entry.spot.side == "sum":
                after = self._passer(entry, after, None, place[0])
        # Who adds in place goes on reading the tensor that was added to.
        return a.copy_(after) if func in IN_PLACE and after is not a else after

    def left(self, name: str, additions: int) -> None:
        """Refuse a module that now adds elsewhere than in the probe: a place would silently be another one."""
        expected = max((number + 1 for module, number in self._watched if module == name), default=0)
        if additions < expected and self._is_live():
            raise CaptureError(f"{name} adds differently on this text than on the tokens of the probe")


def attached(
    hf: Any, entries: Sequence[Watched], passer: Passer, is_live: Callable[[], bool], stack: ExitStack
) -> list[ModuleTap | AdditionTap]:
    """Taps for what is watched, in this order at each module; closing the stack removes them."""
    by_side: dict[tuple[str, str], list[Watched]] = {}
    additions = [entry for entry in entries if entry.spot.side in ("sum", "operand")]
    for entry in entries:
        for module in () if entry in additions else entry.spot.modules:
            by_side.setdefault((module, entry.spot.side), []).append(entry)
    taps: list[ModuleTap | AdditionTap] = []
    for (module, side), entries_there in by_side.items():
        tap = ModuleTap(module, entries_there, passer, is_live)
        stack.callback(tap.attach(hf.get_submodule(module), side).remove)
        taps.append(tap)
    if additions:
        blocks = tuple(dict.fromkeys(entry.spot.block for entry in additions))
        addition_tap = AdditionTap(hf, blocks, additions, passer, is_live)
        addition_tap.open(stack)
        taps.append(addition_tap)
    return taps


def first_tensor(values: Iterable[Any]) -> Tensor | None:
    """The first tensor among some values."""
    return next((value for value in values if isinstance(value, Tensor)), None)


def _replaced(output: Any, before: Tensor | None, after: Tensor) -> Any:
    """What a module gives, with another tensor in the place of one."""
    if isinstance(output, Tensor):
        return after
    if isinstance(output, Mapping):
        written: Any = output  # outputs of transformers can be written
        written[next(name for name, value in output.items() if value is before)] = after
        return written
    return type(output)(after if value is before else value for value in output)
