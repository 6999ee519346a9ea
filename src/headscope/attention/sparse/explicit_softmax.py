r"""Softmax attention as its formula says: float64 and the whole map.

$s_{ij} = \mathrm{softcap}(\text{scale}\; q_i \cdot k_j) + \text{bias}_{ij}$,
$p_{ij} = e^{s_{ij}} / (e^{\text{sink}} + \sum_{j \in \text{allowed}} e^{s_{ij}})$,
$\text{out}_i = \sum_j p_{ij} v_j$, $\text{lse}_i = \ln \sum_{j \in \text{allowed}} e^{s_{ij}}$.

This is what the definitions of the mechanisms with a dense mask call; the fast paths never do.
"""

import torch
from jaxtyping import Bool
from torch import Tensor

from headscope.attention.call import Call, Output


def explicit_attention(call: Call, allowed: Bool[Tensor, "mask_batch mask_heads queries keys"]) -> Output:
    """Attention of every query over the `allowed` keys, in float64."""
    k = call.k.double().repeat_interleave(call.groups, dim=1)
    v = call.v.double().repeat_interleave(call.groups, dim=1)
    scores = torch.einsum("bhqd,bhkd->bhqk", call.q.double(), k) * call.scale
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    if call.bias is not None:
        scores = scores + call.bias.double()
    scores = scores.masked_fill(~allowed, -torch.inf)
    lse = torch.logsumexp(scores, dim=-1)
    total = lse if call.sinks is None else torch.logaddexp(lse, call.sinks.double()[:, None])
    # A row that sees nothing has total = −∞ (without a sink); its weights are 0, not exp(−∞ + ∞).
    weights = torch.exp(scores - total.masked_fill(total == -torch.inf, 0.0)[..., None])
    return Output(torch.einsum("bhqk,bhkd->bhqd", weights, v), lse)
