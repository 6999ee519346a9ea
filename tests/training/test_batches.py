"""Batches are functions of their place, hold everything once in an epoch, and keep to their size."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headscope.errors import UsageError
from headscope.training import Place, SequenceBatches, TextWindows
from headscope.training.batches.batch_source import place_after
from headscope.training.batches.length_buckets import length_buckets
from headscope.training.batches.seeds import generator_of, seed_of
from headscope.training.objectives.objective import IGNORED

lengths = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=60)


def buckets_of(pairs, tokens=50, seed=0):
    return length_buckets(torch.tensor(pairs), tokens, generator_of(seed))


@given(lengths)
def test_buckets_hold_every_sequence_once(pairs):
    assert sorted(index for bucket in buckets_of(pairs) for index in bucket) == list(range(len(pairs)))


@given(lengths)
def test_no_bucket_exceeds_its_tokens(pairs):
    for bucket in buckets_of(pairs):
        longest = [max(pairs[index][side] for index in bucket) for side in range(2)]
        assert len(bucket) * sum(longest) <= 50


def test_buckets_depend_on_the_seed():
    pairs = [(length, length) for length in (3, 4, 5) * 20]
    assert buckets_of(pairs) == buckets_of(pairs)
    assert buckets_of(pairs) != buckets_of(pairs, seed=1)


def test_little_is_padding():
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(3, 40, (2000, 1), generator=generator)
    buckets = length_buckets(sizes, 1000, generator)
    padded = sum(len(bucket) * int(sizes[list(bucket)].max()) for bucket in buckets)
    assert float(sizes.sum()) / padded > 0.95  # batches in random order have 0.55


def sources():
    rows = [[3] * length for length in range(1, 30)]
    return {
        "sequences": SequenceBatches(rows, tokens=60, padding=0),
        "pairs": SequenceBatches(rows, targets=rows[::-1], tokens=60, padding=0),
        "windows": TextWindows(torch.arange(100), length=6, rows=3),
    }


@pytest.mark.parametrize("name", sources())
def test_a_batch_is_a_function_of_its_place(name):
    place = Place()
    walked = []
    first, second = sources()[name], sources()[name]
    for _ in range(2 * first.batches_in(0) + 1):
        walked.append((place, first.batch(place)))
        place = place_after(first, place)
    assert place.epoch == 2
    for place, batch in reversed(walked):  # another source, asked in another order
        again = second.batch(place)
        assert all(torch.equal(batch[part], again[part]) for part in batch)


@pytest.mark.parametrize("name", sources())
def test_epochs_differ(name):
    source = sources()[name]
    epochs = [[source.batch(Place(epoch, position))["input_ids"].tolist() for position in range(3)] for epoch in (0, 1)]
    assert epochs[0] != epochs[1]


def test_windows_of_an_epoch_do_not_overlap():
    source = TextWindows(torch.arange(100), length=6, rows=3)
    batches = [source.batch(Place(4, position)) for position in range(source.batches_in(4))]
    ids = torch.cat([batch["input_ids"].flatten() for batch in batches])
    assert len(ids.unique()) == len(ids) == source.batches_in(4) * 18
    assert all(torch.equal(batch["labels"], batch["input_ids"] + 1) for batch in batches)


@given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 40), st.integers(0, 5))
def test_every_promised_window_is_there(length, rows, more, epoch):
    source = TextWindows(torch.arange(length * (rows + 1) + more), length=length, rows=rows)
    assert source.batches_in(epoch) >= 1
    last = source.batch(Place(epoch, source.batches_in(epoch) - 1))
    assert last["input_ids"].shape == last["labels"].shape == (rows, length)


def test_pairs_are_padded_on_the_right():
    source = SequenceBatches([[5, 6], [7]], targets=[[8], [9, 4]], tokens=10, padding=0)
    batch = source.batch(Place())
    order = [0, 1] if batch["input_ids"][0, 0] == 5 else [1, 0]
    assert batch["input_ids"][order].tolist() == [[5, 6], [7, 0]]
    assert batch["attention_mask"][order].tolist() == [[1, 1], [1, 0]]
    assert batch["labels"][order].tolist() == [[8, IGNORED], [9, 4]]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SequenceBatches([], tokens=9, padding=0), "no sequences"),
        (lambda: SequenceBatches([[1], []], tokens=9, padding=0), "sequence 1 is empty"),
        (lambda: SequenceBatches([[1], [1] * 10], tokens=9, padding=0), "sequence 1 has 10 tokens"),
        (lambda: SequenceBatches([[1]], targets=[[1], [2]], tokens=9, padding=0), "1 source .* 2 target"),
        (lambda: TextWindows(torch.arange(10), length=4, rows=2), "too short for batches of 2 windows of 4"),
    ],
)
def test_data_without_batches_are_refused(make, words):
    with pytest.raises(UsageError, match=words):
        make()


def test_other_data_have_another_identity():
    rows = [[1, 2], [3]]
    first = SequenceBatches(rows, tokens=9, padding=0).identity()
    assert first == SequenceBatches(rows, tokens=9, padding=0).identity()
    assert first != SequenceBatches([[1], [2, 3]], tokens=9, padding=0).identity()
    assert first != SequenceBatches(rows, tokens=9, padding=0, seed=1).identity()


def test_seeds_depend_on_every_number():
    seeds = {seed_of(*numbers) for numbers in [(0,), (0, 0), (0, 1), (1, 0), (10,), (1, 0, 0)]}
    assert len(seeds) == 6
    assert all(0 <= seed < 2**32 for seed in seeds)
