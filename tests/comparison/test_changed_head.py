"""A real model with one changed head against itself: that head is found, and unchanged ones stay at 0."""

import pytest

import headscope as hs

CHANGED = "L1.H3"


@pytest.fixture(scope="module")
def runs():
    model = hs.open("tiny")
    options = {"lenses": ["spectra", "focus", "maps"], "first_tokens": 2048, "window": 256}
    as_is = hs.measure(model, **options)
    again = hs.measure(model, **options)
    with model.edit() as edit:
        edit.map_matrix(CHANGED, "q", lambda _, matrix: 4 * matrix)
        changed = hs.measure(model, **options)
    return as_is, again, changed


def test_the_changed_head_moved_most(runs):
    as_is, _, changed = runs
    comparison = hs.compare(as_is, changed)
    heads = comparison.pairs[0].heads
    assert heads.grid.heads[heads.ranking()[0]].label == CHANGED
    movement = comparison.heads["movement"]
    assert movement[0] > 2 * movement[1]
    assert int(heads.moved_by("exact").sum()) == 1
    assert comparison.pairs[0].largest(1)[0].text.startswith(f"{CHANGED}, W_QK largest singular value: ")


def test_heads_that_the_change_does_not_reach_have_not_moved(runs):
    as_is, _, changed = runs
    table = hs.compare(as_is, changed).heads
    untouched = table.filter((table["layer"] == 0) | ((table["layer"] == 1) & (table["head"] != 3)))
    assert untouched["movement"].to_list() == [0.0] * 15


def test_a_model_against_itself_moves_no_head(runs):
    as_is, again, _ = runs
    comparison = hs.compare(as_is, again)
    assert set(comparison.differences["difference"].drop_nulls()) == {0.0}
    assert comparison.heads["movement"].max() == 0
