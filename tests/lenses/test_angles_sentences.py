"""Every number in the sentences of the lens `angles`, against tables whose numbers are planted."""

from math import nan

import polars as pl
import pytest

from headscope.lenses.angles.sentences import sentences
from headscope.lenses.angles.tables import SCHEMAS
from tests.lenses.sentence_checks import assert_says, assert_well_formed, countable, detectable

WINDOWS = 16
RANKS = {  # value, half of its interval, null, correlation given the distance, half of its interval, adjusted p
    "input_rank": [
        (0.42, 0.05, 0.01, 0.33, 0.05, 1e-6),
        (-0.213, 0.011, 0.02, -0.21, 0.04, 1e-4),
        (0.08, 0.1, 0.0, 0.02, 0.06, 0.6),
        (0.11, 0.2, -0.01, -0.05, 0.08, 0.5),
    ],
    "embedding_rank": [(0.05, 0.1, 0.0, 0.01, 0.1, 0.9), (0.15, 0.1, 0.02, 0.07, 0.1, 0.9)],
}
FITS = {  # value, half of its interval, null, standard deviation of the null, slope
    "input_score": [(0.5, 0.1, 0.01, 0.02, 1.5), (-0.3, 0.05, 0.0, 0.04, -3.0), (0.1, 0.2, 0.0, 0.03, 0.5)],
    "input_weight": [(0.2, 0.1, 0.01, 0.01, 0.01), (0.12, 0.1, 0.0, 0.02, 0.02), (0.05, 0.1, 0.02, 0.01, 0.0)],
    "embedding_score": [(0.04, 0.1, 0.0, 0.02, 1.0)],
    "embedding_weight": [(0.07, 0.1, 0.0, 0.02, 1.0)],
}
ARCS = {  # ratio, half of its interval, misfit, sinusoid, line
    "input": [(1.2, 0.1, 0.03, 0.02, 0.011), (1.5, 0.3, 0.05, 0.04, 0.013), (0.9, 0.2, 0.04, 0.03, 0.012)],
    "unit": [(1.003, 0.01, 0.002, 0.5, 0.5), (0.998, 0.03, 0.004, 0.5, 0.5), (1.002, 0.02, 0.003, 0.5, 0.5)],
    "row": [(0.5, 0.7, 0.4, 0.5, 0.5), (0.7, 0.6, 0.3, 0.5, 0.5)],
}


def ends(value, half, *names):
    return dict(zip(names, (None, None) if half is None else (value - half, value + half), strict=True))


def table(name, rows):
    cells = [
        {"stack": "only", "kind": "self", "layer": 0, "head": index, "samples": 99, "windows": WINDOWS} | row
        for index, row in rows
    ]
    return pl.DataFrame(cells, schema=SCHEMAS[name])


def heads_table(ranks=RANKS, fits=FITS, windows=WINDOWS):
    rows = [
        (index, {"quantity": name, "value": value, "null": null, "given_distance": given, "adjusted": p})
        for name, numbers in ranks.items()
        for index, (value, _, null, given, _, p) in enumerate(numbers)
    ]
    halves = [(half, wide) for numbers in ranks.values() for _, half, _, _, wide, _ in numbers]
    rows = [
        (
            index,
            row
            | ends(row["value"], half, "low", "high")
            | ends(row["given_distance"], wide, "given_low", "given_high"),
        )
        for (index, row), (half, wide) in zip(rows, halves, strict=True)
    ]
    rows += [
        (
            index,
            {"quantity": name, "value": value, "null": null, "null_sd": sd, "slope": slope}
            | ends(value, half, "low", "high"),
        )
        for name, numbers in fits.items()
        for index, (value, half, null, sd, slope) in enumerate(numbers)
    ]
    return table("heads", [(index, row | {"windows": windows}) for index, row in rows])


def arcs_table(arcs=ARCS, windows=WINDOWS):
    rows = [
        (
            index,
            {"quantity": name, "ratio": ratio, "law_misfit": misfit, "sinusoid": sinusoid, "line": line}
            | {
                "ratio_low": None if half is None else max(0.0, ratio - half),
                "ratio_high": None if half is None else ratio + half,
            }
            | {"windows": windows},
        )
        for name, numbers in arcs.items()
        for index, (ratio, half, misfit, sinusoid, line) in enumerate(numbers)
    ]
    return table("arcs", rows)


