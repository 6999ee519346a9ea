"""Swap: every sentence says the numbers of its table, and its words fit them; what is drawn is what was measured."""

from dataclasses import replace

import polars as pl
import pytest
import torch

from headscope.core import Site
from headscope.experiments.swap.decoding import Decoding, cache_warnings
from headscope.experiments.swap.figures import figures
from headscope.experiments.swap.ladder import Ladder
from headscope.experiments.swap.leak import ModelLeak
from headscope.experiments.swap.proposal import _search_warnings
from headscope.experiments.swap.quality import Quality
from headscope.experiments.swap.repair import LayerRepair, Repair
from headscope.experiments.swap.repair_tables import gain_table, layer_table, repair_headline
from headscope.experiments.swap.search import Search, Tried
from headscope.experiments.swap.sentences import encoder_headlines, headlines
from headscope.experiments.swap.speed import Speed
from headscope.experiments.swap.tables import (
    decoding_table,
    embedding_table,
    heads_table,
    interval_columns,
    quality_table,
    speed_table,
)
from headscope.experiments.swap.yardstick import Loss, Perplexity
from headscope.maths.resampling.clustered_mean import Estimate
from headscope.model.plans.repaired_weights import RepairedWeights
from tests.experiments.stand_in import stand_in
from tests.lenses.stated_numbers import assert_sound, assert_states

SITES = tuple(Site("only", "self", layer, 4, 2, 8, 8, causal=True) for layer in range(2))
NO_LEAK = ModelLeak(2e-7, 1e-4)


