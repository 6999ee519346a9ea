"""Known answers and planted cases of the lens `dependence`."""

from dataclasses import replace

import polars as pl
import pytest
import torch

from headscope.attention.maps import pairs_of
from headscope.errors import UsageError
from headscope.lenses.dependence.lens import LENS
from headscope.lenses.dependence.settings import Params
from headscope.lenses.lens import AS_IS, Batch
from headscope.lenses.shared.token_pairs import CAPTURES, PairSample
from tests.contract.test_lenses import differences
from tests.lenses.asking import assembled, begin, defined, finish, update
from tests.lenses.planted import SPEC, site

RHO, D = 0.8, 4
PARAMS = Params(components=D, skip=1)
FOLLOWS, AWAY, NEAR, NOISE, KEY_ONLY = range(5)


def autoregressive(windows, length, seed=0):
    """A stationary Gaussian sequence x_i = ρ x_(i−1) + √(1 − ρ²) ε_i in every coordinate."""
    noise = torch.randn(windows, length, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x = noise.clone()
    for i in range(1, length):
        x[:, i] = RHO * x[:, i - 1] + (1 - RHO**2) ** 0.5 * noise[:, i]
    return x


def true_pointwise(x):
    """ln p(x_i, x_j) / p(x_i) p(x_j) of the sequence, from its correlation ρ^|i − j|."""
    n = x.shape[1]
    r = RHO ** (torch.arange(n)[:, None] - torch.arange(n)).abs().double()
    r = r.masked_fill(torch.eye(n, dtype=torch.bool), 0.0)
    squares = x.square().sum(-1)
    cross = x @ x.mT
    both = r.square() * (squares[:, :, None] + squares[:, None, :]) - 2 * r * cross
    return -D / 2 * torch.log1p(-r.square()) - both / (2 * (1 - r.square()))


def batch_of(x, scores, q=None, k=None, causal=True, seed=5):
    """One batch of one site whose heads have these scores [windows, heads, n, n]."""
    windows, n, _ = x.shape
    of = site(n_heads=scores.shape[1], n_kv_heads=1, d_head=D, causal=causal)
    if causal:
        scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf)
    tokens = torch.randint(0, 50, (windows, n), generator=torch.Generator().manual_seed(seed))
    q = x[:, None].expand(-1, scores.shape[1], -1, -1) if q is None else q
    k = x[:, None] if k is None else k
    found = {"resid": x, "q": q, "k": k, "pairs": pairs_of(torch.softmax(scores, -1))}
    real = torch.ones(windows, n, dtype=torch.bool)
    return Batch(AS_IS, tokens, real, {}, {}, {name: {of: value} for name, value in found.items()})


def fold_of(*batches, params=PARAMS):
    fold = begin(LENS, params, replace(SPEC, d_model=D), tuple(batches[0].captures["resid"]))
    for batch in batches:
        fold = update(LENS, fold, batch)
    return fold


def finding_of(*batches, params=PARAMS):
    return finish(LENS, fold_of(*batches, params=params), None)


def rows_of(finding, quantity, table="heads"):
    return finding.tables[table].filter(pl.col("quantity") == quantity).sort("head").rows(named=True)


