"""Known answers and planted cases of the lens `spectra`."""

import re
import weakref
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

from headscope.core import Curves, FeedForward, Histogram, WeightStatus
from headscope.errors import LensError
from headscope.lenses.spectra.lens import LENS
from headscope.lenses.spectra.settings import Params
from tests.lenses.asking import begin, defined, finish
from tests.lenses.planted import MODELS, SPEC, Planted, gaussian_weights, head_weights, site


def finding_of(model: Planted):
    return finish(LENS, begin(LENS, Params(), model.spec, model.sites), model)


def value(finding, table, matrix, quantity, column="value", **where):
    rows = finding.tables[table].filter(pl.col("matrix") == matrix, pl.col("quantity") == quantity)
    for key, wanted in where.items():
        rows = rows.filter(pl.col(key) == wanted)
    return rows[column].item()


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def large_site(heads=4, d_head=32):
    return site(n_heads=heads, n_kv_heads=heads, d_head=d_head, d_value=d_head)


def large(d_model=192, seed=0):
    """A layer of random weights, large enough for the laws to hold."""
    of = large_site()
    w = [normal(4, d_model, 32, seed=seed + k) for k in range(3)]
    return head_weights(of, *w, normal(4, 32, d_model, seed=seed + 3))


def test_identity_weights():
    """Heads that each copy their own slice: every singular value is 1."""
    of = site(n_heads=3, n_kv_heads=3, d_head=4, d_value=4)
    slices = torch.eye(12, dtype=torch.float64).reshape(12, 3, 4).transpose(0, 1)
    finding = finding_of(Planted({of: head_weights(of, slices, slices, slices, slices.mT)}))
    for matrix in "QKVO":
        assert value(finding, "layers", matrix, "effective_rank") == pytest.approx(12)
        assert value(finding, "layers", matrix, "sum_squares") == pytest.approx(12)
        assert value(finding, "layers", matrix, "above_edge") == 0
    for matrix in ("QK", "OV"):
        assert value(finding, "heads", matrix, "effective_rank", head=2) == pytest.approx(4)
        assert value(finding, "heads", matrix, "largest", head=2) == pytest.approx(1)
    assert np.allclose(finding.arrays["L0.Q"], np.ones(12))
    assert np.allclose(finding.arrays["L0.QK"], np.ones((3, 4)))


def test_rank_one_form():
    """A head that compares along one direction only."""
    w = large()
    w_q = w.w_q.clone()
    w_q[1] = torch.outer(normal(192, seed=9), normal(32, seed=10))
    finding = finding_of(Planted({w.site: replace(w, w_q=w_q)}))
    assert value(finding, "heads", "QK", "effective_rank", head=1) == pytest.approx(1, abs=1e-9)
    assert value(finding, "heads", "QK", "stable_rank", head=1) == pytest.approx(1, abs=1e-9)
    assert value(finding, "heads", "QK", "effective_rank", head=0) > 20
    assert "L0.H1 with 1.0" in finding.headlines[0].full, finding.headlines


def test_gaussian_weights_are_inside_the_edges():
    finding = finding_of(Planted({large_site(): large()}))
    for table in finding.tables.values():
        above = table.filter(pl.col("quantity") == "above_edge")
        assert above["value"].max() <= 1, "chance exceeds the edge once in about six matrices"
        ranks = table.filter(pl.col("quantity") == "effective_rank")
        assert np.allclose(ranks["value"], ranks["null"], rtol=0.03)
        largest = table.filter(pl.col("quantity") == "largest")
        assert np.allclose(largest["value"], largest["null"], rtol=0.1)


