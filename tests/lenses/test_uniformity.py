"""The lens uniformity on tokens and weights made so that the right answer is known."""

import math
from dataclasses import replace

import polars as pl
import pytest
import torch

from headscope.core import WeightStatus
from headscope.errors import UsageError
from headscope.lenses.lens import AS_IS, Batch
from headscope.lenses.uniformity.lens import LENS
from headscope.lenses.uniformity.rates import VARIANTS, _factor_row
from headscope.lenses.uniformity.records import stream_row
from headscope.lenses.uniformity.settings import Params
from headscope.model import model as models
from headscope.pipeline import measure
from tests.lenses.asking import begin, finish, update
from tests.lenses.planted import SPEC, Planted, head_weights, site

N, D, HEADS, WIDTH = 10, 24, 4, 6
SITES = tuple(site(layer=layer, n_kv_heads=HEADS, d_head=WIDTH, d_value=WIDTH) for layer in range(3))
# What attention keeps of differences and common part, and by how much the value maps enlarge.
KEPT, COMMON, GAIN = 0.3, 0.9, 0.7


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tokens(ratio: float, windows: int = 3, seed: int = 0) -> torch.Tensor:
    """Windows of tokens whose differences are `ratio` times what they have in common."""
    common, rest = normal(windows, 1, D, seed=seed), normal(windows, N, D, seed=seed + 1)
    rest = rest - rest.mean(1, keepdim=True)
    size = common.norm(dim=(1, 2), keepdim=True) * math.sqrt(N)
    return common + ratio * size * rest / rest.norm(dim=(1, 2), keepdim=True)


def planted() -> Planted:
    """Heads that together turn every vector and enlarge it by GAIN."""
    weights = {}
    for one in SITES:
        turn = torch.linalg.qr(normal(D, D, seed=one.layer)).Q
        parts = turn.reshape(D, HEADS, WIDTH).permute(1, 0, 2)
        back = GAIN * torch.eye(D, dtype=torch.float64).reshape(HEADS, WIDTH, D)
        weights[one] = head_weights(one, parts, parts, parts, back)
    return Planted(weights, replace(SPEC, n_layers=3, d_model=D))


def batch_of(variant: str, rate: float, start: float = 2.0, first: float | None = None) -> Batch:
    """Streams whose differences change by `rate` in each layer; a huge first token where one is given."""
    streams = [tokens(start * rate**layer, seed=layer) for layer in range(4)]
    if first is not None:
        streams = [torch.cat((torch.full_like(x[:, :1], first), x), 1) for x in streams]
    values = normal(3, HEADS, streams[0].shape[1], WIDTH, seed=9)
    skip = 0 if first is None else 1
    mean = values[:, :, skip:].mean(2, keepdim=True)
    mixed = KEPT * (values - mean) + COMMON * mean
    captures = {
        "resid": dict(zip(SITES, streams, strict=False)),
        "x": dict(zip(SITES, streams, strict=False)),
        "final": {SITES[-1]: streams[-1]},
        "v": dict.fromkeys(SITES, values),
        "z": dict.fromkeys(SITES, mixed),
    }
    real = torch.ones(streams[0].shape[:2], dtype=torch.bool)
    return Batch(variant, real.long(), real, captures=captures)


def finding_of(*batches: Batch, model: Planted | None = None, **options: int):
    params = Params(**{"skip": 0, **options})
    source = model or planted()
    fold = begin(LENS, params, source.spec, SITES)
    for batch in batches:
        fold = update(LENS, fold, batch)
    return finish(LENS, fold, source)


def value(table: pl.DataFrame, quantity: str, column: str = "value", **where: object) -> float:
    chosen = [pl.col(key) == wanted for key, wanted in where.items()]
    return table.filter(pl.col("quantity") == quantity, *chosen)[column].item()


