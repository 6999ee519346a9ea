"""Every number of the sentences of `spectra`, from planted tables, and the branch of each verdict."""

from statistics import median

import polars as pl
import pytest

from headscope.lenses.spectra.sentences import sentences
from headscope.lenses.spectra.tables import FEED_FORWARD_SCHEMA, SCHEMA
from tests.lenses.stated_numbers import assert_sound, assert_states

# Three heads: effective ranks and their nulls.
RANKS = {"QK": ([10.04, 6.13, 12.2], [14.2, 14.2, 14.3]), "OV": ([13.21, 13.9, 6.88], [14.2, 14.4, 14.4])}
# Three layers of each projection.
PROJECTIONS = {
    "above_edge": {"Q": [5.0, 9.0, 1.0], "V": [1.0, 0.0, 4.0]},
    "energy_above_edge": {"Q": [0.283, 0.488, 0.07], "V": [0.062, 0.0, 0.11]},
    "largest": {"Q": [2.84, 3.48, 1.3], "V": [2.0, 2.35, 2.4]},
    "largest_p_value": {"Q": [0.0, 0.0, 0.004], "V": [0.3, 0.9, 0.02]},
    "bulk_distance": {"Q": [0.11, 0.09, 0.1], "V": [0.05, 0.03, 0.06]},
    "energy_in_spikes": {"Q": [0.5, 0.72, 0.3], "V": [0.1, 0.0, 0.38]},
}
NULLS = {
    "above_edge": 0.1681, "energy_above_edge": 0.0053, "largest": 2.0, "largest_p_value": 0.5, "bulk_distance": 0.02,
    "energy_in_spikes": 0.0061,
}  # fmt: skip
FED = {
    "largest": {"up": [2.5, 2.2], "down": [2.24, 1.9]}, "largest_p_value": {"up": [0.0, 0.01], "down": [0.001, 0.8]},
    "bulk_distance": {"up": [0.044, 0.04], "down": [0.07, 0.06]},
    "energy_in_spikes": {"up": [0.077, 0.05], "down": [0.1, 0.06]},
}  # fmt: skip
TESTS = 6


def head_rows(ranks):
    for matrix, (values, nulls) in ranks.items():
        for head, (value, null) in enumerate(zip(values, nulls, strict=True)):
            yield {"stack": "only", "kind": "self", "layer": 1, "head": head, "matrix": matrix,
                   "quantity": "effective_rank", "value": value, "null": null}  # fmt: skip


def matrix_rows(quantities, nulls=NULLS):
    for quantity, by_matrix in quantities.items():
        for matrix, values in by_matrix.items():
            for layer, value in enumerate(values):
                yield {"stack": "only", "kind": "self", "layer": layer, "matrix": matrix, "quantity": quantity,
                       "value": value, "null": nulls[quantity]}  # fmt: skip


def said(ranks=RANKS, projections=PROJECTIONS, fed=FED, weights="as stored", nulls=NULLS):
    tables = {
        "heads": pl.DataFrame([*head_rows(ranks)], schema=SCHEMA).with_columns(weights=pl.lit(weights)),
        "layers": pl.DataFrame([*matrix_rows(projections, nulls)], schema=SCHEMA),
    }
    if fed is not None:
        tables["feed_forward"] = pl.DataFrame([*matrix_rows(fed, nulls)], schema=FEED_FORWARD_SCHEMA)
    headlines = sentences(tables)
    for headline in headlines:
        assert_sound(headline)
    return headlines


def every(quantities, name):
    return [value for values in quantities[name].values() for value in values]


def ratio(quantities):
    return median(value / NULLS["largest"] for value in every(quantities, "largest"))


def test_ranks_are_stated_next_to_random_ones():
    rank = said()[0]
    assert_states(rank.full, 3, 10.04, 14.2, 13.21, 14.4, 6.13, 6.88)
    assert "the narrowest are L1.H1 with 6.1 and L1.H2 with 6.9" in rank.full
    assert_states(rank.short, 10.04, 14.2)
    assert rank.effect == pytest.approx(1 - 10.04 / 14.2)
    assert "rounding noise" not in rank.full
    noisy = said(weights="expanded from Q4_1")
    assert [headline.full.count("rounding noise included") for headline in noisy] == [1, 1, 1]