def said(heads=None, arcs=None):
    headlines = sentences(
        {"heads": heads_table() if heads is None else heads} | ({} if arcs is None else {"arcs": arcs})
    )
    for headline in headlines:
        assert_well_formed(headline)
    return headlines


def test_ranks():
    headline = said()[0]
    limit = countable(0.055, WINDOWS, 4, 2)
    numbers = [16, 0.095, 4, 0.005, -0.015, -0.213, -0.224, -0.202, 0.42, 0.37, 0.47, 0.1, 0.01, 0.04, 1, 4, 1, limit]
    assert_says(headline.full, numbers)
    assert "runs from -0.213 (95 % interval -0.224 to -0.202) in L0.H1 to 0.42 (" in headline.full
    assert "1 of 4 heads looks at tokens with similar inputs and 1 away from them" in headline.full
    assert_says(headline.short, [2, 4, 0.27])
    assert "look at, or away from, similar tokens, with a typical rank" in headline.short
    assert headline.effect == pytest.approx((0.33 + 0.21) / 4)


def ranks_of(*rows, embedding=()):
    return heads_table({"input_rank": list(rows), "embedding_rank": list(embedding)}, {})


@pytest.mark.parametrize(
    ("given", "sides", "short"),
    [
        (
            0.3,
            "3 of 3 heads look at tokens with similar inputs and none away",
            "look at similar tokens, with a typical",
        ),
        (-0.3, "none of 3 heads looks at tokens with similar inputs and 3 away", "look away from similar tokens"),
    ],
)
def test_all_heads_on_one_side(given, sides, short):
    (headline,) = said(ranks_of(*[(0.1, 0.02, 0.0, given, 0.1, 0.001)] * 3))
    assert_says(headline.full, [16, 0.1, 3, 0, given, 0.1, 0.08, 0.12, 0.1, 0.08, 0.12, 3, 3])
    assert sides in headline.full
    assert "one more" not in headline.full, "no head is left"
    assert_says(headline.short, [3, 3, 0.3])
    assert short in headline.short
    assert headline.effect == pytest.approx(0.3)


def test_no_preference():
    (headline,) = said(ranks_of((0.1, 0.02, 0.0, 0.01, 0.1, 0.7), (0.2, 0.02, 0.0, 0.02, 0.1, 0.7)))
    limit = countable(0.1, WINDOWS, 2, 0)
    assert_says(headline.full, [16, 0.15, 2, 0, 0.015, 0.1, 0.08, 0.12, 0.2, 0.18, 0.22, 2, limit])
    assert "none of 2 heads looks at tokens with similar inputs and none away from them" in headline.full
    assert headline.short.startswith("No preference for similar tokens beyond distance was detected; ")
    assert_says(headline.short, [limit])
    assert headline.effect == 0


def test_windows_that_could_not_show_a_preference():
    """Two windows: a head would need a correlation beyond 1."""
    (headline,) = said(ranks_of(*[(0.1, 0.05, 0.0, 0.01, 0.2, 0.7)] * 4).with_columns(windows=2))
    assert_says(headline.full, [2, 0.1, 4, 0, 0.01, 0.1, 0.05, 0.15, 0.1, 0.05, 0.15, 4, 2])
    assert "2 windows are too few to count one more" in headline.full
    assert headline.short == "2 windows are too few to detect any preference for similar tokens beyond distance."
    assert headline.effect == 0


def test_ranks_of_one_window():
    (headline,) = said(
        ranks_of((0.1, None, 0.02, 0.03, None, None), (0.3, None, 0.02, 0.03, None, None)).with_columns(windows=1)
    )
    assert_says(headline.full, [1, 0.2, 2, 0.02, 0.03, 0.1, 0.3, 1])
    assert headline.full.endswith("With 1 window no head could be tested given the distance.")
    assert_says(headline.short, [0.2, 0.02])
    assert headline.effect is None


