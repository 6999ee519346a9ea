"""Finds the skip connections of a model and their branches, for any family.

A skip connection is an addition x + f(x): one operand was computed from the other by a matrix. The graph that torch
records of one short forward shows this, so norms before, between or after do not matter. The parts of f are its
branches: a branch that attends belongs to the attention, any other to the feed-forward part. Blocks that add several
branches of one x (x + attention(x) + feed_forward(x), in any order) have one skip connection and several branches.

The result gives a role to the operands of some additions; an addition is named by the module whose own code adds and by
its number there. A model with attention outside a skip connection is refused.
"""

import re
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headscope.core.site import Site
from headscope.errors import HeadscopeError, VariantRefused
from headscope.model.transformers.attention_hook import answering, plain_attention, tapped
from headscope.model.transformers.call_reader import RawCall
from headscope.model.transformers.layers import layer_lists
from headscope.model.transformers.library_messages import reason
from headscope.model.transformers.probe_inputs import forward_options, probe_inputs

Part = Literal["attention", "mlp"]
Place = tuple[str, int]  # the module whose code adds, and which of its additions it is

IN_PLACE = {Tensor.add_, Tensor.__iadd__}
_ADDITIONS = {torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, *IN_PLACE}
# Nodes of torch's graph that multiply by a matrix.
_PRODUCT = re.compile(r"^(Add|B|Baddb|_Grouped|GroupedM?)?mm|Linear|Convolution|Einsum|Matmul", re.IGNORECASE)
PARTS: tuple[Part, ...] = ("attention", "mlp")


@dataclass(frozen=True)
class Role:
    """The roles of the two operands of an addition.

    `skip` is the operand that the skip connection carries; `parts` are the branches. `alone`: the skip connection goes
    around this branch only.
    """

    skip: int | None
    parts: dict[int, Part]
    alone: bool = True


@dataclass(frozen=True)
class Join:
    """The addition at which a branch joins the stream: where it is, and which operand is the branch.

    `call`: in which call of its block, from 0. `only`: nothing else joins there, and the other operand is the skip
    connection of this branch alone, so that the result is the stream after it.
    """

    place: Place
    operand: int
    block: str
    call: int
    only: bool


@dataclass(frozen=True)
class Branches:
    """The relevant additions by place, and why some branches are indistinguishable.

    `attention` holds the join of each site, `feed_forward` those of the other branches by block and call.
    """

    blocks: tuple[str, ...]
    roles: dict[Place, Role]
    unknown: dict[Part, str]
    attention: dict[Site, Join]
    feed_forward: dict[tuple[str, int], tuple[Join, ...]]


@dataclass(frozen=True)
class _Addition:
    place: Place
    operands: tuple[Any, Any]
    result: Any
    call: tuple[str, int]  # the block in which it happens, and which of its calls


# Calls the function it is given with each site and what its attention gives, while the model runs.
Observer = Callable[[Callable[[Site, Tensor], None]], AbstractContextManager[None]]


def find_branches(hf: Any, sites: Sequence[Site], observed: Observer | None = None) -> Branches:
    """Find the roles of a model's additions.

    `observed` shows the attention of families that do not use transformers' attention interface. Raises
    `VariantRefused` where the roles are unclear.
    """
    lists = layer_lists(hf, sites)
    blocks = tuple(f"{name}.{index}" for name in lists for index in range(len(hf.get_submodule(name))))
    if not blocks:
        raise VariantRefused(
            f"the layers of {type(hf).__name__} are not a list of modules, so headscope cannot find them"
        )
    probe = _Probe(hf, sites, blocks, observed)
    try:
        probe.run()
    except (HeadscopeError, MemoryError):
        raise
    except Exception as error:
        raise VariantRefused(f"{type(hf).__name__} could not be run with gradients ({reason(error)})") from error
    return _BranchFinder(probe).branches()


class AdditionMode(TorchFunctionMode):
    """Passes every addition of two tensors of equal shape to `handle`.

    `handle` also gets the function that adds.
    """

    def __init__(self, handle: Any) -> None:
        super().__init__()
        self._handle = handle

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if func in _ADDITIONS and len(args) == 2 and all(isinstance(operand, Tensor) for operand in args):
            a, b = args
            if a.shape == b.shape and a.is_floating_point() and b.is_floating_point():
                return self._handle(func, a, b, options)
        return func(*args, **options)


class _OfThread(threading.local):
    """What one thread is running: a model may be run by several at once."""

    def __init__(self) -> None:
        self.modules: list[tuple[str, Counter[str]]] = []  # the innermost last, with what it has counted
        self.modes: list[Any] = []
        self.streams: list[int] = []  # the sizes of the streams that the blocks were given
        self.calls: Counter[str] = Counter()


