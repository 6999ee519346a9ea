"""Cycles, the mixture of text, held-out windows and n-gram models of the study of the shipped model."""

import math

import numpy as np
import pytest
import torch

from headscope.corpora.byte_pair_tokenizer import BOS_ID
from headscope.errors import UsageError
from headscope.experiments.tiny import token_cycles
from headscope.experiments.tiny.held_out_windows import HeldOutWindows
from headscope.experiments.tiny.kneser_ney import KneserNey, definition
from headscope.experiments.tiny.text_mixture import (
    CYCLE_SHARE,
    LENGTHS,
    REPEATED_SHARE,
    TOKENS_PER_STEP,
    WITHOUT_START,
    TextMixture,
    repeated_passage,
    row_length,
)
from headscope.experiments.tiny.token_cycles import N_SPECIAL, CycleBatches, cycles
from headscope.training import Place
from headscope.training.objectives.objective import IGNORED

VOCABULARY = 300


def walks(length: int, rows: int = 40) -> list[tuple[list[int], list[int]]]:
    """The inputs and labels of rows of cycles."""
    batch = cycles(rows, length, VOCABULARY, torch.Generator().manual_seed(length))
    return list(zip(batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True))


@pytest.mark.parametrize("length", [4, 32, 128, 500])
def test_a_labelled_token_came_before(length: int) -> None:
    for inputs, labels in walks(length):
        seen = set()
        for index, (token, label) in enumerate(zip(inputs, labels, strict=True)):
            assert label == IGNORED or (token, label) in seen
            if index + 1 < length:
                seen.add((token, inputs[index + 1]))
        assert inputs[0] == BOS_ID
        assert labels[0] == IGNORED
        assert min(inputs[1:]) >= N_SPECIAL


