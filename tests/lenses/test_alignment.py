"""Known answers and planted cases of the lens `alignment`."""

import re
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

from headscope.core import HeatMap, WeightStatus
from headscope.errors import LensError
from headscope.lenses.alignment.lens import LENS
from headscope.lenses.alignment.settings import Params
from tests.lenses.asking import begin, defined, finish
from tests.lenses.planted import MODELS, SPEC, Planted, gaussian_weights, head_weights, planted, site


def finding_of(model: Planted):
    return finish(LENS, begin(LENS, Params(), model.spec, model.sites), model)


def rows(finding, quantity, table="heads"):
    return finding.tables[table].filter(pl.col("quantity") == quantity)


def column(finding, quantity, of="value", table="heads"):
    return rows(finding, quantity, table)[of].to_numpy()


def many(layers=4, **changes):
    """Random layers, large enough for z to be nearly normal."""
    sites = [site(n_heads=8, n_kv_heads=4, d_head=8, d_value=8, layer=layer, **changes) for layer in range(layers)]
    return Planted({of: gaussian_weights(of, d_model=64, seed=10 + k) for k, of in enumerate(sites)})


def changed(model: Planted, change):
    return replace(model, weights_of={of: change(w) for of, w in model.weights_of.items()})


def with_keys_as_queries(w, sign=1.0):
    """Every key head is the first query head of its group."""
    return replace(w, w_k=sign * w.w_q[:: w.site.n_heads // w.site.n_kv_heads])


def test_random_weights_show_nothing():
    finding = finding_of(many())
    for quantity in ("trace", "symmetric_share", "subspace_overlap", "weighted_overlap", "largest_cosine"):
        z = column(finding, quantity, "z")
        assert np.abs(z).max() < 5, quantity
        assert 0.6 < np.sqrt(np.mean(z**2)) < 1.5, quantity
    for table, quantity in (("layers", "trace"), ("factors", "trace"), ("factors", "inner_overlap")):
        assert np.abs(column(finding, quantity, "z", table)).max() < 4, quantity
    assert "None of 32 heads lies above and none below what chance gives" in finding.headlines[0].full


def test_keys_equal_to_queries_are_found():
    finding = finding_of(changed(planted(site(n_kv_heads=4)), with_keys_as_queries))
    for quantity in ("trace_share", "symmetric_share", "subspace_overlap", "largest_cosine", "leading_cosine"):
        assert column(finding, quantity) == pytest.approx(np.ones(4)), quantity
    assert column(finding, "trace", "z").min() > 5
    assert column(finding, "symmetric_share", "z").min() > 10
    assert column(finding, "largest_cosine", "z").min() > 10
    assert "+1.000 of its largest possible value" in finding.headlines[0].full
    assert "4 of 4 heads lie above and none below" in finding.headlines[0].full
    # Weights are told as weights, and nothing is ranked by z.
    assert finding.headlines[0].full.startswith("In the weights")
    assert "score" not in finding.headlines[0].full
    assert "z =" not in " ".join(headline.full for headline in finding.headlines)


def test_opposite_keys_are_found():
    model = changed(planted(site(n_kv_heads=4)), lambda w: with_keys_as_queries(w, -1.0))
    finding = finding_of(model)
    assert column(finding, "trace_share") == pytest.approx(-np.ones(4))
    assert column(finding, "symmetric_share") == pytest.approx(np.ones(4))
    assert "None of 4 heads lies above and 4 below" in finding.headlines[0].full


def test_antisymmetric_form_cancels_in_the_trace_but_not_in_the_overlaps():
    """w_k = w_q J with J antisymmetric: the trace is 0, the subspaces are one and the same."""
    turn = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    j = torch.block_diag(turn, turn)
    model = planted(site(n_heads=2, n_kv_heads=2, d_head=4))
    finding = finding_of(changed(model, lambda w: replace(w, w_k=w.w_q @ j)))
    assert column(finding, "trace") == pytest.approx(np.zeros(2), abs=1e-12)
    assert column(finding, "symmetric_share") == pytest.approx(np.zeros(2), abs=1e-12)
    assert column(finding, "subspace_overlap") == pytest.approx(np.ones(2))


def test_grouped_queries_pair_with_their_own_keys():
    """Key head 1 is query head 2: only head 2 reads it as its own (pairing h with h would find nothing)."""
    w = gaussian_weights(site())
    w_k = w.w_k.clone()
    w_k[1] = w.w_q[2]
    finding = finding_of(Planted({w.site: replace(w, w_k=w_k)}))
    assert column(finding, "trace_share")[2] == pytest.approx(1)
    assert np.abs(column(finding, "trace_share")[[0, 1, 3]]).max() < 0.5
    dense = sum(torch.trace(w.w_q[h] @ w_k[h // 2].mT) for h in range(4))
    assert column(finding, "trace", table="layers")[0] == pytest.approx(float(dense))
    assert column(finding, "trace").sum() == pytest.approx(float(dense))


def test_one_planted_head_stands_out():
    model = many()
    of = model.sites[2]
    w = model.weights_of[of]
    w_q = w.w_q.clone()
    w_q[5] += 0.8 * w.w_k[2]
    finding = finding_of(replace(model, weights_of=model.weights_of | {of: replace(w, w_q=w_q)}))
    assert "1 of 32 heads lies above and none below" in finding.headlines[0].full
    assert "in L2.H5." in finding.headlines[0].full
    trace_map = finding.figures[0]
    assert isinstance(trace_map, HeatMap)
    assert np.unravel_index(np.nanargmax(trace_map.values), trace_map.values.shape) == (2, 5)


def test_inner_alignment_is_seen_by_the_factors_alone():
    """Queries and keys that read different features but keep them in the same inner direction."""
    w = gaussian_weights(site(n_heads=1, n_kv_heads=1, d_head=8, d_value=8), d_model=96)
    stretch = torch.diag(torch.tensor([6.0] + [1.0] * 7, dtype=torch.float64))
    finding = finding_of(Planted({w.site: replace(w, w_q=w.w_q @ stretch, w_k=w.w_k @ stretch)}))
    assert column(finding, "inner_overlap", "z", "factors")[0] > 5
    assert abs(column(finding, "input_overlap", "z", "factors")[0]) < 4
    assert abs(column(finding, "trace", "z")[0]) < 4


def test_zero_and_low_rank_heads():
    """A head without queries has no angles; one of rank 1 has one."""
    w = gaussian_weights(site(n_kv_heads=4))
    w_q = w.w_q.clone()
    w_q[0] = 0
    w_q[1] = torch.outer(w.w_q[1, :, 0], w.w_q[2, 0])
    model = Planted({w.site: replace(w, w_q=w_q)})
    finding = finding_of(model)
    assert rows(finding, "subspace_overlap")["value"].is_null().to_list() == [True, False, False, False]
    assert column(finding, "trace")[0] == 0
    assert rows(finding, "trace")["z"].is_null().to_list() == [True, False, False, False]
    assert np.isfinite(finding.arrays["L0.cosines"]).sum(1).tolist() == [0, 1, 5, 5]
    assert column(finding, "subspace_overlap", "null")[1] == pytest.approx(5 / 24)
    expected = defined(LENS, Params(), model, [])["heads"]
    assert np.allclose(finding.tables["heads"]["value"].to_numpy(), expected["value"].to_numpy(), equal_nan=True)


def test_subspaces_that_fill_the_space():
    """d_head beyond half of d_model: the two sides must share directions, and chance has no play."""
    finding = finding_of(Planted({site(): gaussian_weights(site(), d_model=8)}))
    assert column(finding, "largest_cosine") == pytest.approx(np.ones(4))
    assert rows(finding, "largest_cosine")["z"].is_null().all()
    square = finding_of(Planted({site(): gaussian_weights(site(), d_model=5)}))
    assert column(square, "subspace_overlap") == pytest.approx(np.ones(4))
    assert rows(square, "subspace_overlap")["z"].is_null().all()


def test_zero_model_is_drawn():
    w = gaussian_weights(site())
    finding = finding_of(Planted({w.site: replace(w, w_q=0 * w.w_q, w_k=0 * w.w_k)}))
    assert finding.headlines[0].full == "All 4 heads have a W_QK of 0."
    assert [figure.name for figure in finding.figures] == ["trace_by_layer"]


def test_unequal_sizes_are_left_out_with_the_reason():
    of = site(stack="dec", kind="cross", causal=False)
    narrow = gaussian_weights(of, d_model=12)
    wide = gaussian_weights(of)
    cross = head_weights(of, wide.w_q, narrow.w_k, narrow.w_v, wide.w_o)
    finding = finding_of(Planted({of: cross}))
    assert finding.status == "not applicable"
    assert "one size" in finding.reason
    own = site(stack="dec")
    both = finding_of(Planted({own: gaussian_weights(own), of: cross}))
    assert both.status == "ok"
    assert any("dec.L0.cross" in warning and "no trace" in warning for warning in both.warnings)
    assert any("share their coordinates" in warning for warning in finding_of(MODELS["encoder-decoder"]).warnings)


def test_rotary_normed_gain_and_rounding_are_told():
    spec = replace(SPEC, positions="rotary", dequantised="Q4_1")
    model = replace(MODELS["one head"], spec=spec)
    (of,) = model.sites
    w = model.weights_of[of]
    gained = replace(model, weights_of={of: replace(w, gain_k=w.gain_k * 2)}, statuses={of: WeightStatus("normed")})
    finding = finding_of(gained)
    assert "distance 0" in finding.method
    assert "rounding noise" in finding.headlines[0].full
    told = " ".join(finding.warnings)
    assert all(word in told for word in ("QK-norm", "raw weights", "Q4_1"))


def test_no_weights_is_an_error():
    with pytest.raises(LensError, match="was given none"):
        finish(LENS, begin(LENS, Params(), SPEC, ()), None)


def test_the_short_form_states_the_planted_trace():
    trace, symmetry, overlap = finding_of(changed(planted(site(n_kv_heads=4)), with_keys_as_queries)).headlines
    assert trace.short == (
        "The weights of 4 of 4 heads match like tokens beyond chance, typically by 1.00 of the maximum."
    )
    assert trace.effect == pytest.approx(1)
    assert symmetry.short.startswith("100.0 % of the median head's scoring treats query and key alike")
    assert symmetry.effect > 0.8
    assert overlap.short.startswith("In the median head 100.0 % of what keys read")
    assert overlap.effect == pytest.approx(1)


def test_chance_has_no_effect():
    for headline in finding_of(many()).headlines:
        assert re.match(r"No .* was detected; [\d.]+ (points|of the maximum) would have been\.", headline.short)
        assert headline.effect == 0
