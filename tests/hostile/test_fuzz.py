"""Fuzz targets, one for every parser of ours: it reads what it is given or refuses it, with bounded memory and work.

`make test` tries the same few examples every time; `make fuzz` tries new ones, as many per target as it says.
"""

import json
import os
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from headscope.attention.mechanism_spelling import spelled
from headscope.cli.app import _saved
from headscope.core import Finding, Run, Selection, Site
from headscope.corpora import read_text
from headscope.corpora.byte_pair_tokenizer import load_tokenizer
from headscope.corpora.parallel.help_pages import page_paragraphs
from headscope.corpora.parallel.pair_argument import parse_pair_spelling
from headscope.corpora.parallel.pair_files import tsv_pairs
from headscope.corpora.text_argument import parse_spelling
from headscope.errors import HeadscopeError
from headscope.experiments.intervene.change_spelling import Change, place_of
from headscope.fetch import cache
from headscope.model.formats.adapter import read_adapter
from headscope.model.formats.adapter_folder import base_name
from headscope.model.formats.config_json import read_config
from headscope.model.formats.gguf_header import read_gguf_header
from headscope.model.formats.safetensors_folder import open_checkpoint
from headscope.model.formats.safetensors_header import read_header
from headscope.model.sources.model_lists import read_list
from headscope.model.transformers import classes
from headscope.report.page import notebook_html
from headscope.store import load
from headscope.store.findings import finding_in
from headscope.store.journal import read_journal
from headscope.store.parquet import table_in
from headscope.store.plain_json import from_json
from tests.hostile.broken import INDEX, WEIGHTS, header_of, write
from tests.hostile.mutation import bytes_like, json_like, text_like
from tests.hostile.row import Seeds
from tests.hostile.runs import ARRAYS, FINDING, LENS, TABLE, a_finding

EXAMPLES = int(os.environ.get("HEADSCOPE_FUZZ", "0"))
MOST_BYTES = 2 * 2**30  # of address space that one example may take beyond what there is
MOST_CALLS = 2_000_000  # of functions that one example may make