def test_planted_direction_is_found():
    """A direction three times the edge in one head's queries and keys shows in W_Q and in that head's W_QK."""
    w = large()
    direction, inside = normal(192, seed=20), normal(32, seed=21)
    spike = torch.outer(direction / direction.norm(), inside / inside.norm())
    w_q, w_k = w.w_q.clone(), w.w_k.clone()
    w_q[2] += 3 * (192**0.5 + 128**0.5) * spike
    w_k[2] += 3 * (192**0.5 + 128**0.5) * spike
    finding = finding_of(Planted({w.site: replace(w, w_q=w_q, w_k=w_k)}))
    assert value(finding, "layers", "Q", "above_edge") == 1
    assert value(finding, "layers", "V", "above_edge") <= 1
    assert value(finding, "heads", "QK", "above_edge", head=2) == 1
    assert value(finding, "heads", "QK", "energy_above_edge", head=2) > 0.5
    ratio = finding.figures[0].values
    assert ratio[0, 2] == ratio.min()
    assert value(finding, "layers", "Q", "largest_p_value") < 1e-15
    assert value(finding, "layers", "V", "largest_p_value") > 0.01
    assert value(finding, "layers", "Q", "spikes") == 1
    fitted, raw = (value(finding, "layers", "Q", "bulk_variance", of) for of in ("value", "null"))
    assert fitted == pytest.approx(1, rel=0.1), "the spike swells the raw variance only"
    assert raw > 1.2
    # "2 of 4": W_Q and W_K hold the spike, W_V and W_O do not.
    assert "in the median of 4 projections, and beyond chance (Tracy–Widom, false discovery rate 5 %) in 2 of 4" in (
        finding.headlines[1].full
    ), finding.headlines


def test_grouped_queries_pair_with_their_own_keys():
    """Query heads 0, 1 read key head 0 and 2, 3 read key head 1; a zero key head silences its own group."""
    w = gaussian_weights(site())
    w_k = w.w_k.clone()
    w_k[1] = 0
    finding = finding_of(Planted({w.site: replace(w, w_k=w_k)}))
    sizes = [value(finding, "heads", "QK", "sum_squares", head=head) for head in range(4)]
    assert [size > 0 for size in sizes] == [True, True, False, False]
    assert value(finding, "heads", "QK", "effective_rank", head=3) == 0
    assert value(finding, "heads", "OV", "effective_rank", head=3) > 1


def test_zero_model_is_drawn():
    """All-zero weights give zeros, not NaN, and figures that hold no infinity."""
    w = gaussian_weights(site())
    zero = {name: torch.zeros_like(getattr(w, name)) for name in ("w_q", "w_k", "w_v", "w_o")}
    finding = finding_of(Planted({w.site: replace(w, **zero)}))
    assert finding.tables["heads"]["value"].abs().max() == 0
    assert not any(isinstance(figure, Histogram) for figure in finding.figures)


def test_every_singular_value_is_kept():
    model = MODELS["encoder-decoder"]
    finding = finding_of(model)
    cross = "dec.L0.cross"
    assert {f"{cross}.{matrix}" for matrix in ("Q", "K", "V", "O", "QK", "OV")} <= finding.arrays.keys()
    assert finding.arrays[f"{cross}.QK"].shape == (4, 5)
    assert finding.arrays[f"{cross}.Q"].shape == (20,)
    w = model.weights_of[model.sites[2]]
    dense = torch.linalg.svdvals(w.w_q[3] @ w.w_k[1].mT)[:5]
    assert np.allclose(finding.arrays[f"{cross}.QK"][3], dense)


def test_null_has_the_marchenko_pastur_edges():
    finding = finding_of(Planted({large_site(): large()}))
    mean = value(finding, "layers", "Q", "mean_square")
    entry = mean / 192  # variance of an entry that gives this mean
    edges = [entry * (192**0.5 + sign * 128**0.5) ** 2 for sign in (-1, 1)]
    assert value(finding, "layers", "Q", "smallest", "null") == pytest.approx(edges[0] ** 0.5)
    assert value(finding, "layers", "Q", "largest", "null") == pytest.approx(edges[1] ** 0.5)
    assert value(finding, "layers", "Q", "mean_square", "null") is None


