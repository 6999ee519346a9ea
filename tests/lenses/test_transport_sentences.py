"""Every number of the sentences of `transport`, from planted tables, and the branch of each verdict."""

from math import exp
from statistics import median

import polars as pl
import pytest

from headscope.lenses.transport.constant_weights import Counts
from headscope.lenses.transport.sentences import method, sentences
from headscope.lenses.transport.tables import SCHEMAS
from tests.lenses.stated_numbers import assert_sound, assert_states, detected_by_one_test

WINDOWS = 12
# Three heads.
ENTROPY = {
    "value": [-0.443, -0.31, -0.62], "half": [0.03, 0.05, 0.7], "null": [-0.69, -0.5, -0.8],
    "share": [1.012, 0.9, None],
}  # fmt: skip
COVARIANCE = {
    "value": [0.801, 0.74, 0.95], "half": [0.02] * 3, "null": [0.87, 0.7, 0.99], "floor": [0.32, 0.3, 0.35],
    "measured": [2.0, 4.0, 5.0], "predicted": [0.7, 2.0, 1.0], "share": [0.882, 0.51, 0.93],
    "share_half": [0.1, 0.6, 0.2],
}  # fmt: skip
MEAN = {"value": [0.61, 0.5, 0.7], "half": [0.02] * 3, "null": [0.69, 0.6, 0.8], "floor": [0.55, 0.5, 0.6]}
INFORMATION = {
    "value": [2.9, 3.0, 2.5], "half": [0.1] * 3, "before": [0.29, 0.2, 0.4], "measured": [2.15, 2.0, 2.4],
    "predicted": [5.04, 4.0, 6.0],
}  # fmt: skip
VECTOR = {"value": [0.83, 0.7, 0.9], "half": [0.01] * 3, "null": [0.95, 0.9, 0.99]}
HEADS = {"entropy": ENTROPY, "covariance": COVARIANCE, "mean": MEAN, "information": INFORMATION, "vector": VECTOR}
# Four layers: the median of their errors is between two of them, the row in the middle is the upper one.
POOLED = {"value": [-0.38, -0.42, -0.31, -0.36], "half": [0.02, 0.01, 0.02, 0.03]}
POOLED_COVARIANCE = {
    "value": [0.6, 0.7, 0.8, 0.5], "half": [0.02] * 4, "share": [0.93, 0.95, 0.5, 0.6], "share_half": [0.03] * 4,
}  # fmt: skip
OUTPUT = {"value": [0.76, 0.7, 0.8, 0.72], "half": [0.03] * 4}
SKIP = {"value": [0.36, 0.3, 0.41, 0.35], "half": [0.03] * 4}
LAYER = {
    "value": [0.596, 0.56, 0.61, 0.5], "half": [0.024, 0.01, 0.02, 0.04], "floor": [0.3, 0.22, 0.21, 0.2],
    "weights": [0.19, 0.2, 0.18, 0.1], "sampling": [0.13] * 4, "shape": [0.28, 0.3, 0.25, 0.29],
}  # fmt: skip
LAYER_ENTROPY = {"value": [-0.23, -0.2, -0.3, -0.21], "half": [0.01] * 4}
LAYERS = {
    ("heads", "entropy"): POOLED, ("heads", "covariance"): POOLED_COVARIANCE, ("output", "covariance"): OUTPUT,
    ("skip", "covariance"): SKIP, ("layer", "covariance"): LAYER, ("layer", "entropy"): LAYER_ENTROPY,
}  # fmt: skip


def cells_of(quantity, cells, windows, intervals, stack="only"):
    for index, value in enumerate(cells["value"]):
        row = {name: numbers[index] for name, numbers in cells.items() if not name.endswith("half")}
        if intervals:
            row |= {"low": value - cells["half"][index], "high": value + cells["half"][index]}
            if "share_half" in cells:
                half = cells["share_half"][index]
                row |= {"share_low": row["share"] - half, "share_high": row["share"] + half}
        yield {"stack": stack, "kind": "self", "quantity": quantity, "windows": windows, **row}


