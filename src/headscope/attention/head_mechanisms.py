"""HeadMechanisms: the heads of one attention call that do not attend densely, each with its mechanism.

A layer that holds them computes every head through its own mechanism:

$\\text{out}_h = \\text{mechanism}_h(q_h, k_{g(h)}, v_{g(h)})$, with $g(h)$ the key/value head that head h reads.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.attention.call import Call, head_index
from headscope.attention.maps import pattern
from headscope.attention.mechanism import Mechanism
from headscope.attention.mechanisms.dense import Dense

_DENSE = Dense()


@dataclass(frozen=True)
class HeadMechanisms:
    """The mechanism of each head of a call; None is dense attention.

    Properties:
        - every head gives what its mechanism alone gives  (tested: test_each_head_attends_through_its_mechanism)
    """

    by_head: tuple[Mechanism | None, ...]

    @cached_property
    def heads(self) -> dict[Mechanism | None, tuple[int, ...]]:
        """The heads of each mechanism."""
        heads: dict[Mechanism | None, tuple[int, ...]] = {}
        for head, mechanism in enumerate(self.by_head):
            heads[mechanism] = (*heads.get(mechanism, ()), head)
        return heads

    @property
    def needs_all_queries(self) -> bool:
        """Whether a row of some head depends on the other queries."""
        return any(mechanism is not None and mechanism.needs_all_queries for mechanism in self.heads)

    def __call__(self, call: Call) -> Float[Tensor, "batch heads queries d_value"]:
        """What the heads of a call give, with gradients."""
        parts = {heads: (mechanism or _DENSE)(part).out for mechanism, heads, part in self._parts(call)}
        if len(parts) == 1:
            return next(iter(parts.values()))
        return _in_order(parts)

    def definition(self, call: Call) -> Float[Tensor, "batch heads queries d_value"]:
        """The same by the definition of each mechanism, in float64."""
        parts = [(mechanism or _DENSE, call.heads((head,))) for head, mechanism in enumerate(self.by_head)]
        return torch.cat([mechanism.definition(part).out for mechanism, part in parts], dim=1)

    def softmax_calls(self, call: Call) -> dict[tuple[int, ...], Call] | None:
        """The calls whose plain softmax the heads compute; None where a head is no softmax over a set of keys."""
        calls: dict[tuple[int, ...], Call] = {}
        for mechanism, heads, part in self._parts(call):
            softmax_call = part if mechanism is None else mechanism.seen(part)
            if softmax_call is None:
                return None
            calls[heads] = softmax_call
        return calls

    def pattern(self, call: Call) -> Float[Tensor, "batch heads queries keys"] | None:
        """The maps of all heads; None where one is no softmax over a set of keys."""
        calls = self.softmax_calls(call)
        return None if calls is None else _in_order({heads: pattern(part) for heads, part in calls.items()})

    @property
    def has_maps(self) -> bool:
        """Whether every head has a map."""
        single = torch.zeros(1, len(self.by_head), 1, 1)
        at = torch.zeros(1, 1, dtype=torch.long)
        return self.softmax_calls(Call(single, single, single, 1.0, at, at)) is not None

    def _parts(self, call: Call) -> list[tuple[Mechanism | None, tuple[int, ...], Call]]:
        if len(self.heads) == 1:
            return [(mechanism, heads, call) for mechanism, heads in self.heads.items()]
        return [(mechanism, heads, call.heads(heads)) for mechanism, heads in self.heads.items()]


def mechanisms_of(module: Any) -> HeadMechanisms | None:
    """The mechanisms that an attention module itself computes; None where all its heads attend densely."""
    mechanisms = getattr(module, "mechanisms", None)
    return mechanisms if isinstance(mechanisms, HeadMechanisms) else None


def _in_order(parts: dict[tuple[int, ...], Tensor]) -> Tensor:
    joined = torch.cat(list(parts.values()), dim=1)
    order = [head for heads in parts for head in heads]
    return joined[:, head_index(tuple(order.index(head) for head in range(len(order))))]
