"""Every number in the sentences of the lens `embeddings`, against tables whose numbers are planted."""

from math import nan, sqrt

import polars as pl
import pytest
from scipy import stats

from headscope.lenses.embeddings.lens import SCHEMAS
from headscope.lenses.embeddings.sentences import sentences
from tests.lenses.sentence_checks import assert_says, assert_well_formed, detectable

NORMAL = float(stats.norm.ppf(0.975) + stats.norm.ppf(0.8))
PLACE = {"stack": "only", "table": "token", "rows": 500, "dimensions": 64}
SHAPE = {  # value, null, z
    "length_mean": (2.5612, None, None),
    "length_spread": (0.086, 0.063, 20.0),
    "cosine_mean": (0.2083, 0.0, 99.0),
    "cosine_square": (0.0729, 0.015625, 99.0),
    "centred_cosine_square": (0.0361, 0.015625, 50.0),
    "centred_participation": (31.4, 58.6, None),
}
RELATED = {"word": "all", "value": 0.453, "low": 0.409, "high": 0.497, "null": 0.0742, "pairs": 30}
ANALOGIES = {"relation": "all", "value": 0.82, "baseline": 0.45, "gain": 0.37, "gain_low": 0.204, "gain_high": 0.536}
ANALOGIES |= {"null": 1 / 30519, "rank": 1.0, "null_rank": 15260.0, "analogies": 470}
POSITIONS = {
    "table": "position",
    "distance": 1,
    "value": 0.853,
    "null": 0.0,
    "z": 300.0,
    "sinusoid": 0.9651,
    "pairs": 511,
}


def rows_of(quantities, gaussian=0.116, **common):
    names = ("value", "null", "z")
    return [
        PLACE
        | {"quantity": name, "gaussian": gaussian if name == "length_spread" else None}
        | dict(zip(names, numbers, strict=True))
        | common
        for name, numbers in quantities.items()
    ]


def table(name, rows):
    return pl.DataFrame([{key: row.get(key) for key in SCHEMAS[name]} for row in rows], schema=SCHEMAS[name])


def said(shape=SHAPE, further=(), **tables):
    frames = {"tables": table("tables", [*(rows_of(shape) if isinstance(shape, dict) else shape), *further])}
    headlines = sentences(frames | {name: table(name, [PLACE | row]) for name, row in tables.items()})
    for headline in headlines:
        assert_well_formed(headline)
    return headlines


def test_a_sphere():
    sphere, _ = said()
    assert_says(sphere.full, [500, 8.6, 2.5612, 64, 6.3, 11.6, 0.086 / 0.063])
    assert sphere.full.endswith(": nearly a sphere, 1.4 times as thick as that of random vectors.")
    assert_says(sphere.short, [8.6, 6.3])
    assert sphere.effect == pytest.approx(1 - 0.063 / 0.086)


@pytest.mark.parametrize(
    ("spread", "verdict", "times"),
    [
        (0.03, "a sphere that is thinner than that of random vectors", 0.03 / 0.063),
        (0.0645, "a sphere about as thin as that of random vectors", 0.0645 / 0.063),
        (0.1, "nearly a sphere", 0.1 / 0.063),
        (0.215, "no thin sphere", 0.215 / 0.063),
    ],
)
def test_how_thick_a_sphere_is(spread, verdict, times):
    output = rows_of({"length_spread": (0.12, 0.063, 40.0)}, table="output")
    sphere, _ = said(SHAPE | {"length_spread": (spread, 0.063, 20.0)}, output)
    assert_says(sphere.full, [500, 100 * spread, 2.5612, 64, 6.3, 11.6, times, 12, 6.3])
    assert f": {verdict}, " in sphere.full
    assert sphere.full.endswith(
        "The output head has a table of its own, with a spread of 12.0 % (random vectors: 6.3 %)."
    )
    assert_says(sphere.short, [100 * spread, 6.3])


