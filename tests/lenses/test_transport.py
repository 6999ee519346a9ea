"""Known answers and planted cases of the lens `transport`."""

from dataclasses import replace
from math import exp

import polars as pl
import pytest
import torch

from headscope.attention.statistics import Request
from headscope.core import AfterHeads, WeightStatus
from headscope.errors import UsageError
from headscope.lenses.lens import AS_IS, Batch
from headscope.lenses.transport.lens import LENS
from headscope.lenses.transport.settings import Params
from headscope.lenses.transport.sums import CAPTURES, KEYS, windows_of
from headscope.shapes import CORNER
from tests.contract.test_lenses import differences, folded
from tests.lenses.asking import begin, defined, finish, merge, update
from tests.lenses.planted import MODELS, SPEC, Planted, batches, planted, site

D, HEADS, N, W = 5, 2, 24, 40
OF = site(n_heads=HEADS, n_kv_heads=1, d_head=D)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def causal(scores):
    return torch.softmax(scores.masked_fill(torch.ones(N, N, dtype=torch.bool).triu(1), -torch.inf), -1)


def batch_of(x, v, pattern, of=OF):
    """Windows whose heads attend by these patterns [windows, heads, n, n] to these values [windows, n, d]."""
    windows, n = x.shape[:2]
    tokens = torch.randint(0, 50, (windows, n), generator=torch.Generator().manual_seed(3))
    found = dict(zip(CAPTURES, (x, v[:, None], pattern, pattern @ v[:, None]), strict=True))
    real = torch.ones(windows, n, dtype=torch.bool)
    return Batch(AS_IS, tokens, real, {}, {}, {name: {of: value} for name, value in found.items()})


def finding_of(batch, model=None, **params):
    model = planted(OF) if model is None else model
    return finish(LENS, folded(LENS, Params(**params), model, [batch]), model)


def row(finding, quantity, head=0, stage=None):
    table = finding.tables["heads" if stage is None else "layers"].filter(pl.col("quantity") == quantity)
    chosen = table.filter(pl.col("head") == head) if stage is None else table.filter(pl.col("stage") == stage)
    return chosen.row(0, named=True)


@pytest.fixture(scope="module")
def planted_case():
    """Independent Gaussian tokens. Head 0 averages all before; head 1 takes the one that its query points at."""
    x, v = normal(W, N, SPEC.d_model), normal(W, N, D, seed=1)
    flat = causal(torch.zeros(W, N, N, dtype=torch.float64))
    follows = causal(8 * (v @ v.mT))
    return finding_of(batch_of(x, v, torch.stack((flat, follows), 1)))


@pytest.mark.parametrize(("shape", "lengths"), [
    ("one head", ((13,) * 8, (13, 12))), ("grouped queries", ((12,) * 7,)), ("encoder", ((12, 12), (12, 12, 12))),
])  # fmt: skip
def test_fold_equals_the_formulas_on_many_windows(shape, lengths):
    """Covariances, information, jackknife and draws, which a few windows do not show."""
    model, params = MODELS[shape], Params(components=2)
    parts = batches(replace(model, weights_of=dict(list(model.weights_of.items())[:1])), Request(), shapes=lengths)
    finding = finish(LENS, folded(LENS, params, model, parts), model)
    assert {"norm", "layer"} <= set(finding.tables["layers"]["stage"])
    assert finding.tables["heads"]["dimensions"].max() > 0
    assert not differences(finding.tables, defined(LENS, params, model, parts))


def test_constant_weights_are_carried_exactly(planted_case):
    """What is left is that the halves differ; and uniform attention, being right here, is no worse."""
    covariance, vector = row(planted_case, "covariance"), row(planted_case, "vector")
    assert covariance["value"] == pytest.approx(covariance["sampling"], rel=1e-9)
    assert covariance["value"] == pytest.approx(covariance["floor"], rel=1e-9)
    assert covariance["value"] == pytest.approx(covariance["null"], rel=1e-9)
    assert covariance["weights"] < 1e-9
    assert abs(covariance["share"]) < 1e-9
    assert vector["value"] < 1e-9
    assert abs(row(planted_case, "entropy")["value"]) < 1e-9


