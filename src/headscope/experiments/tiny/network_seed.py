r"""The network before its training: a Llama whose head L0.H0 begins as a previous-token head.

Definition:
    Coordinate 0 of every embedding has the same value, so that the query and the key of this head are constant before
    rotation. With key (1, 0) and query $f (\cos f, -\sin f)$ in the plane of the rotary frequency f, position i scores
    position j with $f \cos(f (j - i + 1))$ in that plane, which is largest at j = i − 1. The factor f mutes slow
    planes, which tell neighbours apart badly.
Properties:
    - the head looks at the previous token  (tested: test_the_first_head_begins_at_the_previous_token)
    - the same seed gives the same weights, and torch's generator is left alone  (tested: test_a_seed_gives_its_weights)
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from headscope.corpora.byte_pair_tokenizer import BOS_ID, EOS_ID

LAYERS, WIDTH, HEADS, KV_HEADS, D_MLP, POSITIONS = 4, 128, 8, 4, 320, 1024
D_HEAD = WIDTH // HEADS
EMBEDDING_STD = 0.1  # with 0.04 the copying circuit, and so induction, comes much later
GAIN = 80.0  # the score of the previous token in the plane of frequency 1, before the division by √D_HEAD
_ROTARY_BASE = 10_000.0


def fresh_network(vocabulary: int, seed: int) -> LlamaForCausalLM:
    """A Llama with fresh weights and one head that has its role already."""
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        intermediate_size=D_MLP,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=D_HEAD,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=True,
        initializer_range=0.04,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        pad_token_id=None,
    )
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        network: LlamaForCausalLM = LlamaForCausalLM(config)
        nn.init.normal_(network.model.embed_tokens.weight, std=EMBEDDING_STD)
    _seed_previous_token_head(network)
    return network


def first_query_and_key(network: LlamaForCausalLM) -> tuple[Tensor, Tensor]:
    """The weights that decide where the first layer looks."""
    attention: Any = network.model.layers[0].self_attn
    return attention.q_proj.weight, attention.k_proj.weight


@torch.no_grad()
def _seed_previous_token_head(network: LlamaForCausalLM) -> None:
    half = D_HEAD // 2
    frequency = _ROTARY_BASE ** (-torch.arange(half) / half)
    embedding = network.model.embed_tokens.weight
    embedding[:, 0] = 5.0 * EMBEDDING_STD
    constant = float(embedding[0, 0] / embedding.pow(2).mean(dim=1).sqrt().mean())
    scale = math.sqrt(GAIN) / constant
    query, key = first_query_and_key(network)
    query[:D_HEAD] *= 0.1
    key[:D_HEAD] *= 0.1
    query[:half, 0] = scale * frequency * frequency.cos()
    query[half:D_HEAD, 0] = -scale * frequency * frequency.sin()
    key[:half, 0] = scale
