"""Every number in the sentences of the lens `gaussian`, against tables whose numbers are planted."""

from math import nan

import polars as pl
import pytest

from headscope.lenses.gaussian.sentences import sentences
from headscope.lenses.gaussian.tables import SCHEMAS
from tests.lenses.sentence_checks import assert_says, assert_well_formed, detectable

WINDOWS = 10


def table(name, rows, windows):
    place = {"stack": "only", "kind": "self", "layer": 0, "samples": 99, "windows": windows}
    cells = [{key: value for key, value in (place | row).items() if key in SCHEMAS[name]} for row in rows]
    return pl.DataFrame(cells, schema=SCHEMAS[name])


def around(value, half, null=0.0):
    ends = {"low": None, "high": None} if half is None else {"low": value - half, "high": value + half}
    return {"value": value, "null": null} | ends


def kurtosis(*values, dimensions=64):
    """One row for each layer: value and half of its interval."""
    return [
        {"layer": layer, "quantity": "relative_kurtosis", "dimensions": dimensions} | around(*numbers)
        for layer, numbers in enumerate(values)
    ]


def said(components=(), layers=(), information=(), joint=(), windows=WINDOWS):
    rows = {"components": components, "layers": layers, "information": information, "joint": joint}
    headlines = sentences({name: table(name, part, windows) for name, part in rows.items()})
    for headline in headlines:
        assert_well_formed(headline)
    return headlines


@pytest.mark.parametrize(("sign", "kind", "side"), [(1, "heavier", "higher"), (-1, "lighter", "lower")])
def test_tails_of_most_layers(sign, kind, side):
    many = kurtosis((sign * 0.21, 0.04), (sign * 0.15, 0.05), (sign * 0.4, 0.6))
    few = [*kurtosis((0.05, 0.09), dimensions=8), *kurtosis((0.07, 0.1), dimensions=4)]
    (headline,) = said([*many, *few])
    middle = [sign * 21, *sorted((sign * 17, sign * 25))]
    ends = sorted((sign * 15, sign * 40))
    sides = [2, 3, 0] if sign > 0 else [3, 0, 2]
    assert_says(headline.full, [5, -4, 14, 8, *middle, 64, 10, 64, *ends, *sides])
    assert headline.full.startswith(f"Residual streams have {kind} tails than a Gaussian: in the median layer, L0, ")
    counts = "2 of 3 layers lie above 0 and none below" if sign > 0 else "none of 3 layers lies above 0 and 2 below"
    assert counts in headline.full
    assert_says(headline.short, [21])
    assert f"{kind} tails than a Gaussian: their kurtosis is 21 % {side}" in headline.short
    assert headline.effect == pytest.approx(1 - 1 / 1.21 if sign > 0 else 0.21)


def test_the_fewest_components_where_eight_were_not_measured():
    (headline,) = said(
        [*kurtosis((0.5, 0.1)), *kurtosis((0.07, 0.1), dimensions=4), *kurtosis((0.2, 0.1), dimensions=1)]
    )
    assert_says(headline.full, [20, 10, 30, 1, 50, 40, 60, 64, 10, 64, 0])
    assert "in the only layer, L0, " in headline.full
    assert "(95 % interval +10 % to +30 %) in 1 principal component and by" in headline.full
    assert "In 64 components the only layer lies above 0 and none below" in headline.full


def test_a_layer_of_one_stack_of_two():
    (headline,) = said([row | {"stack": "enc"} for row in kurtosis((0.3, 0.1))])
    assert "in the only layer, enc.L0, " in headline.full


def test_tails_of_some_layers():
    (headline,) = said(kurtosis((0.3, 0.1), (0.05, 0.1), (0.02, 0.1), (-0.3, 0.1)))
    assert_says(headline.full, [2, 4, 5, -5, 15, 64, 10, 64, -30, 30, 1, 4, 0, 1])
    assert headline.full.startswith("Tails unlike a Gaussian's were detected in 2 of 4 residual streams: ")
    assert "1 of 4 layers lies above 0 and 1 below" in headline.full
    assert headline.short == "Tails unlike a Gaussian's were detected in 2 of 4 layers; chance gives one in twenty."
    assert headline.effect == 0


def test_tails_of_no_layer():
    (headline,) = said(kurtosis((0.05, 0.1), (0.02, 0.12)))
    limit = 100 * detectable(0.11, WINDOWS)
    assert_says(headline.full, [5, -5, 15, 64, 10, 64, 2, 5, 2, 0, limit])
    assert headline.full.startswith("No tails unlike a Gaussian's were detected: ")
    assert "none of 2 layers lies above 0 and none below" in headline.full
    assert headline.short.startswith("No difference of token vectors from Gaussian tails was detected; ")
    assert_says(headline.short, [limit])
    assert headline.effect == 0


