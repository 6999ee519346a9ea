r"""Gathered blocks with a plan of its own for every sequence and every head.

`gathered.py` gives all heads the same keys. Where queries and keys choose, each head has its own: the same blocks run
head by head.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from headscope.attention.sparse.gathered import Gathered
from headscope.attention.sparse.parts import Part, Triple

# By sequence and head. The sets of pairs of a head are disjoint, and the padding is that of the sequence alone.
Plans = Sequence[Sequence[Sequence[Gathered]]]


@dataclass(frozen=True, eq=False)
class HeadPlans(Part):
    """The pairs of the plans of each sequence and head.

    Properties:
        - equals the dense mask of each head, with gradients  (tested: test_head_plans_equal_the_dense_masks)
    """

    plans: Plans

    def attend(self, sequence: int, qkv: Triple, rows: tuple[Tensor, Tensor], *, fresh: bool) -> None:
        """Write the rows head by head."""
        q, k, v = qkv[0], qkv[1].contiguous(), qkv[2].contiguous()
        for head, plans in enumerate(self.plans[sequence]):
            shared = _key_head(head, qkv)
            for number, plan in enumerate(plans):
                plan.attend(
                    0,
                    (q[head : head + 1], k[shared], v[shared]),
                    (rows[0][head : head + 1], rows[1][head : head + 1]),
                    fresh=fresh and number == 0,
                )

    def add_gradients(
        self,
        sequence: int,
        qkv: Triple,
        rows: tuple[Tensor, Tensor],
        row_grads: tuple[Tensor, Tensor | None],
        grads: Triple,
    ) -> None:
        """Add the gradients head by head; heads that share keys add to the same ones."""
        q, k, v = qkv[0], qkv[1].contiguous(), qkv[2].contiguous()
        for head, plans in enumerate(self.plans[sequence]):
            of_head, shared = slice(head, head + 1), _key_head(head, qkv)
            for plan in plans:
                plan.add_gradients(
                    0,
                    (q[of_head], k[shared], v[shared]),
                    (rows[0][of_head], rows[1][of_head]),
                    (row_grads[0][of_head], None if row_grads[1] is None else row_grads[1][of_head]),
                    (grads[0][of_head], grads[1][shared], grads[2][shared]),
                )


def _key_head(head: int, qkv: Triple) -> slice:
    """The key/value head of a query head."""
    key_head = head // (qkv[0].shape[0] // qkv[1].shape[0])
    return slice(key_head, key_head + 1)
