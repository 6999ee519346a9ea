r"""Decoding as it is defined: one prompt, float64, no cache.

Definition:
    With $\ln p(y_t \mid x, y_{<t})$ of the model, a text y has the log-probability $\sum_t \ln p(y_t \mid x, y_{<t})$,
    its end token included. Its score is that over its length to the power α. The answer is a text of the highest score.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn

from headscope.decoding.hypothesis import Hypothesis
from headscope.decoding.searches import Beam
from headscope.decoding.special_ids import SpecialTokens, is_encoder_decoder

# The log-probabilities of all next tokens after a written text.
NextToken = Callable[[tuple[int, ...]], list[float]]


def next_token(model: nn.Module, prompt: Sequence[int], special: SpecialTokens) -> NextToken:
    """The log-probabilities of the next token after a prompt.

    The model is one of float64.
    """

    @torch.no_grad()
    def log_probabilities(text: tuple[int, ...]) -> list[float]:
        if is_encoder_decoder(model):
            first = () if special.start is None else (special.start,)
            inputs = {"input_ids": torch.tensor([prompt]), "decoder_input_ids": torch.tensor([[*first, *text]])}
        else:
            inputs = {"input_ids": torch.tensor([[*prompt, *text]])}
        logits = model(**inputs).logits[0, -1]
        logits[list(special.forbidden)] = -torch.inf
        numbers: list[float] = logits.log_softmax(dim=-1).tolist()
        return numbers

    return log_probabilities


def greedy(next_token: NextToken, special: SpecialTokens, most_tokens: int) -> Hypothesis:
    """The text that takes the most probable token at every step."""
    text: tuple[int, ...] = ()
    total = 0.0
    for _ in range(most_tokens):
        log_p = next_token(text)
        token = max(range(len(log_p)), key=log_p.__getitem__)
        total += log_p[token]
        if token in special.ends:
            return Hypothesis(text, total, total, has_ended=True)
        text = (*text, token)
    return Hypothesis(text, total, total, has_ended=False)


def all_texts(next_token: NextToken, special: SpecialTokens, beam: Beam, most_tokens: int) -> Iterator[Hypothesis]:
    """All texts that end within `most_tokens`, and those that are cut there."""

    def after(text: tuple[int, ...], total: float) -> Iterator[Hypothesis]:
        for token, log_p in enumerate(next_token(text)):
            length, sum_after = len(text) + 1, total + log_p
            score = beam.score(sum_after, length)
            if token in special.ends:
                yield Hypothesis(text, sum_after, score, has_ended=True)
            elif length == most_tokens:
                yield Hypothesis((*text, token), sum_after, score, has_ended=False)
            else:
                yield from after((*text, token), sum_after)

    return after((), 0.0)


def beam_search(next_token: NextToken, special: SpecialTokens, beam: Beam, most_tokens: int) -> list[Hypothesis]:
    """The hypotheses of a beam search, the best first."""
    beginnings: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    ended: list[Hypothesis] = []
    for length in range(1, most_tokens + 1):
        extended = [
            (total + log_p, (*text, token))
            for total, text in beginnings
            for token, log_p in enumerate(next_token(text))
        ]
        extended = sorted((part for part in extended if part[0] > -torch.inf), reverse=True)
        for total, text in extended[: beam.width]:
            if text[-1] in special.ends:
                ended.append(Hypothesis(text[:-1], total, beam.score(total, length), has_ended=True))
            elif length == most_tokens:
                ended.append(Hypothesis(text, total, beam.score(total, length), has_ended=False))
        ended = sorted(ended, key=lambda hypothesis: hypothesis.score, reverse=True)[: beam.width]
        beginnings = [part for part in extended if part[1][-1] not in special.ends][: beam.width]
        if not beginnings:
            break
        if len(ended) == beam.width and beam.bound(beginnings[0][0], length, most_tokens) <= ended[-1].score:
            break
    return ended[: beam.n_best]
