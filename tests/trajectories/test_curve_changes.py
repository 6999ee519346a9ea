"""The steepest changes of made findings: known curves, with and without intervals."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from headscope import trajectories
from headscope.core import Run, read_about
from headscope.trajectories.finding import answer
from headscope.trajectories.measured_steps import MeasuredSteps
from headscope.trajectories.quantity_choice import chosen_quantities
from headscope.trajectories.step_axis import doublings, drawn_steps, middle_step
from tests.comparison.made_runs import made_run, text_finding, unknown_finding, weight_finding

STEPS = (0, 1, 2, 4, 8, 16)
RISING = {4: 0.2, 8: 0.8, 16: 0.85}  # of one head; all others stay at 0.1


def measured(make, values_by_step) -> MeasuredSteps:
    runs: dict[int, Run] = {step: made_run(make(values)) for step, values in values_by_step.items()}
    last = runs[max(runs)]
    (lens,) = last.findings
    return MeasuredSteps(lens, chosen_quantities(last.findings[lens], None), runs, {}, last)


def with_null(values):
    finding = text_finding(values)
    return replace(finding, quantities=(replace(finding.quantities[0], null="null"),))


def rising(step):
    return [0.1, 0.1, 0.1, RISING.get(step, 0.1)]


def asked(make, values_of=rising):
    return answer(measured(make, {step: values_of(step) for step in STEPS})).finding


def test_steps_count_by_doublings():
    np.testing.assert_allclose(doublings((0, 1, 2, 4)), [-1, 0, 1, 2])
    np.testing.assert_allclose(doublings((0, 8, 16)), [2, 3, 4])
    np.testing.assert_allclose(doublings((3, 12)), np.log2([3, 12]))
    np.testing.assert_allclose(drawn_steps((0, 8, 16)), [4, 8, 16])


@pytest.mark.parametrize(("pair", "step"), [(0, 1), (1, 1), (2, 3), (3, 6)])
def test_the_middle_of_two_steps(pair, step):
    assert middle_step((0, 1, 2, 4, 8), pair) == step


def test_a_head_that_changes_is_named_with_its_step():
    finding = asked(text_finding)
    row = finding.tables["heads"].row(3, named=True)
    assert (row["layer"], row["head"], row["detected"]) == (1, 1, True)
    assert (row["before"], row["after"], row["step"]) == (4, 8, 6)
    assert (row["step_low"], row["step_high"]) == (4, 8)
    assert (row["value_before"], row["value_after"]) == (0.2, 0.8)
    assert row["value"] == pytest.approx(0.6)
    assert row["effect"] == pytest.approx(0.6 / 0.75)
    assert finding.headlines[0].full.startswith(
        "Mass on the first token: L1.H1 changes most steeply, at step 6 (95 % interval 4 to 8), from 20 % to 80 % "
        "(+60.0 points per doubling of the step). 1 of 4 heads changes detectably; in the median head, a change of "
    )
    assert "The mean over heads changes most steeply at step 6 (95 % interval 4 to 8)" in finding.headlines[0].full
    assert finding.headlines[0].full.endswith("6 saved steps, 8 windows.")


def test_heads_that_stay_have_no_step():
    heads = asked(text_finding).tables["heads"].head(3)
    assert heads["detected"].to_list() == [False] * 3
    assert heads["step"].null_count() == heads["step_low"].null_count() == 3


def test_changes_within_their_intervals_are_not_detected():
    """Intervals of ± 2 points; the values move by half of that."""
    generator = np.random.default_rng(0)
    noise = {step: (0.3 + 0.01 * generator.uniform(-1, 1, 4)).tolist() for step in STEPS}
    finding = asked(text_finding, noise.__getitem__)
    assert not finding.tables["heads"]["detected"].any()
    assert not finding.tables["means"]["detected"].any()
    (headline,) = finding.headlines
    assert headline.effect == 0.0
    assert headline.answer == "not detected"
    size = 100 * finding.tables["heads"]["detectable"].median()
    assert f"a change of {size:.3g} points between neighbouring saved steps would have been detected" in headline.full
    assert 4 < size < 10  # more than the half-width of a difference, 2.8 points


def test_the_interval_holds_every_pair_that_may_be_the_steepest():
    """Two rises that differ by less than their error."""
    values = {0: 0.1, 1: 0.1, 2: 0.4, 4: 0.4, 8: 0.69, 16: 0.69}
    finding = asked(text_finding, lambda step: [0.1, 0.1, 0.1, values[step]])
    row = finding.tables["heads"].row(3, named=True)
    assert (row["before"], row["after"]) == (1, 2)
    assert (row["step_low"], row["step_high"]) == (1, 8)


def test_numbers_from_weights_have_no_sampling_error():
    finding = asked(weight_finding, lambda step: [8.0, 8.0, 8.0, 4.0 if step < 4 else 2.0])
    row = finding.tables["heads"].row(3, named=True)
    assert (row["certainty"], row["detected"], row["before"], row["after"]) == ("exact", True, 2, 4)
    assert (row["step_low"], row["step_high"]) == (2, 4)
    assert row["value"] == pytest.approx(-1.0)  # a logarithmic scale: half of it in one doubling
    assert (row["value_before"], row["value_after"]) == (4.0, 2.0)
    assert finding.tables["heads"]["detected"].to_list() == [False, False, False, True]
    assert "(×0.500 per doubling of the step)" in finding.headlines[0].full
    assert "from weights alone, between saved steps: 2 to 4" in finding.headlines[0].full
    assert finding.figures[0].log_y


def test_rounding_is_no_change():
    finding = asked(weight_finding, lambda step: [8.0, 4.0, 2.0, 1.0 + (1e-7 if step >= 4 else 0.0)])
    assert not finding.tables["heads"]["detected"].any()


def test_without_intervals_nothing_is_called_detected():
    finding = asked(unknown_finding)
    row = finding.tables["heads"].row(3, named=True)
    assert (row["certainty"], row["detected"], row["p"]) == ("unknown", None, None)
    assert (row["step"], row["step_low"]) == (6, None)
    (headline,) = finding.headlines
    assert headline.effect is None
    assert "whether this is more than chance was not tested" in headline.full


def test_a_head_without_an_interval_is_untested_alone():
    def one_bare_head(values):
        finding = text_finding(values)
        low = pl.when(layer=1, head=1).then(None).otherwise(pl.col("low")).alias("low")
        return replace(finding, tables={"heads": finding.table.with_columns(low)})

    finding = asked(one_bare_head)
    heads = finding.tables["heads"]
    assert heads["detected"].to_list() == [False, False, False, None]
    assert heads.row(3, named=True)["step"] == 6
    assert heads.row(3, named=True)["step_low"] is None
    assert "no step of steepest change was detected" in finding.headlines[0].full


def test_the_mean_of_heads_is_that_of_the_same_heads():
    means = asked(text_finding).tables["means"]
    row = means.row(0, named=True)
    assert (row["layer"], row["head"]) == (None, None)
    assert row["value_before"] == pytest.approx((0.3 + 0.2) / 4)
    assert row["value_after"] == pytest.approx((0.3 + 0.8) / 4)


def test_figure_and_curves_hold_every_head_and_the_null():
    finding = asked(with_null)
    (figure,) = finding.figures
    assert [series.label for series in figure.series] == ["L0.H0", "L0.H1", "L1.H0", "L1.H1", "null, mean over heads"]
    np.testing.assert_allclose(figure.series[3].x, [0.5, 1, 2, 4, 8, 16])
    np.testing.assert_allclose(figure.series[3].y, rising(0)[3:] * 3 + [0.2, 0.8, 0.85])
    np.testing.assert_allclose(figure.series[3].high - figure.series[3].y, 0.02)
    assert figure.log_x
    assert "Step 0 is drawn one doubling before step 1." in figure.caption
    (curve,) = finding.curves
    np.testing.assert_allclose(curve.values[3], figure.series[3].y)


def test_a_step_without_the_quantity_leaves_a_gap():
    steps = measured(text_finding, {step: rising(step) for step in STEPS})
    bare = replace(steps.runs[1].findings["focus"], quantities=())
    runs = {**steps.runs, 1: made_run(bare)}
    answered = answer(replace(steps, runs=runs))
    values = answered.values.filter(answered.values["step"] == 1)["value"]
    assert values.null_count() == len(values) == 4
    assert answered.finding.tables["heads"].row(3, named=True)["step"] == 6


def test_every_column_is_explained():
    path = Path(trajectories.__file__).with_name("about.md")
    explained = {name.strip() for names in read_about(path).columns for name in names.split(",")}
    assert explained == set(asked(text_finding).table.columns)
