"""Parallel text by name and from files: fetched with a client of our making, cached, listed, written, refused."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from headscope.cli import main
from headscope.corpora.parallel import help_languages
from headscope.corpora.parallel.cached_pairs import cached_pairs, path_of_pairs
from headscope.corpora.parallel.help_languages import HELP_PAIRS, LANGUAGES, languages_of
from headscope.corpora.parallel.pair_argument import parallel_text, parse_pair_spelling
from headscope.corpora.parallel.pair_files import moses_pairs, tsv_pairs
from headscope.corpora.parallel.pairs import PAIR_SPLITS, Pair
from headscope.errors import ResourceError, UsageError
from headscope.fetch import package_clients
from tests.corpora.packages import deb

N = 120
FRUITS = [fruit + letter for fruit in ("apple", "pear", "plum", "fig", "date") for letter in "abcdefghijklmnopqrstuvwx"]


def sentence(language, fruit):
    """Words that no other fruit and no other language has."""
    return " ".join(f"{language}{fruit}{word}" for word in ("tree", "leaf", "stone"))


def page(language):
    inside = "".join(f'<p id="par{n}">{sentence(language, fruit)}</p>' for n, fruit in enumerate(FRUITS))
    menu = '<p id="menu">Choose Tools - Options there</p>'
    return f'<html><div id="DisplayArea">{inside}{menu}</div><footer></footer></html>'


@pytest.fixture
def packages(tmp_path, monkeypatch, own_cache):
    """The packages of English and Italian help as apt would bring them, by name."""
    folder = tmp_path / "packages"
    folder.mkdir()
    files = {}
    for code, name in (("en", "en-US"), ("it", "it")):
        package = LANGUAGES[code].package
        path = f"usr/share/libreoffice/help/{name}/text/shared/01.html"
        files[package.name] = deb(folder / f"{package.name}_1_all.deb", {path: page(code)})
    monkeypatch.setattr(package_clients.shutil, "which", lambda name: f"/usr/bin/{name}")

    def run(command, scratch, watch):
        made = files[command[-1]]
        (scratch / made.name).write_bytes(made.read_bytes())
        watch()
        return 0, ""

    monkeypatch.setattr(package_clients, "run", run)
    return folder


def command(*words):
    with pytest.raises(SystemExit) as ended:
        main([*words])
    return ended.value.code


def offline(monkeypatch, output="E: Failed to fetch http://deb.debian.org  Temporary failure resolving"):
    monkeypatch.setattr(package_clients, "run", lambda command, scratch, watch: (100, output))


def test_a_pair_is_fetched_aligned_cleaned_and_split(packages):
    text = parallel_text("en-it")
    assert text.languages == ("en", "it")
    assert len(text.pairs) == N
    assert text.pairs[0] == Pair("enappleatree enapplealeaf enappleastone", "itappleatree itapplealeaf itappleastone")
    assert (text.counts.aligned, text.counts.dropped["the same on both sides"]) == (N + 1, 1)
    parts = [text.part(split) for split in PAIR_SPLITS]
    assert sorted(pair for part in parts for pair in part.pairs) == sorted(text.pairs)
    assert parts[2].name == "en-it:test"
    assert not set(parts[0].groups) & set(parts[2].groups)


def test_the_other_direction_has_the_same_splits(packages):
    there, back = parallel_text("en-it"), parallel_text("it-en")
    assert back.languages == ("it", "en")
    assert [pair.swapped for pair in back.pairs] == list(there.pairs)
    assert back.splits == there.splits
    assert back.part("test").sources == there.part("test").targets


def test_what_is_cached_needs_no_network(packages, monkeypatch):
    first = parallel_text("en-it")
    offline(monkeypatch)
    assert parallel_text("en-it") == first
    folder = path_of_pairs(*languages_of("it-en")).parent
    assert {path.name for path in folder.iterdir()} == {"pairs.parquet", "pairs.json", "headscope-cache.json"}


@pytest.mark.parametrize("name", ["pairs.parquet", "pairs.json"])
def test_a_damaged_cache_is_fetched_again(name, packages):
    first = parallel_text("en-it")
    (path_of_pairs(*languages_of("en-it")).parent / name).write_text("{}")
    assert parallel_text("en-it") == first


def test_damage_that_sizes_do_not_show(packages):
    parallel_text("en-it")
    path = path_of_pairs(*languages_of("en-it"))
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(ResourceError, match="is damaged") as caught:
        parallel_text("en-it")
    assert str(path.parent) in caught.value.hint


def test_offline_says_what_to_do(packages, monkeypatch, capsys, own_cache):
    offline(monkeypatch)
    assert command("data", "en-it") == 5
    said = " ".join(capsys.readouterr().err.split())
    assert "apt could not fetch libreoffice-help-en-us" in said
    assert "--from FOLDER" in said
    assert list((own_cache / "pairs").iterdir()) == []


def test_a_missing_client_is_named(packages, monkeypatch, capsys):
    monkeypatch.setattr(package_clients.shutil, "which", lambda name: None)
    assert command("data", "en-it") == 5
    assert "apt-get is needed" in capsys.readouterr().err


def test_packages_from_a_folder(packages, monkeypatch, capsys):
    offline(monkeypatch)
    assert command("data", "en-it", "--from", str(packages)) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(path_of_pairs(*languages_of("en-it")))
    (packages / "libreoffice-help-it_1_all.deb").unlink()
    assert command("data", "en-it", "--from", str(packages)) == 5
    assert "has 0 files libreoffice-help-it_*.deb, expected one" in " ".join(capsys.readouterr().err.split())
    assert command("data", "en-it", "--from", str(packages / "none")) == 2
    assert len(parallel_text("en-it").pairs) == N


def test_a_package_that_is_truncated(packages, capsys):
    made = packages / "libreoffice-help-it_1_all.deb"
    made.write_bytes(made.read_bytes()[:300])
    assert command("data", "en-it") == 5
    assert "is damaged or truncated" in capsys.readouterr().err


def test_a_package_without_pages_of_the_help(packages, capsys):
    name = "libreoffice-help-it"
    path = "usr/share/libreoffice/help/it/text/shared/01.html"
    deb(packages / f"{name}_1_all.deb", {path: "<html><p id='other'>Nothing.</p></html>"})
    assert command("data", "en-it") == 5
    assert "have no paragraph in common" in capsys.readouterr().err


def test_names_are_pairs_of_languages():
    assert languages_of("de-fr") == (LANGUAGES["de"], LANGUAGES["fr"])
    assert [languages_of(name) for name in ("en-en", "en-xx", "en", "en-it-fr", "EN-IT")] == [None] * 5
    assert len(HELP_PAIRS) >= 4
    assert all(languages_of(name) for name in HELP_PAIRS)


def test_every_two_languages_can_be_paired(packages, monkeypatch):
    """German has the Italian package's content under its own name."""
    monkeypatch.setitem(help_languages.LANGUAGES, "de", replace(LANGUAGES["de"], package=LANGUAGES["en"].package))
    text = cached_pairs(help_languages.LANGUAGES["it"], help_languages.LANGUAGES["de"])
    assert text.name == "it-de"
    assert text.pairs[0].source.startswith("itapplea")


