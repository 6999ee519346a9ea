r"""Attention of blocks of queries over gathered keys.

Any pattern is possible that is a list of keys for each block.

A plan is a few groups of blocks of one shape: which queries, which keys, and, where not every query of a block may
see every one of its keys, a small mask. Blocks go on the batch axis of the flash operator. Keys are gathered for a
few blocks at a time into the same two buffers, which stay in the cache: all of them at once would be many times
the sequence, and time and memory would grow faster than n. The backward pass gathers again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headscope.attention import compiled
from headscope.attention.sparse import kernel
from headscope.attention.sparse.parts import Part, Triple, attention_over

GROUP_ENTRIES = 1 << 20


@dataclass(frozen=True, eq=False)
class Group:
    """Blocks of one shape, by index: the queries of each, and their common keys."""

    queries: Int[Tensor, "blocks rows"]
    keys: Int[Tensor, "blocks run"] | None  # None: every key of the sequence, which needs no copy
    allowed: Bool[Tensor, "mask_blocks rows run"] | None = None  # mask_blocks: 1 (shared) or blocks

    def to(self, device: torch.device) -> "Group":
        """The same indices on another device, or the group itself if they are there."""
        if self.queries.device == device:
            return self
        moved = Group(
            self.queries.to(device),
            None if self.keys is None else self.keys.to(device),
            None if self.allowed is None else self.allowed.to(device),
        )
        moved.__dict__["start"] = self.start
        return moved

    def split(self, blocks: int) -> Iterator["Group"]:
        """The same group in parts of at most `blocks` blocks."""
        for start in range(0, self.queries.shape[0], blocks):
            block_range = slice(start, start + blocks)
            shared = self.allowed is None or self.allowed.shape[0] == 1
            part = Group(
                self.queries[block_range],
                None if self.keys is None else self.keys[block_range],
                self.allowed if shared or self.allowed is None else self.allowed[block_range],
            )
            if self.start is not None:
                part.__dict__["start"] = self.start + start * self.queries.shape[1]
            yield part

    @cached_property
    def start(self) -> int | None:
        """The first query of a run, which needs no copy; None where there is no run."""
        flat = self.queries.reshape(-1)
        return int(flat[0]) if bool((flat.diff() == 1).all()) else None

    def of_rows(self, x: Float[Tensor, "heads queries *width"]) -> Float[Tensor, "blocks heads rows *width"]:
        """The rows of x for each block's queries: a view where they are a run."""
        return _taken(x, self.queries) if self.start is None else self._run(x, self.start)

    def put(self, x: Float[Tensor, "heads queries *width"], rows: Float[Tensor, "blocks heads rows *width"]) -> None:
        """Put back the rows that `of_rows` takes."""
        if self.start is None:
            x.index_copy_(1, self.queries.reshape(-1), _by_head(rows).to(x.dtype))
        elif rows.data_ptr() != (view := self._run(x, self.start)).data_ptr():
            view.copy_(rows)

    def _run(self, x: Tensor, start: int) -> Tensor:
        run = x[:, start : start + self.queries.numel()]
        return run.reshape(x.shape[0], *self.queries.shape, *x.shape[2:]).transpose(0, 1)

    def may_see(self, real: Bool[Tensor, " keys"] | None) -> Bool[Tensor, "mask_blocks mask_rows run"] | None:
        """The mask of each block without the padding; None where all see all."""
        if real is None:
            return self.allowed
        real_keys = real[None, None] if self.keys is None else real[self.keys][:, None]
        return real_keys if self.allowed is None else real_keys & self.allowed


