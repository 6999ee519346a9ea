"""Texts and the windows they are cut into."""

import io
import re

import pytest
import torch

from headscope.corpora import Text, cut, read_text, shipped_text, text_of
from headscope.corpora.splits import splits_of
from headscope.corpora.text import documents_in
from headscope.corpora.windows import SHORTEST_TAIL
from headscope.errors import UsageError


def test_shipped_text_is_varied_english():
    text = shipped_text()
    assert len(text.documents) >= 40
    assert sum(len(document.split()) for document in text.documents) >= 20_000
    assert len(set(splits_of(text.documents))) == 3


def test_no_two_shipped_documents_share_a_run_of_seven_words():
    holders = {}
    for index, document in enumerate(shipped_text().documents):
        words = re.findall(r"\w+", document.casefold())
        for start in range(len(words) - 6):
            holders.setdefault(tuple(words[start : start + 7]), set()).add(index)
    assert [run for run, places in holders.items() if len(places) > 1] == []


def test_documents_are_cut_at_separator_lines_only():
    content = "one ***\n\n***\ntwo\r\nlines\r\n  ***  \n\n   \n***\nthree"
    assert documents_in(content) == ("one ***", "two\nlines", "three")


def test_file_in_utf8_with_and_without_mark(tmp_path):
    (tmp_path / "a.txt").write_bytes("è vero".encode())
    (tmp_path / "b.txt").write_bytes("è vero".encode("utf-8-sig"))
    a, b = read_text(tmp_path / "a.txt"), read_text(str(tmp_path / "b.txt"))
    assert a.documents == b.documents == ("è vero",)
    assert a.sha256 == b.sha256
    assert a.name == "a.txt"


def test_standard_input(monkeypatch):
    class Stdin:
        buffer = io.BytesIO(b"words on the wire")

    monkeypatch.setattr("sys.stdin", Stdin)
    assert read_text("-").documents == ("words on the wire",)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b" \n\n\t", "empty"),
        (b"***\n***\n", "empty"),
        (b"PK\x03\x04\x00\x00", "binary"),
        ("perché".encode("latin1"), "0xe9 at offset 5"),
        ("two bytes each".encode("utf-16"), "not UTF-8"),
    ],
)
def test_bad_files_are_named_with_the_reason(tmp_path, content, says):
    path = tmp_path / "bad.txt"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=says) as caught:
        read_text(path)
    assert "bad.txt" in caught.value.message
    assert caught.value.hint


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(UsageError, match=r"no\.txt does not exist"):
        read_text(tmp_path / "no.txt")
    with pytest.raises(UsageError, match="is a folder"):
        read_text(tmp_path)


def test_a_string_is_the_text_itself_and_a_path_is_a_file(tmp_path):
    (tmp_path / "a.txt").write_text("from a file")
    assert text_of("from a string").documents == ("from a string",)
    assert text_of(tmp_path / "a.txt").documents == ("from a file",)
    assert text_of(None) == shipped_text()
    given = Text("mine", ("x y",))
    assert text_of(given) is given


def test_the_hash_knows_where_documents_end():
    assert Text("t", ("ab", "c")).sha256 != Text("t", ("a", "bc")).sha256
    assert Text("t", ("ab",)).sha256 == Text("u", ("ab",)).sha256


def rows(windows):
    full = windows.full.tolist()
    return full if windows.last is None else [*full, *windows.last.tolist()]


def test_windows_of_a_plain_tokenizer_cover_the_text():
    windows = cut([list(range(100)), list(range(100, 150))], [], 40)
    assert [len(row) for row in rows(windows)] == [40, 40, 40]
    assert [token for row in rows(windows) for token in row] == list(range(120))
    assert windows.n_dropped == 30  # shorter than the shortest tail


def test_a_tail_that_is_long_enough_is_a_window_of_its_own():
    windows = cut([list(range(80 + SHORTEST_TAIL))], [], 80)
    assert windows.last is not None
    assert windows.last.shape == (1, SHORTEST_TAIL)
    assert windows.count == 2
    assert windows.n_tokens == 80 + SHORTEST_TAIL
    assert windows.n_dropped == 0


def test_a_short_text_is_used_whole():
    windows = cut([[5, 6, 7]], [], 512)
    assert rows(windows) == [[5, 6, 7]]
    assert windows.length == 3
    assert windows.n_dropped == 0


@pytest.mark.parametrize(("specials", "n_head"), [([1], 1), ([101, 102], 1), ([2], 0), ([1, 1, 9], 2)])
def test_special_tokens_surround_every_window(specials, n_head):
    head, tail = specials[:n_head], specials[n_head:]
    bodies = [list(range(1000, 1090)), list(range(2000, 2050))]
    windows = cut([[*head, *body, *tail] for body in bodies], specials, 50)
    inner = []
    for row in rows(windows):
        assert row[: len(head)] == head
        assert row[len(row) - len(tail) :] == tail
        inner += row[len(head) : len(row) - len(tail)]
    assert inner == (bodies[0] + bodies[1])[: len(inner)]
    assert len(inner) + windows.n_dropped == 140


def test_batches_have_one_length_each():
    windows = cut([list(range(5 * 40 + 35))], [], 40)
    assert [tuple(batch.shape) for batch in windows.batches(2)] == [(2, 40), (2, 40), (1, 40), (1, 35)]
    assert windows.full.dtype == torch.long


def test_no_room_and_no_tokens():
    with pytest.raises(UsageError, match="no room"):
        cut([[1, 5, 2]], [1, 2], 2)
    with pytest.raises(UsageError, match="no tokens"):
        cut([[1, 2]], [1, 2], 10)


def test_the_beginning_of_a_text_in_whole_windows():
    windows = cut([list(range(1, 45))], [], 10)
    assert (windows.count, windows.last) == (4, None)  # the tail of 4 is too short to be a window
    assert [windows.beginning(tokens).count for tokens in (1, 10, 11, 40, 41, 10_000)] == [1, 1, 2, 4, 4, 4]
    tailed = cut([list(range(1, 141))], [], 50)
    assert tailed.last is not None
    assert tailed.beginning(100).last is None
    assert tailed.beginning(101).last is not None
    alone = cut([list(range(5))], [], 50)
    assert alone.beginning(1).count == 1


@pytest.mark.parametrize("characters", [1, 3, 5, 6, 7, 9, 100])
def test_the_beginning_is_that_of_the_joined_documents_and_no_more_is_read(characters):
    documents = ("abc", "de", "f" * 200_000)
    assert Text("t", documents).beginning(characters) == "\n\n".join(documents)[:characters]
