"""Judges of claims about trained models: numbers with intervals, undecided where an interval holds the limit."""

from typing import Any

import polars as pl
import pytest

from headscope.core import Finding
from headscope.lenses.focus.lens import LENS
from headscope.theory import claims, judged
from headscope.theory.finding_reader import HALF_WIDTH, errors, mean_and_error, numbers, rows_of

MISTRAL = "Mistral-7B-Instruct-v0.2"
ANY = "some-model"


def finding(lens: str, **tables: list[dict[str, Any]]) -> Finding:
    frames = {name: pl.DataFrame(rows, infer_schema_length=None) for name, rows in tables.items()}
    return Finding(lens=lens, about=LENS.about, tables=frames)


def reading(name: str, *findings: Finding, model: str = ANY) -> str:
    (claim,) = claims([name])
    return judged(claim, findings={measured.lens: measured for measured in findings}, model=model).reading


def around(value: float, half: float = 0.01) -> dict[str, float]:
    return {"value": value, "low": value - half, "high": value + half}


def test_numbers_are_read_by_name() -> None:
    measured = finding(
        "x", heads=[{"quantity": "a", **around(1.0, 0.196), "null": None}, {"quantity": "b", **around(2.0)}]
    )
    rows = rows_of(measured, "heads", quantity="a")
    assert rows is not None
    assert numbers(rows).tolist() == [1.0]
    assert errors(rows) == pytest.approx([0.1], rel=1e-4)
    assert mean_and_error(rows) == pytest.approx((1.0, 0.1), rel=1e-4)
    assert rows_of(measured, "layers") is None
    assert rows_of(measured, "heads", ("value", "renamed")) is None
    assert rows_of(measured, "heads", ("value", "null"), quantity="a") is None
    assert rows_of(measured, "heads", quantity="c") is None


@pytest.mark.parametrize(
    ("share", "expected"), [(0.05, f"refuted on {ANY}"), (0.9, f"holds on {ANY}"), (0.505, "needs a model")]
)
def test_flat_attention_is_judged_by_effective_keys(share: float, expected: str) -> None:
    heads = [{"quantity": "effective_keys", **around(100 * share, 1.0), "uniform": 100.0}] * 3
    assert reading("W-7.3e", finding("focus", heads=heads)) == expected


@pytest.mark.parametrize(
    ("itself", "expected"), [(0.07, f"refuted on {ANY}"), (0.8, f"holds on {ANY}"), (0.503, "needs a model")]
)
def test_own_tokens_are_judged_by_an_interval(itself: float, expected: str) -> None:
    heads = [{"quantity": "diagonal", **around(itself), "uniform": 0.01}] * 2
    assert reading("W-2.4d", finding("focus", heads=heads)) == expected


def test_a_correction_is_printed_only_where_it_passes() -> None:
    (claim,) = claims(["W-2.4d"])
    for uniform, printed in ((0.01, True), (0.3, False)):
        heads = [{"quantity": "diagonal", **around(0.07), "uniform": uniform}] * 2
        entry = judged(claim, findings={"focus": finding("focus", heads=heads)}, model=ANY)
        assert (entry.verdict, bool(entry.correction)) == ("refuted", printed)


def streams(*cosines: float) -> Finding:
    rows = [
        {"variant": "as is", "stack": "dec", "layer": layer, "quantity": "mean_cosine", **around(value)}
        for layer, value in enumerate(cosines)
    ]
    others = [
        {"variant": "as is", "stack": "enc", "layer": 0, "quantity": "mean_cosine", **around(0.9)},
        {"variant": "without skips", "stack": "dec", "layer": 9, "quantity": "mean_cosine", **around(0.0)},
    ]
    return finding("uniformity", streams=[others[0], *rows, others[1]])


def components(*heads: tuple[float, float], tokens: int = 128) -> Finding:
    rows = [
        {"quantity": "components_90", "tokens": tokens, **around(value, 0.5), "shuffled": null} for value, null in heads
    ]
    return finding("lowrank", components=rows)


@pytest.mark.parametrize(
    ("cosines", "heads", "expected"),
    [
        ((0.12, 0.59), ((10.0, 60.0),), f"holds on {ANY}"),  # alike is not equal: no share has to vanish
        ((0.6, 0.3), ((10.0, 60.0),), f"refuted on {ANY}"),
        ((0.1, 0.5), ((70.0, 60.0),), f"refuted on {ANY}"),
        ((0.5, 0.505), ((10.0, 60.0),), "needs a model"),
        ((0.5,), ((10.0, 60.0),), "needs a model"),
    ],
)
def test_tokens_that_grow_alike_and_few_singular_values(cosines, heads, expected) -> None:
    assert reading("W-3.3c", streams(*cosines), components(*heads)) == expected


def test_both_findings_are_needed() -> None:
    assert reading("W-3.3c", streams(0.1, 0.5)) == "needs a model"


