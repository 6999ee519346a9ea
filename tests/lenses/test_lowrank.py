"""Planted cases of the low-rank lens: patterns whose rank is known, and laws of growth that are known."""

from math import ceil, log, sqrt

import polars as pl
import pytest
import torch

from headscope.attention.statistics import Request
from headscope.errors import UsageError
from headscope.lenses.lens import AS_IS, Batch
from headscope.lenses.lowrank.lens import LENS
from headscope.lenses.lowrank.settings import Params
from headscope.lenses.shared.window_tests import adjusted
from headscope.pipeline import measure
from tests.contract.test_lenses import differences
from tests.lenses.asking import begin, defined, finish, update
from tests.lenses.planted import MODELS, batches, planted, site

OF = site(n_kv_heads=4)


def patterns(n: int) -> torch.Tensor:
    """Four heads: all at the first token, each at itself, uniform, and at one of ⌈√n⌉ tokens in turn."""
    first, itself, uniform, turn = torch.zeros(4, n, n, dtype=torch.float64)
    first[:, 0] = 1.0
    itself.fill_diagonal_(1.0)
    uniform[:] = torch.ones(n, n).tril() / torch.arange(1, n + 1)[:, None]
    for i in range(n):
        turn[i, int(sqrt(i)) ** 2] = 1.0  # the last square: so many keys are looked at as there are squares
    return torch.stack((first, itself, uniform, turn))


def batch_of(pattern: torch.Tensor) -> Batch:
    real = torch.ones(pattern.shape[0], pattern.shape[2], dtype=torch.bool)
    return Batch(AS_IS, real.long(), real, captures={"corner:256": {OF: pattern[..., :256, :256]}})


def finding_of(*parts: Batch):
    model = planted(OF)
    fold = begin(LENS, Params(), model.spec, (OF,))
    for part in parts:
        fold = update(LENS, fold, part)
    return finish(LENS, fold, model)


def row(finding, table: str, head: int, quantity: str, **also):
    rows = finding.tables[table].filter(pl.col("head") == head, pl.col("quantity") == quantity)
    for name, value in also.items():
        rows = rows.filter(pl.col(name) == value)
    return rows.row(0, named=True)


def test_known_patterns_have_their_ranks():
    finding = finding_of(batch_of(patterns(256)[None]))
    for n in (8, 64, 256):
        assert row(finding, "components", 0, "components_99", tokens=n)["value"] == 1
        assert row(finding, "components", 0, "largest", tokens=n)["value"] == pytest.approx(sqrt(n))
        itself = row(finding, "components", 1, "components_90", tokens=n)
        assert itself["value"] == itself["most"] == ceil(0.9 * n)
        assert row(finding, "components", 1, "beyond_log", tokens=n)["value"] == pytest.approx(1 - ceil(log(n)) / n)
        flat = row(finding, "components", 2, "stable_rank", tokens=n)
        assert flat["value"] == pytest.approx(flat["uniform"])
    # One window: no interval, so no law is named but that of the head that does not grow.
    assert [row(finding, "growth", head, "components_90")["law"] for head in range(2)] == ["none", "undecided"]
    assert "cannot be tested" in finding.headlines[1].full
    assert row(finding, "growth", 0, "components_90")["value"] == pytest.approx(0, abs=1e-12)
    assert row(finding, "growth", 1, "components_90")["value"] == pytest.approx(1.0, abs=0.03)
    assert row(finding, "growth", 3, "components_99")["value"] == pytest.approx(0.5, abs=0.1)
    # Shuffled, the first token's weight lies anywhere: the rank of a random map.
    shuffled = row(finding, "components", 0, "components_90", tokens=256)["shuffled"]
    assert 30 < shuffled < 150
    assert row(finding, "components", 1, "components_90", tokens=256)["shuffled"] < 200
    # With the popularity of its one key kept, the first head is explained; uniform attention is its own null.
    for name in ("value", "popular"):
        assert row(finding, "components", 0, "components_99", tokens=256)[name] == 1
    assert any("one window" in warning.lower() for warning in finding.warnings)


@pytest.mark.parametrize("shape", ["grouped queries", "encoder", "sinks", "encoder-decoder"])
def test_growth_equals_its_definition(shape):
    """Windows long enough for three sizes, which those of the contract are not."""
    model, params = MODELS[shape], Params()
    parts = batches(model, Request(), shapes=((33,), (36,), (20,)))
    fold = begin(LENS, params, model.spec, model.sites)
    for part in parts:
        fold = update(LENS, fold, part)
    finding = finish(LENS, fold, model)
    assert not differences(finding.tables, defined(LENS, params, model, parts))
    fits = finding.tables["growth"]
    assert set(fits["windows"]) == {2}  # the one of 20 tokens does not reach n = 32
    assert set(fits["sizes"]) == {3}
    assert "power" in finding.headlines[2].full


