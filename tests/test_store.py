"""Run folders: round trips, bytes, interruptions, strangers."""

import errno
import hashlib
import json
import shutil
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from headscope import files
from headscope.core import About, Curves, Finding, Headline, HeatMap, Histogram, ModelSpec, Run, Series, Site, TextSpec
from headscope.errors import LensError, ResourceError, UsageError
from headscope.store import RunFolder, check_folder, load, save

SPEC = ModelSpec(
    "m", "folder", "llama", "Llama", "decoder-only", 2, 4, 2, 64, 16, 100, None, 1234, "float32", sha256="ab"
)
SITES = (
    Site("only", "self", 0, 4, 2, 16, 16, True, None, ("bias", "softcap"), "layers.0.attn"),
    Site("only", "self", 1, 4, 2, 16, 16, True, 128),
)
ABOUT = About("Title", "Why?", "Because.", (r"\frac{a}{b}",), "Slowly.", "Nobody (1900)", {"value": "the value"})


def finding(lens="focus"):
    curve = Series("measured", np.arange(3.0), np.array([1.0, np.nan, np.inf]), low=np.zeros(3), high=None)
    figures = (
        HeatMap("map", "T", "C", np.eye(2), ("L0", "L1"), ("H0", "H1"), reference=float("nan"), limits=(0.0, 1.0)),
        Curves("curves", "T", "C", "x", "y", (curve, replace(curve, role="null")), log_x=True),
        Histogram("law", "T", "C", "x", np.arange(4.0), np.ones(3), laws=(curve,), marks=(("edge", 2.5),)),
    )
    heads = pl.DataFrame(
        {"stack": ["only"] * 3, "layer": [0, 0, 1], "head": [0, None, 1], "value": [0.5, None, float("nan")]}
    )
    return Finding(
        lens,
        ABOUT,
        tables={"heads": heads, "layers": pl.DataFrame({"layer": [0], "flag": [True]})},
        arrays={"singular": np.linspace(0, 1, 7), "empty": np.zeros((0, 3))},
        figures=figures,
        headlines=(Headline("3 of 4 heads </script>", "3 of 4", 0.75), Headline("é", "é")),
        method="exact",
        warnings=("careful",),
        params={"bins": 48, "bands": "1,8", "on": True, "x": 0.5, "none": None},
    )


def a_run():
    failed = Finding("broken", ABOUT, "failed", "ValueError: no")
    text = TextSpec("t", "cd", 10, 5, 1, 5, n_dropped=2)
    return Run(SPEC, SITES, {"focus": finding(), "broken": failed}, text, {"torch": "2.13"}, seed=3)


def assert_same(a, b):
    """Equality down to NaN, dtype and order."""
    assert type(a) is type(b)
    if is_dataclass(a):
        for field in fields(a):
            assert_same(getattr(a, field.name), getattr(b, field.name))
    elif isinstance(a, pl.DataFrame):
        assert a.schema == b.schema
        assert a.equals(b, null_equal=True)
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, tuple):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            assert_same(one, other)
    else:
        assert a == b or (a != a and b != b)


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def bundle(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in content(folder).items() if name != "run.json"}


def test_round_trip(tmp_path):
    assert_same(load(save(a_run(), tmp_path / "run")), a_run())


def test_round_trip_without_text_and_findings(tmp_path):
    bare = replace(a_run(), findings={}, text=None)
    assert_same(load(save(bare, tmp_path / "run")), bare)


def test_same_run_same_bytes(tmp_path):
    save(a_run(), tmp_path / "a")
    save(a_run(), tmp_path / "b")
    assert bundle(tmp_path / "a") == bundle(tmp_path / "b")
    save(load(tmp_path / "a"), tmp_path / "c")
    assert bundle(tmp_path / "a") == bundle(tmp_path / "c")