def test_the_list(packages, capsys):
    parallel_text("en-it")
    assert command("data", "--format", "json") == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(HELP_PAIRS) <= set(rows)
    assert (rows["en-it"]["pairs"], rows["en-it"]["is_cached"]) == (N, True)
    assert (rows["en-de"]["pairs"], rows["en-de"]["is_cached"]) == (None, False)
    assert rows["en-it"]["licence"] == "MPL-2.0"


def test_a_text_is_written_and_read_again(packages, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = parallel_text("it-en")
    assert command("data", "it-en:train", "--out", "train.tsv") == 0
    assert tuple(tsv_pairs(tmp_path / "train.tsv")) == text.part("train").pairs
    assert command("data", "it-en", "--out", "all.tsv") == 0
    capsys.readouterr()
    assert command("data", "all.tsv", "--format", "json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["pairs"] == N == sum(split["pairs"] for split in facts["splits"])
    assert facts["path"] is None
    assert parallel_text("all.tsv").splits == text.splits


def test_a_part_of_a_text_is_not_split_again(packages, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert command("data", "en-it:train", "--out", "train.tsv") == 0
    assert command("data", "train.tsv") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "0 in valid, 0 in test" in said
    assert "a part of it falls into the same split again" in said


def test_a_file_goes_before_a_name(packages, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "en-it").write_text("a text of one language")
    assert command("data", "en-it", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["documents"] == 1


def moses(folder, source, target):
    (folder / "a.en").write_bytes(source if isinstance(source, bytes) else source.encode())
    (folder / "a.it").write_bytes(target if isinstance(target, bytes) else target.encode())
    return folder / "a.en", folder / "a.it"


def test_moses_files(tmp_path, monkeypatch):
    lines = [f"{fruit} of the {fruit}tree" for fruit in FRUITS]
    moses(tmp_path, "\n".join(lines), "\r\n".join(f"{line} it" for line in lines) + "\r\n")
    monkeypatch.chdir(tmp_path)
    text = parallel_text("a.en,a.it")
    assert text.languages == ("en", "it")
    assert text.part().sources == tuple(lines)
    assert text.pairs[3].target == f"{lines[3]} it"
    assert set(text.splits) == set(PAIR_SPLITS)


def test_lines_are_ended_by_line_feeds_alone(tmp_path):
    """A line separator within a sentence, which Python's `splitlines` would take for an end, misaligns nothing."""
    files = moses(tmp_path, "one\u2028two\nthree\n\n", "uno due\ntre\n\n")
    assert moses_pairs(*files) == [Pair("one two", "uno due"), Pair("three", "tre")]


@pytest.mark.parametrize(
    ("source", "target", "says"),
    [
        ("a\nb\nc\n", "a\nb", "has 3 lines and .* has 2, expected the same number"),
        ("a\nb\n", "a\n\n", "line 2: .*a.it is empty"),
        ("\u200b\nb\n", "a\nb\n", "line 1: .*a.en is empty"),
        ("\n\n", "\n\n", "no pair of sentences"),
        (b"caf\xe9\n", "caffe\n", "a.en is not UTF-8: byte 0xe9 at offset 3"),
        ("a\n", b"a\0b\n", "a.it is a binary file"),
    ],
)
def test_moses_files_that_are_refused(source, target, says, tmp_path):
    with pytest.raises(UsageError, match=says):
        moses_pairs(*moses(tmp_path, source, target))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("a\tb\nc\n", "line 2: 1 column, expected 2"),
        ("a\tb\n\nc\td\te\n", "line 3: 3 columns, expected 2"),
        ("a\tb\nc\t \n", "line 2: the second column is empty"),
        ("\tb\n", "line 1: the first column is empty"),
        ("\n \n", "no pair of sentences"),
        ("a\tb\n", "too short to be split: its 1 pairs"),
        ("Käse\tformaggio".encode("latin1"), "not UTF-8"),
    ],
)
def test_tables_that_are_refused(content, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.tsv").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError, match=says):
        parallel_text("p.tsv")


@pytest.mark.parametrize(
    ("spelling", "says", "hint"),
    [
        ("none.tsv", "none.tsv of the parallel text none.tsv does not exist", "a.en,a.it"),
        ("none.en,none.it", "none.en of the parallel text", "pairs.tsv"),
        ("en-xx", "'en-xx' is no parallel text", "en, de, es"),
        ("en-it:fit", "no split 'fit' of a parallel text", "train, valid, test"),
        ("x" * 300 + ".tsv", "does not exist", ""),
        ("a\0.tsv", "does not exist", ""),
        ("", "'' is no parallel text", ""),
    ],
)
def test_spellings_that_are_refused(spelling, says, hint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=says) as caught:
        parallel_text(parse_pair_spelling(spelling)[0])
    assert hint in caught.value.hint


def test_a_folder_and_a_file_without_permission(tmp_path, monkeypatch):
    (tmp_path / "p.tsv").mkdir()
    with pytest.raises(UsageError, match="is a folder"):
        tsv_pairs(tmp_path / "p.tsv")


def test_packages_of_a_file_of_the_user(tmp_path):
    (tmp_path / "p.tsv").touch()
    with pytest.raises(UsageError, match="is not a text from packages") as caught:
        parallel_text(str(tmp_path / "p.tsv"), archives_folder=tmp_path)
    assert "en-it" in caught.value.hint


def test_a_pair_is_no_text_of_one_language(capsys):
    assert command("lens", "focus", "tiny", "--text", "en-it") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "'en-it' is parallel text, expected a text of one language" in said
    assert "headscope data en-it --out FILE" in said


@pytest.mark.real
def test_the_real_help_in_two_languages():
    """Debian's packages: no glued variant is left, and the splits are those of the definition."""
    # In a process of its own: with every call checked for its types, this takes minutes.
    subprocess.run([sys.executable, "-m", "headscope", "data", "en-it", "--format", "json"], check=True)
    text = parallel_text("en-it")
    assert 25_000 < len(text.pairs) < 35_000
    assert not any("CommandCtrl" in side or " - " in side for pair in text.pairs for side in (pair.source, pair.target))
    groups = [set(text.part(split).groups) for split in PAIR_SPLITS]
    assert sum(map(len, groups)) == len(set.union(*groups))
    assert abs(len(text.part("test").pairs) / len(text.pairs) - 0.06) < 0.02
