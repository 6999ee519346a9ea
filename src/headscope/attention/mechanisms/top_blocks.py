r"""Attention to the key blocks with the largest pooled scores.

Each head chooses its own for every block of queries.

Definition:
    Positions go in blocks of `block`. Query block I sees key block J when the call lets it and J is block 0, or
    $|I - J| \le \text{near}$, or J is one of the `blocks` others with the largest score
    $\text{scale}\;\bar q \cdot \bar k_J$:
    $\bar k_J$ is the mean of the real keys of block J, $\bar q$ that of the queries of block I − 1, so that no later
    token chooses; on a call without a limit to what comes after a query, that of the queries of I itself. Queries at
    padding do not count; where no query counts, nothing is chosen.
    On a call with a limit, only earlier blocks are chosen, and only such that the first query of I may reach. Bias,
    softcap, mask and sinks shape the attention, not the choice.
    Means and scores are taken in float64 from the numbers of the call and compared as float32; of equal scores the
    earlier block wins. So fast path and definition choose the same blocks. The choice is a constant: gradients flow
    through the chosen pairs alone.
How:
    Head by head the keys of the blocks of each query block are gathered, a few at a time. That is for calls over all
    positions from 0 on, causal or without limits, with or without padding; others are exact through dense attention
    under the mask. A decode step needs the queries of the block before: sessions remember them.
Reference:
    Lu et al. (2025), MoBA: Mixture of Block Attention for Long-Context LLMs, section 2 (there every query chooses for
    itself); Jiang et al. (2024), MInference 1.0, the block-sparse heads (there the own block's queries choose, the
    later ones too).
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor

from headscope.attention.call import Call, Output
from headscope.attention.mechanism import Cost
from headscope.attention.mechanisms.dense import Dense, with_sinks
from headscope.attention.sparse import kernel
from headscope.attention.sparse.best_blocks import BlockSizes, best_block_pairs, best_block_plans
from headscope.attention.sparse.blocks import only_limits, origin
from headscope.attention.sparse.choice import Choice
from headscope.attention.sparse.explicit_softmax import explicit_attention
from headscope.attention.sparse.head_plans import HeadPlans
from headscope.attention.sparse.parts import attention_over
from headscope.attention.sparse.query_blocks import sequences
from headscope.attention.sparse.working_memory import FLOAT, gathered_bytes
from headscope.errors import UsageError


@dataclass(frozen=True)
class TopBlocks(Choice):
    """Blocks see the first block, near blocks, and those with the largest pooled scores.

    Properties:
        - equals its float64 definition, with gradients  (tested: test_fast_equals_definition)
        - no later token chooses for an earlier query  (tested: test_nothing_leaks_from_the_future)
        - planted blocks are found  (tested: test_planted_blocks)
        - a plan holds every pair once  (tested: test_block_plans_hold_every_pair_once)
    """

    block: int = 64
    blocks: int = 8
    near: int = 1
    name: ClassVar[str] = "top_blocks"

    def __post_init__(self) -> None:
        for name, least in (("block", 1), ("blocks", 0), ("near", 0)):
            if getattr(self, name) < least:
                raise UsageError(f"top_blocks: {name} must be at least {least}, got {getattr(self, name)}")

    @classmethod
    def examples(cls, n: int) -> tuple["TopBlocks", ...]:
        """Blocks of a sixty-fourth of the positions, wider ones, and the own block alone.

        The last chooses from all but the first and its own.
        """
        block = max(2, n // 64)
        return cls(block, 8), cls(block + 1, 3, 2), cls(2 * block, 2, 0)

    @classmethod
    def as_dense(cls, n: int) -> "TopBlocks":
        """One block that holds all positions."""
        return cls(block=max(1, n), blocks=0)

    @property
    def sizes(self) -> BlockSizes:
        """The parameters, for the functions that choose."""
        return BlockSizes(self.block, self.blocks, self.near)

    @property
    def positions_per_choice(self) -> int | None:
        """The positions of a block."""
        return self.block if self.blocks else None

    def supports(self, call: Call) -> str | None:
        """Refuses positions below 0, and calls without the queries that choose."""
        if min(int(x.min()) if x.numel() else 0 for x in (call.query_positions, call.key_positions)) < 0:
            return "it counts blocks from position 0 on, and there are positions before"
        return super().supports(call)

    def chosen(self, call: Call) -> Bool[Tensor, "1 heads queries keys"]:
        """The pairs of the first block, near blocks and the chosen ones."""
        return best_block_pairs(call, self.sizes)

    def parts(self, call: Call) -> dict[str, Bool[Tensor, "mask_batch mask_heads queries keys"]]:
        """The blocks that are always seen, and all blocks."""
        return {
            "first and near": replace(self, blocks=0).seen(call).visible(),
            "chosen": self.seen(call).visible(),
        }

    def attend(self, call: Call, *, lse: bool) -> Output:
        """Gathered blocks for each head, or the mask where more shapes the call."""
        is_whole = call.q.shape[2] == call.k.shape[2] and origin(call) == (0, 0)
        has_simple_limits = call.right in (None, 0) and (call.left is None or call.left >= call.k.shape[2])
        has_kernel = call.q.device.type == "cpu" and kernel.has_flash()
        if not (is_whole and has_simple_limits and has_kernel and only_limits(call)):
            return Dense().attend(self.seen(call), lse=lse)
        plans = [best_block_plans(part, self.sizes) for part in sequences(call)]
        out, rows = attention_over([HeadPlans(plans)], call.q, call.k, call.v)
        return Output(with_sinks(out, rows, call.sinks), rows if lse else None)

    def definition(self, call: Call) -> Output:
        """The dense mask, block by block, in float64."""
        pairs = torch.stack([self._defined_pairs(call, sequence) for sequence in range(call.q.shape[0])])
        return explicit_attention(call, call.visible() & pairs)

    def cost(self, n: int, d: int) -> Cost:
        """Two products over the visible blocks, and one of the means.

        A short last block counts as chosen.
        """
        count = -(-n // self.block)
        sizes = [min(self.block, n - start) for start in range(0, n, self.block)]
        pairs = sum(size * self._visible_keys(number, n) for number, size in enumerate(sizes))
        pooled = 2.0 * d * count * count if self.blocks else 0.0
        return Cost(flops=4.0 * d * pairs + pooled, bytes=self._bytes(n, d))

    def _visible_keys(self, number: int, n: int) -> int:
        """How many of n keys a query block sees without limits."""
        count = -(-n // self.block)
        always = {0, *range(max(number - self.near, 0), min(number + self.near + 1, count))}
        visible = min(count, len(always) + self.blocks)
        has_last = self.blocks > 0 or count - 1 in always
        return visible * self.block - (count * self.block - n if has_last else 0)

    def _bytes(self, n: int, d: int) -> float:
        """Keys and values of a few blocks at a time, and the output."""
        gathered = sum(self._visible_keys(number, n) for number in range(-(-n // self.block)))
        return gathered_bytes(gathered * d) + FLOAT * n * (d + 2.0)

    def _defined_pairs(self, call: Call, sequence: int) -> Bool[Tensor, "heads queries keys"]:
        queries, keys = (x.expand(call.q.shape[0], -1)[sequence] for x in (call.query_positions, call.key_positions))
        real = torch.ones_like(keys, dtype=torch.bool) if call.key_padding is None else call.key_padding[sequence]
        q, k = call.q[sequence].detach().double(), call.k[sequence].detach().double()
        query_blocks, key_blocks = queries // self.block, keys // self.block
        pooled = {int(j): k[:, (key_blocks == j) & real].mean(dim=1) for j in torch.unique(key_blocks[real])}
        choosers = ~torch.isin(queries, keys[~real])
        pairs = torch.zeros(call.q.shape[1], len(queries), len(keys), dtype=torch.bool)
        for number in torch.unique(query_blocks).tolist():
            source = choosers & (query_blocks == (number if call.right is None else number - 1))
            always = (key_blocks == 0) | ((key_blocks - number).abs() <= self.near)
            for head in range(call.q.shape[1]):
                visible = always.clone()
                if bool(source.any()):
                    mean = q[head, source].mean(dim=0) * call.scale
                    scores = {
                        j: (mean @ pooled[j][head // call.groups]).float().item()
                        for j in pooled
                        if self._may_choose(number, j, call)
                    }
                    best = sorted(scores, key=lambda j: (-scores[j], j))[: self.blocks]
                    visible |= torch.isin(key_blocks, torch.tensor(best, dtype=torch.long))
                pairs[head, query_blocks == number] = visible
        return pairs

    def _may_choose(self, number: int, other: int, call: Call) -> bool:
        """Whether key block `other` may be chosen for query block `number`."""
        if other == 0 or abs(number - other) <= self.near:
            return False
        nearest = number * self.block - (other * self.block + self.block - 1)
        return (call.right is None or other < number) and (call.left is None or nearest <= call.left)


MECHANISM = TopBlocks
