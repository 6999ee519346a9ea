"""`headscope compare`: what it writes, what it refuses, and what it measures only once."""

import json
from dataclasses import replace

import polars as pl
import pytest

from headscope.cli import main
from headscope.store import save
from tests.comparison.made_runs import made_run, text_finding

BASE, OTHER = [0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.3, 0.9]


@pytest.fixture
def call(capfd, monkeypatch):
    """Run a command in this process: exit code, standard output, standard error."""
    monkeypatch.setenv("COLUMNS", "100")

    def call_main(*words):
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        out, err = capfd.readouterr()
        return ended.value.code or 0, out, err

    return call_main


@pytest.fixture
def folders(tmp_path):
    """Two run folders and a place for the page."""
    save(made_run(text_finding(BASE)), tmp_path / "before")
    save(made_run(text_finding(OTHER), name="second"), tmp_path / "after")
    return tmp_path / "before", tmp_path / "after", tmp_path / "out"


def test_the_summary_has_the_largest_differences_and_the_path_of_the_page(call, folders):
    before, after, out = folders
    code, said, complaints = call("compare", before, after, "--out", out)
    assert code == 0
    assert said.splitlines() == [
        "• 1 of 4 heads moved beyond the error of sampling text.",
        "• L1.H1, mass on the first token: 40 % → 90 % (+50 points, 95 % interval +47.2 to +52.8).",
        "",
        f"The page: {out / 'compare.html'}",
    ]
    assert "error" not in complaints
    assert (out / "compare.html").is_file()


def test_json_holds_everything(call, folders):
    before, after, out = folders
    code, said, _ = call("compare", before, after, "--out", out, "--format", "json")
    found = json.loads(said)
    assert code == 0
    assert found["models"] == ["first", "second"]
    assert found["pairs"][0]["why_no_heads"] is None
    assert [row["moved"] for row in found["differences"]] == [False, False, False, True]
    assert found["heads"][0]["head"] == 1
    assert found["verdicts"][0]["answer"] == "more than uniform"


def test_csv_holds_the_differences(call, folders):
    before, after, out = folders
    _, said, complaints = call("compare", before, after, "--out", out, "--format", "csv")
    assert pl.read_csv(said.encode())["difference"].to_list() == pytest.approx([0, 0, 0, 0.5])
    assert "the page: " in complaints


def test_what_was_measured_differently_is_said(call, folders):
    before, after, out = folders
    save(made_run(text_finding(OTHER), name="second", seed=3), after)
    _, _, complaints = call("compare", before, after, "--out", out)
    assert "first and second: their seeds are 0 and 3" in complaints


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["tiny"], 2, "compare needs at least two, 1 was named"),
        (["tiny", "tiny"], 2, "tiny is named twice, and a model equals itself"),
        (["{before}", "{before}/"], 2, "is named twice, and a model equals itself"),
        (["tiny", "nothing-of-this-name"], 2, "no model is called 'nothing-of-this-name'"),
        (["tiny", "./nothing-here"], 3, "there is no file or folder './nothing-here'"),
        (["tiny", "{unfinished}"], 2, "holds no finished run"),
        (["tiny", "{before}", "--lens", "fokus"], 2, "there is no lens 'fokus'"),
        (["tiny", "{before}", "--text", "nothing-of-this-name"], 2, "nothing-of-this-name"),
        (["tiny", "{before}", "--out", "{before}/manifest.json"], 2, "is a file, expected a folder"),
        (["tiny", "{before}", "--first-tokens", "9", "--all"], 2, "ask for one of the two"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_measured(
    call, folders, tmp_path, monkeypatch, words, code, complaint
):
    monkeypatch.setattr("headscope.comparison.measured_runs.measure", lambda *_, **__: pytest.fail("measured"))
    unfinished = tmp_path / "unfinished"
    save(made_run(text_finding(BASE)), unfinished)
    (unfinished / "manifest.json").unlink()
    places = {"before": folders[0], "unfinished": unfinished}
    ended, _, complaints = call("compare", *(word.format(**places) for word in words))
    assert ended == code
    assert complaint in complaints


def test_runs_without_a_common_lens_are_refused(call, folders):
    before, after, out = folders
    save(made_run(text_finding(OTHER, lens="other"), name="second"), after)
    code, _, complaints = call("compare", before, after, "--out", out)
    assert code == 2
    assert "the runs have no lens in common (first: focus; second: other)" in complaints


def test_a_failed_lens_is_said_and_ends_with_its_exit_code(call, folders):
    before, after, out = folders
    failed = replace(text_finding(OTHER), status="failed", reason="it broke", tables={}, quantities=(), headlines=())
    save(made_run(failed, name="second"), after)
    code, _, complaints = call("compare", before, after, "--out", out)
    assert code == 4
    assert "the lens failed: focus on second" in complaints
    assert "it broke" in (out / "compare.html").read_text(encoding="utf-8")


def test_models_are_kept_in_run_folders_and_measured_once(call, tmp_path):
    words = ("compare", "tiny", "random:tiny", "--lens", "spectra", "--out", tmp_path / "out")
    code, first, _ = call(*words)
    assert code == 0
    assert "The weights of 32 of 32 heads differ." in first
    journal = (tmp_path / "out" / "tiny" / "run.json").read_text()
    page = (tmp_path / "out" / "compare.html").read_bytes()
    _, again, _ = call(*words)
    written = [json.loads(text)["findings"]["spectra"]["written"] for text in (
        journal, (tmp_path / "out" / "tiny" / "run.json").read_text()
    )]  # fmt: skip
    assert again == first
    assert written[0] == written[1]
    assert (tmp_path / "out" / "compare.html").read_bytes() == page
