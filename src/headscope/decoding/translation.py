"""Sentences translated by an encoder–decoder with its tokenizer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from headscope.decoding.answers import decode
from headscope.decoding.hypothesis import Hypothesis
from headscope.decoding.searches import Search
from headscope.decoding.special_ids import is_encoder_decoder
from headscope.errors import CheckpointError, UsageError

ROWS = 64  # sentences that are translated at the same time
MOST_TOKENS = 256  # of a translation, where the model has no limit
_SHOWN = 60  # characters of a sentence in a message


@dataclass(frozen=True)
class Translation:
    """A translation with its probability.

    `log_probability` is that of the model for all tokens, `score` what the search ranks by. A translation that has not
    ended was cut at the limit of the model.
    """

    text: str
    log_probability: float
    score: float
    has_ended: bool


@dataclass(frozen=True)
class TranslatedSentence:
    """A sentence and its translations, the best first."""

    source: str
    translations: tuple[Translation, ...]

    @property
    def text(self) -> str:
        """The best translation."""
        return self.translations[0].text

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class SentenceTranslator:
    """An encoder–decoder with its tokenizer, checked to be one.

    Raises:
        UsageError: The network is no encoder–decoder, or has no tokenizer.
        CheckpointError: The tokenizer has more tokens than the network.
    """

    network: nn.Module
    tokenizer: Any
    name: str = "the model"

    def __post_init__(self) -> None:
        if not is_encoder_decoder(self.network):
            raise UsageError(
                f"{self.name} ({type(self.network).__name__}) is no encoder–decoder: it does not translate",
                hint="give a model that `headscope study translation` trained, or another translator",
            )
        if self.tokenizer is None:
            raise UsageError(
                f"{self.name} has no tokenizer: it reads tokens, and no sentences",
                hint="put the tokenizer.json that it was trained with into its folder",
            )
        last, vocabulary = max(self.tokenizer.get_vocab().values(), default=-1), self._setting("vocab_size")
        if vocabulary is not None and last >= vocabulary:
            raise CheckpointError(
                f"the tokenizer of {self.name} numbers its tokens up to {last}, and the network has {vocabulary}",
                hint="it belongs to another model: put the tokenizer in place that this model was trained with",
            )

    @property
    def limit(self) -> int | None:
        """The most tokens that the network reads or writes; None where it has no limit."""
        return self._setting("max_position_embeddings")

    def translate(
        self, sentences: Sequence[str], search: Search, report: Callable[[int, int], None] | None = None
    ) -> list[TranslatedSentence]:
        """The translations of sentences; `report` is called with how many are done, and of how many.

        Properties:
            - a sentence is translated as it would be alone  (tested: test_a_sentence_is_translated_as_if_alone)

        Raises:
            UsageError: A sentence is empty, or longer than the limit.
        """
        prompts = [self._tokens(sentence, number) for number, sentence in enumerate(sentences, 1)]
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        answers: dict[int, tuple[Hypothesis, ...]] = {}
        for start in range(0, len(order), ROWS):
            if report is not None:
                report(start, len(order))
            indices = order[start : start + ROWS]
            answers |= dict(zip(indices, self._answers([prompts[index] for index in indices], search), strict=True))
        return [
            TranslatedSentence(sentence, tuple(map(self._translation, answers[index])))
            for index, sentence in enumerate(sentences)
        ]

    def _answers(self, prompts: Sequence[Sequence[int]], search: Search) -> list[tuple[Hypothesis, ...]]:
        most_tokens = self.limit or MOST_TOKENS
        return decode(self.network, prompts, search, most_tokens=most_tokens, cache=self._has_cache)

    @property
    def _has_cache(self) -> bool:
        # Mechanisms that need all queries switch it off in the settings of generation, recurrent networks in theirs.
        settings = (getattr(self.network, name, None) for name in ("config", "generation_config"))
        return all(getattr(setting, "use_cache", None) is not False for setting in settings)

    def _tokens(self, sentence: str, number: int) -> list[int]:
        if not sentence.strip():
            raise UsageError(f"sentence {number} is empty", hint="leave it out")
        ids: list[int] = self.tokenizer(sentence, verbose=False)["input_ids"]  # a long one is refused, not remarked
        if self.limit is not None and len(ids) > self.limit:
            raise UsageError(
                f"sentence {number} has {len(ids)} tokens, and {self.name} reads at most {self.limit}: "
                f"{sentence[:_SHOWN]!r} …",
                hint="split it into shorter sentences",
            )
        return ids

    def _translation(self, hypothesis: Hypothesis) -> Translation:
        text: str = self.tokenizer.decode(hypothesis.tokens, skip_special_tokens=True)
        return Translation(text.strip(), hypothesis.log_probability, hypothesis.score, hypothesis.has_ended)

    def _setting(self, name: str) -> int | None:
        return getattr(getattr(self.network, "config", None), name, None)
