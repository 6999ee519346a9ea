r"""Whether later tokens reach earlier rows of a mechanism's output.

On a call that limits what comes after a query (`right`), the output at position p may depend on queries up to p and on
keys and values up to p + right, and on nothing later: also not through a choice of keys, a mean over a block, or the
length of the text. The check cuts the positions in two at several places p. It changes what comes later, or leaves it
out, and compares the rows up to p with those before: they must agree up to rounding.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor

from headscope.attention.call import Call, Output
from headscope.attention.maps import score_rows
from headscope.attention.mechanism import Mechanism
from headscope.attention.sparse.query_blocks import sequences
from headscope.errors import UsageError

CUTS = 8
ROUNDINGS = 10  # of the dtype, for scores of size 1: outputs that agree but for rounding
_GOLDEN = 0.6180339887498949  # multiples of it are spread evenly, and meet no block size again and again
_LARGE = 3.0  # how much larger than before the changed numbers are

Change = Callable[[Call, int], Call | None]


@dataclass(frozen=True)
class Leak:
    """An earlier row that changed with later tokens."""

    change: str  # what was done to the tokens after `cut`
    cut: int  # the last position that stayed as it was
    sequence: int
    head: int
    position: int  # the earliest position whose output changed
    size: float  # the largest change at this cut, relative to the largest output


@dataclass(frozen=True)
class LeakCheck:
    """The result of a check: how many rows were compared, how much they changed, and where they leak."""

    rows: int
    largest: float  # the largest relative change
    allowed: float  # what rounding explains
    leaks: tuple[Leak, ...]

    @property
    def is_clean(self) -> bool:
        """Whether rows were compared and none changed by more than rounding."""
        return self.rows > 0 and not self.leaks


@torch.no_grad()
def leak_check(mechanism: Mechanism, call: Call, *, cuts: int = CUTS, seed: int = 0) -> LeakCheck:
    """Compare earlier rows before and after changes of later tokens, at `cuts` positions.

    It runs the mechanism up to 1 + 3 `cuts` times on every sequence.

    Raises:
        UsageError: The call has no limit to what comes after a query, or the mechanism refuses it.

    Properties:
        - planted leaks of every kind are found  (tested: test_planted_leaks_are_found)
        - no causal mechanism leaks  (tested: test_nothing_leaks_from_the_future)
    """
    if call.right is None:
        raise UsageError(
            "a leak is checked on a call that limits what comes after a query, and this one has right=None"
        )
    changes: dict[str, Change] = {"replaced": _Replacement(seed), "reversed": _reversed, "left out": _left_out}
    rows, largest, leaks, allowed = 0, 0.0, [], 0.0
    for number, sequence in enumerate(sequences(call)):
        before = mechanism(sequence, lse=True)
        allowed = max(allowed, _rounding(mechanism, sequence))
        for cut in _cuts(sequence.query_positions[0], cuts):
            rows_before = (sequence.query_positions[0] <= cut).nonzero()[:, 0]
            for name, change in changes.items():
                changed = change(sequence, cut)
                if changed is None or mechanism.supports(changed) is not None:
                    continue
                differences = _differences(before, mechanism(changed, lse=True), rows_before, name == "left out")
                rows += differences.numel()
                size = float(differences.max())
                largest = max(largest, size)
                if size > allowed:
                    leaks.append(_leak(differences > allowed, sequence, rows_before, (name, cut, number, size)))
    return LeakCheck(rows, largest, allowed, tuple(leaks))


def _leak(is_changed: Tensor, call: Call, rows_before: Tensor, place: tuple[str, int, int, float]) -> Leak:
    """The earliest of the rows that changed."""
    name, cut, sequence, size = place
    head, row = is_changed.nonzero(as_tuple=True)
    positions = call.query_positions[0][rows_before[row]]
    first = int(positions.argmin())
    return Leak(name, cut, sequence, int(head[first]), int(positions[first]), size)


def _cuts(positions: Int[Tensor, " queries"], count: int) -> list[int]:
    """Positions with queries after them: the first, the last but one, and some between."""
    ordered = torch.unique(positions).tolist()[:-1]
    places = [0, len(ordered) - 1, *(int(len(ordered) * (number * _GOLDEN % 1.0)) for number in range(1, count - 1))]
    return sorted({ordered[place] for place in places[:count]}) if ordered else []


def _rounding(mechanism: Mechanism, call: Call) -> float:
    """The relative change that rounding explains: scores of size s are off by s roundings."""
    rows = score_rows(call)
    finite = rows[rows.isfinite()].abs()
    scores = max(1.0, float(finite.max())) if finite.numel() else 1.0
    return ROUNDINGS * torch.finfo(call.q.dtype).eps * scores * mechanism.conditioning(call)


def _differences(before: Output, after: Output, rows_before: Tensor, is_shorter: bool) -> Tensor:
    """For each head and each row up to the cut the largest difference, relative to the largest output."""
    rows = torch.arange(len(rows_before), device=rows_before.device) if is_shorter else rows_before
    old, new = before.out[0][:, rows_before].double(), after.out[0][:, rows].double()
    size = before.out.double().abs().nan_to_num(0.0, 0.0).max().clamp_min(torch.finfo(torch.float64).tiny)
    differences = _distance(old, new).amax(dim=-1) / size
    if before.lse is None or after.lse is None:
        return differences
    return torch.maximum(differences, _distance(before.lse[0][:, rows_before].double(), after.lse[0][:, rows].double()))


def _distance(old: Tensor, new: Tensor) -> Tensor:
    """The absolute difference; 0 where both are the same infinity or no number, infinite where one alone is."""
    is_same = (old == new) | (old.isnan() & new.isnan())
    return (old - new).abs().nan_to_num(torch.inf, torch.inf).masked_fill(is_same, 0.0)


def _later(call: Call, cut: int) -> tuple[Tensor, Tensor]:
    """The queries, and the keys, that rows up to a position must not depend on, by index."""
    reach = cut + (call.right or 0)
    return (call.query_positions[0] > cut).nonzero()[:, 0], (call.key_positions[0] > reach).nonzero()[:, 0]


@dataclass(frozen=True)
class _Replacement:
    """Later tokens become Gaussian numbers that are larger than the old ones."""

    seed: int

    def __call__(self, call: Call, cut: int) -> Call:
        generator = torch.Generator().manual_seed(self.seed)

        def replaced(x: Tensor, later: Tensor) -> Tensor:
            shape = (*x.shape[:2], len(later), x.shape[3])
            numbers = torch.randn(shape, generator=generator, dtype=torch.float64) * float(x.double().std()) * _LARGE
            return x.index_copy(2, later, numbers.to(x.device, x.dtype))

        queries, keys = _later(call, cut)
        return replace(call, q=replaced(call.q, queries), k=replaced(call.k, keys), v=replaced(call.v, keys))


def _reversed(call: Call, cut: int) -> Call:
    """Later tokens in reverse order: the same numbers at other places."""
    queries, keys = _later(call, cut)
    q, k, v = (
        x.index_copy(2, later, x[:, :, later.flip(0)])
        for x, later in ((call.q, queries), (call.k, keys), (call.v, keys))
    )
    return replace(call, q=q, k=k, v=v)


def _left_out(call: Call, cut: int) -> Call | None:
    """The text up to the cut alone; None where later tokens are not the last ones by index, or are all keys."""
    queries, keys = _later(call, cut)
    stops = []
    for later, length in ((queries, call.q.shape[2]), (keys, call.k.shape[2])):
        if not torch.equal(later, torch.arange(length - len(later), length, device=later.device)):
            return None
        stops.append(length - len(later))
    return call.take(slice(0, stops[0]), slice(0, stops[1])) if stops[1] else None
