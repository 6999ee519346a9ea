"""Planted cases of the angles lens: heads that follow the cosine, its opposite, chance, or only the distance."""

from dataclasses import replace

import polars as pl
import pytest
import torch

from headscope.attention.maps import pairs_of
from headscope.core.verdict import verdict_of
from headscope.errors import UsageError
from headscope.lenses.angles import lens as angles
from headscope.lenses.angles.lens import LENS
from headscope.lenses.angles.sentences import sentences
from headscope.lenses.angles.settings import Params
from headscope.lenses.lens import AS_IS, Batch
from headscope.shapes import CORNER
from headscope.theory import claims
from tests.contract.test_lenses import REORDERED, differences
from tests.lenses.asking import assembled, begin, finish, merge, update
from tests.lenses.planted import planted, site

D = 16
OF = site(n_kv_heads=4, d_head=D)
FOLLOWS, OPPOSES, CHANCE, NEAR = range(4)


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def batch_of(seed: int, n: int = 40, x: torch.Tensor | None = None, windows: int = 1) -> Batch:
    """Windows of unit vectors, and heads whose scores are the cosine, less the cosine, random, and −ln distance."""
    x = normal(windows, n, D, seed=seed) if x is None else x
    x = x / x.norm(dim=-1, keepdim=True)
    wild = normal(windows, n, D, seed=seed + 1000)
    # Scores that are minus the distance: a product of (i, 1) and (1, −j), up to what a row shares.
    place = torch.arange(n, dtype=torch.float64)[None, :, None].expand(windows, -1, -1) / 4
    step = torch.cat((torch.ones_like(place), place, torch.zeros(windows, n, D - 2)), -1)
    q = torch.stack((x, -x, wild, step.roll(0, -1)), 1)
    k = torch.stack(
        (x, x, x.flip(1), torch.cat((torch.zeros_like(place), torch.ones_like(place), step[..., 2:]), -1)), 1
    )
    k[:, NEAR, :, 0] = place[..., 0]
    q[:, NEAR, :, 0] = 1.0
    q[:, NEAR, :, 1] = 0.0
    scores = (q @ k.mT).masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
    pattern = torch.softmax(scores, -1)
    tokens = torch.arange(windows * n).reshape(windows, n) + 7919 * seed
    parts = {
        "resid": x, "q": q, "k": k, "scale": torch.tensor(1.0, dtype=torch.float64), "pairs": pairs_of(pattern),
        "corner": pattern[:, :, :CORNER, :CORNER], "pattern": pattern,
    }  # fmt: skip
    spelling = tuple(tuple(f" {i}" for i in range(n)) for _ in range(windows))
    captures = {name: {OF: part} for name, part in parts.items()}
    return Batch(AS_IS, tokens, torch.ones(windows, n, dtype=torch.bool), captures=captures, spelling=spelling)


def folded(*parts: Batch, **params):
    fold = begin(LENS, Params(**params), planted(OF).spec, (OF,))
    for part in parts:
        fold = update(LENS, fold, part)
    return fold


def finding_of(*parts: Batch):
    return finish(LENS, folded(*parts), None)


def row(finding, head: int | None, quantity: str, table: str = "heads"):
    rows = finding.tables[table].filter(pl.col("quantity") == quantity)
    return (rows.filter(pl.col("head") == head) if head is not None else rows).row(0, named=True)


def test_a_head_that_compares_directions_is_found():
    finding = finding_of(*(batch_of(seed) for seed in range(8)))
    follows, opposes = (row(finding, head, "input_score") for head in (FOLLOWS, OPPOSES))
    assert follows["value"] == pytest.approx(1.0)
    assert follows["slope"] == pytest.approx(1.0)
    assert opposes["value"] == pytest.approx(-1.0)
    assert row(finding, FOLLOWS, "input_rank")["value"] == pytest.approx(1.0)
    assert row(finding, FOLLOWS, "input_weight")["value"] > 0.85
    chance = row(finding, CHANCE, "input_rank")
    assert abs(chance["value"]) < 0.05
    assert chance["p"] > 0.001
    # Random tokens: the shuffled ones are as good as any, whichever the head.
    assert abs(row(finding, FOLLOWS, "input_rank")["null"]) < 0.03
    assert 0 < row(finding, FOLLOWS, "input_rank")["null_sd"] < 0.05
    assert "from -1 (the same in all 8 windows) in L0.H1" in finding.headlines[0].full


def test_distance_is_told_from_angle():
    """Vectors that drift, so that near ones are alike, and a head that looks at near ones whatever they are."""
    drifts = [(0.6 * normal(1, 40, D, seed=seed)).cumsum(1) + normal(1, 40, D, seed=seed + 50) for seed in range(8)]
    finding = finding_of(*(batch_of(seed, x=x) for seed, x in enumerate(drifts)))
    near = row(finding, NEAR, "input_rank")
    assert near["value"] > 0.5
    assert near["given_distance"] is None or abs(near["given_distance"]) < 0.05  # ranks of nearness are those of weight
    follows = row(finding, FOLLOWS, "input_rank")
    assert follows["given_distance"] == pytest.approx(1.0)


def test_random_vectors_obey_the_law_of_arcs():
    finding = finding_of(*(batch_of(seed, n=56, x=normal(4, 56, D, seed=seed), windows=4) for seed in range(100, 106)))
    arc = row(finding, None, "input", "arcs")
    assert arc["ratio_low"] < 1 < arc["ratio_high"]
    assert arc["law_misfit"] < 0.05
    assert arc["length"] == pytest.approx((1 - 1 / D) ** 0.5, rel=0.02)  # the mean entry is taken off
    assert arc["angle"] == pytest.approx(90, abs=3)
    unit = row(finding, None, "unit", "arcs")
    assert unit["length"] == 1.0
    assert unit["value"] == pytest.approx(unit["predicted"], rel=0.05)
    assert arc["sinusoid"] < 0.05