@pytest.mark.parametrize(
    ("heads", "expected"),
    [
        (((10.0, 60.0), (9.0, 50.0)), f"holds on {ANY}"),
        (((10.0, 60.0), (100.0, 80.0)), f"refuted on {ANY}"),  # one head that looks at itself
        (((10.0, 60.0), (80.5, 80.0)), f"holds on {ANY}"),  # within its interval: speaks against nothing
    ],
)
def test_few_components_are_few_beside_shuffled_maps(heads, expected) -> None:
    assert reading("C-9f", components(*heads)) == expected
    assert reading("C-9f", components(*heads, tokens=32)) == "needs a model"


@pytest.mark.parametrize(
    ("spread", "gaussian", "expected"), [(0.18, 0.158, f"refuted on {ANY}"), (0.05, 0.1, f"holds on {ANY}")]
)
def test_lengths_are_judged_beside_a_cloud(spread: float, gaussian: float, expected: str) -> None:
    row = {
        "table": "token",
        "quantity": "length_spread",
        "value": spread,
        "null": 0.03,
        "gaussian": gaussian,
        "rows": 9999,
    }
    assert reading("W-2.3b", finding("embeddings", tables=[row])) == expected


@pytest.mark.parametrize(
    ("z", "added", "expected"),
    [(18.0, 6.0, f"holds on {ANY}"), (18.0, 2.0, "needs a model"), (-9.0, 6.0, f"refuted on {ANY}")],
)
def test_meaning_is_judged_by_one_border(z: float, added: float, expected: str) -> None:
    related = {"word": "all", "value": 0.5, "null": 0.5 - 0.01 * z, "z": z, "pairs": 30}
    error = 0.05  # so that `added` is the gain in standard errors
    gain = (error * added, error * (added - HALF_WIDTH), error * (added + HALF_WIDTH))
    analogies = {
        "relation": "all", **around(0.6, 0.1), "null": 2e-5, "baseline": 0.6 - 0.05 * added, "analogies": 9,
        **{f"gain{end}": number for end, number in zip(("", "_low", "_high"), gain, strict=True)},
    }  # fmt: skip
    assert reading("W-2.3a", finding("embeddings", related=[related], analogies=[analogies])) == expected
    few = finding("embeddings", related=[{**related, "pairs": 4}], analogies=[analogies])
    assert reading("W-2.3a", few) == "needs a model"


@pytest.mark.parametrize(
    ("traces", "expected"), [([0.9, -1.2, 0.3, -0.7, 1.5, -0.4], "holds"), ([-39.0, 27.0, -14.0, 2.0], "refuted")]
)
def test_traces_are_judged_as_standard_normal(traces: list[float], expected: str) -> None:
    measured = finding("alignment", layers=[{"quantity": "trace", "value": trace, "sd": 0.05} for trace in traces])
    assert reading("W-7.2h", measured, model=MISTRAL) == expected  # the statement names this model itself
    assert reading("W-7.2h", measured, model="another") == "needs a model"


@pytest.mark.parametrize(
    ("of_values", "expected", "printed"), [(1.0, "holds", False), (0.05, "refuted", True), (0.5, "refuted", False)]
)
def test_norms_of_layers_are_judged_by_the_stated_ranges(of_values: float, expected: str, printed: bool) -> None:
    squares, largest = {"Q": 0.07, "K": 0.07, "V": of_values}, {"Q": 3.5, "K": 3.5, "V": 2.5}
    rows = [{"matrix": m, "quantity": "mean_square", "value": x, "null": None} for m, x in squares.items()]
    rows += [{"matrix": m, "quantity": "largest", "value": x, "null": 1.0} for m, x in largest.items()]
    (claim,) = claims(["W-7.2e"])
    entry = judged(claim, findings={"spectra": finding("spectra", layers=rows)}, model=MISTRAL)
    assert (entry.reading, bool(entry.correction)) == (expected, printed)


@pytest.mark.parametrize(("itself", "expected"), [(0.7, "holds"), (0.08, "refuted")])
def test_scaled_spectra_are_judged_by_an_intervention(itself: float, expected: str) -> None:
    changes = (("original", "original"), ("scale 2", "change"), ("scale 1/2", "change"))
    selves, copies, surprises = (0.1, itself, 0.1), (0.0, 0.6, 0.0), (2.0, 1.0, 9.0)
    effects = [
        {"change": change, "which": which, "self": value, "self_low": value - 0.01, "self_high": value + 0.01}
        for (change, which), value in zip(changes, selves, strict=True)
    ]
    texts = [
        {"prompt": f"{at}", "change": change, "which": which, "copied": copied + 0.01 * at * copied}
        | {"surprise": surprise + 0.1 * at, "ordinary": 3.0, "shuffled": 8.0}
        for (change, which), copied, surprise in zip(changes, copies, surprises, strict=True)
        for at in range(4)
    ]
    assert reading("W-8.5c", finding("intervene", effects=effects, texts=texts), model=MISTRAL) == expected
    assert reading("W-8.5c", finding("intervene", effects=effects), model=MISTRAL) == "needs a model"


