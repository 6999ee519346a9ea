"""Counting by running, and the judge of a claim about trained models."""

import polars as pl
import pytest
import torch

from headscope.claims import claims, judged
from headscope.claims.work import Work
from headscope.core import Finding
from headscope.lenses.focus import LENS


def test_products_and_systems_are_counted():
    work = Work()
    a, b = torch.eye(6, 6, dtype=torch.float64) * 2, torch.ones(6, 4, dtype=torch.float64)
    torch.testing.assert_close(work.product(a, b), a @ b)
    assert work.multiplications == 6 * 6 * 4
    torch.testing.assert_close(work.solve(a, b), b / 2)
    assert work.multiplications == 6 * 6 * 4 + 72 + 144


@pytest.mark.parametrize(("share", "verdict"), [(0.5, "refuted"), (0.99, "holds")])
def test_flat_attention_is_judged_by_its_entropy(share, verdict):
    table = pl.DataFrame({"quantity": ["entropy_share", "first"], "value": [share, 0.1]})
    finding = Finding(lens="focus", about=LENS.about, tables={"heads": table})
    (claim,) = claims(["W-7.3e"])
    assert judged(claim, findings={"focus": finding}, model="m").verdict == verdict


@pytest.mark.parametrize(("cosines", "left", "verdict"), [
    ((0.1, 0.99), 0.05, "holds"), ((0.1, 0.6), 0.7, "refuted"), ((0.99, 0.98), 0.05, "refuted"),
    ((0.5,), 0.7, "needs a model"),
])  # fmt: skip
def test_tokens_that_grow_alike_are_judged_by_what_distinguishes_them(cosines, left, verdict):
    rows = [("as is", "dec", "mean_cosine", value) for value in cosines] + [("as is", "dec", "residual_share", left)]
    others = [("as is", "enc", "residual_share", 0.0), ("without skips", "dec", "residual_share", 0.0)]
    schema = ["variant", "stack", "quantity", "value"]
    table = pl.DataFrame([others[0], *rows, others[1]], schema=schema, orient="row")
    finding = Finding(lens="uniformity", about=LENS.about, tables={"streams": table})
    (claim,) = claims(["W-3.3c"])
    assert judged(claim, findings={"uniformity": finding}, model="m").verdict == verdict


MISTRAL = "Mistral-7B-Instruct-v0.2"


@pytest.mark.parametrize(
    ("traces", "verdict"), [([0.9, -1.2, 0.3, -0.7, 1.5, -0.4], "holds"), ([-39.0, 27.0, -14.0, 2.0], "refuted")]
)
def test_traces_are_judged_as_standard_normal(traces, verdict):
    table = pl.DataFrame({"quantity": ["trace"] * len(traces), "value": traces, "sd": [0.05] * len(traces)})
    finding = Finding(lens="alignment", about=LENS.about, tables={"layers": table})
    (claim,) = claims(["W-7.2h"])
    assert judged(claim, findings={"alignment": finding}, model=MISTRAL).verdict == verdict
    assert judged(claim, findings={"alignment": finding}, model="another").verdict == "needs a model"


@pytest.mark.parametrize(("of_values", "verdict"), [(1.0, "holds"), (0.05, "refuted")])
def test_norms_of_layers_are_judged_by_the_stated_ranges(of_values, verdict):
    squares, largest = {"Q": 0.07, "K": 0.07, "V": of_values}, {"Q": 3.5, "K": 3.5, "V": 2.5}
    rows = [{"matrix": m, "quantity": "mean_square", "value": x, "null": None} for m, x in squares.items()]
    rows += [{"matrix": m, "quantity": "largest", "value": x, "null": 1.0} for m, x in largest.items()]
    finding = Finding(lens="spectra", about=LENS.about, tables={"layers": pl.DataFrame(rows)})
    (claim,) = claims(["W-7.2e"])
    assert judged(claim, findings={"spectra": finding}, model=MISTRAL).verdict == verdict


@pytest.mark.parametrize(("itself", "verdict"), [(0.7, "holds"), (0.08, "refuted")])
def test_scaled_spectra_are_judged_by_an_intervention(itself, verdict):
    effects = pl.DataFrame(
        {
            "change": ["original", "scale 1/2", "scale 2"],
            "which": ["original", "change", "change"],
            "self": [0.1, 0.1, itself],
        }
    )
    texts = pl.DataFrame(
        {
            "change": ["scale 1/2", "scale 2"], "which": ["change", "change"], "copied": [0.0, 0.6],
            "surprise": [9.0, 1.0], "ordinary": [3.0, 3.0], "shuffled": [8.0, 8.0],
        }
    )  # fmt: skip
    (claim,) = claims(["W-8.5c"])
    finding = Finding(lens="intervene", about=LENS.about, tables={"effects": effects, "texts": texts})
    assert judged(claim, findings={"intervene": finding}, model=MISTRAL).verdict == verdict
    silent = Finding(lens="intervene", about=LENS.about, tables={"effects": effects})
    assert judged(claim, findings={"intervene": silent}, model=MISTRAL).verdict == "needs a model"


@pytest.mark.parametrize(("own", "gain", "verdict"), [(0.95, 0.5, "holds"), (0.6, -0.1, "refuted")])
def test_few_shot_prompts_are_judged_by_the_study(own, gain, verdict):
    ends = {"gain_low": [0.0, gain - 0.1], "gain_high": [0.0, gain + 0.1]}
    shots = pl.DataFrame({"shots": [0, 8], "gain": [0.0, gain], **ends})
    rows = [
        {"layer": layer, "quantity": quantity, "value": value, "nearness": near}
        for layer in range(3)
        for quantity, value, near in (("inside_share", own, 0.5), ("target", 0.05, 0.02), ("diagonal_words", 0.3, None))
    ]
    finding = Finding(lens="fewshot", about=LENS.about, tables={"shots": shots, "layers": pl.DataFrame(rows)})
    found = tuple(
        judged(claims([one])[0], findings={"fewshot": finding}, model=MISTRAL).verdict for one in ("W-8.2b", "W-8.1c")
    )
    assert found == (verdict, verdict)
    assert judged(claims(["W-8.2a"])[0], findings={"fewshot": finding}, model=MISTRAL).verdict == "refuted"


@pytest.mark.parametrize(("average", "single", "verdict"), [(0.08, 0.09, "holds"), (0.08, 0.9, "refuted")])
def test_small_weights_are_judged_by_the_maps(average, single, verdict):
    rows = [
        {"layer": layer, "quantity": quantity, "value": value - 0.01 * layer}
        for layer in range(2)
        for quantity, value in (("largest_average", average), ("largest_head", single))
    ]
    finding = Finding(lens="maps", about=LENS.about, tables={"layers": pl.DataFrame(rows)})
    assert judged(claims(["W-8.2c"])[0], findings={"maps": finding}, model=MISTRAL).verdict == verdict
