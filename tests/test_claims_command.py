"""`headscope claims` as people use it."""

import json

import pytest

from headscope import api
from headscope.cli import main
from headscope.core import verdict_of
from headscope.theory import claims
from headscope.theory.claim_ids import claim_ids


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["claims", *arguments])
    told = capsys.readouterr()
    return int(ended.value.code or 0), told.out, told.err


def test_one_claim_is_explained_with_its_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "W-5.1a")
    assert code == 0
    for text in ("W-5.1a", "refuted (slip)", "Wertich", "Corrected.", "predicted", "measured"):
        assert text in out


def test_json_has_one_object_per_id(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "W-5.1a", "W-5.1b", "--json")
    found = json.loads(out)
    assert code == 0
    assert [one["id"] for one in found] == ["W-5.1a", "W-5.1b"]
    keys = {"id", "verdict", "slip", "stated", "corrected", "measured", "error", "source"}
    assert all(keys <= one.keys() for one in found)
    assert (found[0]["verdict"], found[0]["slip"], found[1]["corrected"]) == ("refuted", True, None)


def test_claims_have_the_formats_of_other_commands(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "W-5.1a,W-5.1b", "--format", "json")
    assert out == run(capsys, "W-5.1a", "W-5.1b", "--json")[1]  # its older name
    _, out, _ = run(capsys, "W-5.1a", "W-5.1b", "--format", "csv")
    header, *rows = out.splitlines()
    assert header.startswith("id,verdict,kind,")
    assert len(rows) == 2
    assert "--json" not in run(capsys, "--help")[1]


def test_ids_in_the_source_are_those_of_the_ledger() -> None:
    assert sorted(claim_ids()) == sorted(name for claim in claims() for name in claim.ids)


def test_a_section_names_all_its_claims(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "W-5.1", "--json")  # an id of its own
    assert [one["id"] for one in json.loads(out)] == ["W-5.1"]
    ids = {one["id"] for one in api.ledger_objects(api.judge_claims(["W-2.4"]), ["W-2.4"])}
    assert ids == {"W-2.4a", "W-2.4b", "W-2.4c", "W-2.4d"}


def test_an_unknown_id_names_those_near_it(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "W-5.1z")
    assert code == 2
    assert "no claim 'W-5.1z'" in err
    assert "near it: W-5.1" in err


def test_a_claim_about_models_is_judged_on_one(tiny) -> None:
    (waiting,) = api.judge_claims(["W-2.4d"]).entries
    assert (waiting.verdict, waiting.evidence) == ("needs a model", None)
    (judged,) = api.judge_claims(["W-2.4d"], model=tiny).entries
    assert judged.evidence is not None
    assert judged.model
    assert judged.verdict == verdict_of(judged.evidence, on_model=True)
    assert judged.reading == f"{judged.verdict} on {judged.model}"
    (printed,) = api.ledger_objects(api.judge_claims(["W-2.4d"], model=tiny), ["W-2.4d"])
    assert (printed["verdict"], printed["kind"]) == (judged.reading, judged.verdict)


def test_every_kind_of_verdict_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "W-5.2n2", "W-7.3d", "W-2.1b", "R-8")
    for text in ("true but empty", "null", "open question", "Answer.", "measured order -1.01", "stated -1", "Needed: "):
        assert text in out, text
    _, out, _ = run(capsys, "W-2.1b", "--json")
    (printed,) = json.loads(out)
    assert (printed["verdict"], printed["trend"]["order"]) == ("approximate", -1.0)
    assert abs(printed["trend"]["fitted"] + 1) < printed["trend"]["uncertainty"]
