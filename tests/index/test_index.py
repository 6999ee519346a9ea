"""The index is complete, every item has a command or a reason, and every command is one that headscope takes."""

import re

import numpy as np
import polars as pl
import pytest

from headscope import api
from headscope.cli.command_lookup import lacking, parse
from headscope.cli.index_command import rows, ways_of
from headscope.core import About, Finding
from headscope.errors import UsageError
from headscope.theory import claims
from headscope.theory.index import Item, Step, Way, document_of, documents, item_named, items, ways, why_not
from headscope.theory.index.item import numbered, steps
from headscope.theory.index.page import page, published_table
from headscope.theory.ledger import meant_ids

ITEMS = items()
LABELS = {one.name: {item.label for item in one.items} for one in documents()}
# What may be missing; anything else is a slip of the pen.
PLANNED = {
    "lens transport",
    *(
        f"command {name}"
        for name in ("intervene", "study", "study fewshot", "study translation", "study linear-systems", "swap")
    ),
    "feed-forward in lens spectra",
}


def spans(prefix: str, *ranges: tuple[str, int, int]) -> set[str]:
    return {f"{prefix}.{chapter}{n}" for chapter, first, last in ranges for n in range(first, last + 1)}


def test_every_numbered_thing_is_listed():
    thesis = LABELS["wertich"]
    assert spans("fig", ("2.", 1, 4), ("5.", 1, 1), ("8.", 1, 9), ("A.", 1, 22)) <= thesis
    assert spans("tab", ("8.", 1, 1), ("A.", 1, 3), ("C.", 1, 1)) <= thesis
    formulas = spans("eq", ("4.", 1, 2), ("5.", 1, 21), ("6.", 1, 49), ("B.", 1, 13))
    assert {label for label in thesis if label.startswith("eq.")} == formulas
    notes = LABELS["conti"]
    assert spans("fig", ("", 1, 10)) | {"tab.1"} | spans("q", ("", 1, 4)) <= notes
    assert {label for label in notes if label.startswith("eq.")} == spans("eq", ("", 1, 17))
    assert spans("slide", ("", 4, 6), ("", 16, 17)) <= LABELS["bukatin"]


def test_ids_are_unique_and_titles_are_short():
    assert len({item.id for item in ITEMS}) == len(ITEMS)
    for item in ITEMS:
        assert 5 <= len(item.title) <= 100, item.id
        assert document_of(item).name == item.document


def test_every_item_has_a_command_or_a_reason():
    for item, row in zip(ITEMS, rows(ITEMS), strict=True):
        assert bool(item.steps) != bool(item.reason), f"{item.id} must have steps, or a reason to have none"
        assert row["commands"] or row["reason"], item.id
        assert row["reason"] or any(not way.lacks for way in ways_of(item)), item.id


def test_every_command_is_one_that_headscope_takes():
    for item in ITEMS:
        for step in item.steps:
            if not lacking(step.words, step.mentions):
                parse(step.on("tiny").words)


def test_what_is_missing_is_planned():
    missing = {lacking(step.words, step.mentions) for item in ITEMS for step in item.steps}
    assert missing <= PLANNED | {""}, missing - PLANNED


def test_every_claim_exists_and_every_claim_is_named():
    named = meant_ids(sorted({name for item in ITEMS for name in item.claims}))
    assert named == {name for claim in claims() for name in claim.ids}
    assert all(step.claims for item in ITEMS for step in item.steps if step.words[0] == "claims")


def test_a_formula_names_the_claims_that_are_about_it():
    """The sections of the ledger say which numbers a claim is about."""
    for claim in claims():
        where = claim.source.section
        about = re.findall(r"(?<!after )(?<!before )\(([456B])\.(\d+)\)(?: to \([456B]\.(\d+)\))?", where)
        for chapter, first, last in about:
            labels = [f"{chapter}.{n}" for n in range(int(first), int(last or first) + 1)]
            named = {name for label in labels for name in item_named(f"wertich:eq.{label}").claims}
            assert named & set(claim.ids), f"{claim.ids} is about {labels}, which name {named}"


def test_mechanisms_exist():
    for item in ITEMS:
        for step in item.steps:
            if step.words[0] == "mechanisms":
                given = parse(step.words)
                assert api.mechanism_named(given["name"]) if given["name"] else api.spelled(given["draw"])


def test_words_of_the_few_shot_study_are_in_its_data():
    clues = pytest.importorskip("headscope.corpora.crossword_clues")
    animals = clues.category_named("animals")
    for item in ITEMS:
        for step in item.steps:
            if step.words[:2] == ("study", "fewshot") and "--word" in step.words:
                assert animals.clue_of(step.words[step.words.index("--word") + 1])


def test_an_item_turns_into_a_command_when_its_lens_appears():
    item = Item("wertich", "fig.0", "figure", "0", "A picture", steps("lens sundial MODEL", "claims W-5.1a"))
    known = ways(item, lambda step: lacking(step.words))
    assert why_not(item, known) == "not yet: lens sundial"  # the claim is judged, but is no picture
    assert why_not(item, ways(item, lambda _step: "")) == ""
    assert lacking(("lens", "spectra", "MODEL"), "sundials") == "sundials in lens spectra"
    assert lacking(("tell", "MODEL")) == "command tell"
    assert lacking(("bench",)) == "command bench"  # a group is no command