def test_lengths_as_of_random_vectors():
    """0.1 points from the null at z = 1: 0.28 points would be detected."""
    sphere, _ = said(rows_of(SHAPE | {"length_spread": (0.064, 0.063, 1.0)}, gaussian=None, rows=1))
    assert_says(sphere.full, [1, 6.4, 2.5612, 64, 6.3, 0.064 / 0.063])
    assert sphere.full.startswith("The lengths of 1 token vector spread")
    assert_says(sphere.short, [0.1 * NORMAL])
    assert sphere.short.startswith("No spread of token lengths other than that of random vectors was detected; ")
    assert sphere.effect == 0
    equal, _ = said(SHAPE | {"length_spread": (0.063, 0.063, 0.0)})
    assert equal.short == "Lengths of token vectors spread by 6.3 %, exactly as those of random vectors."
    assert equal.effect == 0


def test_a_difference_from_random_vectors_can_be_read():
    """Many rows tell small differences: they are not written as equal numbers."""
    sphere, directions = said(
        SHAPE | {"length_spread": (0.06312, 0.063, 5.0), "cosine_square": (0.0157, 0.015625, 9.0)}
    )
    assert "6.31 % of their mean; those of random vectors by 6.30 %" in sphere.short
    assert "typically 0.1253; two random vectors of 0.1250" in directions.short


def test_directions():
    _, directions = said()
    numbers = [500, 0.2083, 0, 0.27, 0.125, 0.19, 0.125, 31.4, 64, 58.6]
    assert_says(directions.full, numbers)
    assert directions.full.endswith(": they prefer some directions.")
    assert_says(directions.short, [0.27, 0.125])
    assert directions.effect == pytest.approx(0.145)
    _, chance = said(SHAPE | {"cosine_mean": (0.0003, 0.0, 1.0)})
    assert "a cosine of 0.000 in the mean" in chance.full
    _, small = said(SHAPE | {"cosine_mean": (0.0003, 0.0, 3.0)})
    assert "a cosine of 0.0003 in the mean" in small.full
    _, calm = said(SHAPE | {"centred_cosine_square": (0.016, 0.015625, 1.0)})
    assert_says(calm.full, [*numbers[:5], sqrt(0.016), *numbers[6:]])
    assert calm.full.endswith(": they have almost no preferred direction.")
    _, equal = said({name: SHAPE[name] for name in list(SHAPE)[:4]})
    assert_says(equal.full, numbers[:5])
    assert equal.full.endswith(" With their mean taken away nothing is left: all vectors are the same.")


def test_directions_as_of_random_vectors():
    """0.0001 from the null at z = 0.5: in the root, twice that times the normal factor over 2·0.125."""
    _, directions = said(SHAPE | {"cosine_square": (0.015725, 0.015625, 0.5)})
    assert_says(directions.short, [0.0002 * NORMAL / 0.25])
    assert directions.short.startswith("No difference of token vectors from random directions was detected; ")
    assert directions.effect == 0
    _, equal = said(SHAPE | {"cosine_square": (0.015625, 0.015625, 0.0)})
    assert equal.short == "Two token vectors have a cosine of typically 0.125, exactly as two random vectors."


def test_words_and_positions():
    further = rows_of({"cosine_square": (0.01, 0.015625, 9.0)}, table="position with token")
    meaning = said(further=further, related=RELATED, analogies=ANALOGIES, positions=POSITIONS)[2]
    analogies = [82, 470, 1, 30519, 45, 37, 20.4, 53.6, 100 / 30519]
    related = [0.453, 0.409, 0.497, 30, 0.0742]
    positions = [0.853, 0, 0.9651, 511, 0.1, 0.125]
    assert_says(meaning.full, [*analogies, *related, *positions])
    assert "at the median rank 1 of 30519 (" in meaning.full
    assert ": directions add up. Related words" in meaning.full
    assert ": related words are more alike. Vectors of" in meaning.full
    assert_says(meaning.short, [82, 45])
    assert meaning.effect == pytest.approx(0.37 / 0.55)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.2, 0.54, "directions add up"), (-0.5, -0.1, "adding directions makes answers worse")],
)
def test_analogies_that_differ(low, high, verdict):
    gain = (low + high) / 2
    row = ANALOGIES | {"gain": gain, "gain_low": low, "gain_high": high, "rank": 2.5}
    meaning = said(analogies=row)[2]
    assert_says(meaning.full, [82, 470, 2.5, 30519, 45, 100 * gain, 100 * low, 100 * high, 100 / 30519])
    assert meaning.full.endswith(f": {verdict}.")
    assert_says(meaning.short, [82, 45])
    assert meaning.effect == pytest.approx(0.37 / 0.55)