def test_averages_of_independent_tokens_have_their_closed_form(planted_case):
    """The mean of i tokens has variance 1/i in each direction; two neighbours i and i + 1 correlate by √(i/(i + 1))."""
    places = torch.arange(2, N + 1, dtype=torch.float64)
    covariance, information = row(planted_case, "covariance"), row(planted_case, "information")
    assert covariance["dimensions"] == D
    assert covariance["predicted"] == pytest.approx(D * float((1 / places).mean()), rel=0.2)
    joint = torch.tensor([[(1 / places[1:]).mean(), (1 / places[1:]).mean()], [0, (1 / places[:-1]).mean()]])
    joint[1, 0] = joint[0, 1]
    expected = -D / 2 * float(torch.logdet(joint) - joint.diagonal().log().sum())
    assert information["predicted"] == pytest.approx(expected, rel=0.2)
    assert information["before"] < 0.2, "independent tokens share nothing but the bias"


def test_weights_that_follow_the_data_are_found(planted_case):
    covariance, entropy = row(planted_case, "covariance", head=1), row(planted_case, "entropy", head=1)
    assert covariance["share_low"] > 0.8
    assert covariance["weights"] > 0.4
    assert covariance["floor"] < 0.2
    assert covariance["predicted"] < 0.6 * covariance["measured"]
    assert entropy["high"] < -0.2
    assert entropy["share"] == pytest.approx(1, abs=0.1)
    assert row(planted_case, "vector", head=1)["value"] > 0.4
    assert planted_case.headlines[0].full.startswith("Constant weights")
    assert "too low" in planted_case.headlines[0].full
    error, share = entropy["value"] / 2, covariance["share"] / 2  # the other head has none
    assert f"entropy {-error:.2f} nats per component too low; uniform" in planted_case.headlines[0].short
    assert planted_case.headlines[0].effect == pytest.approx(1 - exp(error))
    assert f"cause {100 * share:.0f} % of the squared error" in planted_case.headlines[1].short
    assert planted_case.headlines[1].effect == pytest.approx(share)


def test_short_headlines_of_constant_weights_have_no_effect():
    """All heads average alike in every window: the formula is exact, and what is left is that windows differ."""
    x, v = normal(8, N, SPEC.d_model), normal(8, N, D, seed=1)
    finding = finding_of(batch_of(x, v, causal(torch.zeros(8, HEADS, N, N, dtype=torch.float64))))
    assert finding.headlines[0].effect == pytest.approx(0, abs=1e-9)
    assert [headline.effect for headline in finding.headlines[1:]] == [0, 0]
    answer, causes, through = (headline.short for headline in finding.headlines)
    assert answer.startswith("No error of averaged weights in a head's output entropy ")
    assert causes == "No error of covariances from weights that follow the text in any of 8 windows."
    assert " was detected; " in through


def test_gaussian_tokens_leave_no_error_of_shape(planted_case):
    """Tokens that are Gaussian go through norm and rectifier as draws do; of tokens ±1 the norm knows better."""
    assert row(planted_case, "covariance", stage="layer")["shape"] < 0.12
    assert row(planted_case, "covariance", stage="skip")["shape"] is None
    x, v = 6 * normal(W, N, SPEC.d_model).sign() * normal(W, N, 1, seed=8).exp(), normal(W, N, D, seed=1)
    pattern = causal(torch.zeros(W, HEADS, N, N, dtype=torch.float64))
    assert row(finding_of(batch_of(x, v, pattern)), "covariance", stage="norm")["shape"] > 0.3


def test_layers_behind_refused_weights_are_left_out(planted_case):
    model = replace(planted(OF), statuses={OF: WeightStatus("refused", "MLA has no such form")})
    x, v = normal(6, N, SPEC.d_model), normal(6, N, D, seed=1)
    finding = finding_of(batch_of(x, v, causal(torch.zeros(6, HEADS, N, N, dtype=torch.float64))), model)
    assert set(finding.tables["layers"]["stage"]) == {"heads"}
    assert any("MLA has no such form" in warning for warning in finding.warnings)


