r"""Softmax attention over one block: fused kernels, or plain torch.

Plain torch serves where the kernels do not reach.

Both ways give the same numbers: $\text{out} = \mathrm{softmax}(s)\,v$ and $\text{lse} = \ln \sum_j e^{s_j}$ over the
allowed keys, differentiable in q, k and v through out *and* lse (a merge by log-sum-exp needs both). A row
that is allowed nothing has out = 0 and lse = −∞.

torch returns the log-sum-exp on the CPU only from a private operator. `has_flash` guards it; without it, and on any
other device, the plain way is taken, in blocks of rows.
"""

import warnings
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from headscope.attention.sparse.shared_heads import share_of

Rows = tuple[Float[Tensor, "batch heads queries d_value"], Float[Tensor, "batch heads queries"]]
Mask = Bool[Tensor, "mask_batch mask_heads queries keys"]
Bias = Float[Tensor, "bias_batch bias_heads queries keys"]


def fused(
    q: Float[Tensor, "batch heads queries d_head"],
    k: Float[Tensor, "batch kv_heads keys d_head"],
    v: Float[Tensor, "batch kv_heads keys d_value"],
    *,
    scale: float,
    mask: Bias | Mask | None = None,
    causal: bool = False,
) -> Float[Tensor, "batch heads queries d_value"]:
    """The output alone, by torch's choice of kernel.

    `causal` aligns at the top left.

    Properties:
        - the same bytes however heads are shared  (tested: test_sharing_heads_changes_no_byte)
    """
    d_value = v.shape[-1]
    q, k, v = of_one_width(q, k, v)
    share = share_of(q, k)
    if share is None:
        return _by_torch(q, k, v, mask, causal=causal, scale=scale)[..., :d_value]
    groups = q.shape[1] // k.shape[1]
    # Token after token, as the kernel itself writes it.
    out = q.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[-1]).transpose(1, 2)

    def fill(kv_heads: slice) -> None:
        heads = slice(kv_heads.start * groups, kv_heads.stop * groups)
        own_mask = mask[:, heads] if mask is not None and mask.shape[1] > 1 else mask
        out[:, heads] = _by_torch(q[:, heads], k[:, kv_heads], v[:, kv_heads], own_mask, causal=causal, scale=scale)

    share(fill, [slice(head, head + 1) for head in range(k.shape[1])])
    return out[..., :d_value]


def _by_torch(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, causal: bool, scale: float) -> Tensor:
    out: Tensor = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    return out


def flash(
    q: Float[Tensor, "batch heads queries d_head"],
    k: Float[Tensor, "batch kv_heads keys d_head"],
    v: Float[Tensor, "batch kv_heads keys d_value"],
    *,
    scale: float,
    mask: Bias | None = None,
    causal: bool = False,
) -> Rows:
    """Output and log-sum-exp by the private flash operator.

    Ask `has_flash` first; the mask is added, in q's dtype.
    """
    d_value = v.shape[-1]
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in of_one_width(q, k, v))
    out, lse = _Flash.apply(q, k, v, mask, causal, scale)  # type: ignore[no-untyped-call]
    return out[..., :d_value], lse


def plain(
    q: Float[Tensor, "batch heads queries d_head"],
    k: Float[Tensor, "batch kv_heads keys d_head"],
    v: Float[Tensor, "batch kv_heads keys d_value"],
    *,
    scale: float,
    softcap: float | None = None,
    bias: Bias | None = None,
    allowed: Mask | None = None,
) -> Rows:
    """Output and log-sum-exp with the scores of the block in memory.

    It computes in at least float32 and honours everything.
    """
    batch, heads, queries, _ = q.shape
    dtype = torch.promote_types(q.dtype, torch.float32)
    grouped = (batch, k.shape[1], heads // k.shape[1] * queries)  # the queries of a group read one key head
    scores = (q.to(dtype).reshape(*grouped, q.shape[-1]) @ k.to(dtype).transpose(-1, -2)) * scale
    scores = scores.reshape(batch, heads, queries, k.shape[2])
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias.to(dtype)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -torch.inf)
    # The gradient of a softmax over nothing is NaN, so such rows attend to everything and are wiped after.
    nothing = scores.detach().amax(dim=-1, keepdim=True) == -torch.inf
    scores = scores.masked_fill(nothing, 0.0)
    lse = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - lse[..., None]).masked_fill(nothing, 0.0)
    out = (weights.reshape(*grouped, k.shape[2]) @ v.to(dtype)).reshape(batch, heads, queries, v.shape[-1])
    lse = lse.masked_fill(nothing[..., 0], -torch.inf)
    return out.to(q.dtype), lse


