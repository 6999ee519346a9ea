"""Beam search: the best beginnings of each text, and those that have ended.

A step extends the beginnings of a prompt by every token and orders them by log-probability. Of the first `width`, those
that end are finished hypotheses, which are kept; the first `width` that do not end are the beginnings of the next step.
After the last step the first `width` are hypotheses, ended or not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from headscope.decoding.beam_rows import BeamRows, Candidate
from headscope.decoding.hypothesis import Hypothesis
from headscope.decoding.searches import Beam
from headscope.decoding.single_texts import without
from headscope.decoding.special_ids import SpecialTokens
from headscope.decoding.token_reader import TokenReader


@dataclass
class Sentence:
    """The search for the answer to one prompt."""

    beam: Beam
    special: SpecialTokens
    most_tokens: int
    ended: list[Hypothesis] = field(default_factory=list)
    beginnings: list[Candidate] = field(default_factory=list)

    def extend(self, candidates: Sequence[Candidate], texts: Sequence[Sequence[int]]) -> None:
        """Take the best extensions of the beginnings, whose tokens are `texts`."""
        length = len(texts[0]) + 1
        is_last = length == self.most_tokens
        possible = [candidate for candidate in candidates if candidate.log_probability > -torch.inf]
        for candidate in possible[: self.beam.width]:
            has_ended = candidate.token in self.special.ends
            if has_ended or is_last:
                tokens = (*texts[candidate.beam], *(() if has_ended else (candidate.token,)))
                score = self.beam.score(candidate.log_probability, length)
                self.ended.append(Hypothesis(tokens, candidate.log_probability, score, has_ended))
        self.ended = sorted(self.ended, key=lambda hypothesis: -hypothesis.score)[: self.beam.width]
        going = [] if is_last else [part for part in possible if part.token not in self.special.ends]
        self.beginnings = [] if self._is_over(going, length) else going[: self.beam.width]

    def _is_over(self, going: Sequence[Candidate], length: int) -> bool:
        if not going or len(self.ended) < self.beam.width:
            return not going
        return self.beam.bound(going[0].log_probability, length, self.most_tokens) <= self.ended[-1].score


def beam_search(
    reader: TokenReader, beam: Beam, special: SpecialTokens, n_prompts: int, most_tokens: int
) -> list[tuple[Hypothesis, ...]]:
    """The best hypotheses for each prompt, the best first.

    Properties:
        - it is the search of the definition  (tested: test_beams_are_those_of_the_definition)
        - a beam that is wide enough finds the best text of all  (tested: test_a_wide_beam_is_exhaustive)
        - it is the search of transformers  (tested: test_beams_are_those_of_transformers)
    """
    sentences = [Sentence(beam, special, most_tokens) for _ in range(n_prompts)]
    logits = reader.first_logits()
    rows = BeamRows.first(n_prompts, logits.device)
    count = (1 + len(special.ends)) * beam.width  # so many that `width` of them do not end
    while True:
        candidates = rows.candidates(without(logits, special.forbidden), count)
        texts = rows.texts.tolist()
        for place, number in enumerate(rows.prompts):
            sentences[number].extend(candidates[place], texts[place * rows.width : (place + 1) * rows.width])
        beginnings = [sentences[number].beginnings for number in rows.prompts]
        if not any(beginnings):
            return [tuple(sentence.ended[: beam.n_best]) for sentence in sentences]
        rows, move = rows.extended(beginnings, beam.width)
        if move.index is not None:
            reader.select(move.index, moves_prompts=move.moves_prompts)
        logits = reader.next_logits(move.tokens)
