r"""Tokenises a long document in pieces, with the tokens of the whole document.

A tokenizer needs about 165 bytes per character while it works, so it gets a long document in pieces:

    piece A   |------------------------------|=========|
    piece B                                  |=========|------------------------------|
    overlap                                    ^^^^^^^    the middle half, where A and B must agree

Definition:
    Two neighbouring pieces share an overlap. Their tokens in the middle half of the overlap must be the same, by id and
    by place. Then A gives the tokens before one of these tokens and B gives those from it on. The cut is next to white
    space where the overlap has any. Where A and B do not agree, A is made twice as long and the comparison is repeated.
    A document of one piece is tokenised at once, and so is any document where the tokenizer does not report positions.
    Above `LONGEST` characters that is refused: its memory would grow with the text.
Properties:
    - the tokens are those of the whole document  (tested: test_pieces_give_the_tokens_of_the_whole_document)
    - no more than a few pieces are held at once  (tested: test_a_long_document_is_never_held_whole)
    - what cannot be cut is refused  (tested: test_what_cannot_be_cut_is_refused)
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headscope.errors import UsageError
from headscope.model.tokenizer_errors import tokenising

# Characters of a piece and of the overlap: 20 MiB while a piece is tokenised.
PIECE, OVERLAP = 2**17, 2**12
LONGEST = 2**22  # characters that are tokenised at once: 700 MiB
SAMPLE = 256  # characters that show where a tokenizer puts its special tokens


@dataclass(frozen=True)
class Surroundings:
    """The special tokens that a tokenizer puts before and after a text."""

    head: tuple[int, ...] = ()
    tail: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """How many special tokens there are."""
        return len(self.head) + len(self.tail)

    def body(self, ids: Sequence[int]) -> list[int]:
        """The tokens without the special ones; all of them where these are missing."""
        end = len(ids) - len(self.tail)
        are_there = tuple(ids[: len(self.head)]) == self.head and tuple(ids[max(end, 0) :]) == self.tail
        return list(ids[len(self.head) : end]) if are_there and end >= len(self.head) else list(ids)


def surroundings_of(tokenizer: Any, sample: str) -> Surroundings:
    """The special tokens around a text, found with a short sample."""
    with tokenising():
        specials, ids = tuple(tokenizer("")["input_ids"]), list(tokenizer(sample)["input_ids"])
    for n_head in range(len(specials), -1, -1):
        guess = Surroundings(specials[:n_head], specials[n_head:])
        if len(guess.body(ids)) == len(ids) - len(specials):
            return guess
    return Surroundings()


def token_pieces(
    tokenizer: Any, chunks: Iterable[str], surroundings: Surroundings, piece: int = PIECE, overlap: int = OVERLAP
) -> Iterator[list[int]]:
    """The tokens of a document without special ones, a list per piece.

    Args:
        tokenizer: A tokenizer of transformers, or a callable like it.
        chunks: The document, in parts of any length.
        surroundings: The result of `surroundings_of` for the tokenizer.
        piece: Characters of a piece.
        overlap: Characters that two pieces share.
    """
    reader = _Reader(iter(chunks))
    start = reader.take(piece)
    if reader.is_empty or not _shows_places(tokenizer, start[:SAMPLE], surroundings):
        with tokenising():
            yield surroundings.body(tokenizer(_document_text(start, reader))["input_ids"])
        return
    yield from _stitch(tokenizer, start, reader, piece, overlap)


def _stitch(tokenizer: Any, text: str, reader: "_Reader", piece: int, overlap: int) -> Iterator[list[int]]:
    tokens, first = _tokenise(tokenizer, text, 0), 0
    while not reader.is_empty:
        origin = tokens.origin + len(text) - overlap
        following = text[-overlap:] + reader.take(piece)
        next_tokens = _tokenise(tokenizer, following, origin)
        cut = _common_cut(tokens, next_tokens, following, overlap)
        if cut is None:
            text += following[overlap:] + reader.take(len(text))
            _check_length(text, "this tokenizer finds no place to cut in")
            tokens = _tokenise(tokenizer, text, tokens.origin)
            continue
        yield tokens.ids[first : cut[0]]
        text, tokens, first = following, next_tokens, cut[1]
    yield tokens.ids[first:]


def _document_text(start: str, reader: "_Reader") -> str:
    """The text of a document that must be tokenised at once."""
    text = start + reader.take(LONGEST + 1 - len(start))
    _check_length(text, "this tokenizer does not say where its tokens are, and cannot be given")
    return text


def _check_length(text: str, reason: str) -> None:
    if len(text) > LONGEST:
        raise UsageError(
            f"{reason} {len(text):,} characters at once: memory would grow with the text",
            hint="give a text with white space in it, and separate its documents by lines that hold ***",
        )


@dataclass(frozen=True)
class _Tokens:
    """Tokens with their positions in the document."""

    origin: int
    ids: list[int]
    starts: list[int]
    ends: list[int]

    def within(self, low: int, high: int) -> tuple[int, int]:
        """The range of tokens between two positions."""
        first = bisect_left(self.starts, low)
        last = first
        while last < len(self.ids) and self.ends[last] <= high:
            last += 1
        return first, last


def _tokenise(tokenizer: Any, text: str, origin: int) -> _Tokens:
    with tokenising():
        encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    places = encoding["offset_mapping"]
    starts, ends = [origin + start for start, _ in places], [origin + end for _, end in places]
    return _Tokens(origin, encoding["input_ids"], starts, ends)


def _common_cut(left: _Tokens, right: _Tokens, text: str, overlap: int) -> tuple[int, int] | None:
    """The index, in both pieces, of a token where they can be joined.

    None where the pieces disagree. `text` is that of the right piece.
    """
    low, high = right.origin + overlap // 4, right.origin + 3 * overlap // 4
    (a, a_end), (b, b_end) = left.within(low, high), right.within(low, high)
    if a == a_end or _part(left, a, a_end) != _part(right, b, b_end):
        return None
    centre = (low + high) // 2
    # A token may end after the start of the next: some characters are several tokens.
    borders = [at for at in range(1, b_end - b) if right.ends[b + at - 1] <= right.starts[b + at]]
    if not borders:
        return None
    best = min(borders, key=lambda at: (not _is_blank(text, right, b + at), abs(right.starts[b + at] - centre)))
    return a + best, b + best


def _part(tokens: _Tokens, first: int, last: int) -> tuple[list[int], list[int], list[int]]:
    return tokens.ids[first:last], tokens.starts[first:last], tokens.ends[first:last]


def _is_blank(text: str, tokens: _Tokens, index: int) -> bool:
    """Whether white space is just before a token or at its start."""
    at = tokens.starts[index] - tokens.origin
    return text[at - 1 : at + 1].strip() != text[at - 1 : at + 1]


def _shows_places(tokenizer: Any, sample: str, surroundings: Surroundings) -> bool:
    """Whether a tokenizer reports positions and adds special tokens only at the ends."""
    if not getattr(tokenizer, "is_fast", False):
        return False
    with tokenising():
        without_special, with_special = (
            tokenizer(sample, add_special_tokens=False)["input_ids"],
            tokenizer(sample)["input_ids"],
        )
    return list(with_special) == [*surroundings.head, *without_special, *surroundings.tail]


class _Reader:
    """Takes any number of characters from parts of any length."""

    def __init__(self, chunks: Iterator[str]) -> None:
        self._chunks = chunks
        self._pending = next(chunks, "")

    @property
    def is_empty(self) -> bool:
        """Whether all characters were taken."""
        while not self._pending:
            chunk = next(self._chunks, None)
            if chunk is None:
                return True
            self._pending = chunk
        return False

    def take(self, count: int) -> str:
        """The next characters, fewer only at the end."""
        parts: list[str] = []
        while count > 0 and not self.is_empty:
            parts.append(self._pending[:count])
            self._pending = self._pending[count:]
            count -= len(parts[-1])
        return "".join(parts)
