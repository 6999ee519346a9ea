"""What a translator is trained and judged on: a parallel text as tokens, and the files of its tokenizer."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from headscope.corpora.byte_pair_tokenizer import EOS, EOS_ID, PAD, PAD_ID, TOKENIZER_FILE, trained_tokenizer
from headscope.corpora.parallel.nearest_sentences import Nearest, nearest_copies, nearest_sentences
from headscope.corpora.parallel.pair_argument import parallel_text
from headscope.corpora.parallel.pairs import PairPart
from headscope.errors import UsageError
from headscope.experiments.translation.settings import Params
from headscope.progress import Step
from headscope.training import SequenceBatches

TOKENIZER_TASK = "training the tokenizer"
_SIDES = ("source", "target")


@dataclass(frozen=True)
class Material:
    """The splits of a parallel text with a tokenizer for both languages.

    `judged` are the test pairs that are translated, `nearest` their nearest training sentences.
    """

    train: PairPart
    valid: PairPart
    judged: PairPart
    nearest: Nearest
    tokenizer: Tokenizer
    longest: int

    @property
    def copies(self) -> tuple[str, ...]:
        """The nearest-neighbour copies of the judged pairs."""
        return nearest_copies(self.nearest, self.train)

    def batches(self, part: PairPart, *, tokens: int, seed: int) -> SequenceBatches:
        """The pairs of a split as batches of tokens.

        Raises:
            UsageError: A sentence has more tokens than the model reads.
        """
        sides = (self._ids(part, part.sources, "source"), self._ids(part, part.targets, "target"))
        return SequenceBatches(sides[0], targets=sides[1], tokens=tokens, padding=PAD_ID, seed=seed)

    @property
    def companions(self) -> Mapping[str, bytes]:
        """The files of the tokenizer that transformers opens."""
        settings = {
            "backend": "tokenizers",
            "clean_up_tokenization_spaces": False,
            "eos_token": EOS,
            "model_max_length": self.longest,
            "pad_token": PAD,
            "tokenizer_class": "PreTrainedTokenizerFast",
        }
        return {
            TOKENIZER_FILE: self.tokenizer.to_str(pretty=True).encode(),
            "tokenizer_config.json": json.dumps(settings, indent=2, sort_keys=True).encode() + b"\n",
        }

    def _ids(self, part: PairPart, sentences: Sequence[str], side: str) -> list[list[int]]:
        ids = [encoding.ids for encoding in self.tokenizer.encode_batch(list(sentences))]
        for number, row in enumerate(ids):
            if len(row) > self.longest:
                raise UsageError(
                    f"pair {number + 1} of {part.name}: its {side} has {len(row)} tokens, and the model reads "
                    f"{self.longest}: {sentences[number][:60]!r}",
                    hint="leave the pair out, or raise --longest",
                )
        return ids


def gather(params: Params, progress: Step) -> Material:
    """The splits of the text that was named, a tokenizer of its training pairs, and what is known of its test pairs."""
    text = parallel_text(params.pair, progress)
    train, judged = text.part("train"), drawn_part(text.part("test"), params.judged, params.seed)
    progress(TOKENIZER_TASK, 0, 1)
    tokenizer = with_end(trained_tokenizer([*train.sources, *train.targets], params.vocabulary))
    progress(TOKENIZER_TASK, 1, 1)
    nearest = nearest_sentences(judged.sources, train.sources)
    return Material(train, text.part("valid"), judged, nearest, tokenizer, params.longest)


def drawn_part(part: PairPart, count: int | None, seed: int) -> PairPart:
    """So many pairs of a split, drawn at random, in their order; all of them where there are no more."""
    if count is None or count >= len(part.pairs):
        return part
    order = torch.randperm(len(part.pairs), generator=torch.Generator().manual_seed(seed))
    positions = sorted(order[:count].tolist())
    return PairPart(
        part.name,
        part.languages,
        tuple(part.pairs[position] for position in positions),
        tuple(part.groups[position] for position in positions),
    )


def with_end(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer, which from now on ends each sentence with its end token."""
    tokenizer.post_processor = TemplateProcessing(single=f"$A {EOS}", special_tokens=[(EOS, EOS_ID)])
    return tokenizer