def planted_scores(x):
    windows, n, _ = x.shape
    information = true_pointwise(x)
    distance = (torch.arange(n)[:, None] - torch.arange(n)).abs().double().expand(windows, n, n)
    noise = torch.randn(windows, n, n, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    key = x.square().sum(-1)[:, None].expand(windows, n, n)
    return torch.stack((information + noise / 2, noise / 2 - information, noise / 2 - distance, noise, key), 1)


@pytest.fixture(scope="module", params=["decoder", "encoder"])
def planted(request):
    x = autoregressive(16, 40)
    return finding_of(batch_of(x, planted_scores(x), causal=request.param == "decoder"))


def test_heads_that_follow_dependence_are_found(planted):
    rows = rows_of(planted, "pointwise")
    assert rows[FOLLOWS]["beyond_low"] > 0.1
    assert rows[AWAY]["beyond_high"] < -0.1
    for row in rows:
        assert abs(row["beyond_null"]) < 0.03, "another window's query has nothing to do with these keys"
    assert "1 of 5 heads attends more to keys that depend on the query, and 1 less" in planted.headlines[1].full
    assert "16 windows" in planted.headlines[0].full
    single = planted.headlines[1]
    assert single.short.startswith(
        "Beyond distance, 2 of 5 heads attend differently to keys that depend on the query; "
    )
    assert single.effect == pytest.approx((rows[FOLLOWS]["excess"] - rows[AWAY]["excess"]) / 5)


def test_a_head_that_looks_at_near_tokens_follows_distance_only(planted):
    """Near tokens are the dependent ones, so its correlation with the mutual information is large."""
    near, noise = rows_of(planted, "nearness"), rows_of(planted, "information")[NOISE]
    assert near[NEAR]["value"] > 0.95
    assert near[NEAR]["adjusted"] < 1e-6
    assert near[NOISE]["adjusted"] > 0.05
    alone = planted.tables["heads"].filter(pl.col("head") == NEAR)
    headline = LENS.sentences({**planted.tables, "heads": alone})[-1]
    assert headline.short.startswith("The median head prefers near keys")
    assert headline.effect == pytest.approx(near[NEAR]["value"])
    information = rows_of(planted, "information")[NEAR]
    assert information["value"] > 0.4
    assert information["value"] > abs(information["null"]) + 0.1
    assert abs(noise["value"]) < 0.1
    assert abs(rows_of(planted, "pointwise")[NEAR]["beyond"]) < 0.02


def test_what_a_key_does_by_itself_does_not_count(planted):
    """A head that looks at long keys is correlated with the information of any query; nothing is left for the pair."""
    row = rows_of(planted, "pointwise")[KEY_ONLY]
    assert abs(row["null"]) > 0.1
    assert abs(row["beyond"]) < 0.05


def test_information_has_its_closed_form(planted):
    """−½ ln(1 − ρ^(2t)) per coordinate where a single distance is a pool."""
    rows = planted.tables["profile"].filter(pl.col("distance") == pl.col("upto")).rows(named=True)
    assert [row["distance"] for row in rows][:3] == [1, 2, 3]
    for row in rows:
        expected = -D / 2 * torch.log1p(-torch.tensor(RHO ** (2.0 * row["distance"])))
        assert row["value"] == pytest.approx(float(expected), rel=0.15)
        assert row["covariance"] == pytest.approx(D * RHO ** row["distance"], rel=0.1)
        assert row["raw"] > row["null"]


def test_scores_have_the_moments_of_the_formulas(planted):
    """q = k = x: a token with itself has mean Tr Σ = d and variance 2d; neighbours the mean of ρ^t over 1 to 8."""
    alone, near, apart = (rows_of(planted, name, "pairs")[0] for name in ("self", "dependent", "independent"))
    assert alone["shift_low"] < D < alone["shift_high"]
    assert alone["predicted"] == pytest.approx(alone["value"], abs=1e-12)
    assert near["predicted"] == pytest.approx(near["value"], abs=1e-12)
    assert alone["predicted_variance"] == pytest.approx(2 * D, rel=0.25)
    assert alone["variance"] == pytest.approx(alone["predicted_variance"], rel=0.1)
    assert near["variance"] == pytest.approx(near["predicted_variance"], rel=0.1)
    assert near["adjusted"] < 0.01
    assert 0.3 * D < near["shift"] < 0.6 * D
    assert apart["shift"] is None
    assert apart["value"] == pytest.approx(apart["predicted"], abs=0.1)
    assert apart["variance"] == pytest.approx(D, rel=0.15)


def test_scores_against_dependence_are_lowered():
    x = autoregressive(12, 24)
    finding = finding_of(batch_of(x, planted_scores(x)[:, :1], q=-x[:, None]))
    assert rows_of(finding, "dependent", "pairs")[0]["shift_high"] < 0
    assert (
        "tokens 1 to 8 apart are higher than with queries of other windows in none of 1 head and lower in 1 "
        in finding.headlines[2].full
    )


@pytest.fixture(scope="module")
def faint():
    """Twelve heads of which each follows dependence too little to be seen by itself in sixteen windows."""
    x = autoregressive(16, 28, seed=3)
    noise = torch.randn(16, 12, 28, 28, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    return finding_of(batch_of(x, 0.06 * true_pointwise(x)[:, None] + noise))


def test_heads_are_judged_together(faint):
    """The mean over heads is clear where single heads are not, and the sentence says what they could have shown."""
    single = faint.tables["heads"].filter(pl.col("quantity") == "pointwise")
    assert (single["adjusted"] < 0.05).sum() < 4
    row = faint.tables["joint"].filter(pl.col("quantity") == "pointwise", pl.col("layer").is_null()).row(0, named=True)
    assert row["low"] > 0
    assert row["p"] < 0.01
    assert row["heads"] == 12
    assert row["positive"] >= 9
    assert row["value"] == pytest.approx(single["excess"].mean())
    assert row["detectable"] < single["detectable"].median() / 2
    assert faint.headlines[0].full.startswith("Keys that depend more on the query get more attention")
    assert "one more would be counted in four of five texts at" in faint.headlines[1].full
    assert "follow" not in " ".join(headline.full for headline in faint.headlines)
    assert f"more attention: rank correlation {row['value']:.2g} above chance" in faint.headlines[0].short
    assert faint.headlines[0].effect == pytest.approx(row["value"])


def test_without_dependence_it_is_said_what_would_have_been_detected():
    x = autoregressive(10, 28, seed=6)
    noise = torch.randn(10, 6, 28, 28, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    finding = finding_of(batch_of(x, noise))
    row = finding.tables["joint"].row(0, named=True)
    assert row["low"] < 0 < row["high"]
    assert finding.headlines[0].full.startswith("No relation of attention and dependence beyond distance was detected")
    assert f"A mean of {row['detectable']:.2g} would have been detected" in finding.headlines[0].full
    assert [headline.effect for headline in finding.headlines[:2]] == [0, 0]
    assert finding.headlines[0].short.endswith(f"a rank correlation of {row['detectable']:.2g} would have been.")
    assert finding.headlines[1].short.startswith("No relation beyond distance in any of 6 heads was detected; ")


def test_the_test_is_against_the_null(planted):
    """p asks whether the excess over the null is 0, not whether the correlation itself is."""
    for row in rows_of(planted, "pointwise"):
        assert row["excess"] == pytest.approx(row["beyond"] - row["beyond_null"])
        assert (row["p"] < 0.05) == (not row["excess_low"] < 0 < row["excess_high"])


@pytest.mark.parametrize("causal", [True, False])
def test_definition_with_enough_windows_for_everything(causal):
    x = autoregressive(5, 9)
    batch = batch_of(x, planted_scores(x)[:, :2], causal=causal)
    params = Params(components=1)
    finding, expected = finding_of(batch, params=params), defined(LENS, params, None, [batch])
    assert finding.tables["heads"].filter(pl.col("quantity") == "trace")["null"].null_count() == 0
    assert finding.tables["pairs"]["predicted_variance"].null_count() == 0
    assert finding.tables["profile"].height > 1
    assert not differences(finding.tables, expected)


def test_definition_with_some_tokens_of_a_long_window():
    """Behind the first 28 those from 28 to 32 and 41 to 56 are kept: next in the sample is not next in the text."""
    x = autoregressive(3, 57)
    batch = batch_of(x, planted_scores(x)[:, :1])
    params = Params(components=1, skip=28)
    finding, expected = finding_of(batch, params=params), defined(LENS, params, None, [batch])
    assert finding.tables["profile"]["upto"].max() == 28
    assert not differences(finding.tables, expected)


def test_pieces_give_the_same_answer():
    x = autoregressive(4, 20)
    batch = batch_of(x, planted_scores(x))
    pieces = [replace(batch, captures={name: batch.captures[name]}) for name in CAPTURES]
    handed_over = list(assembled(LENS, Params(), tuple(batch.captures["q"]), pieces))
    assert len(handed_over) == 1, "the site, once it is complete"
    twice = finding_of(*handed_over, *handed_over)
    assert not differences(twice.tables, finding_of(batch, batch).tables, tolerance=0.0)


def test_one_window_has_no_null_and_says_so():
    x = autoregressive(1, 30)
    finding = finding_of(batch_of(x, planted_scores(x)))
    assert any("One window only" in warning for warning in finding.warnings)
    assert finding.tables["pairs"].is_empty()
    assert rows_of(finding, "pointwise")[0]["value"] is None
    assert rows_of(finding, "nearness")[NEAR]["value"] > 0.9
    assert rows_of(finding, "nearness")[NEAR]["p"] is None


def test_a_text_that_repeats_itself_is_no_error():
    x = autoregressive(1, 20).expand(6, -1, -1).repeat(1, 2, 1)
    finding = finding_of(batch_of(x, planted_scores(x)))
    assert finding.status == "ok"
    x = torch.ones(6, 20, D, dtype=torch.float64)
    finding = finding_of(batch_of(x, torch.zeros(6, 2, 20, 20, dtype=torch.float64)))
    assert finding.status == "ok"
    assert any("No joint Gaussian" in warning for warning in finding.warnings)


def test_windows_of_other_length_are_told():
    x, y = autoregressive(5, 30), autoregressive(1, 20, seed=3)
    finding = finding_of(batch_of(x, planted_scores(x)), batch_of(y, planted_scores(y)))
    assert rows_of(finding, "cosine")[0]["windows"] == 5
    assert any("1 window of other length was not used" in warning for warning in finding.warnings)


def test_cross_attention_is_left_out_with_the_reason():
    state = begin(LENS, PARAMS, SPEC, (site(stack="dec"), site(stack="dec", kind="cross", causal=False))).state
    assert [one.kind for one in state.sites] == ["self"]
    x = autoregressive(3, 20)
    fold = fold_of(batch_of(x, planted_scores(x)))
    finding = finish(LENS, replace(fold, state=replace(fold.state, crossed=state.crossed)), None)
    assert any("dec.L0.cross" in warning for warning in finding.warnings)


@pytest.mark.parametrize("cut", [0, 1, 3, 5])
def test_any_split_keeps_the_same_windows(cut):
    parts = [batch_of(autoregressive(2, 8, seed=s), torch.zeros(2, 1, 8, 8).double(), seed=s) for s in range(5)]

    def sampled(some):
        sample = PairSample(room=4)
        for batch in some:
            captured = {name: next(iter(batch.captures[name].values())) for name in CAPTURES}
            sample = sample.add(batch.tokens, batch.real, captured)
        return sample

    whole, merged = sampled(parts), sampled(parts[:cut]).merge(sampled(parts[cut:]))
    assert whole.seen == merged.seen == 10
    assert [one.priority for one in whole.windows] == [one.priority for one in merged.windows]
    assert len(whole.windows) == 4
    for a, b in zip(whole.windows, merged.windows, strict=True):
        assert torch.equal(a.x, b.x)


def test_large_models_are_measured_in_some_layers_only():
    sites = tuple(site(layer=layer, n_heads=32, n_kv_heads=32, d_head=128) for layer in range(32))
    state = begin(LENS, Params(), replace(SPEC, d_model=4096), sites).state
    assert 1 < state.step < 8
    assert state.room >= 16


def test_senseless_numbers_are_refused():
    with pytest.raises(UsageError, match="at least one component"):
        LENS.needs(Params(components=0))