def said(windows=WINDOWS, intervals=True, layers=LAYERS, stack="only", **changes):
    """The headlines; a quantity of heads that is None is not in the table."""
    of_heads = [
        row | {"layer": 0, "head": head}
        for quantity, cells in (HEADS | changes).items()
        if cells is not None
        for head, row in enumerate(cells_of(quantity, cells, windows, intervals))
    ]
    of_layers = [
        row | {"layer": layer, "stage": stage}
        for (stage, quantity), cells in layers.items()
        for layer, row in enumerate(cells_of(quantity, cells, windows, intervals, stack))
    ]
    tables = {
        "heads": pl.DataFrame(of_heads, schema=SCHEMAS["heads"]),
        "layers": pl.DataFrame(of_layers, schema=SCHEMAS["layers"]),
    }
    headlines = sentences(tables)
    for headline in headlines:
        assert_sound(headline)
    return headlines


def middle(cells, *names):
    return [median(cells[name]) for name in names]


def test_the_error_of_the_entropy_is_stated():
    answer = said()[0]
    limit = detected_by_one_test(ENTROPY["half"], WINDOWS)
    compared = [*middle(MEAN, "value", "null", "floor"), *middle(COVARIANCE, "value", "null", "floor")]
    shared = middle(INFORMATION, "before", "measured", "predicted")
    assert_states(
        answer.full, 0.443, 3, WINDOWS, 0.69, -0.36, 95, -0.39, -0.33, 95, 2, 3, 0, limit, *compared, 0.35, *shared
    )  # fmt: skip
    assert "do not carry the entropy" in answer.full
    assert "predicted 0.44 nats per component too low" in answer.full
    assert "Over all heads of L3, the median layer, the error is -0.36 nats" in answer.full
    assert answer.short == (
        "Weights averaged over texts predict a head's output entropy 0.44 nats per component too low; uniform ones "
        "0.69 too low."
    )
    assert answer.effect == pytest.approx(1 - exp(-0.443))


@pytest.mark.parametrize(("median_error", "pooled", "half", "verdict"), [
    (0.02, 0.01, 0.03, "carry the entropy of tokens through attention nearly right:"),
    (0.02, 0.01, 0.3, "with a small error in the median head, but one that the windows do not bound as tightly:"),
    (0.1, 0.1, 0.05, "carry the entropy of tokens through attention only roughly:"),
    (-0.3, -0.3, 0.4, "with an error that these windows cannot tell from 0:"),
    (0.2, 0.3, 0.1, "Constant weights do not carry the entropy of tokens through attention:"),
    (0.2, None, None, "with an error of which too few windows give no interval:"),
    (0.02, None, None, "with an error of which too few windows give no interval:"),
])  # fmt: skip
def test_a_verdict_goes_no_further_than_its_interval(median_error, pooled, half, verdict):
    row = {"value": [pooled] * 4, "half": [half] * 4}
    layers = {key: cells for key, cells in LAYERS.items() if key != ("heads", "entropy")}
    if pooled is not None:
        layers[("heads", "entropy")] = row
    answer = said(entropy=ENTROPY | {"value": [median_error] * 3}, layers=layers)[0]
    assert verdict in answer.full
    assert ("the median layer, the error" in answer.full) == (pooled is not None)
    side = "high" if median_error > 0 else "low"
    assert f"predicted {abs(median_error):.2f} nats per component too {side} in the median" in answer.full


def test_an_error_of_the_entropy_that_may_be_none():
    answer = said(entropy=ENTROPY | {"half": [0.9] * 3})[0]
    limit = detected_by_one_test([0.9] * 3, WINDOWS)
    assert answer.short == (
        f"No error of averaged weights in a head's output entropy was detected; {limit:.1f} nats per component would "
        "have been."
    )
    assert answer.effect == 0
    assert "The 95 % interval of 0 of 3 heads leaves 0 out (by chance: one in twenty; in the median head" in answer.full
    exact = said(entropy=ENTROPY | {"value": [0.0] * 3, "half": [0.0] * 3})[0]
    assert exact.short == "No error of averaged weights in a head's output entropy in any of 12 windows."
    assert "predicted 0.00 nats per component off in the median of 3 heads" in exact.full


