"""Every number of the sentences of `lowrank`, from planted tables, and the branch of each verdict."""

from math import ceil, log
from statistics import median

import polars as pl
import pytest

from headscope.lenses.lowrank.lens import SCHEMAS
from headscope.lenses.lowrank.sentences import sentences
from tests.lenses.stated_numbers import assert_sound, assert_states, detected_by_one_test

TOKENS, WINDOWS, NULL_WINDOWS = 64, 9, 5
PLACE = {"stack": "only", "kind": "self", "layer": 0}
NINETY = {
    "value": [10.46, 12.26, 40.84], "half": [0.52, 0.13, 0.0], "popular": [13.1, 12.9, 37.7],
    "shuffled": [30.3, 31.4, 33.6], "difference": [-2.64, -0.61, 3.14], "spread": [0.31, 0.77, 0.22],
    "adjusted": [0.01, 0.3, 0.02], "uniform": [5.0] * 3,
}  # fmt: skip
MOST = NINETY | {"value": [30.1, 33.7, 60.2], "popular": [31.2, 35.6, 61.3], "shuffled": [44.4, 45.5, 47.1]}
BEYOND = NINETY | {
    "value": [0.004, 0.283, 0.9], "half": [0.003, 0.012, 0.02], "popular": [0.01, 0.31, 0.8], "uniform": [0.075] * 3,
}  # fmt: skip
POWERS = {
    "value": [0.241, 0.783, 0.99], "half": [0.02, 0.11, 0.004], "popular": [0.3, 0.86, 0.97],
    "gain": [-0.01, 0.04, 0.2], "gain_half": [0.013, 0.021, 0.008], "law": ["undecided", "power", "power"],
}  # fmt: skip
MORE_POWERS = POWERS | {"value": [0.62, 0.871, 1.0], "popular": [0.7, 0.913, 0.99], "law": ["none", "neither", "power"]}
LOGARITHM = 0.334


def component_rows(quantity, cells, windows):
    for head, value in enumerate(cells["value"]):
        half, spread = cells["half"][head], cells["spread"][head]
        low, high, adjusted = (
            (max(value - half, 0.0), value + half, cells["adjusted"][head]) if windows > 1 else [None] * 3
        )
        ends = (cells["difference"][head] - spread, cells["difference"][head] + spread) if windows > 1 else (None, None)
        yield {
            **PLACE, "head": head, "tokens": TOKENS, "quantity": quantity, "value": value, "low": low, "high": high,
            "popular": cells["popular"][head], "difference": cells["difference"][head], "difference_low": ends[0],
            "difference_high": ends[1], "adjusted": adjusted, "shuffled": cells["shuffled"][head],
            "uniform": cells["uniform"][head], "windows": windows, "null_windows": min(windows, NULL_WINDOWS),
        }  # fmt: skip


def growth_rows(quantity, cells, windows):
    for head, value in enumerate(cells["value"]):
        half, gain, gain_half = cells["half"][head], cells["gain"][head], cells["gain_half"][head]
        ends = (value - half, value + half, gain - gain_half, gain + gain_half) if windows > 1 else [None] * 4
        yield {
            **PLACE, "head": head, "quantity": quantity, "value": value, "low": ends[0], "high": ends[1],
            "popular": cells["popular"][head], "logarithm": LOGARITHM, "gain": gain, "gain_low": ends[2],
            "gain_high": ends[3], "law": cells["law"][head], "windows": windows,
        }  # fmt: skip


def said(ninety=NINETY, most=MOST, beyond=BEYOND, powers=POWERS, more_powers=MORE_POWERS, windows=WINDOWS):
    quantities = {"components_90": ninety, "components_99": most, "beyond_log": beyond}
    components = [row for name, cells in quantities.items() for row in component_rows(name, cells, windows)]
    shorter = [row | {"tokens": 8, "value": 99.0} for row in components]
    tables = {"components": pl.DataFrame([*shorter, *components], schema=SCHEMAS["components"])}
    if powers is not None:
        laws = {"components_90": powers, "components_99": more_powers}
        rows = [row for name, cells in laws.items() for row in growth_rows(name, cells, windows)]
        tables["growth"] = pl.DataFrame(rows, schema=SCHEMAS["growth"])
    headlines = sentences(tables)
    for headline in headlines:
        assert_sound(headline)
    return headlines


def head(cells, index):
    """One head alone."""
    return {name: [values[index]] for name, values in cells.items()}


def middle(cells, *names):
    return [median(cells[name]) for name in names]


def pairs(name):
    return [median(NINETY[name]), median(MOST[name])]


def test_components_are_stated_next_to_their_nulls():
    count = said()[0]
    medians = [number for name in ("value", "shuffled", "popular", "uniform") for number in pairs(name)]
    below, above = 2, 1
    first = (10.46, 95, 9.94, 10.98)
    assert_states(
        count.full, TOKENS, WINDOWS, 3, 90, 99, *medians, log(TOKENS), 90, 95, below, 3, above, *first, 40.84, WINDOWS
    )  # fmt: skip
    assert "L0.H0 needs the fewest, 10.5 (95 % interval 9.9 to 11.0)" in count.full
    assert "L0.H2 the most, 40.8 (in each of 9 windows)" in count.full
    assert_states(count.short, median(NINETY["value"]), TOKENS, median(NINETY["shuffled"]))
    assert count.effect == pytest.approx(1 - 12.26 / 31.4)


