"""Comparisons of runs: their notes, shapes, answers, labels, tables, and what they save."""

from dataclasses import replace

import polars as pl
import pytest

import headscope as hs
from headscope.comparison.comparison import Comparison
from headscope.core import Site
from headscope.errors import UsageError
from headscope.store import save
from tests.comparison.made_runs import TEXT, made_run, text_finding, weight_finding

BASE, OTHER = [0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.3, 0.9]


@pytest.fixture
def pair():
    return made_run(text_finding(BASE)), made_run(text_finding(OTHER), name="second")


def test_runs_that_were_measured_alike_have_no_notes(pair):
    comparison = Comparison.of(pair)
    assert comparison.pairs[0].notes == ()
    assert "read the same windows and vary together" in comparison.pairs[0].rule


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"text": replace(TEXT, sha256="c" * 64, name="Moby Dick")}, "different texts: plain English and Moby Dick"),
        ({"text": replace(TEXT, n_windows=4, n_tokens=2048)}, "2048 tokens in 4 windows of up to 512"),
        ({"text": None}, "only one of them read a text"),
        ({"seed": 7}, "their seeds are 0 and 7"),
        ({"versions": {"headscope": "0.2.0"}}, "different versions: headscope 0.1.0 and 0.2.0"),
    ],
)
def test_what_was_measured_differently_is_noted(pair, changes, note):
    base, other = pair
    comparison = Comparison.of((base, replace(other, **changes)))
    (text,) = comparison.pairs[0].notes
    assert note in text


def test_other_settings_and_lenses_are_noted(pair):
    base, other = pair
    changed = replace(text_finding(OTHER), params={"skip": 2})
    both = replace(other, findings={"focus": changed, "spectra": weight_finding([1, 2, 4, 8])})
    assert Comparison.of((base, both)).pairs[0].notes == (
        "the lens focus had another setting: skip None and 2",
        "not in every run, so left out: spectra",
    )


def test_different_shapes_compare_answers_alone(pair):
    base, _ = pair
    other = made_run(text_finding(OTHER), name="wide", heads=3)
    comparison = Comparison.of((base, other))
    assert comparison.pairs[0].heads is None
    assert comparison.pairs[0].obstacle == (
        "their shapes differ, so that heads do not correspond: 2 layers × 2 heads against 2 layers × 3 heads"
    )
    assert comparison.differences.height == 0
    assert comparison.verdicts["model"].to_list() == ["first", "wide"]
    assert "No heads are compared" in comparison.sentences()[0]


def test_an_encoder_decoder_is_another_shape(pair):
    base, other = pair
    sites = tuple(Site("dec", kind, layer, 2, 2, 4, 4, causal=True) for layer in range(2) for kind in ("self", "cross"))
    comparison = Comparison.of((base, replace(other, sites=sites)))
    assert "decoder 2 layers × 2 heads, cross-attention the same" in comparison.pairs[0].obstacle


def test_three_runs_are_compared_with_the_first(pair):
    third = made_run(text_finding([0.1, 0.2, 0.9, 0.4]), name="third")
    comparison = Comparison.of((*pair, third))
    assert [(part.base_label, part.other_label) for part in comparison.pairs] == [
        ("first", "second"), ("first", "third")
    ]  # fmt: skip
    farthest = comparison.heads.group_by("model", maintain_order=True).first()
    assert farthest.select("model", "layer", "head").rows() == [("second", 1, 1), ("third", 1, 0)]


def test_answers_are_side_by_side_with_number_null_and_interval(pair):
    base, other = pair
    failed = replace(text_finding(OTHER), status="not applicable", reason="it has no rows", tables={}, quantities=())
    verdicts = Comparison.of((base, replace(other, findings={"focus": failed}))).verdicts
    assert verdicts.select("model", "status", "answer", "number", "null").rows() == [
        ("first", "ok", "more than uniform", "0.25", "0.10"),
        ("second", "not applicable", "it has no rows", "", ""),
    ]
    assert "95 % interval" in verdicts["sentence"][0]


def test_the_largest_difference_is_a_sentence_with_both_values_and_the_interval(pair):
    (difference,) = Comparison.of(pair).pairs[0].largest(5)
    assert difference.text == (
        "L1.H1, mass on the first token: 40 % → 90 % (+50 points, 95 % interval +47.2 to +52.8)."
    )


def test_it_shows_itself(pair):
    comparison = Comparison.of(pair)
    assert repr(comparison).startswith("comparison of first and second\n  1 of 4 heads moved beyond")
    assert "effect 0.62" in comparison._repr_html_()


def test_it_saves_the_page_and_its_tables_and_the_same_runs_give_the_same_bytes(pair, tmp_path):
    page = Comparison.of(pair).save(tmp_path / "a")
    again = Comparison.of(pair).save(tmp_path / "b")
    assert page == tmp_path / "a" / "compare.html"
    for name in ("compare.html", "differences.parquet", "verdicts.parquet"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert again.is_file()
    assert pl.read_parquet(tmp_path / "a" / "differences.parquet").equals(Comparison.of(pair).differences)


def test_run_folders_are_read_and_restricted_to_the_chosen_lenses(pair, tmp_path):
    for run in pair:
        both = replace(run, findings=run.findings | {"spectra": weight_finding([1, 2, 4, 8])})
        save(both, tmp_path / run.model.name)
    comparison = hs.compare(tmp_path / "first", tmp_path / "second", lenses=["focus"], out=tmp_path / "out")
    assert comparison.lenses == ("focus",)
    assert comparison.labels == ("first", "second")
    assert (tmp_path / "out" / "compare.html").is_file()


def test_runs_of_one_model_are_named_by_their_folders(pair, tmp_path):
    for name in ("before", "after"):
        save(pair[0], tmp_path / name)
    comparison = hs.compare(tmp_path / "before", tmp_path / "after")
    assert comparison.labels == ("first (before)", "first (after)")


def test_a_damaged_run_is_refused_before_a_model_is_measured(pair, tmp_path, monkeypatch):
    save(pair[0], tmp_path / "run")
    (tmp_path / "run" / "tables" / "focus.heads.parquet").write_bytes(b"damaged")
    monkeypatch.setattr("headscope.comparison.measured_runs.measure", lambda *_, **__: pytest.fail("measured"))
    with pytest.raises(UsageError, match="was changed after the run"):
        hs.compare("tiny", tmp_path / "run")


@pytest.mark.parametrize(
    ("sources", "words"),
    [((), "at least two"), (("tiny",), "at least two"), (("tiny", "tiny"), "a model equals itself")],
)
def test_fewer_than_two_and_the_same_twice_are_refused(sources, words):
    with pytest.raises(UsageError, match=words):
        hs.compare(*sources)


def test_the_same_object_twice_is_refused(pair):
    with pytest.raises(UsageError, match="a model equals itself"):
        hs.compare(pair[0], pair[0])
