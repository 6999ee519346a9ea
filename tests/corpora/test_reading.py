"""Which windows of a text are read."""

import itertools

import pytest

from headscope.corpora import Amount, read_windows, window_choice
from headscope.corpora.window_choice import spread_order
from headscope.corpora.windows import SHORTEST_TAIL
from headscope.errors import UsageError


def numbers(count, piece=7):
    """A text whose tokens are their own places, in pieces of a length that no window has."""
    return lambda: (list(range(start, min(start + piece, count))) for start in range(0, count, piece))


@pytest.mark.parametrize(("n", "wanted"), [(33, 32), (53, 32), (64, 32), (1000, 32), (9, 5), (7, 1)])
def test_spread_windows_are_evenly_spread(n, wanted):
    order = spread_order(n, wanted)
    places = sorted(order)
    assert len(set(order)) == wanted
    assert places[0] == 0
    assert places[-1] < n
    gaps = {b - a for a, b in itertools.pairwise([*places, n])}
    assert max(gaps) - min(gaps) <= 1


def test_the_first_few_spread_windows_are_spread_too():
    order = spread_order(320, 32)
    assert order[:8] == (0, 160, 80, 240, 40, 200, 120, 280)


def test_spread_windows_are_windows_of_the_text():
    result = read_windows(numbers(10 * 53 + 3), [], [], 10, Amount())
    assert (result.windows.count, result.n_in_text) == (32, 53)
    starts = [row[0] // 10 for row in result.windows.full.tolist()]
    assert tuple(starts) == spread_order(53, 32)
    assert all(row == list(range(row[0], row[0] + 10)) and row[0] % 10 == 0 for row in result.windows.full.tolist())
    assert result.windows.last is None


def test_special_tokens_surround_spread_windows():
    result = read_windows(numbers(8 * 40), [901], [902], 10, Amount(spread=4))
    assert [row[0] for row in result.windows.full.tolist()] == [901] * 4
    assert [row[1] for row in result.windows.full.tolist()] == [0, 160, 80, 240]
    assert [row[-1] for row in result.windows.full.tolist()] == [902] * 4


def test_a_short_text_is_read_whole_in_its_order():
    result = read_windows(numbers(50 * 32 + SHORTEST_TAIL), [], [], 50, Amount())
    assert result.windows.full[:, 0].tolist() == list(range(0, 1600, 50))
    assert result.windows.last is not None
    assert (result.windows.count, result.n_in_text) == (33, 33)


def test_all_windows_and_the_first_tokens_are_read_in_the_order_of_the_text():
    everything = read_windows(numbers(400), [], [], 10, Amount(every=True))
    assert everything.windows.full.flatten().tolist() == list(range(400))
    assert everything.n_in_text == 40
    beginning = read_windows(numbers(400), [], [], 10, Amount(first_tokens=200))
    assert beginning.windows.full.flatten().tolist() == list(range(200))
    assert beginning.n_in_text is None
    assert read_windows(numbers(400), [], [], 10, Amount(first_tokens=400)).n_in_text == 40


def test_the_first_tokens_end_the_reading():
    def tokens():
        yield list(range(100))
        yield list(range(100, 200))
        raise AssertionError("read on")

    assert read_windows(tokens, [], [], 10, Amount(first_tokens=150)).windows.n_tokens == 150


def test_a_text_too_long_to_hold_is_read_twice(monkeypatch):
    passes = []

    def tokens():
        passes.append(len(passes))
        return numbers(1003)()

    held = read_windows(tokens, [], [], 10, Amount())
    assert len(passes) == 1
    monkeypatch.setattr(window_choice, "HELD", 500)
    again = read_windows(tokens, [], [], 10, Amount())
    assert len(passes) == 3
    assert again.windows.full.tolist() == held.windows.full.tolist()
    assert again.n_in_text == held.n_in_text == 100
    assert read_windows(tokens, [], [], 400, Amount()).windows.n_tokens == 1003  # few windows, long ones


def test_an_amount_that_makes_no_sense():
    with pytest.raises(UsageError, match="first 0 tokens"):
        Amount(first_tokens=0)
    with pytest.raises(UsageError, match="first 5 tokens and all windows"):
        Amount(first_tokens=5, every=True)
    with pytest.raises(UsageError, match="no tokens"):
        read_windows(lambda: iter([[]]), [], [], 10, Amount())
    with pytest.raises(UsageError, match="no room"):
        read_windows(numbers(10), [1], [2], 2, Amount())