def test_a_logarithm_is_told_from_a_power():
    """Blocks that add two keys with every doubling, in windows that differ a little."""
    pattern = torch.zeros(6, 4, 256, 256, dtype=torch.float64)
    for i in range(256):
        pattern[:, :, i, 0 if i < 2 else 2 ** int(log(i) / log(2) + 1e-9)] = 1.0
    # Rows of one octave are as many as all before: weight them down so that every octave has the same energy.
    for window in range(6):
        for i in range(256):
            octave = 2.0 ** int(log(max(i, 1)) / log(2) + 1e-9)
            pattern[window, :, i] *= sqrt((1 + 0.01 * window) / octave)
    finding = finding_of(batch_of(pattern))
    fit = row(finding, "growth", 0, "components_99")
    assert fit["gain"] < 0
    assert fit["log_misfit"] < 0.5 * fit["power_misfit"]
    assert fit["law"] == "logarithm"
    assert "a logarithm in 4, neither in 0" in finding.headlines[3].full


def sink(generator: torch.Generator, n: int = 64) -> torch.Tensor:
    """A head with four fifths of each row on the first key, the rest at random."""
    rest = torch.rand(n, n, generator=generator, dtype=torch.float64).pow(20).tril() + 1e-12
    pattern = 0.2 * rest.tril() / rest.tril().sum(-1, keepdim=True)
    pattern[:, 0] += 0.8
    return pattern


def test_popular_keys_are_told_from_low_rank():
    """A sink and nothing else is explained by popular keys; rows that also share their other keys are not."""
    generator = torch.Generator().manual_seed(5)
    windows = torch.stack([torch.stack([sink(generator) for _ in range(4)]) for _ in range(12)])
    finding = finding_of(batch_of(windows))
    at = {"tokens": 64, "quantity": "stable_rank"}
    for head in range(2):
        plain = row(finding, "components", head, **at)
        assert plain["value"] < 0.3 * plain["shuffled"]  # beside weights anywhere it would be called low rank
        assert abs(plain["difference"]) < 0.02 * plain["value"]
    # Rows of two kinds that look at one half of the keys each: every key is equally popular.
    halves = torch.rand(12, 4, 64, 64, generator=generator, dtype=torch.float64).pow(4)
    halves[..., ::2, ::2] *= 1e-3
    halves[..., 1::2, 1::2] *= 1e-3
    finding = finding_of(batch_of(halves.tril() / halves.tril().sum(-1, keepdim=True)))
    shared = row(finding, "components", 2, "components_90", tokens=64)
    assert shared["difference"] < -0.1 * shared["popular"]
    assert shared["adjusted"] < 0.001
    assert "are detected in 4 of 4 heads, more in 0" in finding.headlines[1].full


def test_heads_are_judged_together():
    """By 95 % intervals alone some of many heads without any difference are called different."""
    generator = torch.Generator().manual_seed(11)
    table = pl.DataFrame(
        {"quantity": ["a"] * 200, "p": torch.rand(200, generator=generator, dtype=torch.float64).tolist()}
    )
    judged = adjusted(table, ["quantity"])
    assert judged.filter(pl.col("p") < 0.05).height > 3
    assert judged.filter(pl.col("adjusted") < 0.05).is_empty()


def test_neither_law_is_said_where_neither_fits():
    """Components that jump: 1 up to n = 64, then 200. A power is the better of two bad laws."""
    pattern = torch.zeros(4, 4, 256, 256, dtype=torch.float64)
    pattern[:, :, :64, 0] = 1.0
    pattern[:, :, torch.arange(64, 256), torch.arange(64, 256)] = 1.0 + 0.01 * torch.arange(4).double()[:, None, None]
    finding = finding_of(batch_of(pattern))
    fit = row(finding, "growth", 0, "components_99")
    assert min(fit["power_misfit"], fit["log_misfit"]) > 0.1
    assert fit["law"] == "neither"
    assert "neither in 4 (both miss by more than 10 %)" in finding.headlines[3].full


def test_the_number_of_windows_is_said():
    finding = finding_of(batch_of(patterns(16)[None].expand(3, -1, -1, -1)))
    assert "over 3 windows" in finding.headlines[0].full
    assert "all 3 windows" in finding.method
    model, params = planted(OF), Params(windows=2)
    fold = update(LENS, begin(LENS, params, model.spec, (OF,)), batch_of(patterns(16)[None].expand(3, -1, -1, -1)))
    assert "the first 2 windows" in finish(LENS, fold, model).method
    assert "1 more" in finish(LENS, fold, model).method


