"""Known answers and planted cases of the lens `focus`."""

from dataclasses import replace
from math import log

import polars as pl
import pytest
import torch

from headscope.attention.statistics import Request
from headscope.core import HeatMap
from headscope.errors import UsageError
from headscope.lenses.focus.lens import LENS
from headscope.lenses.focus.settings import Params
from tests.lenses.asking import begin, finish, update
from tests.lenses.planted import MODELS, SPEC, batch_of, batches, site

REQUEST = Request((1, 8, 64))
N = 12


def finding_of(*parts, sites=None, params=None):
    sites = sites or tuple(parts[0].statistics)
    fold = begin(LENS, params or Params(), SPEC, sites)
    for part in parts:
        fold = update(LENS, fold, part)
    return finish(LENS, fold, None)


def cell(finding, quantity, head=0, column="value"):
    rows = finding.table.filter(pl.col("quantity") == quantity, pl.col("head") == head)
    return rows[column].item()


def pattern_of(*maps):
    """Square maps as the heads of one window."""
    return torch.stack([one.double() for one in maps])[None]


CAUSAL = torch.ones(N, N).tril()
UNIFORM = CAUSAL / CAUSAL.sum(-1, keepdim=True)
DIAGONAL = torch.eye(N)
FIRST = torch.zeros(N, N).index_fill(1, torch.tensor([0]), 1.0)
PREVIOUS = torch.diag(torch.ones(N - 1), -1).index_put((torch.tensor([0]), torch.tensor([0])), torch.tensor(1.0))
PLANTED = pattern_of(UNIFORM, DIAGONAL, FIRST, PREVIOUS)


@pytest.fixture
def planted():
    return finding_of(batch_of(PLANTED, site(n_kv_heads=4), REQUEST))


def test_uniform_attention_is_its_own_null(planted):
    for quantity in planted.table["quantity"].unique():
        assert cell(planted, quantity) == pytest.approx(cell(planted, quantity, column="uniform")), quantity
    assert cell(planted, "entropy_share") == pytest.approx(1)
    assert cell(planted, "entropy_nats") == pytest.approx(sum(log(n) for n in range(2, N + 1)) / (N - 1))
    assert cell(planted, "effective_keys") == pytest.approx(sum(range(2, N + 1)) / (N - 1))
    assert cell(planted, "distance") == pytest.approx(sum((n - 1) / 2 for n in range(2, N + 1)) / (N - 1))


def test_diagonal_attention(planted):
    expected = {"entropy_nats": 0, "entropy_share": 0, "effective_keys": 1, "distance": 0, "distance_sd": 0}
    for quantity, value in {**expected, "diagonal": 1, "first": 0, "band_1": 1}.items():
        assert cell(planted, quantity, head=1) == pytest.approx(value, abs=1e-12), quantity


def test_first_token_attention(planted):
    expected = {"entropy_nats": 0, "effective_keys": 1, "first": 1, "diagonal": 0, "distance_sd": 0}
    for quantity, value in {**expected, "distance": N / 2, "band_1": 1 / (N - 1)}.items():
        assert cell(planted, quantity, head=2) == pytest.approx(value, abs=1e-12), quantity


def test_previous_token_attention(planted):
    expected = {"entropy_nats": 0, "distance": 1, "distance_sd": 0, "diagonal": 0, "band_1": 1, "band_8": 1}
    for quantity, value in {**expected, "first": 1 / (N - 1)}.items():
        assert cell(planted, quantity, head=3) == pytest.approx(value, abs=1e-12), quantity


def test_headlines_count_and_name_the_heads(planted):
    first, entropy, band = (headline.full for headline in planted.headlines)
    assert first.startswith("The median of 4 heads puts 14 % of its mass on the first token")
    assert "1 of 4 heads puts more than half of its mass there. L0.H2 puts the most there, 100 %" in first
    assert "the flattest L0.H0 with 100 %" in entropy
    assert "within 8 tokens" in band


def test_no_head_on_the_first_token_reads_well():
    finding = finding_of(batch_of(pattern_of(*[UNIFORM] * 4), site(n_kv_heads=4), REQUEST))
    assert "None of 4 heads puts more than half of its mass there." in finding.headlines[0].full


def test_rows_with_one_visible_key_are_left_out(planted):
    """The first row of a causal map can only attend to itself: it counts in no mean."""
    assert planted.table["rows"].unique().to_list() == [N - 1]


def test_one_window_has_no_interval(planted):
    assert planted.table["low"].null_count() == planted.table.height
    assert planted.table["windows"].unique().to_list() == [1]


def test_interval_is_students_over_windows():
    """Two windows of one head: half the mass on the diagonal in one, all of it in the other."""
    of = site(n_heads=1, n_kv_heads=1)
    half = 0.5 * DIAGONAL + 0.5 * PREVIOUS
    finding = finding_of(batch_of(torch.stack([half, DIAGONAL])[:, None].double(), of, REQUEST))
    assert cell(finding, "diagonal") == pytest.approx(0.75)
    # Standard error |1 − 0.5| / 2, times the 97.5 % point of t with one degree of freedom: beyond [0, 1].
    assert cell(finding, "diagonal", column="low") == 0.0
    assert cell(finding, "diagonal", column="high") == 1.0
    assert cell(finding, "distance", column="high") == pytest.approx(0.25 + 12.7062 * 0.25, rel=1e-4)
    assert cell(finding, "diagonal", column="windows") == 2