@cache
def has_flash() -> bool:
    """Whether the private CPU operator exists and takes grouped heads both ways.

    Both ways are the forward and the backward.

    Where it does not, a warning says once that the portable way is taken.
    """
    q, k = torch.zeros(1, 2, 1, 8), torch.zeros(1, 1, 1, 8)
    try:
        out, lse = flash_forward()(q, k, k, 0.0, False, attn_mask=None, scale=1.0)
        grads = flash_backward()(out, q, k, k, out, lse, 0.0, False, attn_mask=None, scale=1.0)
        works = bool(lse.shape == (1, 2, 1) and grads[1].shape == k.shape)
    except (AttributeError, RuntimeError, TypeError):
        works = False
    if not works:
        warnings.warn(
            f"torch {torch.__version__} has no flash attention operator for the CPU that headscope knows: bands and "
            "gathered blocks are computed by plain torch operators, exactly but more slowly",
            RuntimeWarning,
            stacklevel=2,
        )
    return works


def flash_forward() -> Any:
    """The private operator, which gives output and log-sum-exp.

    Its signature is (q, k, v, dropout, causal, *, attn_mask, scale) → (out, lse).
    """
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def flash_backward() -> Any:
    """The backward of the private operator.

    Its signature is (grad_out, q, k, v, out, lse, dropout, causal, *, attn_mask, scale) → gradients of q, k, v.
    """
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def of_one_width(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Tensors with zeros up to one head size, which the fused kernels need.

    Zeros change neither the scores nor the values.
    """
    short = v.shape[-1] - q.shape[-1]
    if short > 0:
        return F.pad(q, (0, short)), F.pad(k, (0, short)), v
    return (q, k, F.pad(v, (0, -short))) if short < 0 else (q, k, v)


def gradients(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    qkv: tuple[Tensor, Tensor, Tensor],
    rows: tuple[Tensor, Tensor],
    *,
    mask: Tensor | None,
    scale: float,
    causal: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Gradients of q, k and v from those of the output and of the log-sum-exp.

    The operator's backward knows only the output's gradient g, which gives $s_{ij}$ $p_{ij}\, g_i \cdot (v_j - o_i)$.
    Since $\partial\,\text{lse}_i / \partial s_{ij} = p_{ij}$, one more value that is 1 for every key, whose output
    counts as 0 and whose gradient is that of lse, adds what is missing.
    """
    (q, k, v), (out, lse), width = qkv, rows, qkv[0].shape[-1]
    if grad_lse is not None:
        q, k, out, v = F.pad(q, (0, 1)), F.pad(k, (0, 1)), F.pad(out, (0, 1)), F.pad(v, (0, 1), value=1.0)
        grad_out = torch.cat([grad_out, grad_lse[..., None].to(grad_out.dtype)], dim=-1)
    grad_q, grad_k, grad_v = flash_backward()(grad_out, q, k, v, out, lse, 0.0, causal, attn_mask=mask, scale=scale)
    return grad_q[..., :width], grad_k[..., :width], grad_v[..., :width]


class _Flash(torch.autograd.Function):
    """The private operator with a differentiable log-sum-exp."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Rows:
        ctx.set_materialize_grads(False)
        out, lse = flash_forward()(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
        # The operator says lse = 0 where a row is allowed nothing, and its backward relies on that.
        nothing = None if mask is None else (mask == -torch.inf).all(dim=-1).expand_as(lse)
        ctx.save_for_backward(q, k, v, mask, out, lse, nothing)
        ctx.causal, ctx.scale = causal, scale
        return out, lse.clone() if nothing is None else lse.masked_fill(nothing, -torch.inf)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, mask, out, lse, nothing = ctx.saved_tensors
        if grad_lse is not None and nothing is not None:
            grad_lse = grad_lse.masked_fill(nothing, 0.0)
        grad_out = torch.zeros_like(out) if grad_out is None else grad_out
        grads = gradients(grad_out, grad_lse, (q, k, v), (out, lse), causal=ctx.causal, mask=mask, scale=ctx.scale)
        return (*grads, None, None, None)