def test_dequantised_weights_say_so_everywhere():
    model = replace(MODELS["one head"], spec=replace(SPEC, dequantised="Q4_1"))
    finding = finding_of(model)
    assert finding.warnings[0] == model.spec.weight_warning
    for table in finding.tables.values():
        assert table["weights"].unique().to_list() == ["expanded from Q4_1"]
    assert "rounding noise" in finding.headlines[0].full


def test_rotary_normed_and_gain_are_told():
    model = replace(MODELS["one head"], spec=replace(SPEC, positions="rotary"))
    (of,) = model.sites
    w = model.weights_of[of]
    gained = replace(model, weights_of={of: replace(w, gain_q=w.gain_q * 2)}, statuses={of: WeightStatus("normed")})
    finding = finding_of(gained)
    assert "distance 0" in finding.method
    assert any("QK-norm" in warning for warning in finding.warnings)
    assert any("raw weights" in warning for warning in finding.warnings)
    assert finding.table["status"].unique().to_list() == ["normed"]
    assert finding.table.drop("status").equals(finding_of(model).table.drop("status")), "gains are not folded in"


def test_refused_sites_are_listed_with_the_reason():
    model = MODELS["multi-head"]
    first, second = model.sites
    finding = finding_of(replace(model, statuses={first: WeightStatus("refused", "MLA")}))
    assert finding.status == "ok"
    assert finding.warnings == ("Left out: L0. Reason: MLA.",)
    assert finding.table["layer"].unique().to_list() == [second.layer]


def test_no_weights_is_an_error():
    with pytest.raises(LensError, match="was given none"):
        finish(LENS, begin(LENS, Params(), SPEC, ()), None)


def test_one_site_is_held_at_a_time():
    """When the weights of a site are asked for, those of the sites before are gone."""

    class Watching(Planted):
        def weights(self, of):
            assert all(reference() is None for reference in alive), "an earlier site is still held"
            w = gaussian_weights(of)
            alive.append(weakref.ref(w.w_q))
            return w

    alive: list = []
    sites = [site(layer=layer) for layer in range(4)]
    finding_of(Watching({of: gaussian_weights(of) for of in sites}))
    assert len(alive) == 4


def test_many_layers_share_one_figure():
    model = Planted({site(layer=layer): gaussian_weights(site(layer=layer), seed=layer) for layer in range(8)})
    curves = {figure.name: figure for figure in finding_of(model).figures if isinstance(figure, Curves)}
    assert [one.label for one in curves["spectrum_q"].series] == [*(f"L{k}" for k in range(8)), "Marchenko–Pastur"]
    assert curves["spectrum_q"].series[-1].role == "null"


def test_second_null_is_the_initialisation():
    """Weights drawn with the standard deviation that the configuration names: value, null and initial agree."""
    w = large()
    names = ("w_q", "w_k", "w_v", "w_o")
    scaled = replace(w, **{name: 0.02 * getattr(w, name) for name in names})
    model = Planted({w.site: scaled}, replace(SPEC, initial_sd=0.02))
    finding = finding_of(model)
    for matrix in "QKVO":
        for quantity in ("mean_square", "sum_squares", "largest", "bulk_variance"):
            initial = value(finding, "layers", matrix, quantity, "initial")
            assert value(finding, "layers", matrix, quantity) == pytest.approx(initial, rel=0.07), quantity
        assert value(finding, "layers", matrix, "effective_rank", "initial") is None
    assert value(finding, "heads", "QK", "bulk_variance", "initial", head=0) == pytest.approx(0.02**4)
    curve = next(figure for figure in finding.figures if figure.name == "mean_square")
    assert [one.label for one in curve.series if one.role == "null"] == ["initialised"]
    assert defined(LENS, Params(), model, [])["layers"]["initial"].to_numpy() == pytest.approx(
        finding.tables["layers"]["initial"].to_numpy(), nan_ok=True
    )