@pytest.mark.parametrize(("half", "short"), [
    (20.0, "No difference of the median rank from weights in random places was detected; {} components would have "
           "been."),
    (80.0, "No difference of the median rank from weights in random places can be shown; even {} components could be "
           "missed."),
])  # fmt: skip
def test_components_like_those_in_random_places_are_not_told_apart(half, short):
    shuffled = [30.3, 30.4, 40.9]
    cells = NINETY | {"value": [29.0, 30.0, 40.84], "half": [half] * 3, "shuffled": shuffled}
    count = said(cells)[0]
    # Intervals end at 0: what would have been detected follows from their upper halves.
    limit = detected_by_one_test([half] * 3, WINDOWS)
    reach = max(median(shuffled) - 1, TOKENS - median(shuffled))
    assert count.short == short.format(f"{min(limit, reach):.0f}")
    assert (limit > reach) == ("can be shown" in count.short)
    assert count.effect == 0
    assert "95 % interval of 0 of 3 heads lies below weights in random places, that of 0 above" in count.full


def test_components_that_equal_those_in_random_places_in_all_windows():
    count = said(NINETY | {"value": NINETY["shuffled"], "half": [0.0] * 3})[0]
    assert count.short == "No difference of the median rank from weights in random places in any of 9 windows."


def test_popular_keys_are_compared_head_by_head():
    popular = said()[1]
    limit = detected_by_one_test(NINETY["spread"], NULL_WINDOWS)
    assert_states(popular.full, 90, 1, 3, 1, NULL_WINDOWS, 5, 0.61, limit)
    assert "detected in 1 of 3 heads, more in 1 (" in popular.full
    assert "needs 0.61 fewer; one test detects" in popular.full
    assert popular.short == ("1 of 3 heads needs fewer components than popular keys alone explain; 1 needs more.")
    assert popular.effect == pytest.approx((2.64 / 13.1 + (1 - 37.7 / (37.7 + 3.14))) / 3)
    more = said(NINETY | {"difference": [2.64, 0.61, 3.14]})[1]
    assert more.short == "0 of 3 heads need fewer components than popular keys alone explain; 2 need more."
    assert "detected in 0 of 3 heads, more in 2 (" in more.full
    assert "needs 2.6 more; one test" in more.full


@pytest.mark.parametrize(("spread", "short"), [
    (0.5, "No rank other than popular keys explain was detected; one test alone detects {} components."),
    (60.0, "No rank other than popular keys explain can be shown; even {} components could be missed."),
    (0.0, "No rank other than popular keys explain in any of 5 windows."),
])  # fmt: skip
def test_popular_keys_may_explain_everything(spread, short):
    cells = NINETY | {"adjusted": [0.3] * 3, "spread": [spread] * 3}
    popular = said(cells)[1]
    limit = detected_by_one_test([spread] * 3, NULL_WINDOWS)
    reach = TOKENS - median(NINETY["popular"])
    assert popular.short == short.format(f"{limit:.2f}" if limit < 1 else f"{reach:.0f}")
    assert popular.effect == 0
    assert "detected in 0 of 3 heads, more in 0 (paired in 5 windows" in popular.full
    if limit > reach:
        assert "even 51 components, the most that is possible, could be missed" in popular.full


def test_growth_is_stated_next_to_a_logarithm():
    growth = said()[2]
    power, popular = middle(POWERS, "value", "popular")
    rest = middle(MORE_POWERS, "value", "popular")
    assert_states(
        growth.full, 8, TOKENS, WINDOWS, 90, power, 3, LOGARITHM, popular, 1, 95, 2, 3, 1, 99, *rest
    )  # fmt: skip
    assert "interval of 2 of 3 heads lies above ln n, that of 1 below" in growth.full
    assert_states(growth.short, power, LOGARITHM)
    assert growth.effect == pytest.approx((power - LOGARITHM) / (1 - LOGARITHM))


@pytest.mark.parametrize(("half", "short"), [
    (0.2, "No difference of the median growth from a logarithm was detected; {:.2f} in the power would have been."),
    (0.9, "No difference of the median growth from a logarithm can be shown; even {:.2f} in the power could be "
          "missed."),
])  # fmt: skip
def test_growth_like_a_logarithm_is_not_told_from_it(half, short):
    growth = said(powers=POWERS | {"value": [0.3, 0.35, 0.4], "half": [half] * 3})[2]
    limit, reach = detected_by_one_test([half] * 3, WINDOWS), 1 - LOGARITHM
    assert growth.short == short.format(min(limit, reach))
    assert growth.effect == 0