@dataclass(frozen=True, eq=False)
class Gathered(Part):
    """The pairs of a plan.

    A query is in at most one block, and no block has a visible key twice.
    """

    plan: Sequence[Group]
    scale: float
    padding: Bool[Tensor, "batch keys"] | None = None  # True where the key is real

    def attend(self, sequence: int, qkv: Triple, rows: tuple[Tensor, Tensor], *, fresh: bool) -> None:
        """Write the rows group by group, a few blocks at a time."""
        q, k, v = qkv
        out, lse = rows
        real = self._real(sequence)
        if fresh:
            out.zero_()
            lse.fill_(-torch.inf)
        if compiled.takes(q):
            for group in self._nonempty_groups():
                compiled.block_rows(
                    q, k, v, out, lse, queries=group.queries, keys=group.keys, allowed=group.may_see(real),
                    scale=self.scale, merges=not fresh,
                )  # fmt: skip
            return
        k, v = self._for_gathering(k), self._for_gathering(v)
        buffers: dict[int, tuple[Tensor, Tensor]] = {}
        for group in self._groups(k):
            keys, values = _taken_keys(group, k, v, buffers)
            mask, nothing = _mask(group, real, q.dtype)
            part = kernel.flash_forward()(group.of_rows(q), keys, values, 0.0, False, attn_mask=mask, scale=self.scale)
            if nothing is not None:
                # The operator says lse = 0 where a row sees nothing.
                part = part[0], part[1].masked_fill(nothing, -torch.inf)
            if not fresh:
                part = _merged((group.of_rows(out), group.of_rows(lse)), part)
            group.put(out, part[0])
            group.put(lse, part[1])
            del keys, values, mask  # the next group makes new ones, and should not find the old ones alive

    def add_gradients(
        self,
        sequence: int,
        qkv: Triple,
        rows: tuple[Tensor, Tensor],
        row_grads: tuple[Tensor, Tensor | None],
        grads: Triple,
    ) -> None:
        """The operator's backward on the same blocks.

        It adds the gradients of gathered keys at their origin.
        """
        q, k, v = qkv
        real = self._real(sequence)
        if compiled.takes(q):
            inputs, values = compiled.padded(qkv), compiled.row_values(rows, row_grads)
            with compiled.added_to(grads) as into:
                for group in self._nonempty_groups():
                    compiled.block_gradients(
                        inputs, values, into, queries=group.queries, keys=group.keys, allowed=group.may_see(real),
                        scale=self.scale,
                    )  # fmt: skip
            return
        k, v = self._for_gathering(k), self._for_gathering(v)
        buffers: dict[int, tuple[Tensor, Tensor]] = {}
        for group in self._groups(k):
            mask, _ = _mask(group, real, q.dtype)
            grad_q, grad_k, grad_v = kernel.gradients(
                group.of_rows(row_grads[0]),
                None if row_grads[1] is None else group.of_rows(row_grads[1]),
                (group.of_rows(q), *_taken_keys(group, k, v, buffers)),
                (group.of_rows(rows[0]), group.of_rows(rows[1])),
                mask=mask,
                scale=self.scale,
            )
            group.put(grads[0], group.of_rows(grads[0]) + grad_q)
            for total, grad in ((grads[1], grad_k), (grads[2], grad_v)):
                if group.keys is None:
                    total.add_(grad[0] if len(grad) == 1 else grad.sum(dim=0))
                else:
                    total.index_add_(1, group.keys.reshape(-1), _by_head(grad).to(total.dtype))

    def _nonempty_groups(self) -> Iterator[Group]:
        """The groups that hold at least one pair."""
        for group in self.plan:
            if group.queries.numel() and (group.keys is None or group.keys.shape[1]):
                yield group

    def _groups(self, k: Tensor) -> Iterator[Group]:
        kv_heads, n, width = k.shape
        for group in self._nonempty_groups():
            run = n if group.keys is None else group.keys.shape[1]
            yield from group.to(k.device).split(max(1, GROUP_ENTRIES // (kv_heads * max(run, 1) * width)))

    def _for_gathering(self, x: Tensor) -> Tensor:
        """The tensor, or a contiguous copy of it where much is gathered.

        A copy costs less than gathering much from swapped axes, and more than gathering little.
        """
        gathered = sum(group.keys.numel() for group in self.plan if group.keys is not None)
        return x.contiguous() if gathered >= x.shape[1] else x

    def _real(self, sequence: int) -> Tensor | None:
        if self.padding is None or bool(self.padding[sequence].all()):
            return None
        return self.padding[sequence]


def gathered_attention(
    q: Float[Tensor, "batch heads queries d_head"],
    k: Float[Tensor, "batch kv_heads keys d_head"],
    v: Float[Tensor, "batch kv_heads keys d_value"],
    part: Gathered,
) -> kernel.Rows:
    """Output and log-sum-exp of a plan, with gradients.

    A query in no block sees nothing.

    Properties:
        - equals the dense mask, with gradients  (tested: test_any_plan_equals_the_dense_mask)
        - the same without torch's private operator  (tested: test_plans_run_without_the_flash_operator)
        - what is gathered at a time does not grow with n  (tested: test_gathered_keys_stay_bounded)
    """
    if q.device.type == "cpu" and kernel.has_flash():
        return attention_over([part], q, k, v)
    return _portable(q, k, v, part)


def _portable(q: Tensor, k: Tensor, v: Tensor, part: Gathered) -> kernel.Rows:
    """The same by plain torch, sequence by sequence."""
    outs, rows = [], []
    for b in range(q.shape[0]):
        out = q.new_zeros(*q.shape[1:3], v.shape[-1])
        lse = q.new_full(q.shape[1:3], -torch.inf, dtype=torch.promote_types(q.dtype, torch.float32))
        for group in part._groups(k[b]):
            keys, values = _taken_keys(group, k[b], v[b], None)
            allowed = group.may_see(part._real(b))
            allowed = None if allowed is None else allowed[:, None]
            group_out, group_lse = kernel.plain(
                _taken(q[b], group.queries), keys, values, scale=part.scale, allowed=allowed
            )
            out = out.index_copy(1, group.queries.reshape(-1), _by_head(group_out))
            lse = lse.index_copy(1, group.queries.reshape(-1), _by_head(group_lse))
        outs.append(out)
        rows.append(lse)
    return torch.stack(outs), torch.stack(rows)


def _taken(x: Tensor, index: Tensor, out: Tensor | None = None) -> Tensor:
    """Rows of [heads, n, …] at [blocks, size] as [blocks, heads, size, …]."""
    flat = index.reshape(-1)
    if x.transpose(0, 1).is_contiguous():  # as transformers passes them: one run of memory holds a row of all heads
        gathered_rows = _selected(x.transpose(0, 1), 0, flat, out)
        return gathered_rows.reshape(*index.shape, x.shape[0], *x.shape[2:]).transpose(1, 2)
    gathered_rows = _selected(x, 1, flat, out)
    return gathered_rows.reshape(x.shape[0], *index.shape, *x.shape[2:]).transpose(0, 1)


def _selected(x: Tensor, dim: int, index: Tensor, out: Tensor | None) -> Tensor:
    if out is None:
        return x.index_select(dim, index)
    shape = [*x.shape]
    shape[dim] = len(index)
    return torch.index_select(x, dim, index, out=out.view(shape))


def _by_head(x: Tensor) -> Tensor:
    """[blocks, heads, size, …] as [heads, blocks · size, …]."""
    return x.transpose(0, 1).flatten(1, 2)


def _taken_keys(
    group: Group, k: Tensor, v: Tensor, buffers: dict[int, tuple[Tensor, Tensor]] | None
) -> tuple[Tensor, Tensor]:
    """Keys and values of each block.

    Groups of one size may share the buffers.
    """
    if group.keys is None:
        blocks = group.queries.shape[0]
        return k.expand(blocks, *k.shape), v.expand(blocks, *v.shape)
    if buffers is None:
        return _taken(k, group.keys), _taken(v, group.keys)
    size = group.keys.numel()
    if size not in buffers:
        buffers.clear()  # one size at a time
        buffers[size] = k.new_empty(k.shape[0] * size * k.shape[2]), v.new_empty(v.shape[0] * size * v.shape[2])
    return _taken(k, group.keys, buffers[size][0]), _taken(v, group.keys, buffers[size][1])


def _mask(group: Group, real: Tensor | None, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    """The addition to the scores of each block, and the rows that see nothing."""
    allowed = group.may_see(real)
    if allowed is None:
        return None, None
    mask = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, -torch.inf)
    nothing = ~allowed.any(dim=-1)[:, None]
    return mask[:, None].expand(-1, -1, group.queries.shape[1], -1), nothing if bool(nothing.any()) else None


def _merged(old: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Rows over two disjoint sets of keys, merged into the old ones in place."""
    lse = torch.logaddexp(old[1], new[1])
    finite = lse.masked_fill(lse == -torch.inf, 0.0)  # two parts that saw nothing have weight 0, not exp(−∞ + ∞)
    share = torch.exp(new[1] - finite)[..., None].to(old[0].dtype)  # the old ones keep the rest
    return old[0].lerp_(new[0], share), lse
