"""Known answers and planted cases of the lens `gaussian`."""

from dataclasses import replace
from math import e, log, pi

import polars as pl
import pytest
import torch

from headscope.errors import UsageError
from headscope.lenses.gaussian.lens import LENS
from headscope.lenses.gaussian.settings import Params
from headscope.lenses.lens import AS_IS, Batch
from headscope.lenses.shared.row_sample import Plan, Sample, kept_positions
from tests.contract.test_lenses import differences
from tests.lenses.asking import begin, defined, finish, update
from tests.lenses.planted import SPEC, site

RHO, D = 0.8, 6
SCALES = torch.tensor([3.0, 2.0, 1.5, 1.0, 0.7, 0.5], dtype=torch.float64)
PARAMS = Params(components=D, distances="1,2,4,8,32", skip=1)


def autoregressive(windows, length, rho=RHO, seed=0):
    """A stationary Gaussian sequence x_i = ρ x_(i−1) + √(1 − ρ²) ε_i in every coordinate, times `SCALES`."""
    noise = torch.randn(windows, length, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x = noise.clone()
    for i in range(1, length):
        x[:, i] = rho * x[:, i - 1] + (1 - rho**2) ** 0.5 * noise[:, i]
    return x * SCALES


def batch_of(*streams, seed=5):
    """One batch whose layers are given these streams."""
    windows, length, _ = streams[0].shape
    tokens = torch.randint(0, 50, (windows, length), generator=torch.Generator().manual_seed(seed))
    real = torch.ones(windows, length, dtype=torch.bool)
    captures = {"resid": {site(layer=layer): stream for layer, stream in enumerate(streams)}}
    return Batch(AS_IS, tokens, real, {}, {}, captures)


def fold_of(*batches, params=PARAMS, d_model=D):
    fold = begin(LENS, params, replace(SPEC, d_model=d_model), tuple(batches[0].captures["resid"]))
    for batch in batches:
        fold = update(LENS, fold, batch)
    return fold


def finding_of(*batches, params=PARAMS):
    return finish(LENS, fold_of(*batches, params=params), None)


def cell(finding, quantity, layer=0, column="value"):
    rows = finding.tables["layers"].filter(pl.col("quantity") == quantity, pl.col("layer") == layer)
    return rows[column].item()


@pytest.fixture(scope="module")
def planted():
    x = autoregressive(48, 129)
    return finding_of(batch_of(x, 2 * x))


def test_information_of_an_autoregressive_sequence(planted):
    """−½ ln(1 − ρ^(2t)) per component; nothing is left at distance 32."""
    for row in planted.tables["information"].iter_rows(named=True):
        expected = -D / 2 * log(1 - RHO ** (2 * row["distance"]))
        assert row["dimensions"] == D
        assert row["low"] < expected < row["high"], row
        assert row["value"] == pytest.approx(expected, abs=0.01 + 0.05 * expected)
        assert row["value"] == pytest.approx(row["raw"] - row["null"], abs=1e-12)
        assert (row["low"] > 0) == (row["distance"] <= 8)
        # Correlated rows are worth fewer pairs than there are, which the formula for independent ones cannot know.
        assert row["null"] > row["analytic"]


def test_the_joint_gaussian_of_an_autoregressive_sequence(planted):
    """A Markov chain: the last token has no more from the three before it than from the nearest one."""
    pair = -D / 2 * log(1 - RHO**2)
    single = 0.5 * float((2 * pi * e * SCALES**2).log().sum())
    expected = {
        "joint_entropy_nats": 4 * single - 3 * pair,
        "total_correlation_nats": 3 * pair,
        "last_token_nats": pair,
    }
    rows = planted.tables["joint"].filter(pl.col("layer") == 0)
    assert rows["quantity"].to_list() == list(expected)
    for row in rows.iter_rows(named=True):
        assert (row["tokens"], row["dimensions"]) == (4, D)
        assert row["low"] < expected[row["quantity"]] < row["high"], row
        # Dependent tokens have less bias than the shuffled ones that are subtracted: up to 3 % less information here.
        assert row["value"] == pytest.approx(expected[row["quantity"]], rel=0.05)


def test_positions_that_spread_are_seen():
    """Twice the scale from position 16 on: k ln 2 more entropy, and a divergence where the two groups meet."""
    x = autoregressive(40, 64, rho=0.0)
    x[:, 16:] *= 2
    table = finding_of(batch_of(x)).tables["positions"]
    entropy = table.filter(pl.col("quantity") == "entropy_nats", pl.col("dimensions") == D)
    early, late = (entropy.filter(where)["value"].mean() for where in (pl.col("until") < 16, pl.col("position") >= 16))
    assert late - early == pytest.approx(D * log(2), abs=0.3)
    divergence = table.filter(pl.col("quantity") == "kl_next_nats", pl.col("dimensions") == D)
    here = divergence.filter(pl.col("position") == 8).row(0, named=True)
    assert here["until"] == 15
    assert here["low"] > here["null"]
    others = divergence.filter(pl.col("position").is_in((4, 16)))
    assert (others["value"] < here["low"]).all()


def test_shares_and_shrinkage_have_intervals_that_hold(planted):
    """Gaussian rows with mean 0: shrinkage as predicted for them, and next to nothing in the mean."""
    for layer in (0, 1):
        low, value, high, null = (cell(planted, "shrinkage", layer, name) for name in ("low", "value", "high", "null"))
        assert low < null < high
        assert value == pytest.approx(null, rel=0.2)
        # Rows of a window are worth (1 − ρ) / (1 + ρ) independent ones in their mean.
        independent = (1 + RHO) / (1 - RHO) / (48 * 128)
        assert cell(planted, "mean_share", layer, "null") == pytest.approx(independent, rel=0.3)
        assert cell(planted, "mean_share", layer) < 5 * cell(planted, "mean_share", layer, "null")


def test_intervals_of_the_share_of_the_mean_hold_nineteen_times_in_twenty():
    share, held = 4 * D / (4 * D + float(SCALES.square().sum())), 0
    for seed in range(20):
        shifted = finding_of(batch_of(autoregressive(20, 33, rho=0.0, seed=seed) + 2.0))
        low, value, high = (cell(shifted, "mean_share", column=name) for name in ("low", "value", "high"))
        assert value == pytest.approx(share, rel=0.1)
        held += low < share < high
    assert held >= 17


def test_the_stream_behind_the_last_layer_is_one_layer_more():
    x = autoregressive(24, 40)
    part = batch_of(x)
    part = replace(part, captures={**part.captures, "final": {site(): 3 * x}})
    finding = finding_of(part)
    assert cell(finding, "entropy_nats", 1) - cell(finding, "entropy_nats", 0) == pytest.approx(D * log(3))
    assert cell(finding, "kl_next_nats", 0) > 1
    assert {"mean L0", "variances L1"} <= finding.arrays.keys()


def test_gaussian_samples_are_not_rejected(planted):
    p = planted.tables["normality"]["p"]
    assert p.min() > 0.01 / p.len()
    rows = planted.tables["components"].filter(pl.col("quantity") == "relative_kurtosis")
    assert rows["dimensions"].unique().to_list() == [4, 6]
    assert (rows["low"] < 0).all()
    assert (rows["high"] > 0).all()
    assert planted.headlines[0].full.startswith("No tails unlike a Gaussian's were detected: ")
    assert "would have been detected in four of five texts" in planted.headlines[0].full


def test_short_headlines_state_what_was_planted(planted):
    """Gaussian tails have no effect, a direction's share of the variance has, and neighbours correlate by ρ."""
    tails, dimension, information = planted.headlines
    assert tails.effect == 0
    assert tails.short.startswith("No difference of token vectors from Gaussian tails was detected; ")
    value, null = (cell(planted, "effective_dimension", column=column) for column in ("value", "null"))
    assert f"effectively use {value:.3g} of {D} dimensions; random vectors would use {null:.3g}." in dimension.short
    assert dimension.effect == pytest.approx(1 - value / null)
    nats = planted.tables["information"].filter(pl.col("layer") == 1, pl.col("distance") == 1)["value"].item()
    assert information.short.startswith(f"Neighbouring tokens share {nats:.1f} nats of information")
    assert information.effect == pytest.approx(RHO, abs=0.01)


def test_short_headlines_of_independent_tokens_detect_nothing():
    """Directions of equal variance, no neighbour that tells anything: all effects are 0."""
    finding = finding_of(batch_of(autoregressive(24, 40, rho=0.0) / SCALES))
    assert [headline.effect for headline in finding.headlines] == [0, 0, 0]
    assert all(" was detected; " in headline.short for headline in finding.headlines)
    alone = finding_of(batch_of(autoregressive(1, 400)))
    assert [headline.effect for headline in alone.headlines] == [None, None, None]


def test_tails_in_many_directions_are_seen_beside_few():
    """Gaussian in the first four directions, heavy-tailed in the 28 behind them: few components do not show it."""
    generator = torch.Generator().manual_seed(12)
    x = torch.randn(40, 65, 32, generator=generator, dtype=torch.float64)
    x[..., 4:] *= 1 + 2 * (torch.rand(40, 65, 1, generator=generator, dtype=torch.float64) < 0.5)
    x = x * torch.cat((torch.full((4,), 20.0), torch.ones(28))).double()
    fold = update(
        LENS, begin(LENS, Params(components=4, distances="1"), replace(SPEC, d_model=32), (site(),)), batch_of(x)
    )
    finding = finish(LENS, fold, None)
    rows = finding.tables["components"].filter(pl.col("quantity") == "relative_kurtosis")
    few, many = rows.filter(pl.col("dimensions") == 4).row(0, named=True), rows.row(-1, named=True)
    assert few["low"] < 0 < few["high"]
    assert many["dimensions"] == 32
    assert many["low"] > 0.3
    assert few["held"] > 0.9
    assert finding.headlines[0].full.startswith("Residual streams have heavier tails than a Gaussian")
    assert "in 8 principal components and by" in finding.headlines[0].full
    assert f"kurtosis is {100 * many['value']:.0f} % higher in the median layer" in finding.headlines[0].short
    assert finding.headlines[0].effect == pytest.approx(1 - 1 / (1 + many["value"]))


def test_information_grows_with_the_components():
    """The same share for every component: the curve is a line, and the sentence says that it depends on k."""
    generator = torch.Generator().manual_seed(13)
    x = torch.randn(24, 129, 16, generator=generator, dtype=torch.float64)
    for i in range(1, 129):
        x[:, i] = 0.5 * x[:, i - 1] + 0.75**0.5 * x[:, i]
    x = x * 2.0 ** -torch.arange(16)
    fold = update(LENS, begin(LENS, Params(distances="1,2"), replace(SPEC, d_model=16), (site(),)), batch_of(x))
    finding = finish(LENS, fold, None)
    rows = finding.tables["components"].filter(pl.col("quantity") == "information_nats")
    assert rows["dimensions"].to_list() == [4, 8, 16]
    for row in rows.iter_rows(named=True):
        assert row["low"] < -row["dimensions"] / 2 * log(0.75) < row["high"]
    eight = finding.tables["information"].row(0, named=True)
    assert rows["value"].to_list()[1] == pytest.approx(eight["value"])
    assert "depends on how many components are used" in finding.headlines[2].full


def test_entropy_and_dimension_have_their_closed_forms(planted):
    entropy = 0.5 * float((2 * pi * e * SCALES**2).log().sum())
    variance = SCALES**2
    for layer, scale in ((0, 1.0), (1, 2.0)):
        expected = entropy + D * log(scale)
        assert cell(planted, "entropy_nats", layer, "low") < expected < cell(planted, "entropy_nats", layer, "high")
        assert cell(planted, "entropy_nats", layer) == pytest.approx(expected, abs=0.1)
        assert cell(planted, "entropy_nats", layer) < cell(planted, "entropy_nats", layer, "null")
    dimension = float(variance.sum() ** 2 / variance.square().sum())
    found = [cell(planted, "effective_dimension", column=column) for column in ("low", "value", "high")]
    assert found[0] < dimension < found[2]
    assert found[1] == pytest.approx(dimension, rel=0.05)
    assert cell(planted, "effective_dimension", column="null") == pytest.approx(D, rel=0.01)


def test_divergence_from_a_layer_twice_as_large(planted):
    """½ (k/4 − k + k ln 4), and next to nothing between the halves of a stationary sequence."""
    assert cell(planted, "kl_next_nats") == pytest.approx(0.5 * D * (0.25 - 1 + log(4)), rel=0.03)
    assert cell(planted, "kl_next_nats", column="null") < 0.02
    assert cell(planted, "kl_late_nats") < 3 * cell(planted, "kl_late_nats", column="null")
    assert planted.tables["layers"].filter(pl.col("quantity") == "kl_next_nats").height == 1


def test_late_tokens_that_lie_elsewhere_are_seen():
    x = autoregressive(24, 64, rho=0.2)
    x[:, 32:] += torch.tensor([0.0, 0.0, 0.0, 1.0, 0.0, 0.0])
    finding = finding_of(batch_of(x))
    assert cell(finding, "kl_late_nats", column="low") > 5 * cell(finding, "kl_late_nats", column="null")
    assert cell(finding, "kl_late_nats") == pytest.approx(0.5, abs=0.15)


@pytest.mark.parametrize("shape", ["skewed", "heavy", "two values"])
def test_what_is_not_gaussian_is_rejected(shape):
    x = autoregressive(40, 65, rho=0.5) / SCALES
    changed = {"skewed": x.exp(), "heavy": x**3, "two values": x.sign() + 0.1 * x}[shape]
    finding = finding_of(batch_of(changed * SCALES))
    single = finding.tables["normality"].filter(pl.col("component").is_not_null())
    least = single.group_by("component").agg(pl.col("p").min())
    assert (least["p"] < 1e-3).all()
    kind = "lighter" if shape == "two values" else "heavier"
    assert finding.headlines[0].full.startswith(f"Residual streams have {kind} tails than a Gaussian")


def test_the_definition_agrees_where_everything_can_be_tested():
    parts = [batch_of(autoregressive(n, length, seed=n), autoregressive(n, length, seed=9 + n)) for n, length in
             ((7, 41), (6, 33), (1, 20))]  # fmt: skip
    finding = finding_of(*parts)
    assert all(not table.is_empty() for table in finding.tables.values())
    assert not differences(finding.tables, defined(LENS, PARAMS, None, parts))


def test_first_tokens_are_left_out_and_told():
    """One vector a hundred times as long at the start of each window is nearly all of the variance."""
    x = autoregressive(20, 33, rho=0.0)
    x[:, 0] = 100 * x[:, 0].sign()
    finding = finding_of(batch_of(x))
    assert cell(finding, "first_share") > 0.9
    assert cell(finding, "first_share", column="null") == pytest.approx(1 / 33)
    expected = 1 - 32 * float(SCALES.square().sum()) / (32 * float(SCALES.square().sum()) + D * 100**2)
    assert cell(finding, "first_share", column="low") < expected < cell(finding, "first_share", column="high")
    assert cell(finding, "effective_dimension") < 4
    assert "The first tokens, which are left out, would be 9" in finding.headlines[1].full
    everything = finding_of(batch_of(x), params=replace(PARAMS, skip=0))
    assert cell(everything, "first_share") == 0
    assert everything.tables["normality"].filter(pl.col("quantity") == "mardia_kurtosis")["z"].item() > 10


def test_few_samples_are_told():
    """Ten samples per dimension: 40 rows allow four components, and that is said."""
    finding = finding_of(batch_of(autoregressive(4, 11)))
    assert cell(finding, "entropy_nats", column="dimensions") == 4
    assert any("4 largest of 6 principal components: 40 samples" in warning for warning in finding.warnings)
    assert any("at distance 8, 32" in warning for warning in finding.warnings)
    assert any("Normality was not tested" in warning for warning in finding.warnings)


def test_one_window_takes_the_analytic_bias_off():
    finding = finding_of(batch_of(autoregressive(1, 400)))
    row = finding.tables["information"].row(0, named=True)
    assert row["null"] is None
    assert row["low"] is None
    assert row["analytic"] == pytest.approx(D**2 / (2 * 398))
    assert "one window cannot be shuffled" in finding.headlines[2].full
    assert "no interval: too few windows" in finding.headlines[2].full


def test_directions_without_variance_are_no_error():
    x = autoregressive(20, 40)
    x[..., 3:] = 1.0
    finding = finding_of(batch_of(x))
    assert cell(finding, "entropy_nats", column="dimensions") == 3
    assert finding.tables["information"]["dimensions"].unique().to_list() == [3]


def test_a_text_that_repeats_itself_is_no_error():
    """Tokens at distance 4 are copies: the infinite information is a warning, not a row."""
    finding = finding_of(batch_of(autoregressive(20, 4, rho=0.0).repeat(1, 10, 1)))
    assert 4 not in finding.tables["information"]["distance"].to_list()
    assert any("at distance 4, 8, 32" in warning for warning in finding.warnings)


def test_a_stream_that_stands_still_is_no_error():
    finding = finding_of(batch_of(torch.ones(3, 30, D)))
    assert finding.status == "ok"
    assert cell(finding, "entropy_nats") is None
    assert cell(finding, "effective_dimension") is None


def test_the_state_does_not_grow_with_the_text():
    def size(batches):
        fold = fold_of(*[batch_of(autoregressive(16, 64, seed=seed), seed=seed) for seed in range(batches)])
        sample = fold.state.kept[site()].sample
        kept = sum(stream.rows.numel() for window in sample.windows for stream in window.streams.values())
        return kept, len(sample.windows), sample.seen

    assert size(5)[:2] == size(9)[:2]
    assert size(9)[2] == 144


PLAN = Plan(rows=60, windows=5, distances=(1, 4), skip=1)


def shown_windows(count):
    generator = torch.Generator().manual_seed(3)
    return [
        (torch.randint(0, 99, (n,), generator=generator), {site(): torch.randn(n, 2, generator=generator)})
        for n in [40, 23, 9, 31] * count
    ]


@pytest.mark.parametrize("cut", [0, 1, 3, 6, 11, 12])
def test_any_split_keeps_the_same_rows(cut):
    def sampled(windows):
        sample = Sample(PLAN)
        for tokens, streams in windows:
            sample = sample.add(tokens, streams)
        return sample

    windows = shown_windows(3)
    whole, parts = sampled(windows), sampled(windows[:cut]).merge(sampled(windows[cut:]))
    assert whole.seen == parts.seen == 12
    assert len(whole.windows) == len(parts.windows) == PLAN.windows
    for a, b in zip(whole.windows, parts.windows, strict=True):
        assert a.priority == b.priority
        assert torch.equal(a.streams[site()].positions, b.streams[site()].positions)
        assert torch.equal(a.streams[site()].rows, b.streams[site()].rows)
    assert sum(len(one.streams[site()].rows) for one in whole.windows) <= PLAN.rows


def test_wider_steps_keep_a_subset_and_every_distance():
    rooms = (400, 200, 100, 50, 20)
    kept = [set(kept_positions(PLAN, 300, room)) for room in rooms]
    for room, one, fewer in zip(rooms[1:], kept[:-1], kept[1:], strict=True):
        assert fewer < one
        assert len(fewer) <= room
        assert all(any(i + distance in fewer for i in fewer) for distance in PLAN.distances)
        assert min(fewer) == 1


def test_no_window_has_more_than_its_share():
    """A long window alone does not fill the sample, and keeps pairs at every distance."""
    finding = finding_of(batch_of(autoregressive(1, 5000)))
    assert finding.tables["information"]["samples"].max() <= 1024
    assert finding.tables["information"]["distance"].to_list() == [1, 2, 4, 8, 32]
    assert "a sample of" in finding.method


def test_other_variants_are_not_counted():
    part = batch_of(autoregressive(3, 20))
    before = fold_of(part)
    assert update(LENS, before, replace(part, variant="initialised")) is before


def test_large_models_are_measured_in_some_layers_only():
    sites = tuple(site(layer=layer) for layer in range(32))
    state = begin(LENS, Params(), replace(SPEC, d_model=4096), sites).state
    assert [one.layer for one in state.sites][:3] == [0, 2, 4]
    assert state.plan.rows * len(state.sites) * 4096 * 4 <= 5 * 2**28


@pytest.mark.parametrize("bad", ["1,x", "0", "", "1.5"])
def test_distances_that_cannot_be_read(bad):
    with pytest.raises(UsageError, match="whole numbers"):
        LENS.needs(Params(distances=bad))


def test_senseless_numbers_are_refused():
    with pytest.raises(UsageError, match="at least one component"):
        LENS.needs(Params(components=0))
    with pytest.raises(UsageError, match="at least two"):
        LENS.needs(Params(tokens=1))


@pytest.mark.parametrize("coordinate", range(D))
@pytest.mark.parametrize("side", [1, -1])
def test_the_sign_of_skewness_is_that_of_the_text(coordinate: int, side: int):
    """An eigenvector has no sign of its own; the lens takes its largest entry as positive."""
    x = autoregressive(12, 65, rho=0.0, seed=coordinate)
    x[..., coordinate] = side * 20 * torch.exp(x[..., coordinate] / SCALES[coordinate])
    tests = finding_of(batch_of(x)).tables["normality"]
    skewness = tests.filter(pl.col("quantity") == "skewness", pl.col("component") == 0)["value"].item()
    assert skewness * side > 1
