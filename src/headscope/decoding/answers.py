"""Writes text with a model: the front of all ways to decode."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from headscope.decoding.beam_search import beam_search
from headscope.decoding.hypothesis import Hypothesis
from headscope.decoding.prompt_batch import PromptBatch, Prompts, check_prompts, prompt_batch
from headscope.decoding.searches import Beam, Search
from headscope.decoding.single_texts import single_texts
from headscope.decoding.special_ids import SpecialTokens, is_encoder_decoder, special_tokens
from headscope.decoding.token_reader import CachedModel, RereadingModel, TokenReader
from headscope.errors import NumericsError, UsageError

Answers = list[tuple[Hypothesis, ...]]


def decode(
    model: nn.Module,
    prompts: Prompts,
    search: Search,
    *,
    most_tokens: int,
    special: SpecialTokens | None = None,
    cache: bool = True,
    rows: int = 64,
) -> Answers:
    """What a model writes in answer to prompts, at most `most_tokens` tokens each.

    An encoder–decoder reads a prompt with its encoder; a decoder-only model goes on with it. Prompts of similar length
    are decoded together, at most `rows` at a time.

    Returns:
        The hypotheses for each prompt, the best first: `n_best` of a beam search, otherwise one.

    Properties:
        - the answer to a prompt does not depend on the others  (tested: test_prompts_do_not_depend_on_each_other)
        - with and without a cache the answers are the same  (tested: test_the_cache_changes_nothing)
        - the model is left as it was  (tested: test_the_model_is_left_as_it_was)

    Raises:
        UsageError: A prompt cannot be read, or the model lacks a cache or a first token.
        NumericsError: The model gives probabilities that are not finite.
    """
    check_prompts(model, prompts, most_tokens)
    if rows < 1:
        raise UsageError(f"at least 1 prompt must be decoded at a time, got {rows}")
    special = special or special_tokens(model)
    answers: list[tuple[Hypothesis, ...]] = [()] * len(prompts)
    order = sorted(range(len(prompts)), key=lambda number: len(prompts[number]))
    with _evaluating(model), torch.no_grad():
        for first in range(0, len(order), rows):
            numbers = order[first : first + rows]
            batch = _batch(model, [prompts[number] for number in numbers], special)
            reader = (CachedModel if cache else RereadingModel)(model, batch, special.start)
            for number, answer in zip(numbers, _answers(reader, search, special, numbers, most_tokens), strict=True):
                answers[number] = answer
    _check_finite(answers)
    return answers


def _batch(model: nn.Module, prompts: Prompts, special: SpecialTokens) -> PromptBatch:
    device = next(iter(model.parameters())).device
    return prompt_batch(prompts, special.padding, left=not is_encoder_decoder(model), device=device)


def _answers(
    reader: TokenReader, search: Search, special: SpecialTokens, numbers: list[int], most_tokens: int
) -> Answers:
    if isinstance(search, Beam):
        return beam_search(reader, search, special, len(numbers), most_tokens)
    return [(text,) for text in single_texts(reader, search, special, numbers, most_tokens)]


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout for as long as the context lasts."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _check_finite(answers: Answers) -> None:
    for number, answer in enumerate(answers):
        if not answer or not all(math.isfinite(hypothesis.log_probability) for hypothesis in answer):
            raise NumericsError(
                f"the model gives probabilities that are not finite after prompt {number}",
                hint="check its weights for values that are not finite",
            )
