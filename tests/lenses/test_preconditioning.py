"""Known answers and planted cases of the lens `preconditioning`."""

import re
from math import log

import polars as pl
import pytest
import torch

from headscope.errors import UsageError
from headscope.lenses.lens import AS_IS, Batch
from headscope.lenses.preconditioning import pairs as pairs_file
from headscope.lenses.preconditioning.conditional_gaussians import Stream
from headscope.lenses.preconditioning.lens import LENS
from headscope.lenses.preconditioning.pairs import Pairs
from headscope.lenses.preconditioning.settings import Params
from tests.contract.test_lenses import differences, with_ends
from tests.lenses.asking import begin, defined, finish, update
from tests.lenses.planted import SPEC, Planted, Words, site

SITES = (site(), site(layer=1))
D = 24


def batch_of(tokens, vectors):
    """Windows whose stream is the vector of each token, at every depth."""
    rows = vectors[tokens]
    captures = {"resid": dict.fromkeys(SITES, rows), "final": {SITES[-1]: rows}}
    return Batch(AS_IS, tokens, torch.ones_like(tokens, dtype=torch.bool), captures=captures)


def finding_of(*batches, **params):
    fold = begin(LENS, Params(**params), SPEC, SITES)
    for batch in batches:
        fold = update(LENS, fold, batch)
    return finish(LENS, fold, Planted({}, SPEC, vocabulary=Words(tuple(f"t{token}" for token in range(VOCABULARY)))))


