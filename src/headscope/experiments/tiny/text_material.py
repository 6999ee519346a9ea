"""What the model learns from and is judged on: texts as tokens, and the files of its tokenizer."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from torch import Tensor

from headscope.corpora.byte_pair_tokenizer import BOS, BOS_ID, EOS, EOS_ID, TOKENIZER_FILE, trained_tokenizer
from headscope.corpora.splits import SPLITS, Split, part_of
from headscope.corpora.text_argument import with_splits
from headscope.experiments.tiny.network_seed import POSITIONS
from headscope.experiments.tiny.settings import Params
from headscope.progress import Step

TOKENIZER_TASK = "training the tokenizer"
READING_TASK = "cutting the texts into tokens"
Documents = Sequence[str]
Tokens = Int[Tensor, " tokens"]


@dataclass(frozen=True)
class Material:
    """Texts in three parts: `fit` is learnt, `search` is watched during training, documents of `test` are judged."""

    documents: Mapping[str, Mapping[Split, Documents]]
    judged: Mapping[str, Documents]
    tokenizer: Tokenizer
    train: Int[Tensor, " train"]
    watched: Int[Tensor, " watched"]

    @property
    def sha256(self) -> str:
        """The hash of the judged documents."""
        content = "\0".join(document for documents in self.judged.values() for document in documents)
        return hashlib.sha256(content.encode()).hexdigest()

    @property
    def companions(self) -> Mapping[str, bytes]:
        """The files of the tokenizer that transformers opens."""
        settings = {
            "backend": "tokenizers",
            "bos_token": BOS,
            "clean_up_tokenization_spaces": False,
            "eos_token": EOS,
            "model_max_length": POSITIONS,
            "tokenizer_class": "PreTrainedTokenizerFast",
        }
        return {
            TOKENIZER_FILE: self.tokenizer.to_str(pretty=True).encode(),
            "tokenizer_config.json": json.dumps(settings, indent=2, sort_keys=True).encode() + b"\n",
        }


def gather(params: Params, progress: Step) -> Material:
    """The texts that were named, a tokenizer of what is learnt, and the documents that are judged."""
    documents = {name: _parts(name, progress) for name in params.texts}
    progress(TOKENIZER_TASK, 0, 1)
    tokenizer = with_start(trained_tokenizer(_all(documents, "fit"), params.vocabulary))
    progress(TOKENIZER_TASK, 1, 1)
    progress(READING_TASK, 0, 1)
    train = token_stream(tokenizer, _all(documents, "fit"), EOS_ID)
    watched = token_stream(tokenizer, _all(documents, "search"), EOS_ID)
    judged = _judged(tokenizer, {name: parts["test"] for name, parts in documents.items()}, params.judged)
    progress(READING_TASK, 1, 1)
    return Material(documents, judged, tokenizer, train, watched)


def token_stream(tokenizer: Tokenizer, documents: Iterable[str], end: int) -> Tokens:
    """The documents as one row of tokens, each closed by the token that ends a text."""
    encodings = tokenizer.encode_batch(list(documents), add_special_tokens=False)
    return torch.tensor([token for encoding in encodings for token in (*encoding.ids, end)], dtype=torch.long)


def with_start(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer, which from now on begins each text with its first token."""
    tokenizer.post_processor = TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, BOS_ID)]
    )
    return tokenizer


def _parts(name: str, progress: Step) -> dict[Split, Documents]:
    text, splits = with_splits(name, progress)
    return {split: part_of(text, splits, split).documents for split in SPLITS}


def _all(documents: Mapping[str, Mapping[Split, Documents]], split: Split) -> list[str]:
    return [document for parts in documents.values() for document in parts[split]]


def _judged(tokenizer: Tokenizer, held_out: Mapping[str, Documents], least: int) -> dict[str, Documents]:
    """Documents of each text until it has its part of the tokens."""
    sizes = {name: sum(map(len, documents)) for name, documents in held_out.items()}
    shares = {name: size / sum(sizes.values()) for name, size in sizes.items()}
    return {name: _sample(tokenizer, documents, least * shares[name]) for name, documents in held_out.items()}


def _sample(tokenizer: Tokenizer, documents: Documents, least: float) -> Documents:
    """Documents in a fixed random order, whatever the seed of the training, until they have enough tokens."""
    sample, n_tokens = list[str](), 0
    for index in torch.randperm(len(documents), generator=torch.Generator().manual_seed(0)).tolist():
        if n_tokens >= least:
            break
        sample.append(documents[index])
        n_tokens += len(tokenizer.encode(documents[index], add_special_tokens=False).ids) + 1
    return tuple(sample)
