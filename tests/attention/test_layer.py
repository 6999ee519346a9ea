"""Attention as a layer: projections, groups of heads, global tokens with projections of their own."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import nn

import headscope.attention as attention
from headscope.attention.layer import MultiHead
from headscope.attention.mechanisms.dense import Dense
from headscope.errors import UsageError


def states(tokens: int = 11, d_model: int = 24, seed: int = 0) -> torch.Tensor:
    return torch.randn(2, tokens, d_model, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("causal", [False, True])
def test_layer_equals_torch(causal: bool) -> None:
    torch.manual_seed(0)
    ours, theirs = MultiHead(24, 4, causal=causal, bias=True), nn.MultiheadAttention(24, 4, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([ours.projections[name].weight for name in "qkv"]))
        theirs.in_proj_bias.copy_(torch.cat([ours.projections[name].bias for name in "qkv"]))
        theirs.out_proj.weight.copy_(ours.out.weight)
        theirs.out_proj.bias.copy_(ours.out.bias)
    x = states()
    real = torch.ones(2, 11, dtype=torch.bool)
    real[1, 8:] = False
    mask = torch.ones(11, 11).triu(1).bool() if causal else None
    want = theirs(x, x, x, key_padding_mask=~real, attn_mask=mask, need_weights=False)[0]
    assert torch.allclose(ours(x, real=real), want, atol=1e-6)


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_grouped_heads_equal_repeated_ones(kv_heads: int) -> None:
    torch.manual_seed(1)
    grouped, whole = MultiHead(24, 4, kv_heads=kv_heads), MultiHead(24, 4)
    with torch.no_grad():
        whole.projections["q"].weight.copy_(grouped.projections["q"].weight)
        whole.out.weight.copy_(grouped.out.weight)
        for name in "kv":
            rows = grouped.projections[name].weight.view(kv_heads, 6, 24)
            whole.projections[name].weight.copy_(rows.repeat_interleave(4 // kv_heads, 0).reshape(24, 24))
    assert torch.allclose(grouped(states()), whole(states()), atol=1e-6)


@dataclass(frozen=True)
class Watching(Dense):
    """Dense attention that lets one see the call."""

    name: ClassVar[str] = "dense"
    seen_calls: ClassVar[list] = []

    def attend(self, call, *, lse):
        self.seen_calls.append(call)
        return super().attend(call, lse=lse)


def test_grouped_keys_are_views() -> None:
    layer = MultiHead(24, 4, Watching(), kv_heads=1)
    Watching.seen_calls.clear()
    layer(states())
    call = Watching.seen_calls[0]
    assert call.k.shape == (2, 1, 11, 6)
    assert call.k.untyped_storage().nbytes() == call.k.numel() * 4  # the keys of one head, and no more


def test_cross_attention_and_gradients() -> None:
    torch.manual_seed(2)
    layer = MultiHead(24, 4, causal=True)
    x, memory = states(5), states(9, seed=3)
    out = layer(x, memory)
    assert out.shape == x.shape
    out.square().sum().backward()
    assert all(weight.grad is not None and bool(weight.grad.abs().sum() > 0) for weight in layer.parameters())


def test_global_projections() -> None:
    torch.manual_seed(3)
    longformer = attention.longformer(left=2, right=2, global_positions=(0, 7))
    layer = MultiHead(24, 4, longformer, global_projections=True)
    x = states()
    call = layer.call(x)
    q, k, v = (layer._heads(layer.global_projections[name], x) for name in "qkv")
    mixed = longformer.definition(call).out
    mixed[:, :, [0, 7]] = Dense().definition(replace(call, q=q, k=k, v=v)).out[:, :, [0, 7]]
    want = layer.out(mixed.float().transpose(1, 2).flatten(2))
    assert torch.allclose(layer(x), want, atol=1e-6)
    layer(x).sum().backward()
    assert all(weight.grad is not None for weight in layer.parameters())


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"heads": 5}, "evenly"),
        ({"heads": 4, "kv_heads": 3}, "evenly"),
        ({"heads": 4, "global_projections": True}, "no global positions"),
    ],
)
def test_impossible_layers_are_refused(given: dict, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        MultiHead(24, **given)