def test_analogies_that_do_not_differ():
    """The size that would be detected is that of a test of many pairs: 2.80 standard errors where half is 1.96."""
    row = ANALOGIES | {"gain": 0.1, "gain_low": -0.3, "gain_high": 0.5}
    meaning = said(analogies=row)[2]
    limit = 40 * NORMAL / float(stats.norm.ppf(0.975))
    assert_says(meaning.full, [82, 470, 1, 30519, 45, 10, -30, 50, 100 / 30519, limit])
    assert ": that directions add up was not detected; a difference of 57 points would have been." in meaning.full
    assert_says(meaning.short, [limit])
    assert meaning.effect == 0


def test_analogies_that_could_show_nothing():
    """An interval that ends at 1 is wider than it looks: its other side counts."""
    meaning = said(analogies=ANALOGIES | {"gain": 0.8, "gain_low": -0.1, "gain_high": 1.0})[2]
    assert meaning.full.endswith(": there are too few pairs of words to tell whether directions add up.")
    assert meaning.short == "470 analogies are too few to detect any gain from adding word vectors."
    few = said(analogies=ANALOGIES | {"gain_low": None, "gain_high": None})[2]
    assert_says(few.full, [82, 470, 1, 30519, 45, 100 / 30519])
    assert few.full.endswith(": there are too few pairs of words for an interval.")
    assert_says(few.short, [82, 45])
    assert few.effect is None


@pytest.mark.parametrize(
    ("null", "verdict", "effect"),
    [(0.1, "related words are more alike", 0.353), (0.6, "related words are less alike", 0.147)],
)
def test_related_words(null, verdict, effect):
    meaning = said(related=RELATED | {"null": null})[2]
    assert_says(meaning.full, [0.453, 0.409, 0.497, 30, null])
    assert meaning.full.endswith(f": {verdict}.")
    assert_says(meaning.short, [0.453, null])
    assert meaning.effect == pytest.approx(effect)


def test_related_words_that_are_not_alike():
    meaning = said(related=RELATED | {"null": 0.43})[2]
    limit = detectable(0.044, 30)
    assert_says(meaning.full, [0.453, 0.409, 0.497, 30, 0.43, limit])
    assert ": no likeness was detected; a cosine larger by " in meaning.full
    assert_says(meaning.short, [limit])
    assert meaning.effect == 0
    few = said(related=RELATED | {"low": -1.0, "high": 1.9, "pairs": 2})[2]
    assert few.full.endswith(": there are too few pairs to detect any likeness.")
    assert few.short == "2 pairs are too few to detect any likeness of related words."


def test_positions():
    meaning = said(positions=POSITIONS | {"sinusoid": None, "pairs": 1})[2]
    assert_says(meaning.full, [0.853, 0, 1])
    assert_says(meaning.short, [0.853, 0])
    assert meaning.effect == pytest.approx(0.853)
    small = said(positions=POSITIONS | {"value": 0.0031, "z": 3.0})[2]
    assert "a mean cosine of 0.003;" in small.short
    chance = said(positions=POSITIONS | {"value": 0.02, "z": 1.0})[2]
    assert_says(chance.short, [0.02 * NORMAL])
    assert chance.short.startswith("No likeness of neighbouring positions was detected; ")
    assert chance.effect == 0
    equal = said(positions=POSITIONS | {"value": 0.0, "z": 0.0})[2]
    assert equal.short == "Neighbouring positions have a mean cosine of 0, as random vectors have."


def test_nothing_is_said_of_what_is_no_number():
    bad = {name: (nan, null, None) for name, (_, null, _) in SHAPE.items()}
    rows = {"related": RELATED, "analogies": ANALOGIES, "positions": POSITIONS}
    assert said(bad, **{name: row | {"value": nan} for name, row in rows.items()}) == ()