def test_a_common_direction_breaks_the_law():
    """Inputs that share a large part: what differs is small, and the law of isotropic vectors does not see that."""
    common = torch.zeros(D, dtype=torch.float64)
    common[:2] = torch.tensor([40.0, -40.0])
    x = [normal(4, 40, D, seed=seed) + common for seed in range(4)]
    batches = [replace(batch_of(seed, x=one, windows=4)) for seed, one in enumerate(x)]
    for batch, one in zip(batches, x, strict=True):
        batch.captures["resid"][OF] = one
    arc = row(finding_of(*batches), None, "input", "arcs")
    assert arc["ratio"] < 0.5 or arc["ratio"] > 2


def test_a_bounded_sample_of_windows(monkeypatch):
    monkeypatch.setattr(angles, "WINDOWS", 3)
    parts = [batch_of(seed, n=12) for seed in range(7)]
    whole = finish(LENS, folded(*parts), None)
    assert set(whole.tables["heads"]["windows"]) == {3}
    again = finish(LENS, merge(LENS, folded(*parts[:4]), folded(*parts[4:])), None)
    assert not differences(again.tables, whole.tables, REORDERED)
    assert again.method == whole.method  # which says how many windows there were
    assert "7" in again.method


def test_pieces_are_as_good_as_the_whole():
    """What comes before the attention call is handed over before it."""
    batch = batch_of(0)
    early = replace(batch, captures={"resid": batch.captures["resid"]})
    late = replace(batch, captures={name: one for name, one in batch.captures.items() if name != "resid"})
    sites = tuple(batch.captures["resid"])
    handed_over = list(assembled(LENS, Params(), sites, [early, late]))
    assert len(handed_over) == 1, "the site, once it is complete"
    assert not differences(finding_of(*handed_over).tables, finding_of(batch).tables, REORDERED)


def test_the_claim_is_judged():
    (claim,) = (claim for claim in claims() if "W-8.3" in claim.ids)
    assert claim.judge is not None
    # Sixteen windows: an inequality is kept by five standard errors, which four windows are too few to show.
    finding = finding_of(*(batch_of(seed) for seed in range(16)))
    evidence = claim.judge(finding)
    assert evidence is not None
    assert verdict_of(evidence) == "refuted"  # two heads of four follow the cosine
    few = finding.tables["heads"].filter(pl.col("head") == CHANCE)
    calm = claim.judge(replace(finding, tables={"heads": few}))
    assert calm is not None
    assert verdict_of(calm) == "holds"


def test_wrong_arguments_and_short_text():
    with pytest.raises(UsageError, match="skip=-1"):
        LENS.needs(Params(skip=-1))
    finding = finding_of(batch_of(0, n=5))
    assert finding.status == "not applicable"
    assert "4 visible keys" in finding.reason


def blurred(seed: int) -> Batch:
    """As shown, with weights that follow the scores but for noise: a head that is always right has no error to test."""
    batch = batch_of(seed)
    pattern = torch.softmax(batch.captures["pattern"][OF].log() + 0.2 * normal(1, 4, 40, 40, seed=seed + 2000), -1)
    captures = batch.captures | {"pattern": {OF: pattern}, "pairs": {OF: pairs_of(pattern)}}
    return replace(batch, captures=captures)


def test_the_short_form_states_the_planted_correlation():
    """One head follows the cosine and one its opposite; chance and distance are no preference."""
    finding = finding_of(*(blurred(seed) for seed in range(8)))
    ranks = finding.headlines[0]
    sizes = [abs(row(finding, head, "input_rank")["given_distance"]) for head in (FOLLOWS, OPPOSES)]
    assert min(sizes) > 0.5
    assert ranks.short == (
        "Distance aside, 2 of 4 heads look at, or away from, similar tokens, with a typical rank correlation of "
        f"{sum(sizes) / 2:.2f}."
    )
    assert ranks.effect == pytest.approx(sum(sizes) / 4)
    heads = finding.tables["heads"]
    following = sentences({"heads": heads.filter(pl.col("head") == FOLLOWS)})[1]
    assert following.short.startswith("In the median head, two tokens' angle explains 100 % of their score's variance;")
    assert following.effect == pytest.approx(1)
    chance = sentences({"heads": heads.filter(pl.col("head") == CHANCE)})
    assert chance[0].short.startswith("No preference for similar tokens beyond distance was detected;")
    assert chance[1].short.startswith("No part of the score's variance explained by the tokens' angle was detected;")
    assert [headline.effect for headline in chance] == [0, 0]


def test_the_short_form_compares_arcs_with_their_law():
    finding = finding_of(*(batch_of(seed, n=56, x=normal(4, 56, D, seed=seed), windows=4) for seed in range(100, 106)))
    assert finding.headlines[2].short.startswith("No departure from the law of divergence along arcs was detected;")
    assert finding.headlines[2].effect == 0
    double = finding.tables["arcs"].with_columns(ratio=pl.lit(2.0), ratio_low=pl.lit(1.9), ratio_high=pl.lit(2.1))
    broken = sentences({**finding.tables, "arcs": double})[2]
    assert broken.short.startswith("Between inputs, softmaxes diverge 2.00 times as much as the law")
    assert broken.effect == 0.5
