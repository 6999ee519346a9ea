r"""Chooses the windows of a text: evenly spread ones, its beginning, or all.

Definition:
    A text of n full windows and a limit of m < n: the windows ⌊i n/m⌋ for i = 0 … m − 1. They are read in the order of
    the reversed binary digits of i (0, 16, 8, 24, 4, … for m = 32), so that the first few of them, the only ones that
    some lenses use, are spread over the text as well. With n ≤ m all windows are read, in text order.
Properties:
    - the windows are a subset of all windows, without repetition  (tested: test_spread_windows_are_windows_of_the_text)
    - gaps between them differ by at most one window  (tested: test_spread_windows_are_evenly_spread)
    - long texts give the same windows as short ones  (tested: test_a_text_too_long_to_hold_is_read_twice)
Numerics:
    Tokens take four bytes each up to `HELD` of them; a longer text is tokenised a second time instead of being held.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from headscope.corpora.amount import Amount
from headscope.corpora.windows import Windows, room_for, windows_in

HELD = 2**24  # tokens: 64 MiB, a text of about 70 MB

Tokens = Callable[[], Iterator[Sequence[int]]]  # the text's tokens in pieces, from the beginning at each call


@dataclass(frozen=True)
class Reading:
    """The chosen windows, and how many windows the whole text has.

    `n_in_text` is None where reading ended before the text did.
    """

    windows: Windows
    n_in_text: int | None


def read_windows(tokens: Tokens, head: Sequence[int], tail: Sequence[int], length: int, amount: Amount) -> Reading:
    """The windows of `length` tokens that `amount` asks for.

    Args:
        tokens: The text without special tokens.
        head: Special tokens before each window.
        tail: Special tokens after each window.
        length: Tokens per window, special ones included.
        amount: Which windows.
    """
    room = room_for(length, len(head) + len(tail))
    if amount.first_tokens is not None:
        body, is_whole = _beginning(tokens(), amount.first_tokens)
        windows = windows_in(body, head, tail, room)
        return Reading(windows, windows.count if is_whole else None)
    body, count = _tokens_up_to(tokens(), HELD if not amount.every else None)
    if amount.every or count // room <= amount.spread:
        whole_body = body if len(body) == count else _tokens_up_to(tokens(), None)[0]
        windows = windows_in(whole_body, head, tail, room)
        return Reading(windows, windows.count)
    order = spread_order(count // room, amount.spread)
    bodies = _tokens_of_windows(iter([body]) if len(body) == count else tokens(), frozenset(order), room)
    rows = [[*head, *bodies[index], *tail] for index in order]
    return Reading(Windows(torch.tensor(rows, dtype=torch.long), None, 0), count // room)


def spread_order(n: int, count: int) -> tuple[int, ...]:
    """The indices of `count` of `n` windows; any first few are evenly spread."""
    digits = max(1, (count - 1).bit_length())
    reversed_digits = (int(format(i, f"0{digits}b")[::-1], 2) for i in range(2**digits))
    return tuple(i * n // count for i in reversed_digits if i < count)


def _beginning(pieces: Iterator[Sequence[int]], most: int) -> "tuple[array[int], bool]":
    """The first `most` tokens, and whether the text ends with them."""
    body = array("i")
    for piece in pieces:
        body.extend(piece[: most + 1 - len(body)])
        if len(body) > most:
            return body[:most], False
    return body, True


def _tokens_up_to(pieces: Iterator[Sequence[int]], most: int | None) -> "tuple[array[int], int]":
    """The tokens, if there are at most `most` (None: no limit), and their number."""
    body, count = array("i"), 0
    for piece in pieces:
        count += len(piece)
        if most is None or count <= most:
            body.extend(piece)
        else:
            body = array("i")
    return body, count


def _tokens_of_windows(pieces: Iterator[Sequence[int]], indices: frozenset[int], room: int) -> dict[int, list[int]]:
    """The tokens of the windows in `indices`, by window number."""
    bodies: dict[int, list[int]] = {index: [] for index in indices}
    start = 0
    for piece in pieces:
        end = start + len(piece)
        for index in range(start // room, -(-end // room)):
            if index in bodies:
                first, last = max(index * room, start), min((index + 1) * room, end)
                bodies[index].extend(piece[first - start : last - start])
        start = end
    return bodies
