"""Every number of the sentences of `maps`, from planted tables, and the branch of each verdict."""

from statistics import median

import polars as pl
import pytest

from headscope.lenses.maps.sentences import sentences
from headscope.lenses.maps.tables import SCHEMA
from tests.lenses.stated_numbers import assert_sound, assert_states, detected_by_one_test

WINDOWS, HEADS = 9, 8
MOST = 1 - 1 / HEADS
HIDDEN = {"value": [0.371, 0.448, 0.115], "half": [0.02, 0.004, 0.05]}
SHIFT = {"value": [0.038, 0.021, 0.335], "half": [0.01, 0.003, 0.013]}
EVEN = {"value": [7.81, 7.93, 5.5], "half": [0.1] * 3}
AVERAGE = {"value": [0.44, 0.63, 0.12], "half": [0.05, 0.1, 0.02]}
SINGLE = {"value": [0.99, 0.97, 0.41], "half": [0.004, 0.01, 0.03]}
SHOWN = {"value": [0.81, 0.77, 0.9], "half": [0.01] * 3}
LIMITS = {"hidden": (0.0, MOST), "weighting": (0.0, MOST), "effective_heads": (float(HEADS), float(HEADS))}


def layer_rows(quantity, cells, windows, limits=LIMITS):
    null, most = limits.get(quantity, (None, 1.0))
    for layer, (value, half) in enumerate(zip(cells["value"], cells["half"], strict=True)):
        low, high = (max(value - half, 0.0), min(value + half, most)) if windows > 1 else (None, None)
        yield {
            "stack": "only", "kind": "self", "layer": layer, "quantity": quantity, "value": value, "low": low,
            "high": high, "null": null, "most": most, "windows": windows,
        }  # fmt: skip


def said(windows=WINDOWS, layers=3, limits=LIMITS, **changes):
    """The headlines of the first layers; a quantity that is None is not in the table."""
    quantities = {
        "hidden": HIDDEN, "shown": SHOWN, "weighting": SHIFT, "effective_heads": EVEN, "largest_average": AVERAGE,
        "largest_head": SINGLE,
    } | changes  # fmt: skip
    rows = [
        row
        for name, cells in quantities.items()
        if cells is not None
        for row in layer_rows(name, {column: numbers[:layers] for column, numbers in cells.items()}, windows, limits)
    ]
    headlines = sentences({"layers": pl.DataFrame(rows, schema=SCHEMA)})
    for headline in headlines:
        assert_sound(headline)
    return headlines


def percents(*shares):
    return [100 * share for share in shares]


def test_what_the_average_hides_is_stated():
    hidden = said()[0]
    share = median(HIDDEN["value"])
    top = percents(0.448)[0], 95, *percents(0.444, 0.452)
    assert_states(
        hidden.full, WINDOWS, *percents(share), 3, 0, 95, 3, 3, *percents(MOST), *top, *percents(median(SHOWN["value"]))
    )  # fmt: skip
    assert (
        "outside the 95 % interval in 3 of 3 layers; heads that share no key: 88 %), and most in L1: 44.8 %"
        in hidden.full
    )
    assert hidden.short == "An average over heads hides 37 % of the median layer's attention; equal heads: 0 %."
    assert hidden.effect == pytest.approx(share / MOST)


def test_mass_that_is_not_shown_makes_it_a_lower_bound():
    hidden = said(shown={"value": [0.4, 0.5, 0.6], "half": [0.01] * 3})[0]
    assert "hides at least 37 % of the mass" in hidden.full
    assert hidden.full.endswith("; 50 % of the mass lies between the tokens that are shown.")
    assert "hides at least 37 % of the median layer's attention" in hidden.short
    assert "at least" not in said(shown={"value": [0.51] * 3, "half": [0.01] * 3})[0].full


@pytest.mark.parametrize(("half", "short"), [
    (0.2, "No attention that an average over heads hides was detected; {:.0f} % would have been."),
    (0.8, "No attention that an average over heads hides can be shown; even {:.0f} % could be missed."),
])  # fmt: skip
def test_what_may_be_nothing_is_not_called_nothing(half, short):
    """Intervals end at 0: what would have been detected follows from their upper halves."""
    hidden = said(hidden={"value": [0.03, 0.04, 0.6], "half": [half] * 3})[0]
    limit = detected_by_one_test([half] * 3, WINDOWS)
    assert hidden.short == short.format(100 * min(limit, MOST))
    assert (limit > MOST) == ("can be shown" in hidden.short)
    assert hidden.effect == 0
    assert f"outside the 95 % interval in {1 if half < 0.6 else 0} of 3 layers" in hidden.full


def test_equal_heads_hide_nothing():
    hidden, shift, _ = said(
        hidden={"value": [0.0] * 3, "half": [0.0] * 3}, weighting={"value": [0.0] * 3, "half": [0.0] * 3}
    )
    assert hidden.short == "An average over heads hides 0 % of the median layer's attention; equal heads: 0 %."
    assert "most in L0: 0 % (in each of 9 windows)" in hidden.full
    assert shift.short == "Weighting heads by what they write moves 0 % of the averaged attention; equal weights: 0 %."
    assert (hidden.effect, shift.effect) == (0, 0)


