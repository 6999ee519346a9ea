"""Differences of heads, by hand: values, intervals, effects, what counts as moved, and the order of heads."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from headscope.comparison.comparison import Comparison
from headscope.comparison.head_differences import effects
from headscope.errors import UsageError
from tests.comparison.made_runs import made_run, text_finding, unknown_finding, weight_finding

BASE, OTHER = [0.1, 0.2, 0.3, 0.4], [0.1, 0.21, 0.3, 0.9]


def compared(base, other):
    return Comparison.of([base, other])


def rows(comparison: Comparison, lens: str) -> pl.DataFrame:
    return comparison.differences.filter(pl.col("lens") == lens)


def test_differences_and_intervals_are_those_of_the_hand():
    comparison = compared(made_run(text_finding(BASE, 0.03)), made_run(text_finding(OTHER, 0.04), name="second"))
    table = rows(comparison, "focus")
    assert table["difference"].to_list() == pytest.approx([0.0, 0.01, 0.0, 0.5])
    # Half-widths of 0.03 and 0.04 add in squares to 0.05.
    assert (table["high"] - table["difference"]).to_list() == pytest.approx([0.05] * 4)
    assert (table["difference"] - table["low"]).to_list() == pytest.approx([0.05] * 4)
    assert table["effect"].to_list() == pytest.approx([0.0, 0.01 / 0.8, 0.0, 0.5 / 0.8])
    assert table["moved"].to_list() == [False, False, False, True]
    assert set(table["certainty"]) == {"interval"}


def test_a_head_whose_interval_contains_0_has_not_moved_however_large_its_effect():
    comparison = compared(made_run(text_finding(BASE, 0.5)), made_run(text_finding(OTHER, 0.5), name="second"))
    assert not rows(comparison, "focus")["moved"].any()
    assert comparison.pairs[0].heads.ranking() == []
    assert comparison.sentences()[0] == "No head moved beyond the error of sampling text."


def test_false_discoveries_are_held_over_all_heads_and_quantities():
    # p is 0.04 for one head of one quantity: alone it counts, among three more quantities of equal heads it does not.
    half = 0.1 / np.sqrt(2)
    base, other = [0.2] * 4, [0.2, 0.2, 0.2, 0.304]
    alone = compared(made_run(text_finding(base, half)), made_run(text_finding(other, half), name="second"))
    row = rows(alone, "focus").row(3, named=True)
    assert row["low"] > 0
    assert 0.03 < row["p"] < 0.05
    assert row["adjusted"] == pytest.approx(4 * row["p"])
    assert not row["moved"]


def test_numbers_from_weights_alone_are_exact():
    comparison = compared(
        made_run(weight_finding([1, 2, 4, 8])), made_run(weight_finding([1, 2, 4, 16]), name="second")
    )
    table = rows(comparison, "spectra")
    assert set(table["certainty"]) == {"exact"}
    assert table["low"].null_count() == 4
    assert table["moved"].to_list() == [False, False, False, True]
    # On a logarithmic scale from 1 to 16 a doubling is a quarter.
    assert table["effect"].to_list() == pytest.approx([0, 0, 0, 0.25])


def test_a_quantity_without_a_stored_error_has_no_interval_and_moves_no_head():
    comparison = compared(made_run(unknown_finding(BASE)), made_run(unknown_finding(OTHER), name="second"))
    table = rows(comparison, "likeness")
    assert set(table["certainty"]) == {"unknown"}
    assert table["low"].null_count() == table["moved"].null_count() == 4
    assert table["difference"].to_list() == pytest.approx([0.0, 0.01, 0.0, 0.5])
    assert comparison.pairs[0].heads.ranking() == []


def test_heads_are_ranked_by_the_mean_over_lenses_of_their_largest_effect():
    base = made_run(text_finding(BASE), weight_finding([1, 2, 4, 8]))
    other = made_run(text_finding([0.1, 0.5, 0.3, 0.9]), weight_finding([16, 2, 4, 8]), name="second")
    heads = compared(base, other).pairs[0].heads
    assert heads.movement == pytest.approx([(0 + 1.0) / 2, 0.3 / 0.8 / 2, 0, 0.5 / 0.8 / 2])
    assert heads.ranking() == [0, 3, 1]


def test_a_run_against_itself_moves_nothing():
    run = made_run(text_finding(BASE), weight_finding([1, 2, 4, 8]), unknown_finding(BASE))
    comparison = compared(run, run)
    assert comparison.differences["difference"].to_list() == [0.0] * 12
    assert not comparison.differences["moved"].any()
    assert comparison.heads["movement"].max() == 0
    assert "both runs have the same weights: their sha256 is equal" in comparison.pairs[0].notes
    assert comparison.labels == ("first (A)", "first (B)")


def test_effects_are_between_0_and_1():
    rng = np.random.default_rng(0)
    base, other = rng.standard_cauchy(50), rng.standard_cauchy(50)
    shares = effects(base, other)
    assert ((shares >= 0) & (shares <= 1)).all()
    assert effects(np.array([1.0, np.nan]), np.array([1.0, 2.0])).tolist()[0] == 0.0
    assert np.isnan(effects(np.array([1.0, np.nan]), np.array([1.0, 2.0]))[1])
    assert effects(np.ones(2), np.ones(2)).tolist() == [0.0, 0.0]


def test_a_quantity_that_means_another_number_in_each_run_is_left_out_with_the_reason():
    base = made_run(text_finding(BASE), weight_finding([1, 2, 4, 8]))
    finding = text_finding(OTHER)
    (quantity,) = finding.quantities
    changed = replace(finding, quantities=(replace(quantity, where={"quantity": "other"}),))
    heads = compared(base, made_run(changed, weight_finding([1, 2, 4, 8]), name="second")).pairs[0].heads
    assert heads.lenses == ("spectra",)
    assert heads.skipped == (
        "focus, mass on the first token: it is another number in each run (quantity first and quantity other)",
    )


def test_runs_without_a_common_lens_are_refused():
    with pytest.raises(UsageError, match=r"no lens in common \(first: focus; second: spectra\)"):
        compared(made_run(text_finding(BASE)), made_run(weight_finding([1, 2, 4, 8]), name="second"))
