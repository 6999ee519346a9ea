"""Other people's attention on the same tensors, without projections.

A peer runs only where its package is installed; headscope depends on none of them beyond transformers, which it
needs anyway. Where a peer computes something a little different, its note says what.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from headscope.attention.call import Call
from headscope.attention.mechanism import Mechanism

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Peer:
    """One implementation by others of what a mechanism does.

    `prepare` is given the mechanism and the call and returns the function that is timed, or None where the peer
    cannot do this (a length that is no multiple of its block, a causal call it knows nothing about …).
    """

    name: str
    package: str
    mechanism: str
    note: str
    prepare: Callable[[Any, Call], Attend | None]


def peers_of(mechanism: Mechanism) -> list[Peer]:
    """The peers of a mechanism whose packages are installed here."""
    return [peer for peer in PEERS if peer.mechanism == mechanism.name and find_spec(peer.package) is not None]


def _two_sided(mechanism: Any, call: Call) -> int | None:
    """The reach of a symmetric window without dilation, over a call without limits."""
    is_symmetric = mechanism.left is not None and mechanism.left == mechanism.right and mechanism.dilation == 1
    return mechanism.left if is_symmetric and call.left is None and call.right is None and mechanism.left > 0 else None


def _longformer(mechanism: Any, call: Call) -> Attend | None:
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    reach, (_, heads, n, d) = _two_sided(mechanism, call), call.q.shape
    if reach is None or n % (2 * reach) or call.groups != 1:
        return None
    config = LongformerConfig(
        hidden_size=heads * d, num_attention_heads=heads, num_hidden_layers=1, attention_window=[2 * reach]
    )
    layer: Any = LongformerSelfAttention(config, 0)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = layer._sliding_chunks_query_key_matmul(q.transpose(1, 2) * call.scale, k.transpose(1, 2), reach)
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32)
        mixed: Tensor = layer._sliding_chunks_matmul_attn_probs_value(weights, v.transpose(1, 2), reach)
        return mixed.transpose(1, 2)

    return attend


def _local_attention(mechanism: Any, call: Call) -> Attend | None:
    from local_attention import LocalAttention  # type: ignore[import-not-found]

    reach = _two_sided(mechanism, call)
    if reach is None or call.q.shape[2] % reach or call.groups != 1:
        return None
    layer = LocalAttention(
        reach, look_backward=1, look_forward=1, exact_windowsize=True, use_rotary_pos_emb=False, scale=call.scale
    )
    return lambda q, k, v: layer(q, k, v)


def _big_bird(mechanism: Any, call: Call) -> Attend | None:
    from transformers import BigBirdConfig
    from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention, BigBirdModel

    batch, heads, n, d = call.q.shape
    size = mechanism.block
    if n % size or n // size < 5 + 2 * mechanism.random or call.causal or call.groups != 1:
        return None
    config = BigBirdConfig(
        hidden_size=heads * d, num_attention_heads=heads, num_random_blocks=mechanism.random, block_size=size,
        max_position_embeddings=n,
    )  # fmt: skip
    layer: Any = BigBirdBlockSparseAttention(config, seed=0)
    masks = BigBirdModel.create_masks_for_block_sparse_attn(torch.ones(batch, n), size)
    blocked, band, rows, columns = masks

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mixed: Tensor = layer.bigbird_block_sparse_attention(
            q, k, v, band, rows, columns, blocked, blocked, heads, mechanism.random, d, size, size, batch, n, n,
            seed=0, plan_from_length=None, plan_num_rand_blocks=None,
        )[0]  # fmt: skip
        return mixed.transpose(1, 2)

    return attend


def _causal_linear(mechanism: Any, call: Call) -> Attend | None:
    from linear_attention_transformer.linear_attention_transformer import (  # type: ignore[import-not-found]
        causal_linear_attn,
    )

    if not call.causal or call.q.shape[2] % 64 or call.groups != 1:
        return None
    del mechanism  # its feature maps are fixed
    return lambda q, k, v: causal_linear_attn(q, k, v, bucket_size=64)


PEERS = (
    Peer("transformers Longformer", "transformers", "window", "the same set of keys", _longformer),
    Peer("local-attention", "local_attention", "window", "the same set of keys", _local_attention),
    Peer("transformers BigBird", "transformers", "bigbird", "other random blocks, another one per head", _big_bird),
    Peer(
        "linear-attention-transformer", "linear_attention_transformer", "linear",
        "other feature maps; a token does not see its own block of 64", _causal_linear,
    ),
)  # fmt: skip