def test_a_null_that_was_not_measured_is_not_zero():
    none = {"null": [None] * 3}
    answer, causes, _ = said(
        entropy=ENTROPY | none, covariance=COVARIANCE | none | {"floor": [None] * 3}, mean=MEAN | none, information=None
    )
    assert "uniform" not in answer.full
    assert (
        "The mean is off by 0.61 of its size (what was measured in the other half: 0.55) and the covariance by 0.80 of"
        in (answer.full)
    )
    assert "0.80 of its size; the predicted variance is 0.35 times the measured one." in answer.full
    assert answer.short.endswith("nats per component too low.")
    assert "Over 12 windows, the mean pattern leaves 69 % of the variance" in causes.full
    assert "mutual information" not in answer.full


def test_too_few_windows_leave_single_outputs():
    (vectors,) = said(entropy=None, covariance=None, layers={}, intervals=False)
    assert_states(vectors.full, 0.83, 3, 0.95, WINDOWS)
    assert_states(vectors.short, 0.83, 0.95)
    assert vectors.effect == pytest.approx(0.83)
    (alone,) = said(entropy=None, covariance=None, layers={}, vector=VECTOR | {"null": [None] * 3})
    assert_states(alone.full, 0.83, 3, WINDOWS)
    assert alone.short == "Weights averaged over texts miss the median head's output by 0.83 of its spread."
    assert said(entropy=None, covariance=None, vector=None, layers={}) == ()


def test_a_pattern_that_predicts_as_well_as_uniform_attention_is_not_better():
    equal = COVARIANCE | {"null": [COVARIANCE["value"][0], 0.7, 0.99]}
    assert "better than uniform attention in 2 of 3 heads" in " ".join(map(str, said()))
    assert "better than uniform attention in 1 of 3 heads" in " ".join(map(str, said(covariance=equal)))


def test_causes_are_stated_with_their_intervals():
    causes = said()[1]
    assert_states(
        causes.full, 3, 95.6, 88.2, 51, 93, 95, 0, 2, 3, 93, 95, 90, 96, WINDOWS, 2, 3, 100 * 0.83**2
    )  # fmt: skip
    assert (
        "leaves 0 out in 2 of 3 heads; over all heads of L0, the median layer: 93 %, 95 % interval 90 % to"
        in causes.full
    )
    assert "better than uniform attention in 2 of 3 heads (chance: half)" in causes.full
    assert_states(causes.short, 88.2, 0)
    assert causes.effect == pytest.approx(0.882)
    assert said(entropy=ENTROPY | {"share": [None] * 3})[1].full.startswith(
        "In the median of 3 heads, weights that depend on the data make up 88 % of the squared error"
    )
    assert len(said(covariance=COVARIANCE | {"share": [None] * 3}, intervals=False)) == 2
    assert len(said(vector=None)) == 2


@pytest.mark.parametrize(("half", "short"), [
    (0.5, "No error of covariances from weights that follow the text was detected; {:.0f} % would have been."),
    (1.1, "No error of covariances from weights that follow the text can be shown; even {:.0f} % could be missed."),
])  # fmt: skip
def test_causes_that_may_be_none(half, short):
    causes = said(covariance=COVARIANCE | {"share": [0.1, 0.2, 0.3], "share_half": [half] * 3})[1]
    limit = detected_by_one_test([half] * 3, WINDOWS)
    assert causes.short == short.format(100 * min(limit, 1.0))
    assert (limit > 1) == ("can be shown" in causes.short)
    assert causes.effect == 0
    assert "its 95 % interval leaves 0 out in 0 of 3 heads" in causes.full


