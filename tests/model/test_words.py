"""Perplexity and generation."""

import math

import pytest
import torch

from headscope.errors import UsageError
from headscope.model.model import Model, open_model
from tests.model.test_session import opened

TEXT = "And the king said unto them, Go ye into the city, and bring the people out before me. " * 12


def reference(model: Model, text: str, window: int, stride: int) -> tuple[float, int]:
    """Token by token: each one predicted from the window that first contains it."""
    tokens = model.encode(text)
    total, count, start, done = 0.0, 0, 0, 1
    while done < len(tokens):
        piece = tokens[start : start + window]
        with torch.no_grad():
            logits = model.hf(input_ids=piece[None]).logits[0].double()
        for place in range(done - start, len(piece)):
            total -= float(torch.log_softmax(logits[place - 1], dim=-1)[piece[place]])
            count += 1
        done = start + len(piece)
        start += stride
    return total / count, count


@pytest.mark.parametrize(("window", "stride"), [(1024, None), (64, None), (50, 13), (64, 63)])
def test_perplexity_scores_every_token_once(tiny: Model, window: int, stride: int | None) -> None:
    got = tiny.perplexity(TEXT, window=window, stride=stride)
    expected, count = reference(tiny, TEXT, min(window, tiny.spec.context or window), got.stride)
    assert got.n_tokens == count == len(tiny.encode(TEXT)) - 1
    assert got.nats_per_token == pytest.approx(expected, rel=1e-5)
    assert got.perplexity == pytest.approx(math.exp(expected), rel=1e-4)
    low, high = got.interval
    assert low < got.nats_per_token < high
    assert "perplexity" in str(got)
    assert str(got.n_tokens) in str(got)


def test_perplexity_follows_an_edit_and_a_session(tiny: Model) -> None:
    plain = tiny.perplexity(TEXT).nats_per_token
    with tiny.edit() as edit:
        edit.randomise()
        assert tiny.perplexity(TEXT).nats_per_token > plain + 0.5
    with tiny.session() as session:
        session.ablate("all")
        assert tiny.perplexity(TEXT).nats_per_token > plain + 0.5
    assert tiny.perplexity(TEXT).nats_per_token == plain


def test_shuffled_words_are_harder(tiny: Model) -> None:
    words = TEXT.split()
    order = torch.randperm(len(words), generator=torch.Generator().manual_seed(0)).tolist()
    shuffled = " ".join(words[i] for i in order)
    assert tiny.perplexity(shuffled).nats_per_token > tiny.perplexity(TEXT).nats_per_token + 0.5


def test_generation_is_greedy_and_repeatable(tiny: Model) -> None:
    first = tiny.generate("In the beginning", max_new_tokens=12)
    assert first == tiny.generate("In the beginning", max_new_tokens=12)
    assert first == tiny.generate("In the beginning", max_new_tokens=12, cache=False)
    assert first.strip()
    sampled = {tiny.generate("In the beginning", max_new_tokens=12, temperature=1.5, seed=seed) for seed in range(4)}
    assert len(sampled) > 1


def test_a_prompt_longer_than_the_context(tiny: Model) -> None:
    with pytest.raises(UsageError, match=r"prompt has \d+ tokens and 40 are to follow, but tiny reads at most"):
        tiny.generate("word " * 3000)


@pytest.mark.parametrize("text", ["", "   \n"])
def test_empty_text(tiny: Model, text: str) -> None:
    with pytest.raises(UsageError, match="empty"):
        tiny.perplexity(text)
    with pytest.raises(UsageError, match="empty"):
        tiny.generate(text)


def test_wrong_strides(tiny: Model) -> None:
    with pytest.raises(UsageError, match="stride"):
        tiny.perplexity(TEXT, window=64, stride=64)
    with pytest.raises(UsageError, match="window"):
        tiny.perplexity(TEXT, window=1)


def test_models_that_do_not_predict_the_next_token(tiny: Model) -> None:
    encoder = opened("bert")
    encoder.tokenizer = tiny.tokenizer
    with pytest.raises(UsageError, match=r"encoder.*does not predict the next token"):
        encoder.perplexity(TEXT)
    with pytest.raises(UsageError, match="cannot generate"):
        encoder.generate("x")
    with pytest.raises(UsageError, match="no tokenizer"):
        opened("llama_gqa").perplexity(TEXT)


def test_unknown_dtype() -> None:
    with pytest.raises(UsageError, match="unknown dtype 'int8'"):
        open_model("tiny", dtype="int8")