def test_ranks_that_nearly_agree_look_different():
    rank = said(ranks=RANKS | {"QK": ([14.19, 14.19, 14.19], [14.21, 14.21, 14.21])})[0]
    assert rank.short.endswith("along 14.19 effective directions; a random head would use 14.21.")


def test_one_head_is_not_the_narrowest():
    rank = said(ranks={name: (values[:1], nulls[:1]) for name, (values, nulls) in RANKS.items()})[0]
    assert rank.full.startswith("The median of 1 head compares")
    assert "narrowest" not in rank.full


def test_values_beyond_the_edge_are_stated_of_one_layer():
    edge = said()[1]
    # Benjamini and Hochberg: 0, 0, 0.004 and 0.02 of six stay below 0.05.
    assert_states(
        edge.full, 5, 28.3, 0.1681, 0.53, 1, 6.2, 0.1681, 0.53, ratio(PROJECTIONS), TESTS, 5, 4, TESTS, 2.5, 5.0
    )  # fmt: skip
    assert (
        "most random in W_V (2.5 times as far from its law as a random matrix) and least in W_Q (5.0 times)"
        in edge.full
    )
    assert "p-value" not in edge.full
    assert_states(edge.short, ratio(PROJECTIONS))
    assert edge.effect == pytest.approx(1 - 1 / ratio(PROJECTIONS))


def test_the_layer_of_the_median_energy_gives_both_numbers():
    """The layer with the median energy has the most values: the median count is of another layer."""
    changed = PROJECTIONS | {"above_edge": {"Q": [40.0, 9.0, 1.0], "V": [1.0, 0.0, 4.0]}}
    assert "is 40, with 28 % of its energy" in said(projections=changed)[1].full


def test_no_value_beyond_chance_is_said_with_the_smallest_p_value():
    changed = PROJECTIONS | {"largest_p_value": {"Q": [0.04, 0.2, 0.3], "V": [0.5, 0.6, 0.9]}}
    edge = said(projections=changed)[1]
    assert "in 0 of 6, where the smallest adjusted p-value is 0.24" in edge.full
    assert_states(edge.short, 0, TESTS, ratio(PROJECTIONS))
    assert edge.short.startswith("0 of 6 projections of attention stretch a direction beyond chance;")
    assert edge.effect == 0


def test_matrices_of_zeros_have_no_strongest_direction():
    nothing = {name: {matrix: [0.0] * 3 for matrix in ("Q", "V")} for name in PROJECTIONS}
    nothing["largest_p_value"] = nothing["bulk_distance"] = {"Q": [None] * 3, "V": [None] * 3}
    edge = said(projections=nothing, nulls=NULLS | {"largest": 0.0}, fed=None)[1]
    assert_states(edge.full, 0, 0, 0.1681, 0.53, 0, 0, 0.1681, 0.53, TESTS, 0)
    assert edge.full.endswith("All 6 projections are 0.")
    assert edge.short == "All 6 projections of attention are 0: they have no strongest direction."
    assert edge.effect is None


def test_feed_forward_matrices_are_stated_next_to_attention():
    fed = said()[2]
    spikes, attention = median(every(FED, "energy_in_spikes")), median(every(PROJECTIONS, "energy_in_spikes"))
    assert_states(fed.full, ratio(FED), 4, 5, 3, 4, 100 * spikes, 0.61, 100 * attention, 2.1, 3.25)
    assert "most random in up (2.1 times as far" in fed.full
    assert "in the median of 4 feed-forward matrices, and beyond chance" in fed.full
    assert_states(fed.short, ratio(FED))
    assert fed.effect == pytest.approx(1 - 1 / ratio(FED))
    silent = FED | {"largest_p_value": {"up": [0.7, 0.8], "down": [0.9, 0.6]}}
    assert said(fed=silent)[2].short.startswith("0 of 4 feed-forward matrices stretch a direction beyond chance;")
    assert len(said(fed=None)) == 2


def test_one_matrix_has_no_other_to_be_compared_with():
    alone = {name: {"up": by_matrix["up"][:1]} for name, by_matrix in FED.items()}
    fed = said(fed=alone)[2]
    assert "in the median of 1 feed-forward matrix, and beyond chance" in fed.full
    assert "in 1 of 1; in the median one" in fed.full
    assert "most random in up (2.2 times as far from its law as a random matrix)." in fed.full
    assert "least" not in fed.full


def test_without_readable_heads_there_is_nothing_to_say():
    assert sentences({}) == ()
