r"""BigBird attention: blocks see global blocks, near blocks and a few random ones.

Definition:
    Positions go in blocks of `block`. Query block I sees key block J when the call lets it and one of these holds:
    I or J is global (one of the `first` blocks or, in an encoder, the `last` ones); $|I - J| \le \lfloor
    \text{window}/2 \rfloor$; J is one of `random` blocks drawn for I among those that are neither. On a call that
    limits what comes after a query, a causal one for instance, there is no last block, since every block has once been
    the last, no block after I, and the random blocks of I are drawn by (seed, I) among earlier ones: so a decode step
    sees the keys of the same row of a prefill. One plan serves all heads.
How:
    The keys of each query block are gathered, a few blocks at a time; global rows see all keys in place. That is for
    calls over all positions from 0 on, causal or not, with or without padding; others are exact through dense
    attention under the mask.
Reference:
    Zaheer et al. (2020), Big Bird: Transformers for Longer Sequences, section 2 (the internal construction, ITC).
"""

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random
from typing import ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor

from headscope.attention.call import Call, Output
from headscope.attention.flex_mask import FlexMask, any_of
from headscope.attention.mechanism import Cost, Mechanism
from headscope.attention.mechanisms.dense import Dense, with_sinks
from headscope.attention.sparse.blocks import only_limits, origin
from headscope.attention.sparse.explicit_softmax import explicit_attention
from headscope.attention.sparse.gathered import GROUP_ENTRIES, Gathered, Group, gathered_attention
from headscope.attention.sparse.working_memory import FLOAT, flash_bytes, gathered_bytes
from headscope.errors import UsageError


@dataclass(frozen=True)
class BlockRow:
    """The key blocks that one query block sees, by reason, each block once."""

    everywhere: tuple[int, ...]  # global blocks, or all blocks where the query block is global itself
    near: tuple[int, ...]
    random: tuple[int, ...]

    @property
    def blocks(self) -> tuple[int, ...]:
        """All visible key blocks, in order."""
        return tuple(sorted({*self.everywhere, *self.near, *self.random}))


@dataclass(frozen=True)
class BlockPlan:
    """Which key blocks every query block sees, in position space.

    Block I is the positions from I · block on.
    """

    n: int
    block: int
    causal: bool
    rows: tuple[BlockRow, ...]

    def table(self, reason: str = "blocks") -> Bool[Tensor, "blocks blocks"]:
        """True where query block I sees key block J.

        The reason is any, or one of everywhere, near and random.
        """
        table = torch.zeros(len(self.rows), len(self.rows), dtype=torch.bool)
        for i, row in enumerate(self.rows):
            table[i, list(getattr(row, reason))] = True
        return table

    def __str__(self) -> str:
        lines = [f"{self.n} positions in {len(self.rows)} blocks of {self.block}{', causal' if self.causal else ''}"]
        for i, row in enumerate(self.rows):
            reasons = (("global", row.everywhere), ("near", row.near), ("random", row.random))
            description = "; ".join(f"{reason} {' '.join(map(str, blocks))}" for reason, blocks in reasons if blocks)
            lines.append(f"block {i}: {description}")
        return "\n".join(lines)


