"""Texts that are no texts, given to a lens; they are looked at before a model is opened."""

import io
import os
import select
import socket
import sys
from collections.abc import Callable

from tests.hostile.row import Row, Scene


class Silence:
    """A poll that hears nothing, without the wait."""

    def register(self, *_: object) -> None: ...

    def poll(self, *_: object) -> list[object]:
        return []


def from_file(content: str | bytes, name: str = "text.txt") -> Callable[[Scene], list[str]]:
    return lambda scene: ["lens", "focus", "tiny", "--text", str(scene.file(name, content))]


def spelled(*words: str) -> Callable[[Scene], list[str]]:
    return lambda scene: ["lens", "focus", "tiny", "--text", *words]


def silent_pipe(scene: Scene) -> list[str]:
    os.mkfifo(scene.folder / "pipe.txt")
    scene.patch.setattr(select, "poll", Silence)
    return spelled("pipe.txt")(scene)


def from_socket(scene: Scene) -> list[str]:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket.txt")
    return spelled("socket.txt")(scene)


def closed_input(scene: Scene) -> list[str]:
    scene.patch.setattr(sys, "stdin", None)
    return spelled("-")(scene)


def empty_input(scene: Scene) -> list[str]:
    scene.patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    return spelled("-")(scene)


def folder(scene: Scene) -> list[str]:
    (scene.folder / "folder.txt").mkdir()
    return spelled("folder.txt")(scene)


def link_loop(scene: Scene) -> list[str]:
    (scene.folder / "loop.txt").symlink_to("loop.txt")
    return spelled("loop.txt")(scene)


def odd_name(scene: Scene) -> list[str]:
    """A name that is no text: it must not end as a lone surrogate in a file."""
    path = os.fsdecode(bytes(scene.folder) + b"/\xff.txt")
    with open(path, "w") as file:  # noqa: PTH123  a path of bytes
        file.write("")
    return spelled(path)(scene)


def pairs(content: str | bytes, name: str = "pairs.tsv") -> Callable[[Scene], list[str]]:
    return lambda scene: ["data", str(scene.file(name, content))]


def two_files(first: str | bytes, second: str | bytes) -> Callable[[Scene], list[str]]:
    return lambda scene: ["data", f"{scene.file('a.en', first)},{scene.file('a.it', second)}"]


def pairs_in_a_folder(scene: Scene) -> list[str]:
    (scene.folder / "pairs.tsv").mkdir()
    return ["data", "pairs.tsv"]