def test_planted_rates_and_their_predictions():
    rates = {AS_IS: 0.8, "without mlp": 0.6, "without skips": 0.1, "without attention": 1.2, "initialised": 0.5}
    finding = finding_of(*(batch_of(variant, rate) for variant, rate in rates.items()))
    with_skip = math.sqrt((1 + (GAIN * KEPT) ** 2) / (1 + (GAIN * COMMON) ** 2))
    predicted = {AS_IS: with_skip, "without mlp": with_skip, "without skips": KEPT / COMMON, "without attention": 1.0}
    table = finding.tables["rates"]
    for variant, rate in rates.items():
        assert value(table, "factor_over_depth", variant=variant) == pytest.approx(rate)
        for layer in range(3):
            assert value(table, "factor", variant=variant, layer=layer) == pytest.approx(rate)
            assert value(table, "kept_differences", variant=variant, layer=layer) == pytest.approx(KEPT)
            guess = value(table, "factor", "predicted", variant=variant, layer=layer)
            assert guess == (pytest.approx(predicted[variant]) if variant in predicted else None)
    assert "0.800 (in each of 3 windows; predicted 0.865) in the model as it is" in finding.headlines[2].full
    assert "change 0.600-fold per layer; averaging alone predicts 0.865." in finding.headlines[2].short
    assert finding.headlines[2].effect == pytest.approx(1 - 0.6 / with_skip)
    assert value(table, "factor_over_depth", "ratio", variant=AS_IS) == pytest.approx(0.8 / with_skip)
    layers = finding.tables["layers"]
    assert value(layers, "stretch", layer=0) == pytest.approx(1), "an orthogonal map stretches nothing"
    assert value(layers, "operator_norm", layer=1) == pytest.approx(GAIN)
    assert value(layers, "skip_share", layer=2) == pytest.approx(1 / (1 + GAIN))
    assert value(layers, "flat_factor", layer=0) == pytest.approx(1 / math.sqrt(1 + GAIN**2))


def noisy(variant: str, rates: list[float]) -> list[Batch]:
    """One window for each rate."""
    batches = []
    for index, rate in enumerate(rates):
        batch = batch_of(variant, rate)
        one = {name: {of: x[index : index + 1] for of, x in part.items()} for name, part in batch.captures.items()}
        batches.append(replace(batch, tokens=batch.tokens[:1], real=batch.real[:1], captures=one))
    return batches


def test_predictions_are_judged_by_their_intervals():
    """Within a tenth of the speed, and yet outside of the interval; far from it, and yet inside."""
    with_skip = math.sqrt((1 + (GAIN * KEPT) ** 2) / (1 + (GAIN * COMMON) ** 2))
    near = [with_skip**exponent for exponent in (1.09, 1.10, 1.11)]
    wide = [KEPT / COMMON * factor for factor in (0.7, 1.0, 1.5)]
    finding = finding_of(*noisy("without mlp", near), *noisy("attention alone", wide), batch_of(AS_IS, 0.96))
    assert "without feed-forward parts, which is less than averaging gives: 0.98" in finding.headlines[2].full
    assert "attention alone, which is not told from averaging: 1.0" in finding.headlines[2].full
    assert finding.headlines[2].short.startswith("No difference of attention alone from pure averaging was detected; ")
    assert finding.headlines[2].effect == 0
    # The prediction leaves out feed-forward parts: the model as it is is not judged by it.
    assert "With feed-forward parts, which the prediction leaves out: 0.96" in finding.headlines[2].full
    assert "quarter" not in finding.headlines[2].full


def test_a_prediction_of_nothing_is_none():
    """Averaging that leaves nothing in one layer of one window predicts no geometric mean over the layers."""
    factor = torch.full((3, 2), 0.5, dtype=torch.float64)
    predicted = factor.clone()
    whole = _factor_row(SITES[0], AS_IS, factor, predicted)
    assert (whole["predicted"], whole["ratio"]) == (pytest.approx(0.5), pytest.approx(1.0))
    predicted[1, 0] = 0.0
    row = _factor_row(SITES[0], AS_IS, factor, predicted)
    assert (row["predicted"], row["ratio"]) == (None, None)
    assert row["value"] == pytest.approx(0.5)


def test_rounding_is_no_measurement():
    """Tokens of float32 that differ by rounding alone: no value, no interval, no point in a figure, and it is said."""
    generator = torch.Generator().manual_seed(4)
    common = 3 * torch.randn(3, 1, D, generator=generator).expand(3, N, D)
    equal = common * (1 + torch.randn(3, N, D, generator=generator) * torch.finfo(torch.float32).eps)
    batch = batch_of("without skips", 0.5)
    resid = {of: (x if of is SITES[0] else equal) for of, x in batch.captures["resid"].items()}
    captures = {**batch.captures, "resid": resid, "final": {SITES[-1]: equal}}
    finding = finding_of(batch_of(AS_IS, 0.9), replace(batch, captures=captures))
    table = finding.tables["streams"].filter(pl.col("variant") == "without skips")
    bound = torch.finfo(torch.float32).eps * math.sqrt(D)
    for quantity in ("residual_share", "composite_share", "differences"):
        assert value(table, quantity, layer=0) is not None
        assert value(table, quantity, "rounding", layer=3) == pytest.approx(bound)
        for name in ("value", "low", "high"):
            assert value(table, quantity, name, layer=3) is None
    assert value(table, "mean_cosine", layer=3) == pytest.approx(1)
    assert "without skip connections less than" in finding.headlines[1].full
    assert "(rounding)" in finding.headlines[1].full
    assert "skip connections kept them apart" in finding.headlines[1].full
    drawn = {figure.name: figure for figure in finding.figures}["differences"]
    line = next(series for series in drawn.series if series.label == "without skips")
    assert list(line.x) == [0.0]