@dataclass(frozen=True)
class BigBird(Mechanism):
    """Blocks see global blocks, the blocks around them and a few random ones.

    Properties:
        - equals its float64 definition, with gradients  (tested: test_fast_equals_definition)
        - the blocks are those of a mask made by hand  (tested: test_a_plan_made_by_hand)
        - causal plans of a longer call begin with those of a shorter  (tested: test_causal_plans_do_not_look_ahead)
        - a cached decode step equals the row of the prefill  (tested: test_decode_step_equals_prefill_row)
    """

    block: int = 64
    window: int = 3  # blocks, odd
    first: int = 1
    last: int = 1
    random: int = 3
    seed: int = 0
    name: ClassVar[str] = "bigbird"

    def __post_init__(self) -> None:
        if self.block < 1:
            raise UsageError(f"bigbird: block must be at least 1, got {self.block}")
        if self.window < 1 or self.window % 2 == 0:
            raise UsageError(f"bigbird: window must be an odd number of blocks, got {self.window}")
        for name in ("first", "last", "random"):
            if getattr(self, name) < 0:
                raise UsageError(f"bigbird: {name} must be at least 0 blocks, got {getattr(self, name)}")

    @classmethod
    def examples(cls, n: int) -> tuple["BigBird", ...]:
        """An example of usual blocks, one without random ones, and two extremes.

        Usual blocks are a sixty-fourth of the positions; the extremes have more of each kind, or blocks larger than the
        sequence.
        """
        block = max(2, n // 64)
        return (
            cls(block),
            cls(block + 1, random=0, last=0),
            cls(max(1, block // 2), window=5, first=2, last=2, random=2, seed=1),
            cls(2 * n),
        )

    @classmethod
    def as_dense(cls, n: int) -> "BigBird":
        """One block that holds all positions."""
        return cls(block=n)

    def plan(self, n: int, causal: bool = False) -> BlockPlan:
        """The plan of visible blocks over n positions; print it to read it."""
        return _plan(self, n, causal)

    def supports(self, call: Call) -> str | None:
        """Refuses positions below 0: blocks start at position 0."""
        positions = torch.cat([call.query_positions.flatten(), call.key_positions.flatten()])
        return (
            "it counts blocks from position 0 on, and there are positions before" if int(positions.min()) < 0 else None
        )

    def seen(self, call: Call) -> Call:
        """The call under the mask of its blocks."""
        allowed = self._pairs(call, self._plan(call).table())
        return replace(call, mask=allowed if call.mask is None else call.mask & allowed)

    def flex_mask(self, n: int, *, causal: bool) -> FlexMask | str:
        """Global, near and random blocks; the plan of a causal call has no length."""
        if not causal:
            return "where queries see later keys, its last and its random blocks change with the length of the text"
        queries, keys = f"q // {self.block}", f"k // {self.block}"
        ends = [f"({position} < {self.first})" for position in (queries, keys)] if self.first else []
        near = f"(({queries} - {keys}).abs() <= {self.window // 2})"
        rows = [row.random for row in self.plan(n, causal=True).rows]
        most = max(map(len, rows))
        random = [f"(random_blocks[{queries} * {most} + {column}] == {keys})" for column in range(most)]
        table = torch.tensor([block for row in rows for block in (*row, *[-1] * (most - len(row)))])
        return FlexMask(any_of([*ends, near, *random]), {"random_blocks": table} if most else {}, n if most else None)

    def parts(self, call: Call) -> dict[str, Bool[Tensor, "mask_batch mask_heads queries keys"]]:
        """The global, near and random blocks."""
        plan = self._plan(call)
        reasons = {"global": "everywhere", "window": "near", "random": "random"}
        return {name: call.visible() & self._pairs(call, plan.table(reason)) for name, reason in reasons.items()}

    def _plan(self, call: Call) -> BlockPlan:
        return self.plan(1 + int(max(call.query_positions.max(), call.key_positions.max())), call.right is not None)

    def _pairs(self, call: Call, table: Bool[Tensor, "blocks blocks"]) -> Bool[Tensor, "rows 1 queries keys"]:
        """The part of a table of blocks at the positions of a call."""
        query_blocks, key_blocks = call.query_positions // self.block, call.key_positions // self.block
        return table.to(query_blocks.device)[query_blocks[:, :, None], key_blocks[:, None, :]][:, None]

    def attend(self, call: Call, *, lse: bool) -> Output:
        """Gathered blocks where the call covers all positions; else the mask."""
        n = call.q.shape[2]
        is_complete = origin(call) == (0, 0) and call.k.shape[2] == n and call.left is None and call.right in (None, 0)
        if not is_complete or not only_limits(call):
            return Dense().attend(self.seen(call), lse=lse)
        part = Gathered(_groups(self, n, call.causal), call.scale, call.key_padding)
        out, rows = gathered_attention(call.q, call.k, call.v, part)
        return Output(with_sinks(out, rows, call.sinks), rows if lse else None)

    def definition(self, call: Call) -> Output:
        """The dense mask, block by block of the plan, in float64."""
        last = max(int(call.query_positions.max()), int(call.key_positions.max()))
        plan = self.plan(last + 1, call.right is not None)
        masks = []
        for queries, keys in zip(call.query_positions.tolist(), call.key_positions.tolist(), strict=True):
            reasons = [plan.rows[position // self.block] for position in queries]
            visible_blocks = [{*row.everywhere, *row.near, *row.random} for row in reasons]
            masks.append([[position // self.block in blocks for position in keys] for blocks in visible_blocks])
        return explicit_attention(call, call.visible() & torch.tensor(masks)[:, None])

    def cost(self, n: int, d: int) -> Cost:
        """Two products over the visible blocks, and over everything for the global ones."""
        plan = _plan(self, n, False)
        sizes = [min(self.block, n - start) for start in range(0, n, self.block)]
        key_counts = [sum(sizes[block] for block in row.blocks) for row in plan.rows]
        pairs = sum(rows * keys for rows, keys in zip(sizes, key_counts, strict=True))
        memory = max(_group_bytes(group, n, d) for group in _groups(self, n, False))
        return Cost(flops=4.0 * d * pairs, bytes=memory + FLOAT * n)


MECHANISM = BigBird


@lru_cache(maxsize=8)
def _plan(mechanism: BigBird, n: int, causal: bool) -> BlockPlan:
    count = -(-n // mechanism.block)
    return BlockPlan(n, mechanism.block, causal, tuple(_row(mechanism, i, count, causal) for i in range(count)))


def _row(mechanism: BigBird, i: int, count: int, causal: bool) -> BlockRow:
    stop = i + 1 if causal else count  # it sees no block after this one
    ends = {*range(min(mechanism.first, stop)), *(() if causal else range(max(count - mechanism.last, 0), count))}
    if i in ends:
        return BlockRow(tuple(range(stop)), (), ())
    reach = mechanism.window // 2
    near = [j for j in range(max(i - reach, 0), min(i + reach + 1, stop)) if j not in ends]
    free = [*range(mechanism.first, i - reach), *range(i + reach + 1, stop if causal else count - mechanism.last)]
    return BlockRow(tuple(sorted(ends)), tuple(near), _random_blocks(free, mechanism.random, f"{mechanism.seed} {i}"))


def _random_blocks(free: list[int], count: int, seed: str) -> tuple[int, ...]:
    """At most `count` random free blocks, in order.

    Swaps draw them, in the same way in every version of Python.
    """
    generator = Random(seed)
    count = min(count, len(free))
    for at in range(count):
        other = at + int(generator.random() * (len(free) - at))
        free[at], free[other] = free[other], free[at]
    return tuple(sorted(free[:count]))


@lru_cache(maxsize=8)
def _groups(mechanism: BigBird, n: int, causal: bool) -> tuple[Group, ...]:
    """The plan by index, for a call over all n positions."""
    plan, block = mechanism.plan(n, causal), mechanism.block
    blocks_by_shape: dict[tuple[int, int], list[int]] = defaultdict(list)
    groups = []
    for i, row in enumerate(plan.rows):
        rows = min(block, n - i * block)
        if len(row.blocks) == len(plan.rows) and not causal:
            groups.append(Group(torch.arange(i * block, i * block + rows)[None], None))
        else:
            blocks_by_shape[rows, sum(min(block, n - j * block) for j in row.blocks)].append(i)
    for (rows, run), members in blocks_by_shape.items():
        queries = torch.tensor(members)[:, None] * block + torch.arange(rows)
        visible_blocks = torch.tensor([plan.rows[i].blocks for i in members])
        # Only the very last block may be short, and it comes last.
        keys = (visible_blocks[..., None] * block + torch.arange(block)).flatten(1)[:, :run]
        groups.append(Group(queries, keys, _own_triangle(rows, run) if causal else None))
    return tuple(groups)


def _group_bytes(group: Group, n: int, d: int) -> float:
    """Keys and values of the blocks gathered at a time, their output, and one tile."""
    blocks, rows = group.queries.shape
    run = n if group.keys is None else group.keys.shape[1]
    blocks = min(blocks, max(1, GROUP_ENTRIES // max(run * d, 1)))
    copied = 0.0 if group.keys is None else gathered_bytes(blocks * run * d)
    return copied + FLOAT * float(blocks * rows * d) + FLOAT * (blocks - 1.0) * rows + flash_bytes(rows, run, d)


def _own_triangle(rows: int, run: int) -> Bool[Tensor, "1 rows run"]:
    """The mask of a causal block: earlier blocks, and the triangle of its own.

    Its own block is the last one.
    """
    return torch.ones(1, rows, run, dtype=torch.bool).tril(run - rows)