def test_layout_and_hashes(tmp_path):
    save(a_run(), tmp_path)
    assert set(content(tmp_path)) == {
        "manifest.json",
        "run.json",
        "arrays/focus.safetensors",
        "findings/broken.json",
        "findings/focus.json",
        "tables/focus.heads.parquet",
        "tables/focus.layers.parquet",
    }
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    for name, expected in manifest["files"].items():
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == expected
    assert set(manifest["files"]) == set(content(tmp_path)) - {"manifest.json", "run.json"}


def test_a_changed_file_is_noticed(tmp_path):
    save(a_run(), tmp_path)
    path = tmp_path / "tables/focus.heads.parquet"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UsageError, match=r"focus\.heads\.parquet is missing or was changed"):
        load(tmp_path)


@pytest.mark.parametrize("make", [lambda p: None, lambda p: p.mkdir(), lambda p: p.write_text("x")])
def test_what_is_no_run_is_refused(tmp_path, make):
    path = tmp_path / "x"
    make(path)
    with pytest.raises(UsageError, match="holds no finished run"):
        load(path)


def test_foreign_folder_is_not_touched(tmp_path):
    (tmp_path / "manifest.json").write_text('{"name": "a web app"}')
    (tmp_path / "thesis.tex").write_text("years of work")
    before = content(tmp_path)
    with pytest.raises(UsageError, match="nothing was written") as caught:
        save(a_run(), tmp_path)
    assert "--out" in caught.value.hint
    assert content(tmp_path) == before


def test_a_file_in_the_place_of_the_folder(tmp_path):
    path = tmp_path / "out"
    path.write_text("x")
    with pytest.raises(UsageError):
        save(a_run(), path)
    assert path.read_text() == "x"


def test_replacing_a_run_leaves_nothing_of_it(tmp_path):
    save(a_run(), tmp_path)
    (tmp_path / "report.html").write_text("mine")
    other = replace(a_run(), findings={"other": finding("other")})
    save(other, tmp_path)
    save(other, fresh := tmp_path.parent / "fresh")
    assert not (tmp_path / "report.html").exists()
    assert bundle(tmp_path) == bundle(fresh)


def test_a_table_that_a_lens_no_longer_makes_is_dropped(tmp_path):
    save(a_run(), tmp_path)
    smaller = replace(finding(), tables={"heads": finding().tables["heads"]})
    save(replace(a_run(), findings={"focus": smaller}), tmp_path)
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == ["focus.heads.parquet"]


def test_names_in_a_journal_do_not_reach_outside(tmp_path):
    precious = tmp_path / "precious.txt"
    precious.write_text("x")
    folder = tmp_path / "run"
    save(a_run(), folder)
    journal = json.loads((folder / "run.json").read_text())
    journal["findings"]["evil"] = {
        "key": "k",
        "files": {"../precious.txt": "00", "tables/../../precious.txt": "00"},
    }
    (folder / "run.json").write_text(json.dumps(journal))
    with pytest.raises(UsageError, match=r"'\.\./precious\.txt' is not a file of the finding 'evil'"):
        save(a_run(), folder)
    assert precious.exists()


def test_a_damaged_journal_costs_nothing_of_a_finished_run(tmp_path):
    save(a_run(), tmp_path)
    (tmp_path / "report.html").write_text("mine")
    for damage in ('{"schema": "headscope-run/1", "findings": {"focus": {"key": "k", "files": 7}}}', "no JSON"):
        (tmp_path / "run.json").write_text(damage)
        before = content(tmp_path)
        for ask in (RunFolder.begin, check_folder, partial(save, a_run())):
            with pytest.raises(UsageError, match=r"run\.json is damaged.*nothing was changed") as caught:
                ask(tmp_path)
            assert "delete this file" in caught.value.hint
            assert content(tmp_path) == before
    (tmp_path / "run.json").unlink()
    assert_same(load(save(a_run(), tmp_path)), a_run())