def test_tails_of_one_window():
    (headline,) = said(kurtosis((0.05, None), (0.02, None)), windows=1)
    assert_says(headline.full, [5, 64, 1, 64, 2, 5])
    assert headline.full.startswith("One window cannot tell the tails of residual streams from those of a Gaussian: ")
    assert "detected" not in headline.full
    assert_says(headline.short, [5])
    assert headline.short.endswith("one window cannot test it.")
    assert headline.effect is None
    (lone,) = said(kurtosis((-0.05, None)), windows=2)
    assert_says(lone.full, [2, -5, 64, 2])
    assert lone.full.startswith("2 windows cannot tell")


def dimensions(*values, name="effective_dimension"):
    """One row for each layer: value, half of its interval, null."""
    return [
        {"layer": layer, "quantity": name, "dimensions": 128} | around(*numbers) for layer, numbers in enumerate(values)
    ]


def test_dimensions():
    layers = dimensions((38.7, 1.1, 127.0), (10.92, 0.21, 126.4), (28.5, 2.0, 126.8))
    entropy = dimensions((100.0, 1.0, 147.36), (120.0, 1.0, 140.48), (80.0, 1.0, 150.4), name="entropy_nats")
    first = dimensions((0.05, None, 0.004), (0.976, None, 0.004), name="first_share")
    (headline,) = said(layers=[*layers, *entropy, *first])
    assert_says(headline.full, [10.92, 10.71, 11.13, 38.7, 37.6, 39.8, 128, 126.4, 10, 0.37, 97.6, 0.4])
    assert (
        "runs from 10.92 (95 % interval 10.71 to 11.13) in L1 to 38.7 (95 % interval 37.6 to 39.8) in L0"
        in headline.full
    )
    assert "0.37 nats per dimension below that of the isotropic" in headline.full
    assert "would be 98 % of the variance in L1; they are 0.40 % of the rows" in headline.full
    assert_says(headline.short, [28.5, 128, 126.8])
    assert headline.effect == pytest.approx(1 - 28.5 / 126.8)


def test_dimensions_of_one_layer():
    entropy = dimensions((160.0, 1.0, 147.2), name="entropy_nats")
    first = dimensions((0.12, None, 0.07), name="first_share")
    (headline,) = said(layers=[*dimensions((28.5, 2.0, 126.8)), *entropy, *first])
    assert_says(headline.full, [28.5, 26.5, 30.5, 128, 126.8, 10, 0.1])
    assert "is 28.5 (95 % interval 26.5 to 30.5) in L0, of 128" in headline.full
    assert "The entropy of the only layer lies 0.10 nats per dimension above" in headline.full
    assert "first tokens" not in headline.full, "their share is less than twice that of their rows"


def test_dimensions_as_of_random_vectors():
    """The interval was cut off at the number of dimensions: its lower side tells what would be detected."""
    row = dimensions((120.0, 20.0, 126.0))[0] | {"high": 128.0}
    (headline,) = said(layers=[row])
    limit = detectable(20.0, WINDOWS)
    assert_says(headline.full, [120, 100, 128, 128, 126, 10])
    assert_says(headline.short, [limit])
    assert headline.short.startswith("No narrowing of token vectors in the median layer was detected; ")
    assert headline.short.endswith("dimensions fewer would have been.")
    assert headline.effect == 0
    (hopeless,) = said(layers=dimensions((100.0, 120.0, 126.0)), windows=2)
    assert hopeless.short == "2 windows are too few to detect any narrowing of token vectors in the median layer."


def test_dimensions_of_one_window():
    (headline,) = said(layers=dimensions((19.4, None, 41.5), (8.02, None, 41.6)), windows=1)
    assert_says(headline.full, [8.02, 19.4, 128, 41.6, 1])
    assert_says(headline.short, [19.4, 128, 41.5])
    assert headline.short.endswith("random vectors 41.5; one window cannot test it.")
    assert headline.effect is None


def information(*values, layer=0, dims=8, distances=(1, 2, 4, 8)):
    """One row for each distance: value, half of its interval, null."""
    return [
        {"layer": layer, "distance": distance, "dimensions": dims} | around(*numbers)
        for distance, numbers in zip(distances, values, strict=False)
    ]


CURVE = information((0.892, 0.03, 0.0022), (0.5, 0.1, 0.002), (0.05, 0.1, 0.002), (0.02, 0.01, 0.002))
HALF_CORRELATED = (1 - 2.718281828459045 ** (-2 * 0.892 / 8)) ** 0.5