@pytest.mark.parametrize(("p", "verdict"), [(0.001, "the only head looks at"), (0.5, "none of 1 head looks at")])
def test_ranks_of_one_head(p, verdict):
    (headline,) = said(ranks_of((0.1, 0.02, 0.0, 0.2, 0.05, p)))
    limit = countable(0.05, WINDOWS, 1, 0)
    assert_says(headline.full, [16, 0.1, 0.08, 0.12, 0, 0.2, *([] if p < 0.05 else [1, limit])])
    assert verdict in headline.full
    assert " of 0.100 (95 % interval 0.080 to 0.120) in the only head, L0.H0 (shuffled" in headline.full
    assert_says(headline.short, [0.2] if p < 0.05 else [limit])
    assert "typical" not in headline.short
    assert headline.effect == pytest.approx(0.2 if p < 0.05 else 0.0)


def test_what_was_not_measured_is_left_out():
    """No null, no correlation given the distance, no embeddings; numbers that are none."""
    bare = ranks_of((0.1, None, None, None, None, None), (0.3, None, None, None, None, None)).with_columns(windows=1)
    (headline,) = said(bare)
    assert_says(headline.full, [1, 0.2, 2, 0.1, 0.3, 1])
    assert "shuffled" not in headline.full + headline.short
    assert_says(headline.short, [0.2])
    assert said(heads_table().with_columns(value=pl.lit(nan)), arcs_table().with_columns(ratio=pl.lit(nan))) == ()
    assert said(heads_table().with_columns(value=pl.lit(None, pl.Float64))) == ()


def test_linear_fits():
    headline = said()[1]
    assert_says(
        headline.full,
        [16, 9, 0.09, 0.16, 1.44, 0.04, 0.49, 3, 0, 1, 0.5, 2, 3, 25, 16, 36],
    )
    assert "The 95 % intervals of 2 of 3 heads leave the correlation of shuffled tokens out" in headline.full
    assert "The score of L0.H0 is explained best, by 25 %" in headline.full
    assert_says(headline.short, [9, 0.09])
    assert headline.effect == pytest.approx((0.09 - 0.0009) / (1 - 0.0009))


def fits_of(*rows, target="score", windows=WINDOWS):
    return heads_table({}, {f"input_{target}": list(rows)}, windows)


def test_weights_where_no_scores_are_shown():
    (headline,) = said(fits_of((0.2, 0.1, 0.0, 0.02, None), target="weight"))
    assert_says(headline.full, [16, 4, 0.04, 4, 1, 9])
    assert "changes" not in headline.full
    assert "The 95 % interval of the only head leaves the correlation of shuffled tokens out" in headline.full
    assert "score" not in headline.full
    assert_says(headline.short, [4, 0.04])
    assert "their weight's variance" in headline.short


def test_fits_that_no_head_shows():
    (headline,) = said(fits_of((0.05, 0.1, 0.0, 0.02, 2.0), (-0.04, 0.06, 0.0, 0.02, 1.0)))
    limit = 100 * detectable(0.08, WINDOWS) ** 2
    assert_says(headline.full, [16, 0.205, 0.04, 2, 0, 1, 1.5, 2, 0.25, 0, 2.25])
    assert "The 95 % interval of none of 2 heads leaves" in headline.full
    assert headline.short.startswith("No part of the score's variance explained by the tokens' angle was detected; ")
    assert_says(headline.short, [limit])
    assert headline.effect == 0


def test_fits_that_few_heads_show():
    (headline,) = said(fits_of((0.5, 0.1, 0.0, 0.02, 2.0), (0.04, 0.06, 0.0, 0.02, 1.0), (0.05, 0.06, 0.0, 0.02, 1.0)))
    assert headline.short.startswith("In 1 of 3 heads the tokens' angle explains part of the score's variance")
    assert_says(headline.short, [1, 3])
    assert headline.effect == 0


def test_fits_that_two_windows_cannot_show():
    (headline,) = said(fits_of((0.05, 0.95, 0.0, 0.02, 2.0), windows=2))
    assert headline.short.startswith("2 windows are too few to detect any part of the score's variance")


