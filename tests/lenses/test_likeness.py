"""Planted cases of the lens `likeness`: queries and keys whose covariance is known."""

import re
from dataclasses import replace

import polars as pl
import pytest
import torch

from headscope.errors import UsageError
from headscope.lenses.lens import AS_IS, Batch
from headscope.lenses.likeness.lens import LENS
from headscope.lenses.likeness.sentences import _prediction_short
from headscope.lenses.likeness.settings import Params
from tests.lenses.asking import begin, finish, update
from tests.lenses.planted import planted, site

OF = site(n_kv_heads=4)


def text(windows: int, seed: int, share: float = 0.5, n: int = 40) -> Batch:
    """Keys that hold a share of their own query, of none, of its opposite, and of the query four tokens later.

    All of them lie around one point, which independent tokens share: that is no likeness.
    """
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(windows, 4, n, OF.d_head, generator=generator, dtype=torch.float64) for _ in range(2))
    k[:, 0] += share * q[:, 0]
    k[:, 2] -= share * q[:, 2]
    k[:, 3, :-4] += share * q[:, 3, 4:]
    real = torch.ones(windows, n, dtype=torch.bool)
    # Its own text for every window, of as many tokens as there are.
    tokens = torch.arange(windows * n).reshape(windows, n)
    scale = torch.tensor(0.5, dtype=torch.float64)
    return Batch(AS_IS, tokens, real, captures={"q": {OF: q + 2}, "k": {OF: k + 1}, "scale": {OF: scale}})


def finding_of(batch: Batch):
    model = planted(OF)
    return finish(LENS, update(LENS, begin(LENS, Params(), model.spec, (OF,)), batch), model)


def row(finding, head: int, distance: int):
    return finding.tables["heads"].filter(pl.col("head") == head, pl.col("distance") == distance).row(0, named=True)


def test_known_covariances_are_found():
    finding = finding_of(text(24, seed=0))
    expected = 0.5 * 0.5 * OF.d_head  # scale · share · Tr Cov(q, q)
    for head, distance, truth in ((0, 0, expected), (1, 0, 0.0), (2, 0, -expected), (3, 0, 0.0), (3, 4, expected)):
        cell = row(finding, head, distance)
        assert cell["low"] < truth < cell["high"], (head, distance)
        assert (cell["adjusted"] < 0.05) == (truth != 0)
    # The rows of the wrong distance hold nothing.
    assert row(finding, 0, 4)["adjusted"] > 0.05
    assert "1 of 4 heads scores it higher and 1 lower" in finding.headlines[0].full
    assert "23 windows" in finding.headlines[0].full
    assert "one more would be counted in four of five texts at" in finding.headlines[0].full
    assert (
        " at 4 (1 of 4 heads above 0 and none below; one more would be counted"
        in finding.headlines[2 - ("trace" not in finding.headlines[1].full)].full
    )


def test_weights_may_say_the_opposite():
    """Two coordinates that always come together: the diagonal of W_QK is negative, Tr Cov(q, k) is not."""
    of = replace(OF, n_heads=1, n_kv_heads=1)
    model = planted(of)
    w = model.weights_of[of]
    d_model = w.w_q.shape[1]
    w_q, w_k = torch.zeros_like(w.w_q), torch.zeros_like(w.w_k)
    w_q[0, 0, 0], w_k[0, 1, 0] = 1.0, 3.0  # the first coordinate looks for the second
    w_q[0, 0, 1], w_k[0, 0, 1] = 1.0, -1.0  # and avoids itself
    w = replace(w, w_q=w_q, w_k=w_k, b_q=torch.zeros_like(w.b_q), b_k=torch.zeros_like(w.b_k))
    model = replace(model, weights_of={of: w})
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(16, 40, d_model, generator=generator, dtype=torch.float64)
    x[..., 1] = x[..., 0]
    q, k = ((x @ weight[0].double())[:, None] for weight in (w.w_q * w.gain_q[:, None], w.w_k * w.gain_k[:, None]))
    captures = {"q": {of: q}, "k": {of: k}, "x": {of: x}, "scale": {of: torch.tensor(1.0)}}
    real = torch.ones(16, 40, dtype=torch.bool)
    batch = Batch(AS_IS, torch.arange(16 * 40).reshape(16, 40), real, captures=captures)
    finding = finish(LENS, update(LENS, begin(LENS, Params(), model.spec, (of,)), batch), model)
    cell = finding.tables["heads"].filter(pl.col("distance") == 0).row(0, named=True)
    assert cell["isotropic"] < 0
    assert cell["folded"] < 0
    assert cell["low"] > 0
    assert "has the right sign in 0 (" in finding.headlines[1].full


def test_intervals_cover():
    """The 95 % interval of a known covariance, over many texts; successive differences make it a little wide."""
    truth, covered, texts = 0.5 * 0.5 * OF.d_head, 0, 120
    for seed in range(texts):
        cell = row(finding_of(text(10, seed=1000 + seed, n=12)), 0, 0)
        covered += cell["low"] <= truth <= cell["high"]
    assert covered >= 0.90 * texts  # 0.95 less 2.5 standard errors of 120 texts


def test_one_window_has_no_unrelated_text():
    finding = finding_of(text(1, seed=0))
    assert finding.status == "not applicable"
    assert "no two windows" in finding.reason
    finding = finding_of(text(2, seed=0))
    assert finding.tables["heads"]["low"].null_count() == finding.tables["heads"].height
    assert any("no intervals" in warning for warning in finding.warnings)


def test_a_negative_skip_is_refused():
    with pytest.raises(UsageError, match="skip=-1"):
        LENS.needs(Params(skip=-1))


def test_the_short_form_states_the_planted_difference():
    finding = finding_of(text(24, seed=0))
    sizes = [abs(row(finding, head, 0)["effect"]) for head in (0, 2)]
    itself = finding.headlines[0]
    assert itself.short == (
        "2 of 4 heads score a token with itself differently from an unrelated one, typically by "
        f"{sum(sizes) / 2:.2g} score spreads."
    )
    assert itself.effect == pytest.approx(sum(size / (1 + size) for size in sizes) / 4)


def test_unrelated_tokens_have_no_effect():
    for headline in finding_of(text(24, seed=0, share=0.0)).headlines:
        assert re.match(r"No head that .* was detected; [\d.]+ score spreads would have been\.", headline.short)
        assert headline.effect == 0


def test_a_prediction_is_compared_with_guessing():
    assert _prediction_short(22, 26) == (
        "The weights tell whether a head favours the token itself in 22 of 26 cases; guessing gives 13.",
        pytest.approx(2 * 22 / 26 - 1),
    )
    short, effect = _prediction_short(14, 26)
    assert short.endswith("in 14 of 26 cases; 19 would beat guessing.")
    assert effect == 0
    short, effect = _prediction_short(0, 1)
    assert short.endswith("in 0 of 1 case, too few to tell.")
    assert effect == 0