def test_one_head_per_layer_is_its_own_average():
    nothing = {"value": [0.0] * 3, "half": [0.0] * 3}
    hidden = said(limits=LIMITS | {"hidden": (0.0, 0.0)}, hidden=nothing)[0]
    assert hidden.full == "There is 1 head per layer: the average over heads is the head, and hides 0 % of the mass."
    assert hidden.short == "There is 1 head per layer: an average over heads hides 0 % of its attention."
    assert hidden.effect is None


def test_what_the_weighting_moves_is_stated():
    shift = said()[1]
    share, spread = median(SHIFT["value"]), median(EVEN["value"])
    top = percents(0.335)[0], 95, *percents(0.322, 0.348)
    assert_states(shift.full, WINDOWS, *percents(share), 3, 0, 95, 3, 3, *top, spread, HEADS)
    assert "and most in L2: 34 %" in shift.full
    assert_states(shift.short, *percents(share), 0)
    assert shift.effect == pytest.approx(share / MOST)


@pytest.mark.parametrize(("half", "short"), [
    (0.2, "No shift of the averaged map by what heads write was detected; {:.0f} % would have been."),
    (0.8, "No shift of the averaged map by what heads write can be shown; even {:.0f} % could be missed."),
])  # fmt: skip
def test_a_shift_that_may_be_none(half, short):
    shift = said(weighting={"value": [0.03, 0.04, 0.05], "half": [half] * 3})[1]
    assert shift.short == short.format(100 * min(detected_by_one_test([half] * 3, WINDOWS), MOST))
    assert shift.effect == 0
    assert "outside the 95 % interval in 0 of 3 layers" in shift.full


def test_what_heads_write_may_be_unknown():
    assert len(said(weighting=None, effective_heads=None)) == 2


def test_the_largest_weights_are_compared_by_their_intervals():
    largest = said()[2]
    medians = median(AVERAGE["value"]), median(SINGLE["value"])
    assert_states(largest.full, WINDOWS, medians[0], 3, medians[1], 95, 3, 3, 0.63, 95, 0.53, 0.73)
    assert "0.63 in L1 (95 % interval 0.53 to 0.73)" in largest.full
    assert_states(largest.short, *medians)
    assert largest.effect == pytest.approx(1 - medians[0] / medians[1])
    overlapping = said(largest_average={"value": [0.95, 0.96, 0.4], "half": [0.05] * 3})[2]
    assert "lies below that of the head in 0 of 3 layers" in overlapping.full
    assert overlapping.short == (
        "In the median layer the largest averaged weight is 0.95; in a single head it is 0.97 (intervals overlap)."
    )
    assert overlapping.effect == 0


def test_intervals_that_touch_are_not_apart():
    """A head that is its own average has the same interval twice; it does not lie below itself."""
    largest = said(largest_average=SINGLE | {"half": [0.0] * 3}, largest_head=SINGLE | {"half": [0.0] * 3})[2]
    assert "lies below that of the head in 0 of 3 layers" in largest.full
    assert largest.effect == 0


def test_one_window_gives_no_interval():
    hidden, shift, largest = said(windows=1)
    assert_states(hidden.full, 1, 37.1, 3, 0, *percents(MOST), 44.8, 81)
    assert_states(shift.full, 1, 3.8, 3, 0, 33.5, 7.81, HEADS)
    assert_states(largest.full, 1, 0.44, 3, 0.97, 0.63)
    assert "one window gives no interval" in largest.full
    for headline in (hidden, shift, largest):
        assert headline.short.endswith("(no interval).")
        assert headline.effect is None


def test_one_layer_is_its_own_median():
    hidden, shift, largest = said(layers=1)
    assert_states(hidden.full, WINDOWS, 37.1, 1, 0, 95, 1, 1, *percents(MOST), 95, 35.1, 39.1, 81)
    assert "in the median of 1 layer (" in hidden.full
    assert "88 %) (L0; 95 % interval 35 % to 39 %); 81 %" in hidden.full
    assert "most" not in shift.full
    assert "below that of the head in 1 of 1 layer." in largest.full


def test_layers_are_named_by_stack_and_kind():
    rows = [
        row | {"stack": "dec", "kind": "cross"}
        for name, cells in {
            "hidden": HIDDEN,
            "shown": SHOWN,
            "largest_average": AVERAGE,
            "largest_head": SINGLE,
        }.items()
        for row in layer_rows(name, cells, WINDOWS)
    ]
    headlines = sentences({"layers": pl.DataFrame(rows, schema=SCHEMA)})
    assert "most in dec.L1.cross: 44.8 %" in headlines[0].full
    assert "0.63 in dec.L1.cross (" in headlines[1].full