class Parallel(Planted):
    """The feed-forward part reads the stream beside attention, not behind it."""

    def after_heads(self, of, stream, z):
        normed = stream / stream.norm(dim=-1, keepdim=True)
        return AfterHeads(normed, super().after_heads(of, stream, z).out)


def test_a_norm_that_does_not_read_the_sum_is_no_stage():
    model = Parallel(**vars(planted(OF)))
    x, v = normal(6, N, SPEC.d_model), normal(6, N, D, seed=1)
    finding = finding_of(batch_of(x, v, causal(torch.zeros(6, HEADS, N, N, dtype=torch.float64))), model)
    assert set(finding.tables["layers"]["stage"]) == {"heads", "output", "layer"}
    assert any("does not read a norm of the sum" in warning for warning in finding.warnings)


def test_more_keys_than_fit_are_said():
    of = replace(OF, causal=False)
    pattern = torch.full((4, HEADS, 8, KEYS + 1), 1 / (KEYS + 1), dtype=torch.float64)
    batch = batch_of(normal(4, 8, SPEC.d_model), normal(4, KEYS + 1, D), pattern, of)
    finding = finding_of(batch, planted(of))
    assert finding.status == "not applicable"
    assert f"more than {KEYS} keys" in finding.reason


def test_windows_are_drawn_and_their_halves_kept():
    """With room for a few windows, mean weights are still those of all, and a merge moves even windows to odd ones."""
    x, v = normal(9, N, SPEC.d_model), normal(9, N, D, seed=1)
    batch = batch_of(x, v, causal(normal(9, HEADS, N, N, seed=2)))
    model = planted(OF)

    def part(some):
        captures = {name: {OF: value[OF][some]} for name, value in batch.captures.items()}
        return replace(batch, tokens=batch.tokens[some], real=batch.real[some], captures=captures)

    def fold_of(*parts):
        fold = begin(LENS, Params(), model.spec, model.sites)
        fold = replace(fold, state=replace(fold.state, room=6))
        for batch_part in parts:
            fold = update(LENS, fold, batch_part)
        return fold

    whole = fold_of(batch)
    (sums,) = whole.state.sums_by_site[OF].values()
    assert sums.count == 9
    assert len(sums.parts) == 6
    assert torch.allclose(sums.weights[0], batch.captures["early"][OF][::2].sum(0))
    split = merge(LENS, fold_of(part(slice(0, 3))), fold_of(part(slice(3, 9))))
    assert not differences(finish(LENS, whole, model).tables, finish(LENS, split, model).tables, tolerance=1e-9)


def test_three_windows_have_no_interval(planted_case):
    """One half has a single window: its tokens stand for windows, and they are no independent ones."""
    x, v = normal(3, N, SPEC.d_model), normal(3, N, D, seed=1)
    uniform = causal(torch.zeros(3, HEADS, N, N, dtype=torch.float64))
    table = finding_of(batch_of(x, v, uniform)).tables["heads"]
    assert table.height
    assert table["low"].is_null().all()
    assert table["high"].is_null().all()
    assert not planted_case.tables["heads"]["low"].is_null().all()


def test_the_first_queries_of_an_encoder_have_all_keys():
    """A long window without its padding: few queries, every real key, and a value for each of these."""
    n, real = CORNER + 5, CORNER + 2
    tokens, is_real = torch.arange(n)[None], (torch.arange(n) < real)[None]
    early, v = normal(1, HEADS, CORNER, n), normal(1, 1, n, D)
    captured = {"resid": normal(1, n, 3), "v": v, "early": early, "corner_z": normal(1, HEADS, CORNER, D)}
    ((_, window),) = windows_of(tokens, is_real, captured)
    assert torch.equal(window["early"], early[0, :, :, :real])
    assert torch.equal(window["v"], v[0, :, :real])
    assert torch.equal(window["resid"], captured["resid"][0, :CORNER])


@pytest.mark.parametrize("params", [{"components": 0}, {"skip": -1}, {"distance": 0}, {"distance": 64}])
def test_senseless_parameters_are_refused(params):
    with pytest.raises(UsageError):
        LENS.needs(Params(**params))