class AdditionWatch(ABC):
    """Tracks whose code runs inside the blocks, and counts additions of stream width."""

    def __init__(self, hf: Any, blocks: Sequence[str]) -> None:
        self._hf, self._blocks = hf, frozenset(blocks)
        self._running = _OfThread()

    def open(self, stack: ExitStack) -> None:
        """Add hooks to every module inside the blocks; closing the stack removes them."""
        stack.callback(self.unwind)
        hooked_ids: set[int] = set()
        for block in self._blocks:
            for name, module in self._hf.get_submodule(block).named_modules(prefix=block):
                if id(module) not in hooked_ids:
                    hooked_ids.add(id(module))
                    enter, leave = partial(self._enter, name), partial(self._leave, name)
                    stack.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
                    stack.callback(module.register_forward_hook(leave, always_call=True).remove)

    def unwind(self) -> None:
        """Leave the blocks that are running: torch calls no hook when a forward is interrupted from the keyboard."""
        self._running.modules.clear()
        self._running.streams.clear()
        while self._running.modes:
            self._running.modes.pop().__exit__(None, None, None)

    @property
    def calls(self) -> Counter[str]:
        """How often each block was called."""
        return self._running.calls

    def _enter(self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if name in self._blocks:
            tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
            self._running.streams.append(tensors[0].numel() if tensors else -1)
            self.calls[name] += 1
            self._running.modes.append(AdditionMode(self._add))
            self._running.modes[-1].__enter__()
        self._running.modules.append((name, Counter()))

    def _leave(self, name: str, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        # Also called after an error, even one in `_enter` itself.
        modules = self._running.modules
        while modules and modules[-1][0] != name:
            modules.pop()
        if not modules:
            return
        _, counts = modules.pop()
        if name in self._blocks:
            self._running.modes.pop().__exit__(None, None, None)
            self._running.streams.pop()
        if output is not None:
            self.left(name, counts["additions"])

    def _add(self, func: Any, a: Tensor, b: Tensor, kwargs: dict[str, Any]) -> Tensor:
        if not self._running.modules or answering() or a.numel() != self._running.streams[-1]:
            done: Tensor = func(a, b, **kwargs)
            return done
        name, counts = self._running.modules[-1]
        number = counts["additions"]
        counts["additions"] += 1
        return self.added((name, number), func, a, b, kwargs)

    def block_call(self) -> int:
        """The number of the running call of the outermost block, from 0."""
        return next((self.calls[name] - 1 for name, _ in self._running.modules if name in self._blocks), 0)

    @abstractmethod
    def added(self, place: Place, func: Any, a: Tensor, b: Tensor, kwargs: dict[str, Any]) -> Tensor:
        """The result of an addition."""

    def left(self, name: str, additions: int) -> None:  # noqa: B027  who only watches need not care
        """A module has run, and its own code has added this many times."""


class _Probe(AdditionWatch):
    """One short forward with gradients; keeps graph nodes of additions and attention."""

    def __init__(self, hf: Any, sites: Sequence[Site], blocks: Sequence[str], observed: Observer | None) -> None:
        super().__init__(hf, blocks)
        self.sites, self.blocks = tuple(sites), tuple(blocks)
        self._observed = observed
        self._by_call = {(site.module, site.call): site for site in sites}
        self._names = {id(module): name for name, module in hf.named_modules()}
        self._attended: Counter[str] = Counter()
        self.additions: list[_Addition] = []
        self.attention: dict[Site, tuple[Any, tuple[str, int]]] = {}

    def run(self) -> None:
        """Run the forward on a few random tokens."""
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            if self._observed is None:
                stack.enter_context(tapped(self._hf, self._attention))
            else:
                stack.enter_context(self._observed(self._note))
            self.open(stack)
            for module in self._hf.modules():
                if isinstance(module, nn.Embedding):
                    stack.callback(module.register_forward_hook(_with_gradient).remove)
            self._hf(**probe_inputs(self._hf, batch=1), **forward_options(self._hf))

    def _attention(self, raw: RawCall) -> Tensor:
        name = self._names[id(raw.module)]
        site = self._by_call.get((name, self._attended[name]))
        self._attended[name] += 1
        out = plain_attention(raw)
        if site is not None:
            self._note(site, out)
        return out

    def _note(self, site: Site, attended: Tensor) -> None:
        self.attention[site] = (attended.grad_fn, self._call())

    def added(self, place: Place, func: Any, a: Tensor, b: Tensor, kwargs: dict[str, Any]) -> Tensor:
        """Record the nodes of the operands and of the result."""
        operands = (a.grad_fn, b.grad_fn)
        result: Tensor = func(a, b, **kwargs)
        if result.grad_fn is not None:
            self.additions.append(_Addition(place, operands, result.grad_fn, self._call()))
        return result

    def _call(self) -> tuple[str, int]:
        for name, _ in self._running.modules:
            if name in self._blocks:
                return name, self.calls[name]
        return "", 0


def _with_gradient(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    """Start the graph at the embeddings, since weights may be frozen."""
    if isinstance(output, Tensor) and not output.requires_grad and output.is_floating_point():
        return output.detach().requires_grad_().clone()
    return output


@dataclass
class _Path:
    """The path between a node and an earlier one.

    Empty where the node was not computed from the earlier one.
    """

    nodes: set[int] = field(default_factory=set)
    product: bool = False


class _BranchFinder:
    """Finds skip connections and their branches in the graph of a probe."""

    def __init__(self, probe: _Probe) -> None:
        self._probe = probe
        self._paths: dict[tuple[int, int], _Path] = {}

    def branches(self) -> Branches:
        roles: dict[Place, Role] = {}
        attention: dict[Site, Join] = {}
        feed_forward: dict[tuple[str, int], tuple[Join, ...]] = {}
        for addition, role, parts in self._roles():
            before = roles.setdefault(addition.place, role)
            if before != role:
                raise VariantRefused(f"{addition.place[0]} adds differently from call to call")
            block, call = addition.call[0], addition.call[1] - 1
            only = role.skip is not None and role.alone and len(role.parts) == 1
            for source, operand, part in parts:
                join = Join(addition.place, operand, block, call, only)
                if part == "mlp":
                    feed_forward[block, call] = (*feed_forward.get((block, call), ()), join)
                nodes = self._path(source, addition.operands[operand]).nodes
                attention |= {site: join for site, (node, _) in self._probe.attention.items() if id(node) in nodes}
        self._check(attention)
        unknown = self._unknown({(block, call + 1) for block, call in feed_forward})
        return Branches(self._probe.blocks, roles, unknown, attention, feed_forward)

    def _check(self, inside: dict[Site, Join]) -> None:
        if labels_without := [site.label for site in self._probe.sites if site not in inside]:
            raise VariantRefused(
                f"no skip connection was found around the attention of {', '.join(labels_without[:4])}"
                f"{' …' if len(labels_without) > 4 else ''}: the family adds in a way that headscope does not know"
            )

    def _unknown(self, with_mlp: set[tuple[str, int]]) -> dict[Part, str]:
        calls = {call: site for site, (_, call) in self._probe.attention.items()}
        lacking = [site.label for call, site in calls.items() if call not in with_mlp]
        if not lacking:
            return {}
        why = (
            f"no feed-forward branch was found beside the attention of {', '.join(lacking[:4])}"
            f"{' …' if len(lacking) > 4 else ''}"
        )
        return dict.fromkeys(PARTS, why)

    def _roles(self) -> Iterator[tuple[_Addition, Role, list[tuple[Any, int, Part]]]]:
        """Each addition with its role, and its branches as source, operand and kind."""
        skips = [(addition, index) for addition in self._probe.additions if (index := self._skip(addition)) is not None]
        sources = {id(addition.result): addition.operands[index] for addition, index in skips}
        by_place: dict[int, tuple[_Addition, int | None, dict[int, tuple[Any, Part]]]] = {}
        for addition, index in skips:
            source, branch = addition.operands[index], addition.operands[1 - index]
            entry = by_place.setdefault(id(addition.result), (addition, index, {}))
            split = self._split(source, branch, addition.call)
            kinds = [self._part(source, inner.operands[operand]) for inner, operand in split]
            if len(set(kinds)) < 2:
                entry[2][1 - index] = (source, self._part(source, branch))
                continue
            for (inner, operand), kind in zip(split, kinds, strict=True):
                other = by_place.setdefault(id(inner.result), (inner, None, {}))
                other[2][operand] = (source, kind)
        for addition in self._probe.additions:
            if id(addition.result) in by_place:
                continue
            # x + attention(x) + feed_forward(x), added from the left.
            for index in (0, 1):
                source = sources.get(id(addition.operands[index]))
                node = addition.operands[1 - index]
                if source is not None and self._path(source, node).product:
                    by_place[id(addition.result)] = (addition, None, {1 - index: (source, self._part(source, node))})
                    sources[id(addition.result)] = source
        parts_by_source: dict[int, set[Part]] = {}
        for _, _, parts in by_place.values():
            for source, part in parts.values():
                parts_by_source.setdefault(id(source), set()).add(part)
        for addition, index, parts in by_place.values():
            source = None if index is None else addition.operands[index]
            alone = source is None or len(parts_by_source.get(id(source), ())) < 2
            part_by_operand = {operand: part for operand, (_, part) in parts.items()}
            branches = [(origin, operand, part) for operand, (origin, part) in parts.items()]
            yield addition, Role(index, part_by_operand, alone), branches

    def _skip(self, addition: _Addition) -> int | None:
        """The operand from which a matrix computed the other one."""
        a, b = addition.operands
        if a is None or b is None:
            return None
        earlier, later = (0, 1) if a._sequence_nr() < b._sequence_nr() else (1, 0)
        path = self._path(addition.operands[earlier], addition.operands[later])
        return earlier if path.product else None

    def _split(self, source: Any, branch: Any, call: tuple[str, int]) -> list[tuple[_Addition, int]]:
        """The summands of a branch, each computed from the source by its own matrix."""
        path = self._path(source, branch)
        for addition in reversed(self._probe.additions):
            if addition.call != call or id(addition.result) not in path.nodes:
                continue
            from_matrices = [
                operand is not None and self._path(source, operand).product for operand in addition.operands
            ]
            if all(from_matrices) and not self._path(addition.result, branch).product and self._skip(addition) is None:
                summands: list[tuple[_Addition, int]] = []
                for index, operand in enumerate(addition.operands):
                    summands += self._split(source, operand, call) or [(addition, index)]
                return summands
        return []

    def _part(self, source: Any, node: Any) -> Part:
        path = self._path(source, node)
        attends = any(id(attention_node) in path.nodes for attention_node, _ in self._probe.attention.values())
        return "attention" if attends else "mlp"

    def _path(self, source: Any, node: Any) -> _Path:
        """The nodes on the ways from `node` back to `source`, both ends included."""
        key = (id(source), id(node))
        if key not in self._paths:
            self._paths[key] = _path(source, node)
        return self._paths[key]


def _path(source: Any, node: Any) -> _Path:
    floor = source._sequence_nr()
    if node is None or node is source:
        return _Path({id(source)} if node is source else set())
    # Depth first: every node comes after the nodes that it was computed from.
    leads: dict[int, bool] = {id(source): True}
    through_matrix: dict[int, bool] = {
        id(source): False
    }  # whether a matrix is between it and the source, itself included
    alive_nodes: list[Any] = []
    stack: list[tuple[Any, bool]] = [(node, False)]
    while stack:
        current, expanded = stack.pop()
        if id(current) in leads:
            continue
        inputs = (
            []
            if current._sequence_nr() <= floor
            else [input_node for input_node, _ in current.next_functions if input_node is not None]
        )
        if not expanded:
            alive_nodes.append(current)
            stack.append((current, True))
            stack += [(input_node, False) for input_node in inputs if id(input_node) not in leads]
            continue
        inputs_on_path = [input_node for input_node in inputs if leads.get(id(input_node), False)]
        leads[id(current)] = bool(inputs_on_path)
        through_matrix[id(current)] = bool(inputs_on_path) and (
            bool(_PRODUCT.search(current.name()))
            or any(through_matrix[id(input_node)] for input_node in inputs_on_path)
        )
    if not leads.get(id(node), False):
        return _Path()
    return _Path({key for key, leading in leads.items() if leading}, through_matrix[id(node)])


@contextmanager
def rewired(hf: Any, branches: Branches, strength: float, removed: frozenset[Part]) -> Iterator[None]:
    """Change the strength of skip connections, or remove branches, in this context."""
    with ExitStack() as stack:
        _RewiredAdditions(hf, branches, strength, removed).open(stack)
        yield


class _RewiredAdditions(AdditionWatch):
    """Replaces additions by s·x + f(x), or by x alone."""

    def __init__(self, hf: Any, branches: Branches, strength: float, removed: frozenset[Part]) -> None:
        super().__init__(hf, branches.blocks)
        self._roles, self._strength, self._removed = branches.roles, strength, removed
        self._expected: dict[str, int] = {}
        for name, number in branches.roles:
            self._expected[name] = max(self._expected.get(name, 0), number + 1)

    def added(self, place: Place, func: Any, a: Tensor, b: Tensor, kwargs: dict[str, Any]) -> Tensor:
        """The sum of the remaining operands."""
        role = self._roles.get(place)
        operands = [a, b]
        if role is not None:
            gone = [index for index, part in role.parts.items() if part in self._removed]
            for index in gone:
                operands[index] = _scaled(operands[index], 0.0, func in IN_PLACE and index == 0)
            if role.skip is not None and not (gone and role.alone):
                index = role.skip
                operands[index] = _scaled(operands[index], self._strength, func in IN_PLACE and index == 0)
        result: Tensor = func(*operands, **kwargs)
        return result

    def left(self, name: str, additions: int) -> None:
        """Refuse a module that now adds elsewhere than in the probe.

        Otherwise the change would be silently wrong.
        """
        if additions < self._expected.get(name, 0):
            raise VariantRefused(f"{name} adds differently on this text than on the tokens of the probe")


def _scaled(x: Tensor, factor: float, in_place: bool) -> Tensor:
    if factor == 1.0:
        return x
    if in_place:
        return x.zero_() if factor == 0.0 else x.mul_(factor)
    return torch.zeros_like(x) if factor == 0.0 else x * factor