def test_what_can_never_be_tested_is_not_promised():
    (item,) = numbered("bukatin", "statement", "slide", [("0", "x", "An opinion", "B-27")])
    (way,) = ways(item, lambda _step: "")
    assert way.is_final
    assert why_not(item, (way,)) == way.lacks
    assert why_not(item, (way, Way(Step.of("swap MODEL"), "command swap"))).startswith("not yet: command swap; ")


def test_a_model_that_is_fresh_already_stays_so():
    step = Step.of("lens spectra random:MODEL")
    assert step.on("tiny").words[-1] == "random:tiny"
    assert step.on("random:tiny").words[-1] == "random:tiny"
    assert Step.of("claims W-2.4d --model MODEL").on("a b").words[-1] == "a b"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("wertich:A.20", "wertich:fig.A.20"),
        ("wertich:A.1", "wertich:fig.A.1"),
        ("wertich:5.12", "wertich:eq.5.12"),
        ("wertich:5.1", "wertich:fig.5.1"),
        ("wertich:C.1", "wertich:tab.C.1"),
        ("conti:fig.3", "conti:fig.3"),
        ("bukatin:16", "bukatin:slide.16"),
    ],
)
def test_a_number_without_its_kind_is_understood(name, meant):
    assert item_named(name).id == meant


def test_an_unknown_item_names_the_nearest():
    with pytest.raises(UsageError) as raised:
        item_named("wertich:A.200")
    assert "wertich:fig.A.20" in raised.value.hint
    with pytest.raises(UsageError) as raised:
        items("wertig")
    assert "wertich" in raised.value.hint


def planted(sizes: dict[str, list[float]], traces: list[float]) -> dict[str, Finding]:
    """Findings of a model with two stacks whose first one has these numbers in its layers."""
    about = About("x", "Is it so?", "Defined.", (), "Read.", "Somewhere.")
    place = {"kind": "self", "head": None}

    def row(stack, layer, value, **more):
        return {"stack": stack, "layer": layer, "value": value, **place, **more}

    spectra = [
        row("enc", layer, value, matrix=matrix, quantity=quantity, initial=1.0)
        for quantity in ("mean_square", "largest", "smallest")
        for matrix, values in sizes.items()
        for layer, value in enumerate(values)
    ]
    spectra += [row("dec", 0, 99.0, matrix=m, quantity="mean_square", initial=1.0) for m in sizes]
    alignment = [row("enc", layer, value, quantity="trace", sd=2.0) for layer, value in enumerate(traces)]
    found = {"spectra": spectra, "alignment": alignment}
    return {lens: Finding(lens, about, tables={"layers": pl.DataFrame(table)}) for lens, table in found.items()}


def test_published_numbers_stand_beside_ours():
    found = planted({"Q": [3.0, 4.0], "K": [5.0, 7.0, 6.0], "V": [8.0, 9.0]}, [1.0, -2.0, 4.0])
    shown = page(item_named("wertich:A.20"), found, model="toy")
    table = shown.tables["published"]
    assert table["ours"].to_list() == [3.0, 4.0, 5.0, 7.0, 6.0, 8.0, 9.0, 9.0, 25.0, 64.0]
    assert table["published"].to_list()[:2] == [0.071, 0.039]
    assert table["error"][0] == pytest.approx(0.05 * 0.071)
    assert table["predicted"][0] == pytest.approx(4096 * 0.02**2)
    assert "3 here (toy)" in shown.headlines[0].full
    (beside,) = (figure for figure in shown.figures if figure.name == "beside_published")
    drawn = {series.label: series for series in beside.series}
    assert np.allclose(drawn["W_K here"].x, [0, 0.5, 1])
    assert np.allclose(drawn["W_K here"].y, [5, 7, 6])
    assert np.allclose(drawn["W_K published"].y, [0.079, 0.135, 0.044])

    traces = page(item_named("wertich:A.22"), found).tables["published"]
    assert traces["ours"].to_list() == pytest.approx([-2.0, 4.0, 6.0])
    assert traces["ours_predicted"].to_list() == [None, None, 4.0]


def test_the_published_spectrum_is_that_of_a_random_matrix():
    """What was read off the plot of fresh weights agrees with Marchenko–Pastur within the error of reading."""
    table = published_table(item_named("wertich:A.19"))
    for row in table.iter_rows(named=True):
        assert abs(row["published"] - row["predicted"]) <= row["error"]
    assert table["predicted"].to_list() == pytest.approx([0.4096, 3.6864])


def test_a_lens_that_does_not_apply_says_so():
    found = planted({"Q": [1.0], "K": [1.0], "V": [1.0]}, [1.0])["spectra"]
    gone = Finding("spectra", found.about, status="not applicable", reason="no weights")
    shown = page(item_named("wertich:A.20"), {"spectra": gone})
    assert (shown.status, shown.reason, shown.tables) == ("not applicable", "no weights", {})
    with pytest.raises(UsageError, match="not shown by any of"):
        page(item_named("wertich:A.22"), {"spectra": found})


def test_items_of_lenses_that_exist_are_drawn(tiny):
    """A lens draws the figures that an item names."""
    run = api.measure(tiny, lenses=["spectra", "alignment"])
    for label in ("A.19", "A.20", "A.22"):
        item = item_named(f"wertich:{label}")
        shown = page(item, run.findings)
        assert set(item.figures) & {figure.name for figure in shown.figures}, item.id
        assert shown.tables["published"]["ours"].null_count() == 0