ROWS = [
    Row("text is binary", "text-zero-byte", from_file(b"a\0b"), 2, ("is a binary file", "offset 1"), "plain text"),
    Row("text is binary", "text-of-zeros", from_file(b"\0" * 10_000), 2, ("is a binary file",), "plain text"),
    Row("text is binary", "text-a-zip", from_file(b"PK\3\4" + b"\0" * 40), 2, ("is a binary file",), "plain text"),
    Row("text is binary", "text-a-picture", from_file(b"\x89PNG\r\n\x1a\n\0\0"), 2, ("is a binary",), "plain text"),
    Row(
        "text in another encoding",
        "text-latin-1",
        from_file("Käse".encode("latin1")),
        2,
        ("0xe4 at offset 1",),
        "iconv",
    ),
    Row("text in another encoding", "text-utf-16", from_file("words".encode("utf-16")), 2, ("not UTF-8",), "utf-16"),
    Row("text in another encoding", "text-utf-16-be", from_file(b"\xfe\xff\0a"), 2, ("not UTF-8",), "utf-16"),
    Row("text in another encoding", "text-utf-16-bare", from_file("words".encode("utf-16-le")), 2, ("binary",), ""),
    Row(
        "text in another encoding", "text-surrogate", from_file(b"a \xed\xa0\x80 b"), 2, ("0xed at offset 2",), "iconv"
    ),
    Row("text in another encoding", "text-overlong", from_file(b"\xc0\xaf"), 2, ("0xc0 at offset 0",), "iconv"),
    Row(
        "text in another encoding", "text-cut-in-a-character", from_file("Kä".encode()[:2]), 2, ("not UTF-8",), "iconv"
    ),
    Row("text without words", "text-empty", from_file(b""), 2, ("the text is empty",), "sentences"),
    Row("text without words", "text-blank", from_file(" \n\t \n" * 1000), 2, ("the text is empty",), "sentences"),
    Row("text without words", "text-only-separators", from_file("***\n" * 99), 2, ("the text is empty",), "sentences"),
    Row(
        "text without words", "text-byte-order-mark", from_file(b"\xef\xbb\xbf"), 2, ("the text is empty",), "sentences"
    ),
    Row("text without words", "text-odd-name", odd_name, 2, ("the text is empty",), "sentences"),
    Row("text that never ends", "text-dev-zero", spelled("/dev/zero"), 2, ("is a device",), "UTF-8 text file"),
    Row("text that never ends", "text-dev-random", spelled("/dev/urandom"), 2, ("is a device",), "UTF-8 text file"),
    Row("text that never ends", "text-silent-pipe", silent_pipe, 2, ("nothing was written to the pipe",), "writer"),
    Row("text that never ends", "text-socket", from_socket, 2, ("socket",), ""),
    Row("text from standard input", "text-input-closed", closed_input, 2, ("standard input is closed",), "pipe a text"),
    Row("text from standard input", "text-input-empty", empty_input, 2, ("the text is empty",), "sentences"),
    Row("text is no file", "text-a-folder", folder, 2, ("is a folder, expected a text file",), "one file"),
    Row("text is no file", "text-missing", spelled("nowhere.txt"), 2, ("does not exist",), "UTF-8 text file"),
    Row("text is no file", "text-link-loop", link_loop, 2, ("loop.txt",), ""),
    Row(
        "text is no file",
        "text-below-a-file",
        spelled("/etc/passwd/x.txt"),
        2,
        ("does not exist (looked in /etc/passwd)",),
        "",
    ),
    Row("text name that no file can have", "text-long-name", spelled("x" * 300), 2, ("nor the name of a text",), ""),
    Row("text name that no file can have", "text-long-file", spelled("x" * 300 + ".txt"), 2, ("does not exist",), ""),
    Row("text name that no file can have", "text-zero-in-name", spelled("a\0b"), 2, ("nor the name of a text",), ""),
    Row("text name that no file can have", "text-no-name", spelled(""), 2, ("text",), ""),
    Row("text name that no text has", "text-unknown", spelled("nope"), 2, ("nor the name of a text",), "data"),
    Row("text name that no text has", "text-near", spelled("moby-dic"), 2, ("nor the name of a text",), "moby-dick"),
    Row("text name that no text has", "text-unknown-split", spelled("plain-english:x"), 2, ("split",), ""),
    Row("text name that no text has", "text-empty-split", spelled("plain-english:"), 2, ("split",), ""),
    Row("parallel text", "pairs-empty", pairs(""), 2, ("no pair of sentences",), "a few hundred pairs"),
    Row("parallel text", "pairs-three-columns", pairs("a\tb\tc\n"), 2, ("line 1: 3 columns, expected 2",), "a tab"),
    Row("parallel text", "pairs-one-side", pairs("a\tb\nc\t\n"), 2, ("line 2: the second column is empty",), ""),
    Row("parallel text", "pairs-latin-1", pairs("K\xe4se\tformaggio".encode("latin1")), 2, ("0xe4 at",), "iconv"),
    Row("parallel text", "pairs-binary", pairs(b"a\tb\0\n"), 2, ("is a binary file",), "plain text"),
    Row("parallel text", "pairs-too-few", pairs("a b\tc d\n"), 2, ("is too short to be split",), "a few hundred"),
    Row("parallel text", "pairs-a-folder", pairs_in_a_folder, 2, ("is a folder, expected a text file",), "one file"),
    Row("parallel text", "pairs-missing", lambda scene: ["data", "no.tsv"], 2, ("no.tsv does not exist",), "a.en,a.it"),
    Row("parallel text", "pairs-other-numbers", two_files("a\nb\n", "c\n"), 2, ("has 2 lines and", "has 1,"), "line n"),
    Row("parallel text", "pairs-one-file-empty", two_files("a\n", ""), 2, ("has 1 lines and", "has 0,"), "line n"),
    Row("parallel text", "pairs-blank-line", two_files("a\n\n", "b\nc\n"), 2, ("line 2:", "a.en is empty"), "remove"),
    Row("parallel text", "pairs-second-missing", lambda scene: ["data", "a.en,a.it"], 2, ("a.en of the",), "pairs.tsv"),
    Row(
        "parallel text",
        "pairs-split",
        lambda scene: ["data", "en-it:fit"],
        2,
        ("no split 'fit'",),
        "train, valid, test",
    ),
    Row("parallel text", "pairs-as-text", spelled("en-it"), 2, ("is parallel text, expected a text",), "--out FILE"),
    Row("parallel text", "pairs-unknown", lambda scene: ["data", "en-xx"], 2, ("nor the name of a text",), "data"),
]
