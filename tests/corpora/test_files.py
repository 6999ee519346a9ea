"""Files that are large, and inputs that are no files."""

import gc
import hashlib
import io
import os
import tempfile
import threading
import tracemalloc
from functools import partial

import pytest

from headscope.corpora import input_bytes as inputs
from headscope.corpora import read_text, spelled_text, text
from headscope.corpora.file_documents import LINE, FileDocuments
from headscope.corpora.input_bytes import file_bytes
from headscope.errors import ResourceError, UsageError

AWKWARD = [
    "one document",
    "\n\n\nfirst\n\n***\nsecond\r\nline\r\n\r\n  ***\t\nthird\rline\n\n",
    "***\n***\n   \n***\n\t\nonly\n",
    "ends with a separator\n***",
    "ends with a separator\n***\n",
    "no separator: ****\n** *\n*** x\nx ***",
    "  blanks at the ends stay  \n \n",
    "x" * (3 * LINE + 5) + "\n***\n" + "y" * LINE + "\n***\n" + "z" * (LINE - 1) + "\n",
    " " * (2 * LINE) + "\n***\nvisible",
    "\n" * 100 + "中文没有空格" * 50_000 + "\n***\n" + "🦊🐇" * 40_000,
    "\ufeffmark at the start",
]


@pytest.mark.parametrize("content", AWKWARD, ids=range(len(AWKWARD)))
def test_a_large_file_is_read_as_a_small_one(tmp_path, monkeypatch, content):
    path = tmp_path / "a.txt"
    path.write_bytes(content.encode())
    small = read_text(path)
    monkeypatch.setattr(text, "LARGE", 0)
    large = read_text(path)
    assert isinstance(large.documents, FileDocuments)
    assert large.documents == small.documents
    assert tuple("".join(parts) for parts in large.streams()) == small.documents
    assert large.documents[-1] == small.documents[-1]
    assert large.documents[:1] == small.documents[:1]
    assert (large.sha256, large.n_characters) == (small.sha256, small.n_characters)


def test_the_hash_is_that_of_lengths_and_documents():
    written = text.Text("t", ("perché", "c" * 200_000))
    expected = hashlib.sha256("7:perché200000:".encode() + b"c" * 200_000).hexdigest()
    assert written.sha256 == expected


def test_a_large_file_is_never_held_whole(tmp_path):
    path = tmp_path / "long.txt"
    path.write_text(("words " * 500 + "\n") * 4400 + "***\n" + "x" * 3_000_000)
    assert path.stat().st_size > text.LARGE
    read = read_text(path)
    lengths = [[len(part) for part in parts] for parts in read.streams()]
    assert [sum(document) for document in lengths] == [4400 * 3001 - 1, 3_000_000]
    assert max(map(max, lengths)) <= LINE + 1
    # Nothing but numbers is held beside the part that is read.
    held = [value for value in vars(read.documents).values() if isinstance(value, (str, bytes))]
    assert held == []


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"ab" * 2_000_000 + b"\0", "zero byte at offset 4000000"),
        (b"a" * 1_048_575 + "é".encode("latin1") + b"b" * 10, "0xe9 at offset 1048575"),
        (b"a" * 1_048_575 + "é".encode() * 3 + b"\xff", "0xff at offset 1048581"),
        (b"a" * 100 + b"\xe4\xb8", "0xe4 at offset 100"),
        ("two bytes each".encode("utf-16"), "not UTF-8"),
        (b" \n\n***\n", "empty"),
    ],
)
def test_bad_large_files_are_named_with_the_place(tmp_path, monkeypatch, content, says):
    monkeypatch.setattr(text, "LARGE", 0)
    path = tmp_path / "bad.txt"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=says) as caught:
        read_text(path)
    assert "bad.txt" in caught.value.message


@pytest.mark.parametrize(("name", "says"), [("x" * 300, "neither a text file"), ("x" * 300 + ".txt", "cannot be read")])
def test_names_that_no_file_can_have(name, says):
    with pytest.raises(UsageError, match=says):
        spelled_text(name)


def test_a_file_that_changes_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "LARGE", 0)
    path = tmp_path / "a.txt"
    path.write_text("first")
    read = read_text(path)
    path.write_text("second one")
    with pytest.raises(UsageError, match="was changed"):
        list(read.streams())


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null", "/dev/urandom"])
def test_devices_are_refused(device):
    with pytest.raises(UsageError, match="is a device"):
        read_text(device)


def test_a_pipe_to_which_nobody_writes_ends(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(UsageError, match=r"nothing was written to the pipe .* for 0.01 seconds"):
        file_bytes(path, patience_s=0.01)


def test_a_writer_that_says_nothing_ends(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    both = os.open(path, os.O_RDWR)
    try:
        os.write(both, b"a beginning")
        with pytest.raises(UsageError, match="nothing was written"):
            file_bytes(path, patience_s=0.01)
    finally:
        os.close(both)


def test_a_pipe_that_delivers_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "file_bytes", partial(file_bytes, patience_s=-1.0))  # the writer may be slow to start
    path = tmp_path / "pipe"
    os.mkfifo(path)
    content = "words on the wire\n" * 20_000  # more than a pipe holds
    writer = threading.Thread(target=path.write_text, args=(content,), daemon=True)
    writer.start()
    assert read_text(path).documents == (content.strip("\n"),)
    writer.join()


def test_long_input_is_not_held_and_is_read_as_a_short_one(monkeypatch, tmp_path):
    content = ("words on the wire, é\n***\n" * 300 + "\ufeff last").encode()
    expected = read_input(monkeypatch, content)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(inputs, "BLOCK", 100)
    monkeypatch.setattr(inputs, "MOST_HELD", 1000)
    long = read_input(monkeypatch, content)
    assert isinstance(long.documents, FileDocuments)
    assert tuple(long.documents) == expected.documents
    assert (long.name, long.n_characters, long.sha256) == (expected.name, expected.n_characters, expected.sha256)
    assert len(list(tmp_path.iterdir())) == 1
    del long
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_long_input_without_room_for_it(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    monkeypatch.setattr(inputs, "MOST_HELD", 10)
    with pytest.raises(
        ResourceError, match=r"standard input is too long to be held, and cannot be written to .*nowhere"
    ):
        read_input(monkeypatch, b"words " * 10)


def read_input(monkeypatch, content):
    class Stdin:
        buffer = io.BytesIO(content)

    monkeypatch.setattr("sys.stdin", Stdin)
    return read_text("-")


def test_a_file_of_many_documents_takes_a_byte_for_each(tmp_path):
    path = tmp_path / "many.txt"
    path.write_text("x\n***\n \n***\n" * 20_000)
    tracemalloc.start()
    try:
        documents = FileDocuments(path)
        held, _ = tracemalloc.get_traced_memory()
        assert sum(documents.byte_counts()) == documents.n_characters == len(documents) == 20_000
    finally:
        tracemalloc.stop()
    assert held < 100_000


def test_standard_input_that_is_closed_or_endless(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(UsageError, match="standard input is closed"):
        read_text("-")

    class Stdin:
        buffer = io.BytesIO(b"yes\n" * 3_000_000)

    monkeypatch.setattr("sys.stdin", Stdin)
    monkeypatch.setattr(inputs, "MOST_BYTES", 2**21)
    with pytest.raises(UsageError, match="longer than"):
        read_text("-")
    assert Stdin.buffer.tell() < 2**23