def test_a_text_that_is_too_short_is_said_so():
    finding = finding_of(batch_of(patterns(7)[None]))
    assert finding.status == "not applicable"
    assert "at least 8" in finding.reason
    finding = finding_of(batch_of(patterns(16)[None]))
    assert "growth" not in finding.tables
    assert any("three sizes" in warning for warning in finding.warnings)


@pytest.mark.parametrize("wrong", [{"tokens": 4}, {"tokens": 5000}, {"windows": 0}])
def test_wrong_sizes_are_refused(wrong):
    with pytest.raises(UsageError, match="between 8 and 1024"):
        LENS.needs(Params(**wrong))


@pytest.mark.parametrize(("windows", "p"), [(2, 0.5), (3, 0.25), (6, 0.03125)])
def test_equal_windows_prove_no_more_than_their_number(windows: int, p: float):
    """Counts that agree in every window have no spread: two of them are no proof, whatever their size."""
    finding = finding_of(batch_of(patterns(64)[None].expand(windows, -1, -1, -1)))
    rows = finding.tables["components"].filter(pl.col("quantity") == "components_90", pl.col("difference") != 0)
    exact = rows.filter(pl.col("difference_low") == pl.col("difference_high"))
    assert exact.height > 0
    assert exact["p"].to_list() == [p] * exact.height


def test_the_short_form_states_the_planted_rank():
    """Three heads look at the token itself: nine tenths of 64 components, a power of 1, nearly all beyond ln n.

    Their windows are equal: eight of them are enough for a test of signs.
    """
    windows = patterns(64)[1].repeat(8, 4, 1, 1)
    generator = torch.Generator().manual_seed(6)
    windows[:, 3] = torch.stack([sink(generator) for _ in range(8)])
    finding = finding_of(batch_of(windows))
    count, _, growth, laws, beyond = finding.headlines
    shuffled = row(finding, "components", 0, "components_90", tokens=64)["shuffled"]
    assert count.short.startswith("The median head's attention needs 58 components at 64 tokens;")
    assert count.effect == pytest.approx(1 - shuffled / 58)  # all heads are shuffled alike
    power = row(finding, "growth", 0, "components_90")["value"]
    assert f"to the power {power:.2f}; a logarithm would show" in growth.short
    assert growth.effect > 0.9
    powers = [row(finding, "growth", head, "components_90")["law"] for head in range(4)].count("power")
    assert powers >= 3
    assert laws.short.startswith(f"Components grow like a power of the length in {powers} of 4 heads")
    assert laws.effect == powers / 4
    assert f"loses {100 * (1 - 5 / 64):.0f} % of the median pattern's energy" in beyond.short
    assert beyond.effect == pytest.approx(1 - 5 / 64)


def test_the_short_form_says_whether_popular_keys_explain_the_rank():
    generator = torch.Generator().manual_seed(5)
    halves = torch.rand(12, 4, 64, 64, generator=generator, dtype=torch.float64).pow(4)
    halves[..., ::2, ::2] *= 1e-3
    halves[..., 1::2, 1::2] *= 1e-3
    finding = finding_of(batch_of(halves.tril() / halves.tril().sum(-1, keepdim=True)))
    rows = [row(finding, "components", head, "components_90", tokens=64) for head in range(4)]
    assert "4 of 4 heads need fewer components than popular keys alone explain" in finding.headlines[1].short
    expected = sum(-cells["difference"] / cells["popular"] for cells in rows) / 4
    assert finding.headlines[1].effect == pytest.approx(expected)
    # All at the first token: popularity is the whole reason.
    popular = finding_of(batch_of(patterns(64)[0].expand(3, 4, -1, -1))).headlines
    assert popular[1].short == "No rank other than popular keys explain in any of 3 windows."
    assert popular[1].effect == 0
    assert popular[-1].effect == pytest.approx(0, abs=1e-12)


def test_an_interval_without_width_is_given_as_the_number_of_windows():
    headline = finding_of(batch_of(patterns(64)[None].expand(3, -1, -1, -1))).headlines[0]
    assert "L0.H0 needs the fewest, 1 (in each of 3 windows)" in headline.full
    assert "(1 to 1)" not in headline.full


def test_two_windows_whose_fits_agree_have_a_p_value(tiny):
    """Without either window the fit is the same, with both it is another: there is no error to divide by."""
    finding = measure(tiny, first_tokens=96, window=48, lenses=["lowrank"])["lowrank"]
    assert finding.status == "ok", finding.reason
    assert finding.tables["growth"]["p"].is_nan().sum() == 0