@pytest.mark.parametrize(
    ("copies", "expected"),
    [
        (((0.30, 0.30), (0.31, 0.31), (0.30, 0.30)), "refuted"),  # as much as before, prompt by prompt
        (((0.10, 0.60), (0.10, 0.80)), "needs a model"),  # two prompts: five standard errors, one chance in eight
        (((0.0, 0.60), (0.0, 0.61), (0.0, 0.60), (0.0, 0.62)), "holds"),
    ],
)
def test_few_prompts_decide_little(copies: tuple[tuple[float, float], ...], expected: str) -> None:
    effects = [{"change": "scale 2", "which": "change", "self": 0.7, "self_low": 0.69, "self_high": 0.71}]
    texts = [
        {"prompt": f"{at}", "change": change, "which": which, "copied": copied, "surprise": surprise}
        | {"ordinary": 3.0, "shuffled": 8.0}
        for at, (before, after) in enumerate(copies)
        for change, which, copied, surprise in (
            ("original", "original", before, 2.0),
            ("scale 2", "change", after, 1.0),
            ("scale 1/2", "change", 0.0, 9.0),
        )
    ]
    assert reading("W-8.5c", finding("intervene", effects=effects, texts=texts), model=MISTRAL) == expected


@pytest.mark.parametrize(("own", "printed"), [(0.6, True), (0.8, False)])
def test_that_words_cross_the_borders_can_fail(own: float, printed: bool) -> None:
    """A softmax has no zeros: some mass always crosses, and that corrects nothing."""
    rows = [
        {"layer": layer, "quantity": quantity, **around(value), "nearness": near}
        for layer in range(3)
        for quantity, value, near in (("inside_share", own, 0.5), ("target", 0.01, 0.09))
    ]
    (claim,) = claims(["W-8.2b"])
    entry = judged(claim, findings={"fewshot": finding("fewshot", layers=rows)}, model=MISTRAL)
    assert (entry.verdict, bool(entry.correction)) == ("refuted", printed)


@pytest.mark.parametrize(("itself", "printed"), [(0.3, True), (0.49, False)])
def test_heads_are_counted_by_their_intervals(itself: float, printed: bool) -> None:
    """Two of three heads whose intervals hold one half are not "most heads give it less"."""
    (claim,) = claims(["W-2.4d"])
    rows = [
        {"quantity": "diagonal", **around(value, half), "uniform": 0.001}
        for value, half in ((0.02, 0.01), (itself, 0.05), (itself, 0.05))
    ]
    entry = judged(claim, findings={"focus": finding("focus", heads=rows)}, model=ANY)
    assert (entry.verdict, bool(entry.correction)) == ("refuted", printed)


@pytest.mark.parametrize(("own", "gain", "expected"), [(0.95, 0.5, "holds"), (0.4, -0.6, "refuted")])
def test_few_shot_prompts_are_judged_by_the_study(own: float, gain: float, expected: str) -> None:
    ends = {0: (0.0, 0.0), 8: (gain - 0.1, gain + 0.1)}
    shots = [
        {"shots": n, "gain": (low + high) / 2, "gain_low": low, "gain_high": high} for n, (low, high) in ends.items()
    ]
    rows = [
        {"layer": layer, "quantity": quantity, **around(value), "nearness": near}
        for layer in range(3)
        for quantity, value, near in (("inside_share", own, 0.5), ("target", 0.09, 0.02), ("diagonal_words", 0.3, None))
    ]
    measured = finding("fewshot", shots=shots, layers=rows)
    assert [reading(name, measured, model=MISTRAL) for name in ("W-8.2b", "W-8.1c")] == [expected, expected]
    assert reading("W-8.2a", measured, model=MISTRAL) == "refuted"


@pytest.mark.parametrize(("average", "single", "expected"), [(0.05, 0.06, "holds"), (0.05, 0.9, "refuted")])
def test_small_weights_are_judged_by_the_maps(average: float, single: float, expected: str) -> None:
    rows = [
        {"layer": layer, "quantity": quantity, **around(value - 0.01 * layer)}
        for layer in range(2)
        for quantity, value in (("largest_average", average), ("largest_head", single))
    ]
    assert reading("W-8.2c", finding("maps", layers=rows), model=MISTRAL) == expected


@pytest.mark.parametrize(
    ("size", "half", "expected"), [(0.02, 0.01, "holds"), (0.3, 0.01, "refuted"), (0.09, 0.02, "needs a model")]
)
def test_angles_are_judged_by_what_they_explain(size: float, half: float, expected: str) -> None:
    heads = [
        {"quantity": quantity, **around(size, half), "null": 0.001}
        for quantity in ("embedding_score", "embedding_rank")
    ]
    assert reading("W-8.3", finding("angles", heads=heads), model=MISTRAL) == expected
