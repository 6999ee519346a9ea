"""The contract of a mechanism.

A mechanism is a frozen dataclass of its parameters that maps a `Call` to an `Output`. One file in `mechanisms/`, or one
module of another package that an entry point names, is enough to add one: it binds `MECHANISM` to the class, and the
name, the constructor `headscope.attention.NAME(…)`, the command line and the contract tests follow.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headscope.attention.call import Call, Output
from headscope.attention.devices import exact_device
from headscope.attention.flex_mask import FlexMask
from headscope.attention.mechanisms import mechanism_member, mechanism_members
from headscope.errors import UsageError
from headscope.members import Member, usable


@dataclass(frozen=True)
class Cost:
    """Cost of one head with n queries and n keys of width d.

    The only limits are the mechanism's own.

    `flops` counts the multiplications and additions of matrix products, factors and systems; a product with its
    addition is two, an SVD of n × n is 20 n³, and work element by element is not counted. A softmax over a set of
    pairs costs 4 d for each pair. The kernels work in blocks, so they also compute some masked pairs. `bytes` is the
    memory that the forward of float32 vectors holds at its peak more than q, k, v and the output.

    Properties:
        - a softmax over a set counts its pairs exactly  (tested: test_flops_count_the_visible_pairs)
        - the others count the products that torch runs  (tested: test_flops_count_the_products_that_run)
        - bytes are within a factor of two of what torch allocates  (tested: test_bytes_count_the_allocations)
    """

    flops: float
    bytes: float


class Mechanism(ABC):
    """A way of mixing values: frozen parameters, a fast way, a slow definition.

    Subclasses are frozen dataclasses that set `name` and validate their parameters in `__post_init__` with a
    `UsageError`. They implement `attend`, `definition` and `cost`, and override `supports` where there is
    something in a call that they cannot honour. A softmax over a set of keys that positions tell is a
    `headscope.attention.sparse.pattern.Pattern`. `examples` and `as_dense` are what tests, documentation and benchmark
    take; whoever holds tensors as parameters is a dataclass with `eq=False`, so that it can be hashed.
    """

    name: ClassVar[str]
    # Whether a row of the output depends on the other queries: then a cached step must be given all of them.
    needs_all_queries: ClassVar[bool] = False
    # Whether queries and keys decide which pairs count: then a call in another dtype may have other pairs.
    chooses_pairs: ClassVar[bool] = False
    # Whether `attend` computes in float64: on a device that has none it is then given the call on the CPU.
    uses_float64: ClassVar[bool] = False

    def __call__(self, call: Call, *, lse: bool = False) -> Output:
        """Attend; with `lse=True` the rows' log-sum-exp comes too for a softmax."""
        refusal = self.supports(call)
        if refusal is not None:
            raise UsageError(f"{self!r} cannot honour this call: {refusal}")
        exact = exact_device(call.q.device) if self.uses_float64 else call.q.device
        if exact != call.q.device:
            exact_output = self(call.to(exact), lse=lse)
            rows = None if exact_output.lse is None else exact_output.lse.float().to(call.q.device)
            return Output(exact_output.out.to(call.q.device), rows)
        device = call.q.device.type
        dtypes = {x.dtype for x in (call.q, call.k, call.v)}
        if len(dtypes) > 1 and not torch.is_autocast_enabled(device):
            raise UsageError(f"q, k and v must have one dtype, got {sorted(map(str, dtypes))}")
        if not torch.is_autocast_enabled(device):
            return self.attend(call, lse=lse)
        # Under autocast torch would choose a dtype for each product; attention chooses once, as its own kernel does.
        with torch.autocast(device, enabled=False):
            return self.attend(_cast(call, torch.get_autocast_dtype(device)), lse=lse)

    def supports(self, call: Call) -> str | None:
        """None when the call is honoured in full; otherwise what is not, and why."""
        del call  # the mechanisms that honour everything need not look
        return None

    def seen(self, call: Call) -> Call | None:
        """The call whose plain softmax this mechanism computes.

        Map and statistics of the mechanism are those of that call.

        None where the mechanism is no softmax over a set of keys, so that it has no such map.
        """
        del call
        return None

    def last_rows(self, call: Call, count: int) -> Float[Tensor, "batch heads rows d_value"]:
        """The output of the last `count` queries of a call, as a decode step asks for it.

        The call has all queries where the mechanism needs them.
        """
        return self(call).out[:, :, -count:]

    def still_read(self, keys: Int[Tensor, " keys"], query: int) -> Bool[Tensor, " keys"] | None:
        """Which of the keys at these positions a query at `query` or later may read; None: any of them.

        A cache drops the others. A key that is not read any more is not read again. Where heads have parameters of
        their own it is None: heads whose keys are dropped attend group by group.

        Properties:
            - only keys that no later query sees go, and for good  (tested: test_a_dropped_key_is_never_read_again)
        """
        del keys, query
        return None

    def flex_mask(self, n: int, *, causal: bool) -> FlexMask | str:
        """The mask of `seen` as an expression, or the reason why there is none.

        It reaches over n positions. `causal` says that calls hide later keys from a query: the expression need not.
        """
        del n, causal
        if self.chooses_pairs:
            return "queries and keys choose its pairs, positions alone do not tell them"
        return "it is no softmax over a set of keys"

    def parts(self, call: Call) -> dict[str, Bool[Tensor, "mask_batch mask_heads queries keys"]]:
        """The sets of pairs of the mechanism, by name, for pictures.

        There are none where it is no softmax over a set.
        """
        masked_call = self.seen(call)
        return {} if masked_call is None else {"attends": masked_call.visible()}

    def fit(self, calls: Sequence[Call]) -> "Mechanism":
        """The mechanism with parameters chosen for calls of one head; itself where none can be chosen.

        Properties:
            - the kind stays  (tested: test_a_fit_keeps_the_kind)
        """
        del calls
        return self

    @classmethod
    def examples(cls, n: int) -> tuple["Mechanism", ...]:
        """Parameters for n positions that show the mechanism, the best example first."""
        del n
        return (cls(),)

    @classmethod
    def as_dense(cls, n: int) -> "Mechanism | None":
        """Parameters with which it is dense attention up to n positions, or None."""
        del n
        return None

    def conditioning(self, call: Call) -> float:
        """Growth of a call's rounding on its way to the output.

        It is 1 where no system is solved.
        """
        del call
        return 1.0

    @abstractmethod
    def attend(self, call: Call, *, lse: bool) -> Output:
        """The fast way, in the dtype of the call, with gradients.

        The caller has checked that the call is supported.
        """

    @abstractmethod
    def definition(self, call: Call) -> Output:
        """The formula in plain float64, which shares no code with `attend`."""

    @abstractmethod
    def cost(self, n: int, d: int) -> Cost:
        """The cost of one head with n queries, n keys and width d."""


def mechanisms() -> dict[str, type[Mechanism]]:
    """Every mechanism, by name; a broken one of another package is left out, with a warning."""
    return usable(mechanism_members(), _loaded)


def mechanism_named(name: str) -> type[Mechanism]:
    """The mechanism of that name; only its own file is imported.

    Raises:
        UsageError: There is no mechanism of this name.
        ResourceError: Its file does not bind MECHANISM to a mechanism of this name.
    """
    return _loaded(mechanism_member(name))


def _loaded(member: Member) -> type[Mechanism]:
    mechanism: object = member.load()
    if not (isinstance(mechanism, type) and issubclass(mechanism, Mechanism)):
        raise member.error(f"it must bind MECHANISM to a Mechanism class, found {mechanism!r}")
    if mechanism.name != member.name:
        raise member.error(f"it defines the mechanism {mechanism.name!r}, expected {member.name!r}")
    return mechanism


def _cast(call: Call, dtype: torch.dtype) -> Call:
    tensors = {name: getattr(call, name) for name in ("q", "k", "v")}
    return replace(call, **{name: x if x.dtype == torch.float64 else x.to(dtype) for name, x in tensors.items()})