def test_without_a_stated_initialisation_there_is_no_second_null():
    finding = finding_of(Planted({large_site(): large()}))
    assert all(table["initial"].is_null().all() for table in finding.tables.values())
    curve = next(figure for figure in finding.figures if figure.name == "mean_square")
    assert all(one.role == "measured" for one in curve.series)


def test_random_bulk_is_told_from_another():
    """W_V random, W_Q with a spectrum that falls like a power: the headline names both."""
    w = large()
    u, _, vh = torch.linalg.svd(w.w_q.transpose(0, 1).flatten(1), full_matrices=False)
    falling = u * torch.arange(1, 129, dtype=torch.float64) ** -0.7 @ vh
    w_q = falling.reshape(192, 4, 32).transpose(0, 1)
    finding = finding_of(Planted({w.site: replace(w, w_q=w_q)}))
    distance, random = (value(finding, "layers", "Q", "bulk_distance", of) for of in ("value", "null"))
    assert distance > 5 * random
    assert value(finding, "layers", "V", "bulk_distance") < 2 * random
    assert "least in W_Q" in finding.headlines[1].full


def fed(*matrices):
    """A model of one random layer with feed-forward matrices of our choice."""
    feeds = {
        FeedForward("only", 0, name, "", (matrix.shape[0], matrix.shape[1])): matrix
        for name, matrix in zip(("mlp.up", "mlp.down"), matrices, strict=True)
    }
    return Planted({large_site(): large()}, feeds=feeds)


def test_planted_direction_in_a_feed_forward_matrix_is_found():
    """Two directions beyond the edge on the way out, a random way back."""
    left, right = (torch.linalg.qr(normal(size, 2, seed=30 + size)).Q for size in (96, 160))
    spikes = left * torch.tensor([4.0, 3.0], dtype=torch.float64) * (96**0.5 + 160**0.5) @ right.T
    finding = finding_of(fed(normal(96, 160, seed=1) + spikes, normal(160, 96, seed=2)))
    assert value(finding, "feed_forward", "mlp.up", "above_edge") == 2
    assert value(finding, "feed_forward", "mlp.up", "spikes") in (2, 3), "chance may add one"
    assert value(finding, "feed_forward", "mlp.down", "spikes") <= 1
    assert value(finding, "feed_forward", "mlp.up", "largest_p_value") < 1e-15
    assert value(finding, "feed_forward", "mlp.down", "largest_p_value") > 0.01
    assert value(finding, "feed_forward", "mlp.up", "bulk_variance") == pytest.approx(1, rel=0.1)
    assert finding.tables["feed_forward"]["shape"].unique(maintain_order=True).to_list() == ["96 × 160", "160 × 96"]
    assert "rate 5 %) in 1 of 2;" in finding.headlines[2].full, finding.headlines
    assert finding.arrays["L0.mlp.up"].shape == (96,)
    names = {figure.name for figure in finding.figures}
    assert {"feed_forward_stable_rank", "feed_forward_largest_square", "spectrum_mlp_up"} <= names


def test_one_percent_of_a_feed_forward_matrix_is_seen():
    model = MODELS["one head"]
    off = replace(model, feeds={one: 1.01 * matrix for one, matrix in model.feeds.items()})
    expected = defined(LENS, Params(), model, [])["feed_forward"]
    same, other = (finding_of(which).tables["feed_forward"] for which in (model, off))
    assert np.allclose(same["value"].to_numpy(), expected["value"].to_numpy(), equal_nan=True)
    assert not np.allclose(other["value"].to_numpy(), expected["value"].to_numpy(), equal_nan=True)


def test_many_experts_do_not_fill_the_page():
    feeds = {FeedForward("only", 0, f"mlp.expert_{k}.up", "", (24, 9)): normal(24, 9, seed=k) for k in range(20)}
    notes = ("Left out: something.",)
    finding = finding_of(replace(MODELS["one head"], feeds=feeds, feed_forward_notes=notes))
    assert finding.tables["feed_forward"]["matrix"].n_unique() == 20
    assert sum("expert" in figure.name for figure in finding.figures) == 6
    assert finding.warnings == notes