def test_a_finished_report_stays_until_the_new_run_is_complete(tmp_path):
    save(a_run(), tmp_path)
    (tmp_path / "report.html").write_text("mine")
    folder = RunFolder.begin(tmp_path)
    assert_same(load(tmp_path), a_run())
    folder.keep(finding("other"))
    assert (tmp_path / "report.html").read_text() == "mine"
    with pytest.raises(UsageError, match="started there and not finished"):
        load(tmp_path)
    folder.close(replace(a_run(), findings={"other": finding("other")}))
    assert not (tmp_path / "report.html").exists()
    assert list(load(tmp_path).findings) == ["other"]


def test_a_run_that_changes_nothing_keeps_its_report(tmp_path):
    folder = RunFolder.begin(tmp_path)
    run = replace(a_run(), findings={"done": finding("done")})
    folder.keep(run["done"], "key")
    folder.close(run)
    (tmp_path / "report.html").write_text("mine")
    again = RunFolder.begin(tmp_path)
    assert again.earlier_finding("done", "key") is not None
    again.close(run)
    assert (tmp_path / "report.html").read_text() == "mine"


@pytest.mark.parametrize("part", ["tables", "findings", "arrays", ".headscope-lock"])
def test_nothing_is_written_through_a_link(tmp_path, part):
    other, folder = tmp_path / "other", tmp_path / "run"
    save(a_run(), folder)
    if part == ".headscope-lock":
        other.write_text("precious")
    else:
        shutil.move(folder / part, other)
    (folder / part).symlink_to(other)
    before = other.read_text() if other.is_file() else content(other)
    with pytest.raises(UsageError, match=r"nothing was written|cannot be written"):
        save(a_run(), folder)
    assert (other.read_text() if other.is_file() else content(other)) == before


class Full:
    """A disk with room for a given number of files."""

    def __init__(self, monkeypatch, room):
        self.room = room
        self.real = files.os.fsync
        monkeypatch.setattr(files.os, "fsync", self.sync)

    def sync(self, descriptor):
        self.room -= 1
        if self.room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.real(descriptor)


@pytest.mark.parametrize("room", range(8))
def test_full_disk_leaves_whole_files_and_no_claim(tmp_path, monkeypatch, room):
    expected = bundle(save(a_run(), tmp_path / "whole"))
    with monkeypatch.context() as patch:
        Full(patch, room)
        with pytest.raises(ResourceError, match="disk is full"):
            save(a_run(), tmp_path / "cut")
    left = bundle(tmp_path / "cut")
    assert "manifest.json" not in left
    assert all(expected[name] == data for name, data in left.items())
    assert bundle(save(a_run(), tmp_path / "cut")) == expected


def test_resuming_keeps_what_is_complete_and_asked_under_the_same_key(tmp_path):
    first = RunFolder.begin(tmp_path)
    first.keep(finding("done"), "key")
    first.keep(finding("unkeyed"))
    (tmp_path / f".x{files.TEMPORARY}").write_text("half")
    first.release()
    second = RunFolder.begin(tmp_path)
    assert not (tmp_path / f".x{files.TEMPORARY}").exists()
    assert_same(second.earlier_finding("done", "key"), finding("done"))
    assert second.earlier_finding("done", "another key") is None
    assert second.earlier_finding("unkeyed", "") is None
    assert second.earlier_finding("never", "key") is None
    (tmp_path / "arrays/done.safetensors").write_bytes(b"rot")
    second.release()
    assert RunFolder.begin(tmp_path).earlier_finding("done", "key") is None


def test_a_finished_run_can_be_resumed_from_too(tmp_path):
    folder = RunFolder.begin(tmp_path)
    run = replace(a_run(), findings={"done": finding("done")})
    folder.keep(run["done"], "key")
    folder.close(run)
    again = RunFolder.begin(tmp_path)
    assert again.earlier_finding("done", "key") is not None
    again.release()
    assert RunFolder.begin(tmp_path, fresh=True).earlier_finding("done", "key") is None


def test_table_names_are_file_names(tmp_path):
    bad = replace(finding(), tables={"../x": pl.DataFrame({"a": [1]})})
    with pytest.raises(LensError, match="not a file name"):
        save(replace(a_run(), findings={"focus": bad}), tmp_path)