def test_which_part_keeps_tokens_apart():
    finding = finding_of(batch_of(AS_IS, 0.9), batch_of("without skips", 0.1), batch_of("without attention", 1.5))
    assert "skip connections kept them apart; attention brought them together" in finding.headlines[1].full
    assert finding.headlines[0].full.startswith("Over 3 windows, tokens grow more alike with depth")
    table = finding.tables["streams"]
    first, last = (value(table, "mean_cosine", variant=AS_IS, layer=layer) for layer in (0, 3))
    assert f"goes from {first:.2f} at the first layer to {last:.2f} after the last" in finding.headlines[0].short
    assert finding.headlines[0].effect == pytest.approx(last - first)
    usual, without = (value(table, "residual_share", variant=name, layer=3) for name in (AS_IS, "without skips"))
    assert finding.headlines[1].short.startswith(f"Without skip connections, {100 * without:.1f}"[:-2])
    assert finding.headlines[1].effect == pytest.approx(1 - without / usual)
    assert (
        finding_of(batch_of(AS_IS, 1.5))
        .headlines[0]
        .full.startswith("Over 3 windows, tokens grow less alike with depth")
    )
    assert "nearly one" in finding_of(batch_of(AS_IS, 0.3, start=0.5)).headlines[0].full


def test_parts_are_judged_window_by_window():
    """Windows that differ by more than a part does: the intervals overlap, the change of each window is clear."""
    rates = [0.6, 0.8, 1.0]
    finding = finding_of(*noisy(AS_IS, rates), *noisy("without mlp", [0.97 * rate for rate in rates]))
    rows = finding.tables["streams"].filter(pl.col("quantity") == "residual_share", pl.col("layer") == 3)
    usual, without = rows.to_dicts()
    assert usual["low"] < without["high"] < usual["high"]
    assert without["change_high"] < 0
    assert without["change"] == pytest.approx(without["value"] - usual["value"])
    assert "feed-forward parts kept them apart" in finding.headlines[1].full


def test_what_is_not_detected_says_what_would_have_been():
    finding = finding_of(*noisy(AS_IS, [0.5, 1.0, 2.0]), *noisy("without mlp", [1.0, 0.5, 2.0]))
    assert "do not detectably change their likeness (one test detects" in finding.headlines[0].full
    assert "feed-forward parts made no difference that was detected (" in finding.headlines[1].full
    assert [headline.effect for headline in finding.headlines[:2]] == [0, 0]
    assert " was detected; " in finding.headlines[0].short
    # Three windows that differ so much would miss a part that keeps tokens apart altogether.
    assert finding.headlines[1].short == (
        "No effect of any part on how far apart tokens end can be shown; even 100 points could be missed."
    )


def test_one_window_has_no_verdict():
    finding = finding_of(*noisy(AS_IS, [0.5]), *noisy("without mlp", [0.9]))
    assert "cannot be said to grow more or less alike without an interval" in finding.headlines[0].full
    assert "feed-forward parts cannot be judged" in finding.headlines[1].full
    assert [headline.effect for headline in finding.headlines] == [None] * 3


def test_equal_and_orthogonal_tokens():
    batch = batch_of(AS_IS, 1.0)
    equal = tokens(0.0)
    right_angles = torch.eye(D, dtype=torch.float64)[:N].expand(3, N, D)
    resid = dict(zip(SITES, (right_angles, equal, equal), strict=True))
    batch = replace(batch, captures={**batch.captures, "resid": resid, "final": {SITES[-1]: equal}})
    table = finding_of(batch).tables["streams"]
    assert value(table, "mean_cosine", layer=0) == pytest.approx(0, abs=1e-12)
    assert value(table, "effective_rank", layer=0) == pytest.approx(N)
    assert value(table, "participation_ratio", layer=0) == pytest.approx(N)
    assert value(table, "residual_share", layer=0) == pytest.approx(math.sqrt(1 - 1 / N))
    for layer in (1, 2, 3):
        assert value(table, "mean_cosine", layer=layer) == pytest.approx(1)
        assert value(table, "effective_rank", layer=layer) == pytest.approx(1)
        assert value(table, "residual_share", layer=layer) is None, "rounding"
    assert finding_of(batch).tables["rates"].filter(pl.col("quantity").str.starts_with("factor")).is_empty(), "rounding"