def fuzz(examples: int) -> Callable[[Any], Any]:
    """A fixed number of fixed examples, or new ones if the environment asks for them."""
    return settings(
        max_examples=EXAMPLES or examples,
        derandomize=not EXAMPLES,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


class TooMuchWork(AssertionError):
    """A small input made a parser call functions without end."""


@contextmanager
def refusing() -> Iterator[None]:
    """Let an input be read, or refused with an error that has an exit code of its own; nothing else."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MOST_BYTES, hard))
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += 1
        if calls > MOST_CALLS:
            raise TooMuchWork

    before, refusal = sys.getprofile(), None
    sys.setprofile(count)
    try:
        yield
    except HeadscopeError as error:
        refusal = error
    finally:
        sys.setprofile(before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    if refusal is not None:
        assert refusal.exit_code != 1
        assert 0 < len(refusal.message) < 3000


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is bounded by what Linux tells about it")

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
ANYTHING = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
SITE = Site("only", "self", 3, 8, 8, 16, 16, True)


@fuzz(60)
@given(st.data())
def test_safetensors_headers(seeds: Seeds, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzzed.safetensors"
    header, content = header_of(seeds.llama / WEIGHTS)
    if data.draw(st.booleans()):
        write(file, data.draw(json_like(header)), content)
    else:
        file.write_bytes(data.draw(bytes_like((seeds.llama / WEIGHTS).read_bytes(), 2500)))
    with refusing():
        read_header(file)


@fuzz(60)
@given(st.data())
def test_gguf_headers(seeds: Seeds, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzzed.gguf"
    file.write_bytes(data.draw(bytes_like(seeds.gguf.read_bytes(), 2000)))
    with refusing():
        read_gguf_header(file)


@fuzz(60)
@given(st.data())
def test_configurations(seeds: Seeds, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.getbasetemp() / "fuzzed"
    folder.mkdir(exist_ok=True)
    changed = data.draw(json_like(json.loads((seeds.llama / "config.json").read_text())))
    (folder / "config.json").write_text(json.dumps(changed))
    with refusing():
        classes.parsed_config(read_config(folder), "config.json")


@fuzz(60)
@given(st.data())
def test_indexes_of_shards(seeds: Seeds, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.getbasetemp() / "fuzzed-shards"
    if not folder.exists():
        shutil.copytree(seeds.sharded, folder)
    changed = data.draw(json_like(json.loads((seeds.sharded / INDEX).read_text())))
    (folder / INDEX).write_text(json.dumps(changed))
    with refusing():
        open_checkpoint(folder)


@fuzz(60)
@given(st.data())
def test_settings_of_adapters(seeds: Seeds, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.getbasetemp() / "fuzzed-adapter"
    if not folder.exists():
        folder.mkdir()
        shutil.copy(seeds.llama / WEIGHTS, folder / "adapter_model.safetensors")
    settings = {
        "peft_type": "LORA",
        "r": 4,
        "lora_alpha": 8,
        "base_model_name_or_path": "../x",
        "target_modules": ["q"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(data.draw(json_like(settings))))
    with refusing():
        read_adapter(folder)
        base_name(folder)


@fuzz(60)
@given(st.data())
def test_lists_of_models(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzzed-list.txt"
    file.write_bytes(data.draw(bytes_like(b"# small ones\norg/model  # a note\n\norg/other\r\n", 100)))
    with refusing():
        read_list(str(file))


@fuzz(60)
@given(text_like(("L", "H", "-", ".", ",", "enc", "dec", "cross", "self", "all", "*", "0", "3", "10-19", " ")))
def test_selections(text: str) -> None:
    with refusing():
        Selection.parse(text).heads_of(SITE)


@fuzz(60)
@given(text_like(("window", "bigbird", "dense", "linformer", "(", ")", "left=", "block=", "rank=", ",", "=", "[", "'",
                  "None", "True", "-", "**", "lambda: ", "f'", "0", "16")))  # fmt: skip
def test_mechanisms(text: str) -> None:
    with refusing():
        spelled(text)


@fuzz(60)
@given(text_like(("scale ", "rank ", "remove ", "randomise ", "=", "/", "1", "1/4", "nan", "inf", "e9", "spikes", "v")))
def test_changes(text: str) -> None:
    with refusing():
        Change.of(text)
    with refusing():
        place_of(text, text)


HELP_PAGE = (
    *('<p id="a">', "</p>", '<h1 id="b">', "</h1>", '<span class="switchinline">', '<span class="MAC">', "<span>"),
    *("</span>", "<b>", "</b>", "<br>", "<sup>", "word", "Word", "&amp;", "&#", "<!--", "-->", "<![CDATA[", "<"),
)


@fuzz(80)
@given(text_like(HELP_PAGE))
def test_help_pages(content: str) -> None:
    with refusing():
        paragraphs = page_paragraphs(content)
        assert all(isinstance(text, str) for texts in paragraphs.values() for text in texts)


@fuzz(60)
@given(st.data())
def test_pairs_and_tokenizers(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzzed.tsv"
    file.write_bytes(data.draw(bytes_like("Käse\tformaggio\nein Wort\tuna parola\n".encode(), 60)))
    with refusing():
        tsv_pairs(file)
    file.write_text(json.dumps(data.draw(json_like({"version": "1.0", "added_tokens": [], "model": {"type": "BPE"}}))))
    with refusing():
        load_tokenizer(file)
    with refusing():
        parse_pair_spelling(data.draw(text_like(("en-it", ":", "test", ",", ".tsv", "/", "\0"))))


@fuzz(30)
@given(st.data())
def test_manifests(seeds: Seeds, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    run = tmp_path_factory.getbasetemp() / "fuzzed-run"
    for name in (FINDING, TABLE, ARRAYS):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes((seeds.run / name).read_bytes())
    manifest = json.loads((seeds.run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(data.draw(json_like(manifest))))
    with refusing():
        _show(load(run))


def _show(run: Run) -> str:
    """The run and its findings as a terminal and a notebook show them."""
    findings = list(run.findings.values())
    return "".join([repr(run), run._repr_html_(), *map(repr, findings), *map(notebook_html, findings)])


@fuzz(60)
@given(st.data())
def test_journals(seeds: Seeds, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.getbasetemp() / "fuzzed-journal"
    folder.mkdir(exist_ok=True)
    journal = json.loads((seeds.run / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(data.draw(json_like(journal))))
    with refusing():
        read_journal(folder)


@fuzz(30)
@given(st.data())
def test_findings(seeds: Seeds, data: st.DataObject) -> None:
    contents = {name: (seeds.run / name).read_bytes() for name in (FINDING, TABLE, ARRAYS)}
    changed = data.draw(json_like(json.loads(contents[FINDING])))
    with refusing():
        finding = finding_in({**contents, FINDING: json.dumps(changed).encode()}, LENS, Path("run"))
        notebook_html(finding)
        repr((finding, finding.figures))


@fuzz(30)
@given(st.data())
def test_stored_arrays(seeds: Seeds, data: st.DataObject) -> None:
    contents = {name: (seeds.run / name).read_bytes() for name in (FINDING, TABLE, ARRAYS)}
    changed = data.draw(bytes_like(contents[ARRAYS], 2000))
    with refusing():
        finding_in({**contents, ARRAYS: changed}, LENS, Path("run"))


@fuzz(60)
@given(st.data())
def test_tables(seeds: Seeds, data: st.DataObject) -> None:
    changed = data.draw(bytes_like((seeds.run / TABLE).read_bytes(), 10_000))
    with refusing():
        table_in(changed, TABLE)


@fuzz(60)
@given(st.sampled_from([Run, Finding]), ANYTHING)
def test_plain_data(kind: type, data: Any) -> None:
    with refusing():
        from_json(data, kind, {}, "x.json")


@fuzz(10)
@given(st.data())
def test_figures(tmp_path_factory: pytest.TempPathFactory, seeds: Seeds, data: st.DataObject) -> None:
    """Arrays of other shapes and sizes: every figure is drawn or refused."""
    contents = {name: (seeds.run / name).read_bytes() for name in (FINDING, TABLE, ARRAYS)}
    arrays = load_arrays(contents[ARRAYS])
    name = data.draw(st.sampled_from(sorted(arrays)))
    shape = data.draw(st.sampled_from([arrays[name].shape, (3,), (2, 2), (1, 3), (0,), (2, 0), (2, 2, 2), ()]))
    number = st.sampled_from([0.0, 1.0, -1.0, np.nan, np.inf, -np.inf, 1e308, -1e308, 1e-320, 3.5])
    size = int(np.prod(shape))
    arrays[name] = np.array(data.draw(st.lists(number, min_size=size, max_size=size))).reshape(shape)
    changed = json.loads(contents[FINDING])
    for figure in changed["figures"]:
        figure.update({key: data.draw(st.booleans()) for key in ("log_x", "log_y") if key in figure})
    broken = {**contents, ARRAYS: save_arrays(arrays), FINDING: json.dumps(changed).encode()}
    target = tmp_path_factory.getbasetemp() / "fuzzed.svg"
    with refusing():
        for figure in finding_in(broken, LENS, Path("run")).figures:
            _saved(figure, LENS, target)


@fuzz(60)
@given(st.data())
def test_texts(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzzed.txt"
    seed = "First words.\r\n***\r\n Ünd more wörds 漢字 \ufeff.\n \t***\nlast".encode()
    file.write_bytes(data.draw(st.one_of(bytes_like(seed, 200), st.binary(max_size=40))))
    with refusing():
        assert all(read_text(file).documents)


@fuzz(60)
@given(text_like(("moby-dick", "plain-english", ":", "fit", "test", "-", "/", ".", "\0", "x" * 300)))
def test_spelled_texts(text: str) -> None:
    with refusing():
        parse_spelling(text)


@fuzz(40)
@given(st.data())
def test_cache_notes(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.getbasetemp() / "fuzzed-cache"
    folder.mkdir(exist_ok=True)
    note = {"about": {"wheel": "x==1", "sha256": "00"}, "files": {"config.json": 3, "model.safetensors": 7}}
    (folder / "headscope-cache.json").write_text(json.dumps(data.draw(json_like(note))))
    with refusing():
        cache.about(folder)


def test_a_sound_finding_passes_through_the_targets(seeds: Seeds) -> None:
    """Otherwise every example could be refused for one and the same reason."""
    contents = {name: (seeds.run / name).read_bytes() for name in (FINDING, TABLE, ARRAYS)}
    assert finding_in(contents, LENS, Path("run")).figures[0].name == a_finding().figures[0].name
    assert load(seeds.run).findings.keys() == {LENS}
    assert "<svg" in _show(load(seeds.run))
    assert read_journal(seeds.run).keys() == {LENS}
    assert read_header(seeds.llama / WEIGHTS)
    assert read_gguf_header(seeds.gguf).n_numbers


def test_the_bounds_are_felt() -> None:
    with pytest.raises(TooMuchWork), refusing():
        for _ in range(MOST_CALLS):
            len("")
            len("x")
    with pytest.raises(MemoryError), refusing():
        bytearray(2 * MOST_BYTES)