@pytest.mark.parametrize(("sd", "null"), [(0.02, [0.04]), (None, [])])
def test_fits_of_one_window(sd, null):
    """Without a measured null none is written, least of all 0."""
    (headline,) = said(fits_of((0.2, None, 0.0, sd, 2.0), windows=1))
    assert_says(headline.full, [1, 4, *null, 0, 1, 2.0, 4])
    assert_says(headline.short, [4, *null])
    assert ("shuffled" in headline.full) == bool(null)
    assert headline.effect is None


def test_arcs():
    headline = said(arcs=arcs_table())[2]
    # Of layers at length 1 and of rows fewer than half leave 1 out; ratios of rows end at 0, so upper halves count.
    unit, row = 100 * detectable(0.02, WINDOWS), 100 * detectable(0.65, WINDOWS)
    inputs = [1.2, 3, 2, 3, 1, 16, 4]
    units = [1, 1.002, 3, 3, 1, unit, 16, 0.3]
    rows = [0.6, 2, 2, 1, row, 16, 35]
    assert_says(headline.full, [*inputs, *units, *rows, 3, 1.2])
    assert "the intervals of 2 of 3 layers leave 1 out" in headline.full
    assert "the interval of none of 3 layers leaves 1 out" in headline.full
    assert "the interval of none of 2 heads leaves 1 out" in headline.full
    assert_says(headline.short, [1.2])
    assert headline.effect == pytest.approx(1 - 1 / 1.2)


def arcs_of(*rows, name="input", windows=WINDOWS):
    return said(arcs=arcs_table({name: list(rows)}, windows))[2]


def test_arcs_that_follow_the_law():
    headline = arcs_of((1.01, 0.1, 0.03, 0.02, 0.011), (0.98, 0.1, 0.03, 0.02, 0.011))
    limit = 100 * detectable(0.1, WINDOWS)
    assert_says(headline.full, [0.995, 2, 2, 1, limit, 16, 3, 2, 1.1])
    assert headline.short.startswith("No departure from the law of divergence along arcs was detected; ")
    assert_says(headline.short, [limit])
    assert headline.effect == 0


def test_arcs_of_which_few_depart():
    headline = arcs_of((1.5, 0.1, 0.03, None, None), (1.02, 0.1, 0.03, None, None), (0.98, 0.1, 0.03, None, None))
    assert_says(headline.full, [1.02, 3, 1, 3, 1, 100 * detectable(0.1, WINDOWS), 16, 3])
    assert "sinusoid" not in headline.full
    assert headline.short.startswith("In 1 of 3 layers softmaxes between inputs depart from the law")
    assert_says(headline.short, [1, 3])
    assert headline.effect == 0


def test_arcs_of_one_window_and_one_layer():
    headline = arcs_of((0.97, None, 0.03, 0.02, 0.011), windows=1)
    assert_says(headline.full, [0.97, 1, 3, 2, 1.1])
    assert "in the only layer (no interval; 1 window)" in headline.full
    assert_says(headline.short, [0.97])
    assert headline.effect is None


def test_rows_where_no_inputs_were_measured():
    headline = arcs_of((0.25, 0.1, None, None, None), name="row")
    assert_says(headline.full, [0.25, 1, 16])
    assert "attention rows diverge 0.25 times" in headline.full
    assert "the interval of the only head leaves 1 out" in headline.full
    assert headline.short.startswith("Between attention rows, softmaxes diverge 0.25 times as much as the law")


def test_a_ratio_near_one_or_zero():
    """Told from 1 by as many decimals as it takes; what is almost nothing is not written as 0."""
    near = arcs_of((1.0021, 0.001, 0.03, None, None))
    assert_says(near.short, [1.0021])
    assert "1.002 times" in near.full
    tiny = arcs_of((1e-7, 1e-8, 1.0, None, None))
    assert "diverge less than 0.01 times" in tiny.full
    assert "diverge less than 0.01 times" in tiny.short
    assert tiny.effect == pytest.approx(1.0)