@pytest.mark.parametrize("length", [32, 128, 500])
def test_labelled_steps_form_a_cycle(length: int) -> None:
    for inputs, labels in walks(length):
        successor: dict[int, int] = {}
        for token, label in zip(inputs, labels, strict=True):
            if label != IGNORED:
                assert successor.setdefault(token, label) == label
        assert len(set(successor.values())) == len(successor)
        ring = set(inputs[1:]) | set(labels) - {IGNORED}
        assert len(ring) < max(3, min(length // 2, 160))
        assert not any(token == label for token, label in successor.items())


def test_every_second_step_is_labelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without jumps nothing but the beginning and the first time round has no label."""
    monkeypatch.setattr(token_cycles, "MOST_JUMPS", 0.0)
    for inputs, labels in walks(64):
        ring = len(set(inputs[1:]))
        assert [label == IGNORED for label in labels] == [index <= ring for index in range(64)]
        assert labels[ring + 1 : -1] == inputs[ring + 2 :]


def test_cycles_depend_on_their_place_alone() -> None:
    source = CycleBatches(8, 64, VOCABULARY, seed=3)
    first, again = source.batch(Place(2, 5)), source.batch(Place(2, 5, 0.7))
    assert torch.equal(first["input_ids"], again["input_ids"])
    assert not torch.equal(first["input_ids"], source.batch(Place(2, 6))["input_ids"])
    assert not torch.equal(first["input_ids"], CycleBatches(8, 64, VOCABULARY, seed=4).batch(Place(2, 5))["input_ids"])


@pytest.fixture(scope="module")
def mixture() -> TextMixture:
    return TextMixture(torch.arange(6000), vocabulary=VOCABULARY, seed=0)


def test_rows_grow_with_the_budget(mixture: TextMixture) -> None:
    for share, length in LENGTHS:
        batch = mixture.batch(Place(0, 0, share))
        assert batch["input_ids"].shape == batch["labels"].shape == (TOKENS_PER_STEP // length, length)
    assert [row_length(share) for share in (0.0, 0.44, 0.45, 0.91, 1.0)] == [128, 128, 256, 512, 1024]


def test_a_mixture_has_its_shares(mixture: TextMixture) -> None:
    kinds = {"text": 0, "cycle": 0, "repeated": 0}
    without_start = 0
    for epoch in range(300):
        batch = mixture.batch(Place(epoch, 0))
        for inputs, labels in zip(batch["input_ids"], batch["labels"], strict=True):
            if (labels == IGNORED).any():
                kind = "cycle"
            elif torch.equal(labels, labels[0] + torch.arange(128)):  # the text counts upwards
                kind = "text"
                assert torch.equal(inputs[1:], labels[:-1])
                without_start += int(inputs[0] != BOS_ID)
            else:
                kind = "repeated"
                assert inputs[0] == BOS_ID
                assert torch.equal(inputs[1:], labels[:-1])
            kinds[kind] += 1
    rows = sum(kinds.values())
    for kind, share in (("cycle", CYCLE_SHARE), ("repeated", REPEATED_SHARE)):
        assert abs(kinds[kind] / rows - share) < 4 * math.sqrt(share * (1 - share) / rows), kinds
    assert abs(without_start / kinds["text"] - WITHOUT_START) < 4 * math.sqrt(0.09 / kinds["text"])


def test_a_passage_comes_over_and_over() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        passage = repeated_passage(torch.arange(64), generator)
        period = int(passage.max()) + 1
        assert 8 <= period <= 32
        assert torch.equal(passage, torch.arange(64) % period)


def test_batches_of_text_depend_on_their_place_alone(mixture: TextMixture) -> None:
    again = TextMixture(torch.arange(6000), vocabulary=VOCABULARY, seed=0)
    places = [Place(0, 1, 0.0), Place(1, 0, 0.5), Place(0, 1, 0.95)]
    batches = [mixture.batch(place)["input_ids"] for place in places]
    for place, batch in reversed(list(zip(places, batches, strict=True))):
        assert torch.equal(again.batch(place)["input_ids"], batch)
    assert mixture.identity() == again.identity()
    assert mixture.identity() != TextMixture(torch.arange(6000), vocabulary=VOCABULARY, seed=1).identity()
    assert mixture.identity() != TextMixture(torch.arange(6000) + 1, vocabulary=VOCABULARY, seed=0).identity()


def test_every_held_out_token_is_predicted_once() -> None:
    tokens = torch.arange(3, 3 + 8192 * 2 + 128 * 3 + 50)
    source = HeldOutWindows(tokens, length=128, start=BOS_ID)
    batches = [source.batch(Place(0, position)) for position in range(source.batches_in(0))]
    labels = torch.cat([batch["labels"].flatten() for batch in batches])
    assert torch.equal(labels, tokens[: len(tokens) // 128 * 128])
    for batch in batches:
        assert (batch["input_ids"][:, 0] == BOS_ID).all()
        assert torch.equal(batch["input_ids"][:, 1:], batch["labels"][:, :-1])


def test_some_windows_are_evenly_spread() -> None:
    source = HeldOutWindows(torch.arange(1000), length=10, start=0, least=5)
    assert source.batch(Place(0, 0))["labels"][:, 0].tolist() == [0, 200, 400, 600, 800]
    with pytest.raises(UsageError, match="has 9 tokens"):
        HeldOutWindows(torch.arange(9), length=10, start=0)


def stream(count: int, vocabulary: int, seed: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Tokens of which some are far more frequent, in pairs that come again."""
    generator = np.random.default_rng(seed)
    return (vocabulary * generator.random(count) ** 2).astype(np.int64)


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize(("vocabulary", "count"), [(12, 80), (5, 200), (40, 60)])
def test_kneser_ney_is_its_definition(order: int, vocabulary: int, count: int) -> None:
    train, held_out = stream(count, vocabulary, 0), stream(40, vocabulary, 1)
    nats = KneserNey(train, vocabulary, order).nats(held_out)
    assert nats == pytest.approx(definition(train.tolist(), held_out.tolist(), vocabulary, order), rel=1e-12)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_kneser_ney_sums_to_one(order: int) -> None:
    vocabulary = 9
    model = KneserNey(stream(120, vocabulary, 0), vocabulary, order)
    context = stream(order - 1, vocabulary, 5)
    nats = [model.nats(np.append(context, token)) for token in range(vocabulary)]
    assert sum(math.exp(-cost) for cost in nats) == pytest.approx(1.0, rel=1e-12)
