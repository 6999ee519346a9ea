"""Every number in the sentences of the lens `alignment`, against tables whose numbers are planted."""

from math import inf, nan

import numpy as np
import polars as pl
import pytest
from scipy import stats

from headscope.lenses.alignment.sentences import sentences
from headscope.lenses.alignment.tables import SCHEMA
from tests.lenses.sentence_checks import assert_says, assert_well_formed

TRACES = ((0.3, 0.0, 0.05), (-0.02, 0.0, 0.04), (-0.4, 0.0, 0.06), (0.01, 0.0, 0.05))
SYMMETRY = ((0.62, 0.51, 0.01), (0.512, 0.51, 0.02), (0.44, 0.51, 0.01), (0.503, 0.51, 0.03))
OVERLAPS = ((0.31, 0.125, 0.02), (0.24, 0.125, 0.03), (0.02, 0.125, 0.01), (0.13, 0.125, 0.01))
LAYERS = ((-39.26, 0.0, 2.0), (1234.6, 0.0, 3.0))


def table(quantities, heads=True, weights="as stored"):
    """Rows of value, null and standard deviation; z where chance has play."""
    rows = [
        {"stack": "only", "kind": "self", "layer": 0 if heads else index, "head": index if heads else None}
        | {"quantity": name, "value": value, "null": null, "sd": sd, "status": "exact", "weights": weights}
        | {"z": (value - null) / sd if value is not None and sd else None}
        for name, numbers in quantities.items()
        for index, (value, null, sd) in enumerate(numbers)
    ]
    return pl.DataFrame(rows, schema=SCHEMA)


def said(traces=TRACES, symmetry=SYMMETRY, overlaps=OVERLAPS, layers=LAYERS, weights="as stored"):
    heads = {"trace": [(0.0 if traces[0][0] is None else 1.0, 0.0, 1.0)] * len(traces), "trace_share": traces}
    tables = {
        "heads": table({**heads, "symmetric_share": symmetry, "subspace_overlap": overlaps}, weights=weights),
        "layers": table({"trace": layers}, heads=False),
    }
    headlines = sentences(tables)
    for headline in headlines:
        assert_well_formed(headline)
    return headlines


def medians(rows):
    return [float(np.median([row[column] for row in rows])) for column in range(3)]


def countable(rows, heads_counted):
    """The distance with which a further head is counted four times in five."""
    level = 0.05 * (heads_counted + 1) / len(rows)
    return (stats.norm.ppf(1 - level / 2) + stats.norm.ppf(0.8)) * medians(rows)[2]


def test_traces_beyond_chance():
    """z is 6, −0.5, −6.7 and 0.2: one head above, one below."""
    headline = said()[0]
    counts = [1, 4, 1, countable(TRACES, 2)]
    assert_says(headline.full, [-0.005, 4, 0, 0.05, -0.4, 0.3, *counts])
    assert "runs from -0.400 in L0.H2 to +0.300 in L0.H0" in headline.full
    assert "1 of 4 heads lies above and 1 below" in headline.full
    assert_says(headline.short, [2, 4, 0.35])
    assert "match or avoid like tokens beyond chance, typically by" in headline.short
    assert headline.effect == pytest.approx(0.7 / 4)
    assert "rounding noise" not in headline.full
    assert "In the weights, rounding noise included, the trace" in said(weights="Q8_0")[0].full


@pytest.mark.parametrize(
    ("sign", "verb", "counts"),
    [(1, "match", "4 of 4 heads lie above and none below"), (-1, "avoid", "None of 4 heads lies above and 4 below")],
)
def test_all_traces_on_one_side(sign, verb, counts):
    headline = said(traces=[(sign * value, 0.0, 0.01) for value in (0.2, 0.3, 0.5, 0.7)])[0]
    assert_says(headline.full, [sign * 0.4, 4, 0, 0.01, *sorted((sign * 0.2, sign * 0.7)), 4, 4])
    assert counts in headline.full
    assert "would be counted" not in headline.full, "no head is left"
    assert f" {verb} like tokens" in headline.short
    assert_says(headline.short, [4, 4, 0.4])
    assert headline.effect == pytest.approx(0.425)


def test_no_trace_beyond_chance():
    traces = [(0.05, 0.0, 0.1), (-0.05, 0.0, 0.1), (0.0, 0.0, 0.1)]
    headline = said(traces=traces)[0]
    assert_says(headline.full, [0, 3, 0, 0.1, -0.05, 0.05, 3, countable(traces, 0)])
    assert "None of 3 heads lies above and none below" in headline.full
    assert_says(headline.short, [countable(traces, 0)])
    assert headline.short.startswith("No head whose weights match or avoid like tokens was detected; ")
    assert headline.effect == 0


def test_the_effect_that_would_be_counted_is_counted_four_times_in_five():
    """A head so far from its null, among three that are at theirs."""
    size = countable([(0.0, 0.0, 1.0)] * 4, 0)
    z = np.random.default_rng(0).normal(size=(4, 2000))
    z[0] += size
    adjusted = np.stack([stats.false_discovery_control(p) for p in 2 * stats.norm.sf(np.abs(z)).T])
    assert (adjusted[:, 0] < 0.05).mean() == pytest.approx(0.8, abs=4 * (0.16 / 2000) ** 0.5)