def test_a_model_without_feed_forward_says_nothing_about_it():
    finding = finding_of(Planted({large_site(): large()}))
    assert "feed_forward" not in finding.tables
    assert len(finding.headlines) == 2
    assert not any(figure.name.startswith("feed_forward") for figure in finding.figures)


def test_the_short_form_states_how_far_a_planted_direction_stretches():
    """In three of four projections: the median is that of a planted one."""
    w = large()
    tensors = {}
    for seed, name in enumerate(("w_q", "w_k", "w_v")):
        side_by_side = getattr(w, name).transpose(0, 1).flatten(1)
        u, v = (torch.nn.functional.normalize(normal(size, seed=30 + seed), dim=0) for size in side_by_side.shape)
        spiked = side_by_side + 3 * sum(size**0.5 for size in side_by_side.shape) * torch.outer(u, v)
        tensors[name] = spiked.reshape(192, 4, 32).transpose(0, 1)
    headline = finding_of(Planted({w.site: replace(w, **tensors)})).headlines[1]
    # 3 times the edge, over a null whose norm holds the direction too.
    ratio = 3 / (1 + 9 * (192**0.5 + 128**0.5) ** 2 / (192 * 128)) ** 0.5
    stated = float(re.search(r"direction ([\d.]+) times as much as a random matrix would", headline.short)[1])
    assert stated == pytest.approx(ratio, rel=0.1)
    assert headline.effect == pytest.approx(1 - 1 / stated, abs=0.01)


def test_the_short_form_states_a_planted_rank():
    w = large()
    w_q = torch.stack([torch.outer(normal(192, seed=50 + head), normal(32, seed=60 + head)) for head in range(4)])
    finding = finding_of(Planted({w.site: replace(w, w_q=w_q)}))
    null = value(finding, "heads", "QK", "effective_rank", "null", head=0)
    assert finding.headlines[0].short.startswith("The median head compares tokens along 1.0 effective directions;")
    assert f"would use {null:.1f}." in finding.headlines[0].short
    assert finding.headlines[0].effect == pytest.approx(1 - 1 / null)


def test_random_weights_have_no_effect():
    rank, strongest = finding_of(Planted({large_site(): large()})).headlines
    assert rank.effect < 0.03
    assert strongest.short.startswith("0 of 4 projections of attention stretch a direction beyond chance")
    assert strongest.effect == 0


def test_curves_of_heads_are_their_singular_values_and_the_law_is_that_of_a_random_product():
    of = large_site()
    finding = finding_of(Planted({of: large()}))
    assert [curve.key for curve in finding.curves] == ["qk_spectrum", "ov_spectrum"]
    for curve, form in zip(finding.curves, ("QK", "OV"), strict=True):
        sigma = finding.arrays[f"L0.{form}"]
        assert curve.heads == tuple(of.head_label(head) for head in range(of.n_heads))
        assert curve.values == pytest.approx(sigma / np.sqrt((sigma**2).mean(1, keepdims=True)))
        assert curve.law.shape == (1, len(curve.x))
        # Gaussian factors: the mean over heads follows the law, up to the spread of four matrices of rank 32.
        assert np.abs(curve.values.mean(0) - curve.law[0]).max() < 0.1
        assert (curve.law**2).mean() == pytest.approx(1, abs=0.02)


def test_curves_of_heads_of_different_sizes_have_a_law_each():
    sites = (large_site(), replace(large_site(d_head=8), layer=1))
    finding = finding_of(Planted({of: gaussian_weights(of) for of in sites}, SPEC))
    for curve in finding.curves:
        assert curve.values.shape == curve.law.shape
        assert np.isnan(curve.values[-1]).sum() == np.isnan(curve.law[-1]).sum() > 0
