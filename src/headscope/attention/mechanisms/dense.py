r"""Dense softmax attention: every query attends to all keys the call lets it see.

Definition:
    $\text{out}_i = \sum_j p_{ij} v_j$ with $p$ as in `headscope.attention.call`.
How:
    A call without limits, or causal from the first key on, is one call of torch's fused kernel: what
    transformers' own sdpa path costs. Any other call goes in blocks of rows, each over the keys that its rows can
    see, with a mask no larger than the block. Softcaps and biases that are learnt need the scores of a block in
    memory. A sink is a factor on the output, $1 / (1 + e^{\text{sink} - \text{lse}})$.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.attention.call import Call, Output
from headscope.attention.flex_mask import FlexMask
from headscope.attention.mechanism import Cost, Mechanism
from headscope.attention.sparse import kernel
from headscope.attention.sparse.blocks import allowed_mask, blind, row_blocks
from headscope.attention.sparse.explicit_softmax import explicit_attention
from headscope.attention.sparse.visibility_shape import sees_all
from headscope.attention.sparse.working_memory import flash_bytes

BANDED_ROWS = 256
BLOCK_ENTRIES = 1 << 24


@dataclass(frozen=True)
class Dense(Mechanism):
    """Every query attends to every key that the call lets it see.

    It honours all that a call can carry.

    Properties:
        - equals its float64 definition, with gradients  (tested: test_fast_equals_definition)
        - a row that sees no key gives out = 0 and lse = −∞, never NaN  (tested: test_masked_rows)
        - a cached decode step equals the row of the prefill  (tested: test_decode_step_equals_prefill_row)
    """

    name: ClassVar[str] = "dense"

    def attend(self, call: Call, *, lse: bool) -> Output:
        """One fused call where the mask is trivial, else blocks of rows."""
        if call.plain and not lse and sees_all(call) and call.k.shape[2]:
            return Output(kernel.fused(call.q, call.k, call.v, scale=call.scale))
        needs_lse = lse or call.sinks is not None
        if call.plain and (sees_all(call) or _is_triangle(call)) and (_has_flash(call) or not needs_lse):
            out, rows = _attended(call, lse=needs_lse, causal=not sees_all(call))
        else:
            rows_at_once = _rows(call, maps=_needs_scores(call) or (needs_lse and not _has_flash(call)))
            parts = [_attended(call.take(*block), lse=needs_lse) for block in row_blocks(call, rows_at_once)]
            out = torch.cat([part[0] for part in parts], dim=2)
            rows = torch.cat([part[1] for part in parts if part[1] is not None], dim=2) if needs_lse else None
        if rows is not None:
            out = with_sinks(out, rows, call.sinks)
        return Output(out, rows if lse else None)

    def flex_mask(self, n: int, *, causal: bool) -> FlexMask:
        """Every pair."""
        del n, causal
        return FlexMask("(q >= 0)")

    def seen(self, call: Call) -> Call:
        """The call itself."""
        return call

    @classmethod
    def as_dense(cls, n: int) -> "Dense":
        """The mechanism itself."""
        del n
        return cls()

    def definition(self, call: Call) -> Output:
        """The dense mask, in float64."""
        return explicit_attention(call, call.visible())

    def cost(self, n: int, d: int) -> Cost:
        """Two products of n × n × d, in the tiles of torch's kernel."""
        return Cost(flops=4.0 * n * n * d, bytes=flash_bytes(n, n, d))


MECHANISM = Dense


def with_sinks(
    out: Float[Tensor, "batch heads queries d_value"],
    lse: Float[Tensor, "batch heads queries"],
    sinks: Float[Tensor, " heads"] | None,
) -> Float[Tensor, "batch heads queries d_value"]:
    r"""The output after a sink takes its share.

    The share $e^{\text{lse}} / (e^{\text{lse}} + e^{\text{sink}})$ is left.
    """
    if sinks is None:
        return out
    return out * torch.sigmoid(lse - sinks.to(lse.dtype)[:, None])[..., None].to(out.dtype)


def _is_triangle(call: Call) -> bool:
    """Whether the kernel's causal mask is the mask of this call.

    The kernel's mask starts at the first key.
    """
    return call.causal and call.offset == 0 and (call.left is None or call.left >= call.q.shape[2] - 1)


def _rows(call: Call, *, maps: bool) -> int:
    """Rows per block.

    They are few where a band lets a block skip keys; else the size of the mask or of the maps decides.
    """
    banded = call.left is not None or call.right is not None
    map_count = call.q.shape[0] * (call.q.shape[1] if maps else 1)
    limit = max(1, BLOCK_ENTRIES // (map_count * call.k.shape[2]))
    return min(BANDED_ROWS, limit) if banded else limit


def _has_flash(call: Call) -> bool:
    """Whether this device has the operator that gives the log-sum-exp without a map."""
    return call.q.device.type == "cpu" and kernel.has_flash()


def _needs_scores(call: Call) -> bool:
    """Whether the scores are needed: for a softcap, or for the gradient of a bias."""
    return call.softcap is not None or (call.bias is not None and call.bias.requires_grad)


def _attended(call: Call, *, lse: bool, causal: bool = False) -> tuple[Tensor, Tensor | None]:
    """One block: output, and the log-sum-exp where it is needed or free."""
    if call.k.shape[2] == 0:
        return blind(call)
    q, k, v, scale = call.q, call.k, call.v, call.scale
    if _needs_scores(call) or (lse and not _has_flash(call)):
        return kernel.plain(q, k, v, scale=scale, softcap=call.softcap, bias=call.bias, allowed=allowed_mask(call))
    mask = None if causal else _kernel_mask(call)
    if lse:
        return kernel.flash(q, k, v, scale=scale, mask=mask, causal=causal)
    return kernel.fused(q, k, v, scale=scale, mask=mask, causal=causal), None


def _kernel_mask(call: Call) -> Tensor | None:
    """Bias and mask as one tensor that the fused kernels add to the scores."""
    allowed = allowed_mask(call)
    if call.bias is None and allowed is None:
        return None
    bias = call.q.new_zeros(()) if call.bias is None else call.bias.to(call.q.dtype)
    return bias if allowed is None else torch.where(allowed, bias, -torch.inf)
