"""Trains byte-pair tokenizers: one vocabulary for all languages of a text, saved as tokenizer.json.

Definition:
    A sentence is its UTF-8 bytes. The vocabulary begins with the special tokens and the 256 bytes; then the most
    frequent pair of neighbouring tokens within a word becomes a token, again and again, until the vocabulary has its
    size. A word begins with its blank.
Properties:
    - any sentence is decoded to itself  (tested: test_any_sentence_comes_back)
    - the same sentences give the same file  (tested: test_the_same_sentences_give_the_same_file)
Numerics:
    Encoding adds no special token: who trains a model places the beginning and the end.
Reference:
    Sennrich, Haddow and Birch (2016), Neural machine translation of rare words with subword units.
"""

import errno
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from headscope.errors import CheckpointError, UsageError
from headscope.files import Destination, write_file

PAD, BOS, EOS = SPECIAL_TOKENS = ("<pad>", "<s>", "</s>")
PAD_ID, BOS_ID, EOS_ID = range(3)
SMALLEST = len(SPECIAL_TOKENS) + 256
TOKENIZER_FILE = "tokenizer.json"

_PLACE = Destination(
    failure="cannot write {path}: {reason}",
    hint="choose a folder that you may write to",
    full="no space left on the disk while writing {path}",
    hints={errno.ENOSPC: "free some space", errno.EDQUOT: "free some space"},
)


def trained_tokenizer(sentences: Iterable[str], size: int) -> Tokenizer:
    """A byte-pair tokenizer with a vocabulary of exactly `size` tokens.

    Raises:
        UsageError: The size has no room for all bytes, or the sentences have too few pairs of tokens for it.
    """
    if size < SMALLEST:
        raise UsageError(
            f"a vocabulary of {size} tokens has no room for the 256 bytes and {len(SPECIAL_TOKENS)} special tokens",
            hint=f"use {SMALLEST} tokens at least; a few thousand are usual",
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences, trainer)
    if tokenizer.get_vocab_size() != size:
        raise UsageError(
            f"the sentences give a vocabulary of {tokenizer.get_vocab_size()} tokens, expected {size}",
            hint="give more text, or ask for a smaller vocabulary",
        )
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> Path:
    """Write tokenizer.json into a folder in one step."""
    path = folder / TOKENIZER_FILE
    write_file(path, tokenizer.to_str(pretty=True).encode(), _PLACE)
    return path


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a tokenizer.json that `save_tokenizer` wrote.

    Raises:
        CheckpointError: The file cannot be read, or its special tokens have other numbers.
    """
    hint = "give the tokenizer.json of a model that was trained with headscope"
    try:
        tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"the tokenizer {path} cannot be read: {error.strerror}", hint=hint) from error
    except Exception as error:  # the library raises nothing more special
        raise CheckpointError(f"{path} is no tokenizer: {error}", hint=hint) from error
    ids = [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS]
    if ids != [PAD_ID, BOS_ID, EOS_ID]:
        listed = ", ".join(SPECIAL_TOKENS)
        raise CheckpointError(f"{path} numbers the tokens {listed} as {ids}, expected 0, 1, 2", hint=hint)
    return tokenizer