def test_information():
    further = [
        {"quantity": "information_nats", "distance": 1, "dimensions": dims} | around(value, 0.1)
        for dims, value in ((4, 0.49), (8, 0.89), (16, 1.7), (32, 3.41))
    ]
    joint = [{"quantity": "last_token_nats", "tokens": 4, "dimensions": 7} | around(0.94, 0.026, 0.1)]
    (headline,) = said(components=further, information=CURVE, joint=joint)
    near = [8, 1, 0.892, 0.862, 0.922, 10, 0.0022]
    reach = [0, 2, 4, 0.05, -0.05, 0.15]
    assert_says(headline.full, [*near, 0.49, 4, 3.41, 32, *reach, -1.0, 7, 0.94, 0.914, 0.966, 3])
    assert "at every distance up to 2 and not at the next, 4: 0.05 nats" in headline.full, "8 lies behind a gap"
    assert "It falls with distance in the only layer (" in headline.full
    assert_says(headline.short, [0.892, 8])
    assert headline.short.startswith(
        "Neighbouring tokens share 0.89 nats of information beyond unrelated tokens, in 8 "
    )
    assert headline.effect == pytest.approx(HALF_CORRELATED)


def test_information_of_the_median_layer():
    """Three layers of which two fall with distance; the middle one is told, and every distance is clear."""
    falling = information((0.9, 0.1, 0.1), (0.5, 0.1, 0.1), (0.3, 0.1, 0.1), layer=0)
    rising = information((0.3, 0.04, 0.1), (0.5, 0.1, 0.1), (0.7, 0.1, 0.1), layer=1, dims=1, distances=(2, 4, 8))
    mixed = information((0.9, 0.1, 0.1), (0.5, 0.1, 0.1), (0.6, 0.1, 0.1), layer=2)
    joint = [{"layer": 1, "quantity": "last_token_nats", "tokens": 2, "dimensions": 1} | around(0.4, 0.04, 0.1)]
    further = [{"layer": 1, "quantity": "information_nats", "distance": 1, "dimensions": 4} | around(0.49, 0.1)]
    (headline,) = said(further, information=[*falling, *rising, *mixed], joint=joint)
    near, together = [1, 2, 0.3, 0.26, 0.34, 10, 0.1], [1, 0.4, 0.36, 0.44]
    assert_says(headline.full, [*near, 0.49, 4, 0, 8, 2, 3, -0.5, *together])
    assert headline.full.startswith("In 1 principal component of L1, tokens at distance 2 share 0.30 nats")
    assert "above 0 at every distance up to 8." in headline.full
    assert "in 2 of 3 layers (" in headline.full
    assert "with the one before it." in headline.full
    assert_says(headline.short, [2, 0.3, 1])
    assert headline.short.startswith("Tokens 2 tokens apart share 0.30 nats")


def test_information_that_never_changes_has_no_rank_correlation():
    (headline,) = said(information=information(*[(0.3, 0.1, 0.1)] * 3))
    assert_says(headline.full, [8, 1, 0.3, 0.2, 0.4, 10, 0.1, 0, 4])


def test_no_information():
    (headline,) = said(information=information((0.02, 0.1, 0.3), (0.05, 0.01, 0.3)))
    limit = detectable(0.1, WINDOWS)
    assert_says(headline.full, [8, 1, 0.02, -0.08, 0.12, 10, 0.3, limit])
    assert "Nothing was detected even at the nearest distance; " in headline.full
    assert "falls" not in headline.full, "two distances are too few"
    assert_says(headline.short, [limit])
    assert headline.short.startswith("No information shared by neighbouring tokens in L0 was detected; ")
    assert headline.effect == 0


def test_an_interval_that_allows_for_a_bias():
    """Its upper side is wider by the bias: what would be detected follows from the lower one."""
    row = information((0.02, 0.1, 0.3))[0] | {"high": 2.5}
    (headline,) = said(information=[row])
    assert_says(headline.short, [detectable(0.1, WINDOWS)])
    assert_says(headline.full, [8, 1, 0.0, -0.1, 2.5, 10, 0.3, detectable(0.1, WINDOWS)])


def test_information_of_one_window():
    (headline,) = said(information=information((0.36, None, None), (0.2, None, None)), windows=1)
    assert_says(headline.full, [8, 1, 0.36, 1])
    assert headline.full.endswith("less the bias of independent pairs, since one window cannot be shuffled.")
    assert_says(headline.short, [0.36, 8])
    assert headline.short.endswith("one window cannot test it.")
    assert headline.effect is None


def test_nothing_is_said_of_what_is_no_number():
    rows = information((nan, 0.1, 0.1))
    joint = [{"quantity": "last_token_nats", "tokens": 4, "dimensions": 7} | around(nan, 0.026, 0.1)]
    assert said(kurtosis((nan, 0.1)), dimensions((nan, 0.1, 0.1), (0.1, 0.1, nan)), rows, joint) == ()