def test_a_huge_first_token_is_left_out():
    plain, marked = finding_of(batch_of(AS_IS, 0.8)), finding_of(batch_of(AS_IS, 0.8, first=1e6), skip=1)
    for name in ("streams", "rates", "layers"):
        a, b = (finding.tables[name].select(pl.col(pl.Float64)).to_numpy() for finding in (plain, marked))
        # The value maps of the planted attention are drawn with one token more.
        keep = slice(None) if name == "streams" else plain.tables[name]["quantity"].to_numpy() == "factor_over_depth"
        assert a[keep][:, 0] == pytest.approx(b[keep][:, 0])
    assert value(finding_of(batch_of(AS_IS, 0.8, first=1e6)).tables["streams"], "length", layer=0) > 1e5


def test_only_the_windows_of_the_first_tokens_count():
    batch = batch_of(AS_IS, 0.8)
    first = finding_of(batch, tokens=N + 1)
    assert set(first.tables["streams"]["windows"]) == {2}
    assert "the first 2 of 3 windows" in first.method
    twice = finding_of(batch, batch_of(AS_IS, 0.1), tokens=2 * N)
    assert twice.tables["streams"].equals(first.tables["streams"])
    assert "the first 2 of 6 windows" in twice.method
    alone = finding_of(batch, tokens=1)
    assert alone.tables["streams"]["low"].null_count() == alone.tables["streams"].height
    assert any("One window" in warning for warning in alone.warnings)


def test_refused_forms_and_refused_weights():
    refusal = Batch("without skips", torch.zeros(0, N).long(), torch.zeros(0, N).bool(), refused="it multiplies")
    model = planted()
    refused = replace(model, statuses={SITES[1]: WeightStatus("refused", "latent")})
    finding = finding_of(batch_of("without skips", 0.5), refusal, batch_of(AS_IS, 0.8), model=refused)
    assert finding.status == "ok"
    assert any("could not be run: without skips. Reason: it multiplies." in warning for warning in finding.warnings)
    assert any("for L1: the weights of the values are not known there" in warning for warning in finding.warnings)
    assert finding.tables["rates"]["variant"].unique().to_list() == [AS_IS]
    assert value(finding.tables["rates"], "factor", "predicted", layer=1) is None
    assert value(finding.tables["rates"], "factor", "predicted", layer=0) is not None
    assert value(finding.tables["rates"], "factor_over_depth", "predicted") is None


def test_a_form_that_overflows_is_left_out():
    broken = batch_of("without skips", 0.5)
    streams = {of: x * torch.inf for of, x in broken.captures["resid"].items()}
    broken = replace(broken, captures={**broken.captures, "resid": streams})
    finding = finding_of(batch_of(AS_IS, 0.8), broken)
    assert finding.status == "ok"
    table = finding.tables["streams"].filter(pl.col("variant") == "without skips")
    assert set(table["layer"]) == {3}


@pytest.mark.parametrize("options", [{"tokens": 0}, {"skip": -1}])
def test_senseless_parameters(options):
    with pytest.raises(UsageError, match="at least one token"):
        LENS.needs(Params(**options))


def test_the_embedded_model_in_all_its_forms():
    """Every form runs, each once, and does what it says."""
    text = "The sea was calm that morning, and the small boats lay still in the harbour while the men slept. " * 4
    finding = measure(models.open_model("tiny"), text=text, lenses=["uniformity"], window=40)["uniformity"]
    assert finding.status == "ok"
    assert not finding.warnings
    table = finding.tables["streams"]
    assert list(dict.fromkeys(table["variant"])) == list(VARIANTS)
    ends = {name: value(table, "mean_cosine", variant=name, layer=4) for name in VARIANTS}
    assert ends["attention alone"] > ends[AS_IS] + 0.2
    assert ends["without skips"] > ends[AS_IS] + 0.2
    starts = {value(table, "length", variant=name, layer=0) for name in VARIANTS if name != "initialised"}
    assert len(starts) == 1, "the embeddings are those of the model in every form but the initialised one"


def test_two_tokens_can_be_compared_and_one_can_not():
    x = normal(2, 5)
    cosine, share = stream_row(x)[:2]
    assert cosine == pytest.approx(float(torch.cosine_similarity(x[0], x[1], dim=0)))
    assert share == pytest.approx(float((x[0] - x[1]).norm()) / math.sqrt(2) / float(x.norm()))
    assert all(map(math.isfinite, stream_row(x)))
    assert all(map(math.isnan, stream_row(x[:1])[:7]))
