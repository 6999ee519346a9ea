"""`headscope index` as people use it."""

import json

import pytest

from headscope import api
from headscope.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["index", *arguments])
    told = capsys.readouterr()
    return int(ended.value.code or 0), told.out, told.err


def test_lists_and_filters(capsys):
    code, out, err = run(capsys)
    assert code == 0
    assert out.count("wertich:eq.") == 85
    assert "have a command" in err
    _, out, _ = run(capsys, "conti", "--kind", "figure", "--format", "json")
    found = json.loads(out)
    assert {row["document"] for row in found} == {"conti"}
    assert {row["kind"] for row in found} == {"figure"}
    _, out, _ = run(capsys, "--section", "6.2", "--format", "csv")
    assert out.startswith("id,document,kind,section,title,commands,not_yet,reason,claims,published")
    assert "wertich:eq.6.17" in out
    assert "wertich:eq.6.35" not in out
    _, out, _ = run(capsys, "--missing", "--format", "json")
    assert all(row["reason"] for row in json.loads(out))


def test_tells_one_item_with_published_numbers_and_verdicts(capsys):
    code, out, _ = run(capsys, "wertich:A.20")
    assert code == 0
    for text in ("Squared singular values", "headscope lens spectra MODEL", "0.071", "read off the plot"):
        assert text in out
    _, out, _ = run(capsys, "wertich:eq.5.15", "--format", "json")
    told = json.loads(out)
    assert told["commands"] == ["headscope claims W-5.15"]
    assert told["verdicts"] == [{"claim": "W-5.15", "verdict": api.judge_claims(["W-5.15"]).entries[0].verdict}]
    _, out, _ = run(capsys, "wertich:tab.C.1")
    assert "Not reproduced: it tells how the text was written" in out


def test_draws_ours_beside_the_published_numbers(capsys, tmp_path):
    code, out, err = run(capsys, "wertich:A.22", "--model", "tiny", "--out", str(tmp_path / "o"))
    assert code == 0
    assert "smallest trace of a layer" in out
    assert "the page:" in err
    assert "beside_published" in (tmp_path / "o" / "report.html").read_text(encoding="utf-8")
    shown = api.load(tmp_path / "o")["index"]
    ours = api.measure("tiny", lenses=["alignment"])["alignment"].tables["layers"]
    traces = ours.filter(ours["quantity"] == "trace")["value"]
    assert shown.tables["published"]["ours"].to_list()[:2] == [traces.min(), traces.max()]


def test_runs_the_command_of_an_item_that_no_lens_measures(capsys):
    code, out, err = run(capsys, "wertich:8.1", "--model", "tiny")
    assert code == 0
    assert "headscope look tiny" in err
    assert "heads" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["wertich:A.200"], "near it: wertich:fig.A.20"),
        (["nobody"], "the documents are wertich, conti, bukatin"),
        (["--kind", "drawing"], "the kinds are figure"),
        (["--model", "tiny"], "need an item"),
        (["wertich:A.20", "--out", "x"], "--out needs --model"),
        (["wertich:tab.C.1", "--model", "tiny"], "is not reproduced here: it tells how"),
    ],
)
def test_wrong_arguments_are_explained(capsys, arguments, said):
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert said in err