def test_interval_shrinks_with_windows_and_covers():
    """Over repeated draws the 95 % interval holds the true mean about that often."""
    generator = torch.Generator().manual_seed(0)
    of = site(n_heads=1, n_kv_heads=1)
    inside = 0
    for _ in range(40):
        share = torch.rand(8, 1, 1, 1, generator=generator, dtype=torch.float64)
        pattern = share * DIAGONAL + (1 - share) * PREVIOUS
        pattern[..., 0, 0] = 1.0
        finding = finding_of(batch_of(pattern, of, REQUEST))
        inside += cell(finding, "diagonal", column="low") <= 0.5 <= cell(finding, "diagonal", column="high")
    assert inside >= 34


def test_padding_is_left_out():
    """Rows of padding hold NaN in the statistics and change nothing."""
    parts = batches(MODELS["encoder"], REQUEST, shapes=((9, 4),))
    finding = finding_of(*parts)
    assert finding.table["rows"].unique().to_list() == [13]
    assert finding.table["value"].null_count() == 0
    assert finding.table["value"].is_finite().all()


def test_encoder_sees_every_token():
    """Uniform attention over n keys in both directions."""
    finding = finding_of(
        batch_of(pattern_of(*[torch.full((N, N), 1 / N)] * 4), site(n_kv_heads=4, causal=False), REQUEST)
    )
    assert cell(finding, "entropy_nats") == pytest.approx(log(N))
    assert cell(finding, "first") == pytest.approx(1 / N)
    assert finding.table["rows"].unique().to_list() == [N]
    assert cell(finding, "distance") == pytest.approx((N * N - 1) / (3 * N))


def test_cross_attention_has_no_positions():
    parts = batches(MODELS["encoder-decoder"], REQUEST)
    cross = finding_of(*parts).table.filter(pl.col("kind") == "cross")
    empty = cross.filter(pl.col("value").is_null())["quantity"].unique().to_list()
    assert sorted(empty) == ["band_1", "band_64", "band_8", "diagonal", "distance", "distance_sd"]
    assert cross.filter(pl.col("quantity") == "first")["value"].null_count() == 0


def test_cross_attention_alone_draws_what_it_has():
    model = MODELS["encoder-decoder"]
    parts = batches(model, REQUEST)
    finding = finding_of(*parts, sites=model.sites[2:])
    assert {figure.name for figure in finding.figures} == {
        "entropy_share", "first", "entropy_share_by_layer", "first_by_layer",
    }  # fmt: skip
    assert len(finding.headlines) == 2


def test_sinks_are_shown_and_taken_out():
    """With a sink, entropy and keys use the normalised row, and the finding names the sink's mass."""
    finding = finding_of(*batches(MODELS["sinks"], REQUEST))
    sink = finding.table.filter(pl.col("quantity") == "sink")
    assert ((sink["value"] > 0) & (sink["value"] < 1)).all()
    share = finding.table.filter(pl.col("quantity") == "entropy_share")["value"]
    assert share.is_between(0, 1).all()
    assert (finding.table.filter(pl.col("quantity") == "effective_keys")["value"] >= 1).all()


def test_reference_of_the_heat_maps_is_uniform_attention(planted):
    maps = {figure.name: figure for figure in planted.figures if isinstance(figure, HeatMap)}
    assert maps["first"].reference == pytest.approx(cell(planted, "first", column="uniform"))
    assert maps["entropy_share"].reference == pytest.approx(1)
    assert maps["first"].row_labels == ("L0",)


def test_bands_are_a_parameter():
    finding = finding_of(batch_of(PLANTED, site(n_kv_heads=4), Request((0, 3))), params=Params("3, 0"))
    names = finding.table["quantity"].unique(maintain_order=True).to_list()
    assert names[-2:] == ["band_0", "band_3"]
    assert cell(finding, "band_0", head=1) == 1
    assert LENS.needs(Params("3, 0")).statistics == Request((0, 3))


@pytest.mark.parametrize("bad", ["1,x", "-1", "1.5", "1;2"])
def test_bands_that_cannot_be_read(bad):
    with pytest.raises(UsageError, match="whole numbers"):
        Params(bad).widths()


def test_other_variants_are_not_counted():
    part = batch_of(PLANTED, site(n_kv_heads=4), REQUEST)
    fold = begin(LENS, Params(), SPEC, tuple(part.statistics))
    assert update(LENS, fold, replace(part, variant="initialised")) == fold


def test_one_token_is_not_applicable():
    finding = finding_of(*batches(MODELS["grouped queries"], REQUEST, shapes=((1,),)))
    assert finding.status == "not applicable"
    assert "two keys" in finding.reason


def test_unseen_sites_are_told():
    model = MODELS["multi-head"]
    part = batches(model, REQUEST)[0]
    first, second = model.sites
    finding = finding_of(replace(part, statistics={first: part.statistics[first]}), sites=model.sites)
    assert finding.warnings == (f"No attention of {second.label} was seen.",)


def test_method_says_how_the_rows_were_had(planted):
    assert "stored map" in planted.method
