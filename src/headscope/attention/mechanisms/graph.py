r"""Graph attention: every query attends to the neighbours that a list gives it.

Definition:
    $\text{out}_i = \sum_{j \in N(i)} p_{ij} v_j$, the softmax over the out-neighbours N(i) of the query's position that
    the call lets it see. Any directed graph will do; a query without neighbours has out = 0 and lse = −∞.
How:
    Neighbouring queries with lists that are much alike share their keys, the others gather their own; blocks of
    about one length go through `headscope.attention.sparse.gathered` together. The plan is made once for calls of one
    shape. A call with bias, softcap, stray mask or gaps in its positions is exact through dense attention under
    the adjacency matrix.
Reference:
    Zaheer et al. (2020), Big Bird, eq. AT: attention as a graph.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headscope.attention.call import Call, Output
from headscope.attention.flex_mask import FlexMask, any_of
from headscope.attention.mechanism import Cost
from headscope.attention.mechanisms.dense import Dense, with_sinks
from headscope.attention.sparse.blocks import only_limits, origin
from headscope.attention.sparse.explicit_softmax import explicit_attention
from headscope.attention.sparse.gathered import Gathered, gathered_attention
from headscope.attention.sparse.neighbour_lists import Lists, plan_of
from headscope.attention.sparse.pattern import Pattern
from headscope.attention.sparse.working_memory import FLOAT, gathered_bytes
from headscope.errors import UsageError


@dataclass(frozen=True, eq=False, repr=False)
class Graph(Pattern):
    """Every query attends to its listed neighbours: any graph over the positions.

    Properties:
        - equals its float64 definition, with gradients  (tested: test_fast_equals_definition)
        - a query without neighbours gives out = 0 and lse = −∞  (tested: test_a_query_without_neighbours)
        - any graph at all, however ragged  (tested: test_any_graph_equals_the_mask_it_is)
        - a plan holds every pair once and no other  (tested: test_plans_hold_every_pair_once)
    """

    neighbours: Lists | Iterable[Iterable[int]]
    name: ClassVar[str] = "graph"

    def __post_init__(self) -> None:
        if not isinstance(self.neighbours, Lists):
            object.__setattr__(self, "neighbours", Lists.of(self.neighbours, "graph: neighbours"))
        lists = self.lists
        if not len(lists):
            raise UsageError("graph: neighbours must have a list for at least one position, got none")
        furthest = int(lists.members.max()) if len(lists.members) else 0
        if furthest >= len(lists):
            raise UsageError(f"graph: neighbours must lie among its {len(lists)} positions, got position {furthest}")

    def __repr__(self) -> str:
        return f"Graph({len(self.lists)} positions, {len(self.lists.members)} pairs)"

    @classmethod
    def of(cls, mask: Bool[Tensor, "n n"]) -> "Graph":
        """The graph of a matrix that is True where query i attends to key j."""
        return cls(Lists.of_mask(mask))

    @classmethod
    def examples(cls, n: int) -> tuple["Graph", ...]:
        """Examples for 2n positions: a random graph with a ring, near squares, a tree."""
        nodes = max(2 * n, 2)
        random_neighbours = torch.randint(nodes, (nodes, 4), generator=torch.Generator().manual_seed(0)).tolist()
        return (
            cls([sorted({i, (i - 1) % nodes, *neighbours}) for i, neighbours in enumerate(random_neighbours)]),
            cls([range(i % 2 if i < 6 else i - 6, min(i + 7, nodes), 2) for i in range(nodes)]),
            cls([(i, (i - 1) // 2) if i else (0,) for i in range(nodes)]),
        )

    @classmethod
    def as_dense(cls, n: int) -> "Graph":
        """The complete graph."""
        return cls.of(torch.ones(n, n, dtype=torch.bool))

    @property
    def lists(self) -> Lists:
        """The neighbours of every position."""
        if not isinstance(self.neighbours, Lists):
            raise UsageError("graph: the lists are made when the graph is")
        return self.neighbours

    def supports(self, call: Call) -> str | None:
        """Refuses queries without a list; a list may be empty."""
        last = int(call.query_positions.max()) if call.query_positions.numel() else 0
        if last >= len(self.lists):
            return f"it has lists for {len(self.lists)} positions, and there is a query at position {last}"
        return None

    def allows(
        self, queries: Int[Tensor, "rows queries 1"], keys: Int[Tensor, "rows 1 keys"]
    ) -> Bool[Tensor, "rows queries keys"]:
        """The adjacency matrix at these positions."""
        return self.lists.hold(queries, keys)

    def flex_mask(self, n: int, *, causal: bool) -> FlexMask:
        """The adjacency matrix, for as many positions as there are lists."""
        del n, causal
        listed, tables = self.lists.flex_terms("adjacent")
        return FlexMask(any_of(listed), tables, positions=len(self.lists))

    def attend(self, call: Call, *, lse: bool) -> Output:
        """Gathered neighbours, or the adjacency matrix where more shapes the scores."""
        first = origin(call)
        if first is None or not only_limits(call):
            return Dense().attend(self.seen(call), lse=lse)
        plan = plan_of(self.lists, (call.q.shape[2], call.k.shape[2]), first, (call.left, call.right))
        out, rows = gathered_attention(call.q, call.k, call.v, Gathered(plan, call.scale, call.key_padding))
        return Output(with_sinks(out, rows, call.sinks), rows if lse else None)

    def definition(self, call: Call) -> Output:
        """The adjacency matrix, list by list, in float64."""
        batch, queries = call.q.shape[0], call.q.shape[2]
        query_positions, key_positions = call.query_positions.expand(batch, -1), call.key_positions.expand(batch, -1)
        rows = [
            torch.isin(key_positions[b], torch.tensor(self.lists[int(query_positions[b, i])], dtype=torch.long))
            for b in range(batch)
            for i in range(queries)
        ]
        adjacent = torch.stack(rows).reshape(batch, 1, queries, -1)
        return explicit_attention(call, call.visible() & adjacent)

    def cost(self, n: int, d: int) -> Cost:
        """Two products over the pairs; the keys of a few blocks at a time, and the plan."""
        groups = plan_of(self.lists, (n, n), (0, 0), (None, None))
        entries = max((d * group.keys.numel() for group in groups if group.keys is not None), default=0)
        # Besides the gathered keys: the output of a group, and its merge into the rows.
        return Cost(flops=4.0 * d * self.lists.count(n), bytes=gathered_bytes(entries) + FLOAT * n * (d + 2.0))


MECHANISM = Graph