def test_stages_are_stated_with_the_interval_of_one_layer():
    through = said()[2]
    stages = [median(cells["value"]) for cells in (OUTPUT, SKIP, LAYER)]
    parts = middle(LAYER, "weights", "sampling", "shape")
    entropy = -median(LAYER_ENTROPY["value"])
    assert_states(
        through.full, *stages, 4, WINDOWS, 0.596, 95, 0.572, 0.62, 0.3, *parts, entropy
    )  # fmt: skip
    assert (
        "In L0, where the last error is the median one, it is 0.60 (95 % interval 0.57 to 0.62; what was"
        in through.full
    )
    assert "off by 0.74 of its size after W_O, 0.35 after the skip, 0.58 after the whole layer (" in through.full
    assert "In enc.L0, where the last error" in said(stack="enc")[2].full
    floor = median(LAYER["floor"])
    assert_states(through.short, stages[-1], floor)
    assert through.short.startswith("After the whole layer the predicted covariance")
    assert through.effect == pytest.approx((stages[-1] - floor) / (1 - floor))


def test_an_error_no_larger_than_that_of_other_windows():
    layers = LAYERS | {("layer", "covariance"): LAYER | {"half": [0.4] * 4}}
    through = said(layers=layers)[2]
    limit = detected_by_one_test([0.4] * 4, WINDOWS)
    assert through.short == (
        f"No error of covariances after the whole layer beyond other windows' was detected; {limit:.2f} of their size "
        "would have been."
    )
    assert through.effect == 0


def test_stages_that_are_missing_are_left_out():
    few = {key: LAYERS[key] for key in (("heads", "entropy"), ("heads", "covariance"), ("output", "covariance"))}
    through = said(layers=few)[2]
    assert_states(through.full, 0.74, 4, WINDOWS, 0.76, 95, 0.73, 0.79)
    assert "parts" not in through.full
    assert "Entropy" not in through.full
    assert through.short == "After W_O the predicted covariance is off by 0.74 of its size."
    assert len(said(layers={("heads", "entropy"): POOLED})) == 2


def test_windows_without_intervals():
    answer, causes, through = said(intervals=False)
    compared = [*middle(MEAN, "value", "null", "floor"), *middle(COVARIANCE, "value", "null", "floor")]
    shared = middle(INFORMATION, "before", "measured", "predicted")
    assert_states(answer.full, 0.443, 3, WINDOWS, 0.69, *compared, 0.35, *shared)
    assert answer.short.endswith("too low (no interval).")
    assert_states(causes.full, 3, 95.6, 88.2, 51, 93, WINDOWS, 2, 3, 100 * 0.83**2)
    assert "over heads; no interval)" in causes.full
    assert causes.short.endswith("predicted covariances; no interval.")
    assert "it is 0.60 (no interval; what was measured" in through.full
    assert through.short.endswith("other windows' by 0.21 (no interval).")
    assert [headline.effect for headline in (answer, causes, through)] == [None] * 3


def test_one_head_and_one_layer():
    alone = {name: {column: numbers[:1] for column, numbers in cells.items()} for name, cells in HEADS.items()}
    layers = {key: {column: numbers[:1] for column, numbers in cells.items()} for key, cells in LAYERS.items()}
    answer, causes, through = said(layers=layers, **alone)
    assert "in the median of 1 head (" in answer.full
    assert "The 95 % interval of 1 of 1 head leaves 0 out" in answer.full
    assert "squared error of the covariance (its 95 % interval leaves 0 out in 1 of 1 head; over" in causes.full
    assert "(medians of 1 layer, 12 windows)" in through.full


@pytest.mark.parametrize(
    ("skip", "words"),
    [(0, "24 tokens of all"), (1, "24 tokens without the first token of"), (3, "without the first 3 tokens of")],
)
def test_the_method_names_the_tokens_that_are_left_out(skip, words):
    counts = Counts(skip=skip, queries=24, windows=9, fewest=9, same_shape=9, other_shape=0)
    assert words in method(counts, 1, 4)