def walk(table, windows, length, seed=0):
    """A Markov chain: the next token is one of the row of the last, all equally likely."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(len(table), (windows, 1), generator=generator)
    for _ in range(length - 1):
        step = torch.randint(table.shape[1], (windows,), generator=generator)
        tokens = torch.cat((tokens, table[tokens[:, -1], step][:, None]), 1)
    return tokens


def number(finding, quantity, column="value", table="text", **where):
    rows = finding.tables[table].filter(pl.col("quantity") == quantity)
    for key, wanted in where.items():
        rows = rows.filter(pl.col(key) == wanted)
    return rows[column][0]


VOCABULARY = 20
VECTORS = torch.randn(VOCABULARY, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_four_continuations_are_found():
    """Every token is followed by one of four: entropy ln 4, four carry 90 %, and the Gaussian has rank three."""
    table = torch.stack([(torch.arange(4) * 7 + 3 * token) % VOCABULARY for token in range(VOCABULARY)])
    finding = finding_of(batch_of(walk(table, 30, 81), VECTORS), components=3)
    assert number(finding, "conditional_entropy_nats") == pytest.approx(log(4), abs=0.02)
    assert number(finding, "entropy_nats") == pytest.approx(log(VOCABULARY), abs=0.05)
    assert number(finding, "information_nats") == pytest.approx(log(5), abs=0.1)
    assert number(finding, "continuations_90") == pytest.approx(4, abs=0.1)
    assert number(finding, "five_carry_90") == 1
    assert number(finding, "five_carry_90", "null") == 0
    assert number(finding, "continuations_90", "null") > 12
    assert number(finding, "rank", table="layers", layer=0) == 3
    assert number(finding, "rank", "null", table="layers", layer=0) > 15
    assert number(finding, "effective_dimension", table="layers", layer=0) <= 3
    for quantity in ("effective_dimension", "entropy_nats"):
        high, null = (number(finding, quantity, column, table="layers", layer=0) for column in ("high", "null"))
        assert high < null, quantity
    assert number(finding, "five_excluded_90") == 0
    assert number(finding, "five_excluded_90", "null") > 0.95
    assert number(finding, "counted_share") == 1
    assert "is excluded in 0 % of the pairs" in finding.headlines[1].full
    assert "30 windows" in finding.headlines[0].full
    assert finding.headlines[2].full.count("conditioning narrows it to fewer directions") == 2
    told, excluded, narrowed = finding.headlines
    assert re.search(r"removes 1\.\d+ of \d\.\d+ nats of uncertainty", told.short)
    assert told.effect == pytest.approx(log(5) / log(VOCABULARY), abs=0.03)
    assert excluded.effect is None, "a longer text excludes more"
    size = {
        column: number(finding, "effective_dimension", column, table="layers", layer=0) for column in ("value", "null")
    }
    assert f"{size['value']:.1f} dimensions; random groups of them use {size['null']:.1f}." in narrowed.short
    assert narrowed.effect == pytest.approx(1 - size["value"] / size["null"])
    assert finding.tables["tokens"]["continuations"].to_list() == [4] * 20
    assert re.fullmatch(r"t\d+ \d\d %, t\d+ \d\d %, t\d+ \d\d %", finding.tables["tokens"]["likeliest"][0])


def test_independent_tokens_tell_nothing():
    tokens = torch.randint(VOCABULARY, (30, 81), generator=torch.Generator().manual_seed(3))
    finding = finding_of(batch_of(tokens, VECTORS))
    assert number(finding, "information_nats") == pytest.approx(0, abs=0.02)
    assert number(finding, "information_nats", "low") < 0 < number(finding, "information_nats", "high")
    for quantity in ("entropy_nats", "effective_dimension", "variance_share"):
        low, high, null = (
            number(finding, quantity, column, table="layers", layer=0) for column in ("low", "high", "null")
        )
        assert low - 0.5 * (high - low) < null < high + 0.5 * (high - low), quantity
    assert (
        "In at least 100 % of the pairs the 5 likeliest continuations of the last token cannot carry 90 %"
        in finding.headlines[1].full
    )
    assert "a narrowing was not detected (" in finding.headlines[2].full
    assert "less would have been in four of five texts" in finding.headlines[2].full
    assert [headline.effect for headline in finding.headlines] == [0, None, 0]
    assert finding.headlines[0].short.startswith("No information of the last token about the next was detected; ")
    assert finding.headlines[2].short.endswith(" dimensions fewer would have been.")


def test_the_numbers_of_the_headline_subtract():
    """The finding states the remaining entropy of the sampled tokens, by the same estimator."""
    table = torch.stack([(torch.arange(9) * 7 + 3 * token) % VOCABULARY for token in range(VOCABULARY)])
    finding = finding_of(batch_of(walk(table, 12, 41), VECTORS))
    rows = {row["quantity"]: row for row in finding.tables["text"].iter_rows(named=True)}
    left, told = rows["conditional_entropy_nats"], rows["information_nats"]
    assert told["value"] == pytest.approx(left["null"] - left["value"], abs=1e-12)
    gain, rest, drawn = (
        float(re.search(pattern, finding.headlines[0].full)[1])
        for pattern in (r"tells (\S+) nats", r"next token is (\S+) nats", r"and (\S+) for as many")
    )
    assert gain == pytest.approx(drawn - rest, abs=1e-9)
    assert "nothing of the model enters" in finding.headlines[0].full


def test_rare_previous_tokens_are_not_spoken_for():
    """Half of the pairs have a previous token that is seen once: the sentence says what the text does not decide."""
    generator = torch.Generator().manual_seed(6)
    common = torch.randint(4, (20, 41), generator=generator)
    common[:, ::2] = 4 + torch.arange(20 * 21).reshape(20, 21)
    vectors = torch.randn(500, D, generator=generator, dtype=torch.float64)
    fold = update(LENS, begin(LENS, Params(skip=0), SPEC, SITES), batch_of(common, vectors))
    finding = finish(LENS, fold, None)
    assert number(finding, "counted_share") == pytest.approx(0.5, abs=0.02)
    assert number(finding, "five_excluded_90") == pytest.approx(0.5, abs=0.02)
    assert "for the other 50 % this text does not decide" in finding.headlines[1].full
    assert "dominate" not in finding.headlines[1].full


def test_intervals_stay_where_the_quantity_can_be():
    table = torch.stack([(torch.arange(6) * 3 + token) % VOCABULARY for token in range(VOCABULARY)])
    finding = finding_of(batch_of(walk(table, 4, 81), VECTORS))
    assert 0 <= number(finding, "five_carry_90", "low") <= number(finding, "five_carry_90", "high") <= 1
    assert number(finding, "conditional_entropy_nats", "low") >= 0
    assert number(finding, "continuations_90", "low") >= 1


def test_one_continuation_has_no_entropy():
    """0 is always followed by 1: that Gaussian is a point; the others still have their numbers."""
    table = torch.stack([(torch.arange(4) * 7 + 3 * token) % VOCABULARY for token in range(VOCABULARY)])
    table[0] = 1
    tokens = torch.cat((walk(table, 30, 81), torch.tensor([0, 1]).repeat(30, 60)), 1)
    finding = finding_of(batch_of(tokens, VECTORS))
    rows = finding.tables["gaussians"].filter(pl.col("previous") == "t0", pl.col("layer") == 0)
    assert dict(zip(rows["quantity"], rows["value"], strict=True)) == {
        "entropy_nats": None,
        "effective_dimension": 0,
        "components_90": 0,
        "rank": 0,
        "variance_share": 0,
    }
    assert any("no variance" in one for one in finding.warnings)
    assert finding.tables["tokens"]["value"][0] == 1


def test_a_short_text_says_so():
    finding = finding_of(batch_of(torch.tensor([[1, 2, 3, 4]]), VECTORS))
    assert finding.status == "not applicable"
    assert "2 pairs" in finding.reason
    few = finding_of(batch_of(torch.arange(5).repeat(8)[None], VECTORS), least=5)  # seven occurrences each
    assert few.status == "ok"
    assert "layers" not in few.tables
    assert any("No Gaussian" in one for one in few.warnings)


def test_counts_of_a_long_text_stay_bounded_whatever_the_split(monkeypatch):
    monkeypatch.setattr(pairs_file, "MOST", 500)
    tokens = torch.randint(200, (6000,), generator=torch.Generator().manual_seed(4))
    whole = Pairs.empty().add(tokens[:-1], tokens[1:])
    parts = Pairs.empty()
    for first in range(0, 5999, 100):
        parts = parts.add(tokens[first : min(first + 100, 5999)], tokens[first + 1 : first + 101])
    assert whole.halvings > 0
    assert len(whole.pairs.values) <= 500
    assert whole.halvings == parts.halvings
    assert torch.equal(whole.pairs.values, parts.pairs.values)
    assert torch.equal(whole.pairs.counts, parts.pairs.counts)
    assert whole.following.total == parts.following.total == 5999
    (after,) = whole.after([int(whole.previous().values[0])])
    assert after.total == int(whole.previous().counts[0])


def test_senseless_arguments():
    for params in (Params(least=1), Params(components=0), Params(skip=-1)):
        with pytest.raises(UsageError, match="at least two occurrences"):
            LENS.needs(params)


def test_a_stream_in_few_directions_is_measured_as_defined():
    """Directions without variance count for nothing, however they are rounded."""
    flat = torch.randn(VOCABULARY, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    flat = flat @ torch.randn(4, D, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    table = torch.stack([(torch.arange(9) * 2 + token) % VOCABULARY for token in range(VOCABULARY)])
    parts = [batch_of(walk(table, 30, 81), flat)]
    finding = finding_of(*parts, components=3)
    model = Planted({}, SPEC, vocabulary=Words(tuple(f"t{token}" for token in range(VOCABULARY))))
    defined_tables = with_ends(defined(LENS, Params(components=3), model, parts), finding.tables)
    assert not differences(finding.tables, defined_tables)
    assert number(finding, "rank", table="layers", layer=0) == 4


def stream_of(previous, rows=None):
    tokens = torch.tensor(previous)
    vectors = torch.randn(len(tokens), 5, generator=torch.Generator().manual_seed(4)) if rows is None else rows
    return Stream(site(), vectors, tokens, tokens, components=3, windows=2)


def test_a_previous_token_counts_with_ten_rows_for_each_component():
    """At most so many rows as can be fitted quickly, at equal steps."""
    stream = stream_of([0] * 60 + [1] * 30 + [2] * 29)
    assert stream.dimensions == 3
    assert [(token, len(where)) for token, where in stream.groups] == [(0, 60), (1, 30)]
    (_, where), *_ = stream_of([7] * 600).groups
    assert where.tolist() == [*range(0, 600, 3)]
    assert [len(where) for _, where in stream_of([7] * 256).groups] == [256]


def test_rows_that_are_equal_have_no_entropy():
    stream = stream_of([0] * 60, torch.ones(60, 5))
    assert bool(stream.entropy(torch.arange(20)[None]).isnan().all())