def doubles(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def measured(*, windows: int = 2) -> Quality:
    """Windows of 10 and 20 tokens: 2 and 3 nats per token in the original, 0.1 more with the plan."""
    tokens = doubles(10, 20)[:windows]
    original = doubles(20, 60)[:windows]
    return Quality(original + tokens / 10, original, tokens, tokens / 40, tokens * 0.8)


def speed(n: int = 128) -> Speed:
    return Speed(n, (4.0, 6.0, 9.0), (2.0, 1.5, 4.5), 7_000_000, 3_500_000)


def decoding(n: int = 128) -> Decoding:
    return Decoding(n, 5, (10.0, 20.0, 40.0), (15.0, 50.0, 40.0), 8_000_000, 2_400_000, {})


def heads() -> pl.DataFrame:
    rules = {"window(left=15, right=0)": {SITES[0]: (0, 1)}, "window(left=31, right=0)": {SITES[1]: (2,)}}
    return heads_table(SITES, rules, 64)


def tables(**changes: pl.DataFrame) -> dict[str, pl.DataFrame]:
    main = {"quality": quality_table({128: measured()}), "speed": speed_table([speed()]), "heads": heads()}
    return main | changes


def test_the_sentence_about_quality_states_its_row() -> None:
    row = tables()["quality"].to_dicts()[-1]
    headline = headlines(tables(), NO_LEAK, "a text")[0]
    assert row["ratio"] == pytest.approx(2.718281828**0.1)
    ends = row["ratio_low"], row["ratio_high"]
    assert_states(headline.full, 128, row["ratio"], 95, *ends, 2, 0.025, 80)
    assert_states(headline.short, 128, 10.52)
    assert "by +10.52 %" in headline.short
    assert headline.effect == pytest.approx(1 - 1 / row["ratio"])
    assert_sound(headline)
    alone = headlines(tables(quality=quality_table({128: measured(windows=1)})), NO_LEAK, "a text")[0]
    assert "(one window gives no interval, over 1 window)" in alone.full


def test_perplexities_are_those_of_all_tokens() -> None:
    rows = quality_table({128: measured()}, {128: replace(measured(), nats=measured().original_nats)})
    assert rows["which"].to_list() == ["original", "plan", "repaired"]
    mean = 80 / 30
    wanted = [torch.e**mean, torch.e ** (mean + 0.1), torch.e**mean]
    assert rows["perplexity"].to_list() == pytest.approx(wanted)
    assert rows["windows"].to_list() == [2, 2, 2]
    assert replace(measured(), nats=doubles(1e6, 1e6)).perplexity == pytest.approx(torch.e**700)


def test_the_sentence_about_speed_states_medians_and_ends() -> None:
    headline = headlines(tables(), NO_LEAK, "a text")[1]
    assert_states(headline.full, 128, 3, 3, 2, 4)  # medians 6 and 2; turns of 2, 4 and 2 times
    assert_states(headline.short, 128, 3)
    assert headline.effect == pytest.approx(2 / 3)
    rows = tables()["speed"].to_dicts()
    assert [row["seconds"] for row in rows] == [6.0, 2.0]
    assert [row["peak_bytes"] for row in rows] == [7_000_000, 3_500_000]


def test_the_sentence_about_decoding_states_its_rows() -> None:
    table = decoding_table([decoding(64), replace(decoding(), bytes=2_000_000)])
    headline = headlines(tables(decoding=table), NO_LEAK, "a text")[2]
    assert_states(headline.full, 128, 2.0, 8.0, 2.0, 40.0, 3, 1.0, 2.5)
    assert_states(headline.short, 128, 25)
    assert (headline.value, headline.effect) == ("25.0 %", pytest.approx(0.75))
    plan = table.filter(pl.col("which") == "plan")
    assert plan["cache_share"].to_list() == [0.3, 0.25]
    assert table["tokens_per_second"].to_list() == [20.0, 40.0, 20.0, 40.0]


def test_the_sentence_about_heads_counts_them() -> None:
    shares = heads()["share"].to_list()
    full = 64 * 65 / 2
    narrow, wide = (16 * 64 - 120) / full, (32 * 64 - 496) / full
    assert shares == pytest.approx([narrow, narrow, 1, 1, 1, 1, wide, 1])
    headline = headlines(tables(), NO_LEAK, "a text")[2]
    assert_states(headline.full, 3, 8, 2, 100 * sum(shares) / 8)
    assert "2 cheaper mechanisms;" in headline.full
    one = heads_table(SITES, {"window(left=15, right=0)": {SITES[0]: (0,)}}, 64)
    assert "1 cheaper mechanism;" in headlines(tables(heads=one), NO_LEAK, "a text")[2].full


def test_the_sentence_about_embeddings_states_its_row() -> None:
    main = {
        "embeddings": embedding_table({128: doubles(0.99, 0.91)}),
        "speed": speed_table([speed()]),
        "heads": heads(),
    }
    headline = encoder_headlines(main, "a text")[0]
    assert_states(headline.full, 128, 2, 0.95, 0.91)
    assert "2 texts of" in headline.full
    assert headline.effect == pytest.approx(0.09)
    alone = encoder_headlines(main | {"embeddings": embedding_table({128: doubles(0.9)})}, "a text")[0]
    assert "of 1 text of" in alone.full
    assert embedding_table({128: doubles(0.99, 0.91)})["cosine_low"][0] < 0.91


@pytest.mark.parametrize(("change", "is_clean"), [(0.0, True), (1e-4, True), (1.1e-4, False)])
def test_the_sentence_about_leaks(change: float, is_clean: bool) -> None:
    headline = headlines(tables(), ModelLeak(change, 1e-4), "a text")[-1]
    assert ("no prediction before them changes" in headline.full) == is_clean
    assert headline.short == ("Nothing leaks from the future." if is_clean else "The plan looks into the future.")


def test_one_length_draws_no_curve_over_lengths() -> None:
    """And no sentence names a figure that is not there."""
    single = tables(decoding=decoding_table([decoding()]))
    double = tables(speed=speed_table([speed(64), speed()]), decoding=decoding_table([decoding(64), decoding()]))
    for main, drawn in ((single, {"heads"}), (double, {"heads", "speed", "decoding"})):
        charts = figures(main, SITES, 0.01)
        assert {chart.name for chart in charts} == drawn
        named = {headline.figure for headline in headlines(main, NO_LEAK, "a text")}
        assert named - {""} == drawn


def test_ends_that_are_no_numbers_are_empty() -> None:
    nothing = interval_columns("x", Estimate(1.5, float("nan"), float("inf")))
    assert nothing == {"x": 1.5, "x_low": None, "x_high": None}


@pytest.mark.parametrize(
    ("count", "ending"),
    [(1, "L0 keeps"), (3, "L0, L1, L2 keeps"), (4, "L0, L1, L2 … keeps")],
)
def test_caches_that_keep_keys_are_named_by_reason(count: int, ending: str) -> None:
    """Of many sites the first three, and sites with another reason in a sentence of their own."""
    undropped = {f"L{layer}": "it is old" for layer in range(count)}
    apart = replace(decoding(), undropped={"L9": "it is new"})
    of_old, of_new = cache_warnings(stand_in(), [replace(decoding(), undropped=undropped), apart])
    assert of_old == f"The cache of {ending} keys that no head reads: it is old."
    assert of_new == "The cache of L9 keeps keys that no head reads: it is new."


def search(*tried: Tried, allowed: float = 0.01) -> Search:
    return Search(stand_in(), Ladder(()), (), allowed, Perplexity(), 1.0, tried=list(tried))


def attempt(steps: int, low: float, high: float) -> Tried:
    return Tried(steps, {}, "a text", 64, 8, Loss((low + high) / 2, low, high), 1.0, within=False)


def test_a_search_says_how_many_windows_would_resolve_its_budget() -> None:
    """Half an interval of twice the budget over eight windows: half the budget needs sixteen times as many."""
    by_site = dict.fromkeys(SITES, (1,))
    vague = search(attempt(9, -0.5, 0.5), attempt(1, -0.02, 0.02))
    (warning,) = _search_warnings(vague, SITES, by_site, 0)
    assert_states(warning, 2, 8, 64, 128)
    assert _search_warnings(vague, SITES, by_site, 1) == ()
    assert _search_warnings(search(), SITES, by_site, 0) == ()
    sharp = search(attempt(1, 0.25, 0.5), allowed=0.25)  # half an interval of half the budget is sharp enough
    assert _search_warnings(sharp, SITES, by_site, 0) == ()


def test_a_search_says_what_it_left_out() -> None:
    late = replace(search(), is_complete=False)
    late.journal.n_known = 1
    lack, left_out, earlier = _search_warnings(late, SITES, {SITES[0]: (), SITES[1]: (1,)}, 1)
    assert "lack of time" in lack
    assert left_out.startswith("4 heads were not searched")
    assert "Earlier searches" in earlier


def repaired(*trained: str) -> Repair:
    layers = tuple(LayerRepair(SITES[0], 2, 0.5, 0.25, letters) for letters in trained)
    return Repair(RepairedWeights.of({}), layers, 4096)


def gain(low: float | None, value: float, high: float | None) -> pl.DataFrame:
    schema = {"tokens": pl.Int64, "gain": pl.Float64, "gain_low": pl.Float64, "gain_high": pl.Float64}
    row = {"tokens": 64, "gain": value, "gain_low": low, "gain_high": high, "windows": 3, "trained_tokens": 4096}
    return pl.DataFrame([row], schema={**schema, "windows": pl.Int64, "trained_tokens": pl.Int64})


@pytest.mark.parametrize(
    ("low", "value", "high", "outcome"),
    [
        (0.8, 0.9, 1.0, "it holds 1, so no gain is shown"),
        (1.0, 1.1, 1.2, "it holds 1, so no gain is shown"),
        (0.9, 0.95, 0.99, ": a gain)"),
        (1.01, 1.1, 1.2, ": a loss: use the plan without the repair"),
        (None, 0.9, None, "so no gain is shown"),
    ],
)
def test_the_sentence_about_a_repair(low: float | None, value: float, high: float | None, outcome: str) -> None:
    headline = repair_headline(gain(low, value, high), layer_table(repaired("", "o", "qkvo")), "a text")
    assert outcome in headline.full
    ends = [] if low is None or high is None else [95, low, high]
    ones = [1] if "holds 1" in outcome else []
    assert_states(headline.full, 64, value, *ends, 3, *ones, 2, 3, 4096)
    assert headline.short == f"The repair changes the plan's perplexity by {100 * value - 100:+.2f} %."


def test_a_gain_is_the_ratio_of_two_ratios() -> None:
    after = replace(measured(), nats=measured().nats - 0.3 * measured().tokens)
    row = gain_table({128: measured()}, {128: after}, repaired("o")).to_dicts()[0]
    assert row["gain"] == pytest.approx(torch.e**-0.3)
    assert (row["windows"], row["trained_tokens"]) == (2, 4096)