def test_laws_are_counted():
    laws = said()[3]
    limit = 100 * detected_by_one_test(POWERS["gain_half"], WINDOWS)
    assert_states(
        laws.full, 90, 2, 3, 0, 0, 10, 0, 1, WINDOWS, 5, limit, 99, 1, 3, 0, 1, 10, 1, 0, WINDOWS, 5, limit
    )  # fmt: skip
    assert "a power of n in 2 of 3 heads, a logarithm in 0, neither in 0 (" in laws.full
    assert "neither in 1 (both miss by more than 10 %), absent in 1 and undecided in 0 (" in laws.full
    assert laws.short == "Components grow like a power of the length in 2 of 3 heads, like its logarithm in none."
    assert laws.effect == pytest.approx(2 / 3)
    logarithms = said(powers=POWERS | {"law": ["logarithm"] * 3})[3]
    assert "in 0 of 3 heads, like its logarithm in 3." in logarithms.short


def test_undecided_laws_say_what_one_test_detects():
    laws = said(powers=POWERS | {"law": ["undecided"] * 3})[3]
    limit = 100 * detected_by_one_test(POWERS["gain_half"], WINDOWS)
    assert laws.short == (
        f"No difference between a power and a logarithm was detected; one test alone detects {limit:.1f} points of "
        "misfit."
    )
    assert laws.effect == 0


def test_energy_beyond_ln_n_is_stated():
    beyond = said()[4]
    shares = [100 * share for share in middle(BEYOND, "value", "popular", "uniform")]
    assert_states(beyond.full, ceil(log(TOKENS)), shares[0], 3, *shares[1:], WINDOWS, 95, 1, 1, 3, 2)
    assert "less than 1 % in 1 of 3 heads and more in 2." in beyond.full
    assert (
        beyond.short
        == "Keeping ln n components loses 28 % of the median pattern's energy; a pattern of that rank loses none."
    )
    assert beyond.effect == pytest.approx(0.283)


@pytest.mark.parametrize(("half", "short"), [
    (0.2, "No energy of the median pattern beyond ln n components was detected; {} would have been."),
    (0.9, "No energy of the median pattern beyond ln n components can be shown; even 100 % could be missed."),
])  # fmt: skip
def test_energy_that_may_be_none_is_not_called_none(half, short):
    """Intervals end at 0: what would have been detected follows from their upper halves."""
    beyond = said(beyond=BEYOND | {"value": [0.02, 0.03, 0.9], "half": [half] * 3})[4]
    assert beyond.short == short.format(f"{100 * detected_by_one_test([half] * 3, WINDOWS):.0f} %")
    assert beyond.effect == 0
    nothing = said(beyond=BEYOND | {"value": [0.0] * 3, "half": [0.0] * 3})[4]
    assert (
        nothing.short
        == "Keeping ln n components loses 0 % of the median pattern's energy; a pattern of that rank loses none."
    )


def test_one_window_gives_no_interval():
    count, popular, growth, laws, beyond = said(windows=1)
    medians = [number for name in ("value", "shuffled", "popular", "uniform") for number in pairs(name)]
    assert_states(count.full, TOKENS, 1, 3, 90, 99, *medians, log(TOKENS), 90, 10.46, 40.84)
    assert count.full.endswith("one window gives no interval.")
    assert count.short.endswith("need 31.4 (no interval).")
    assert_states(popular.full, 90, 0.61, 1)
    assert popular.short == "With 1 window it cannot be tested whether popular keys explain the rank."
    power, others = median(POWERS["value"]), middle(MORE_POWERS, "value", "popular")
    assert_states(growth.full, 8, TOKENS, 1, 90, power, 3, LOGARITHM, 0.86, 1, 99, *others)
    assert_states(growth.short, power, LOGARITHM)
    assert "(no interval)" in growth.short
    assert_states(laws.full, 90, 2, 3, 0, 0, 10, 0, 1, 99, 1, 3, 0, 1, 10, 1, 0)
    assert laws.short == "With 1 window, a power cannot be told from a logarithm in 3 heads."
    assert_states(beyond.full, ceil(log(TOKENS)), 28.3, 3, 31, 7.5, 1)
    assert (
        beyond.short
        == "Keeping ln n components loses 28 % of the median pattern's energy (none at that rank; no interval)."
    )
    assert [headline.effect for headline in (count, popular, growth, laws, beyond)] == [None] * 5


def test_one_head_is_no_range_and_too_few_sizes_have_no_growth():
    headlines = said(*(head(cells, 0) for cells in (NINETY, MOST, BEYOND)), powers=None)
    assert len(headlines) == 3
    assert "the median of 1 head has" in headlines[0].full
    assert "L0.H0 needs 10.5 (95 % interval 9.9 to 11.0)." in headlines[0].full
    assert "fewest" not in headlines[0].full
    assert headlines[1].short == "1 of 1 head needs fewer components than popular keys alone explain; 0 need more."
    alone = said(*(head(cells, 0) for cells in (NINETY, MOST, BEYOND, POWERS, MORE_POWERS)), windows=1)
    assert alone[3].short == "With 1 window, a power cannot be told from a logarithm in 1 head."