@pytest.mark.parametrize(
    ("value", "verdict"), [(0.3, "It lies above"), (-0.3, "It lies below"), (0.01, "Chance could")]
)
def test_one_head(value, verdict):
    rows = [(value, 0.0, 0.05)]
    trace, symmetry, overlap = said(rows, [(0.5 + value / 2, 0.5, 0.01)], [(0.4, 0.4, 0.1)], LAYERS[:1])
    limit = [countable(rows, 0)] if verdict.startswith("Chance") else []
    assert_says(trace.full, [value, 0, 0.05, *limit])
    assert "in the only head, L0.H0 (" in trace.full
    assert verdict in trace.full
    assert_says(trace.short, limit or [abs(value)])
    assert limit or "The weights of the only head" in trace.short
    assert "typically" not in trace.short
    share = 100 * (0.5 + value / 2)
    limit = [countable([(0, 0, 1.0)], 0)] if verdict.startswith("Chance") else []
    assert_says(symmetry.full, [share, 50, 1.0, *limit])
    assert verdict in symmetry.full
    assert_says(symmetry.short, limit or [share, 50])
    assert_says(overlap.full, [-39.26, 0, 2, 40, 40, 10, countable([(0, 0, 10)], 0)])
    assert overlap.full.startswith("Summed over the heads of L0, ")
    assert_says(overlap.short, [countable([(0, 0, 10)], 0)])
    assert overlap.effect == 0


def test_symmetry_of_some_heads_and_of_most():
    """z is 11, 0.1, −7 and −0.2: half of the heads, so that the median counts; with one fewer it does not."""
    headline = said()[1]
    points = 100 * countable(SYMMETRY, 2)
    assert_says(headline.full, [4, 50.75, 51, 1.5, 1, 4, 1, points, 62, 44])
    assert "The most symmetric is L0.H0 with 62.0 %, the least L0.H2 with 44.0 %." in headline.full
    assert_says(headline.short, [50.75, 51])
    assert headline.effect == pytest.approx((0.51 - 0.5075) / 0.51)
    fewer = [SYMMETRY[0], SYMMETRY[1], (0.52, 0.51, 0.01), SYMMETRY[3]]
    headline = said(symmetry=fewer)[1]
    assert "1 of 4 heads lies above and none below" in headline.full
    assert headline.short.startswith("1 of 4 heads treats query and key more or less alike than random weights")
    assert_says(headline.short, [1, 4, 11])
    assert headline.effect == 0


def test_a_share_that_differs_from_its_null_is_not_written_like_it():
    headline = said(symmetry=[(0.5104, 0.51, 0.00001)] * 3)[1]
    assert (
        headline.short == "51.04 % of the median head's scoring treats query and key alike; in random weights 51.00 %."
    )


def test_layers_and_overlaps():
    """z is 9, 4, −10.5 and 0.5: three heads."""
    headline = said()[2]
    size, random = np.sqrt((39.26**2 + 1234.6**2) / 2), np.sqrt(13 / 2)
    points = 100 * countable(OVERLAPS, 3)
    assert_says(headline.full, [-39.26, 1234.6, size, random, 4, 18.5, 12.5, 1.5, 2, 4, 1, points])
    assert "from -39.3 in L0 to 1235 in L1" in headline.full
    assert_says(headline.short, [18.5, 12.5])
    assert headline.effect == pytest.approx(0.06 / 0.875)
    chance = said(overlaps=[(0.12, 0.125, 0.01), (0.13, 0.125, 0.01)])[2]
    limit = 100 * countable([(0, 0, 0.01)] * 2, 0)
    assert_says(chance.short, [limit])
    assert chance.short.startswith("No difference from chance in the overlap of queries and keys was detected; ")
    assert_says(chance.full, [-39.26, 1234.6, size, random, 2, 12.5, 12.5, 1, 2, limit])
    some = said(overlaps=[(0.2, 0.125, 0.01), (0.13, 0.125, 0.01), (0.12, 0.125, 0.01)])[2]
    assert some.short.startswith("1 of 3 heads has queries and keys that overlap more or less than at random, by")
    assert_says(some.short, [1, 3, 7.5])


def test_where_chance_has_no_play():
    """Heads as wide as the model read everything, however they are turned."""
    headline = said(overlaps=[(1.0, 1.0, 0.0)] * 4)[2]
    size, random = np.sqrt((39.26**2 + 1234.6**2) / 2), np.sqrt(13 / 2)
    assert_says(headline.full, [-39.26, 1234.6, size, random, 4, 100, 100])
    assert headline.short == "Whatever the weights, heads of this size have 100.0 % overlap of queries and keys."
    assert headline.effect is None


@pytest.mark.parametrize(("heads", "subject"), [(1, "The only head has"), (3, "All 3 heads have")])
def test_forms_that_are_zero(heads, subject):
    nothing = [(None, None, None)] * heads
    trace, layer = said(nothing, nothing, nothing, [(0.0, 0.0, 0.0)] * 2)
    assert trace.full == trace.short == f"{subject} a W_QK of 0."
    assert_says(layer.full, [0, 0, 0, 0])
    assert layer.short == "The traces of 2 layers are 0: no head reads anything."


@pytest.mark.parametrize("bad", [nan, inf])
def test_nothing_is_said_of_what_is_no_number(bad):
    worst = [(bad, bad, bad)] * 2
    assert said(worst, worst, worst, worst) == ()
    assert len(said((*TRACES, *worst), (*SYMMETRY, *worst), (*OVERLAPS, *worst), (*LAYERS, *worst))) == 3
