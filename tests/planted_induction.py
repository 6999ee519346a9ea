"""An induction model written by hand: a shift head in layer 0, an induction head in layer 1, and random small heads.

A GPT-2 with LayerNorms of gain 1, feed-forward parts that give 0, and orthogonal codes: `TOKEN` says which token is at
a place, `POSITION` which place it is, and the shift head writes the code of the token before into `BEFORE`. An
induction head that finds no earlier copy rests at the first place.
"""

from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

WORDS = ("[BOS]", "[UNK]", *(f"w{number}" for number in range(46)))
PLACES = 64  # the longest text
WIDTH = 64  # of a head
HEADS = 3
TOKEN, POSITION = slice(0, len(WORDS)), slice(len(WORDS), len(WORDS) + PLACES)
BEFORE = slice(POSITION.stop, POSITION.stop + len(WORDS))
D_MODEL = HEADS * WIDTH
SHIFT, INDUCTION = "L0.H0", "L1.H0"
_STRENGTH = 3.0  # by which queries are larger than keys
_REST = WIDTH - 1  # the channel of the induction head that makes it rest at the first place
_SIZE_OF_REST = 0.5  # against the score of a match


@dataclass(frozen=True)
class Matrices:
    """A head by rows, as x @ w: d_model × width for queries, keys and values, width × d_model for the output."""

    w_q: Tensor
    w_k: Tensor
    w_v: Tensor
    w_o: Tensor
    b_q: Tensor

    @classmethod
    def empty(cls) -> "Matrices":
        """A head that does nothing."""
        return cls(*(torch.zeros(D_MODEL, WIDTH) for _ in "qkv"), torch.zeros(WIDTH, D_MODEL), torch.zeros(WIDTH))


def shift_head() -> Matrices:
    """Attend to the place before, and write which token is there."""
    head = Matrices.empty()
    places, tokens = torch.eye(PLACES), torch.eye(len(WORDS))
    head.w_q[POSITION][1:, :PLACES] = _STRENGTH * places[:-1]
    head.w_k[POSITION, :PLACES] = places
    head.w_v[TOKEN, : len(WORDS)] = tokens
    # A norm makes codes larger by as much as the stream is small; this takes it back.
    head.w_o[: len(WORDS), BEFORE] = tokens * (2 / D_MODEL) ** 0.5
    return head


def induction_head() -> Matrices:
    """Attend to places whose token before is the query's token, and write which token is there."""
    head = Matrices.empty()
    tokens = torch.eye(len(WORDS))
    head.w_q[TOKEN, : len(WORDS)] = _STRENGTH * tokens
    head.w_k[BEFORE, : len(WORDS)] = tokens
    head.w_k[POSITION.start, _REST] = 1.0
    # Codes have the size (d_model / 3) ** 0.5 behind the norm, and a bias has its own.
    head.b_q[_REST] = _SIZE_OF_REST * _STRENGTH * (D_MODEL / 3) ** 0.5
    head.w_v[TOKEN, : len(WORDS)] = tokens
    head.w_o[: len(WORDS), TOKEN] = tokens
    return head


def random_head(generator: torch.Generator) -> Matrices:
    """A head that attends almost evenly and writes next to nothing."""
    shapes = [(D_MODEL, WIDTH)] * 3 + [(WIDTH, D_MODEL), (WIDTH,)]
    return Matrices(*(0.003 * torch.randn(*shape, generator=generator) for shape in shapes))


def turned(head: Matrices, generator: torch.Generator) -> Matrices:
    """The same head in other inner bases: G for queries and its inverse for keys, and the same for values."""
    changes = [torch.eye(WIDTH) + 0.05 * torch.randn(WIDTH, WIDTH, generator=generator) for _ in range(2)]
    (qk, vo), (qk_back, vo_back) = changes, [torch.linalg.inv(change) for change in changes]
    return Matrices(head.w_q @ qk, head.w_k @ qk_back.T, head.w_v @ vo, vo_back @ head.w_o, head.b_q @ qk)


def layers() -> list[list[Matrices]]:
    """The heads of both layers: the written one first, then random ones."""
    generator = torch.Generator().manual_seed(0)
    return [[written(), random_head(generator), random_head(generator)] for written in (shift_head, induction_head)]


def planted_model(heads: list[list[Matrices]] | None = None) -> Any:
    """The model as transformers has it."""
    config = GPT2Config(
        vocab_size=len(WORDS),
        n_positions=PLACES,
        n_embd=D_MODEL,
        n_inner=8,
        n_layer=2,
        n_head=HEADS,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.transformer.h.parameters():
            parameter.zero_()
        _write_tables(model)
        for block, layer in zip(model.transformer.h, heads or layers(), strict=True):
            block.ln_1.weight.fill_(1.0)
            block.ln_2.weight.fill_(1.0)
            letters = [torch.cat([getattr(head, f"w_{letter}") for head in layer], 1) for letter in "qkv"]
            block.attn.c_attn.weight.copy_(torch.cat(letters, 1))
            block.attn.c_attn.bias[:D_MODEL] = torch.cat([head.b_q for head in layer])
            block.attn.c_proj.weight.copy_(torch.cat([head.w_o for head in layer]))
    return model


def _write_tables(model: GPT2LMHeadModel) -> None:
    """Each token and each place has a direction of its own."""
    tokens, places = model.transformer.wte.weight, model.transformer.wpe.weight
    tokens.zero_()
    places.zero_()
    tokens[:, TOKEN] = torch.eye(len(WORDS))
    places[:, POSITION] = torch.eye(PLACES)


def planted_tokenizer() -> PreTrainedTokenizerFast:
    """Each word between blanks is a token, and a text begins with one of its own."""
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(single="[BOS] $A", special_tokens=[("[BOS]", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=words, bos_token="[BOS]", unk_token="[UNK]")
