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


def shown(seed: int, n: int = 40, x: torch.Tensor | None = None, windows: int = 1) -> Batch:
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
    state = begin(LENS, Params(**params), planted(OF).spec, (OF,))
    for part in parts:
        state = update(LENS, state, part)
    return state


def found(*parts: Batch):
    return finish(LENS, folded(*parts), None)


def row(finding, head: int | None, quantity: str, table: str = "heads"):
    rows = finding.tables[table].filter(pl.col("quantity") == quantity)
    return (rows.filter(pl.col("head") == head) if head is not None else rows).row(0, named=True)


def test_a_head_that_compares_directions_is_found():
    finding = found(*(shown(seed) for seed in range(8)))
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
    assert "from -1.00 in L0.H1" in finding.headlines[0]


def test_distance_is_told_from_angle():
    """Vectors that drift, so that near ones are alike, and a head that looks at near ones whatever they are."""
    drifts = [(0.6 * normal(1, 40, D, seed=seed)).cumsum(1) + normal(1, 40, D, seed=seed + 50) for seed in range(8)]
    finding = found(*(shown(seed, x=x) for seed, x in enumerate(drifts)))
    near = row(finding, NEAR, "input_rank")
    assert near["value"] > 0.5
    assert near["given_distance"] is None or abs(near["given_distance"]) < 0.05  # ranks of nearness are those of weight
    follows = row(finding, FOLLOWS, "input_rank")
    assert follows["given_distance"] == pytest.approx(1.0)


def test_random_vectors_obey_the_law_of_arcs():
    finding = found(*(shown(seed, n=56, x=normal(4, 56, D, seed=seed), windows=4) for seed in range(100, 106)))
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
    batches = [replace(shown(seed, x=one, windows=4)) for seed, one in enumerate(x)]
    for batch, one in zip(batches, x, strict=True):
        batch.captures["resid"][OF] = one
    arc = row(found(*batches), None, "input", "arcs")
    assert arc["ratio"] < 0.5 or arc["ratio"] > 2


def test_a_bounded_sample_of_windows(monkeypatch):
    monkeypatch.setattr(angles, "WINDOWS", 3)
    parts = [shown(seed, n=12) for seed in range(7)]
    whole = finish(LENS, folded(*parts), None)
    assert set(whole.tables["heads"]["windows"]) == {3}
    again = finish(LENS, merge(LENS, folded(*parts[:4]), folded(*parts[4:])), None)
    assert not differences(again.tables, whole.tables, REORDERED)
    assert again.method == whole.method  # which says how many windows there were
    assert "7" in again.method


def test_pieces_are_as_good_as_the_whole():
    """What comes before the attention call is handed over before it."""
    batch = shown(0)
    early = replace(batch, captures={"resid": batch.captures["resid"]})
    late = replace(batch, captures={name: one for name, one in batch.captures.items() if name != "resid"})
    sites = tuple(batch.captures["resid"])
    handed_over = list(assembled(LENS, Params(), sites, [early, late]))
    assert len(handed_over) == 1, "the site, once it is complete"
    assert not differences(found(*handed_over).tables, found(batch).tables, REORDERED)


def test_the_claim_is_judged():
    (claim,) = (claim for claim in claims() if "W-8.3" in claim.ids)
    assert claim.judge is not None
    # Sixteen windows: an inequality is kept by five standard errors, which four windows are too few to show.
    finding = found(*(shown(seed) for seed in range(16)))
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
    finding = found(shown(0, n=5))
    assert finding.status == "not applicable"
    assert "4 visible keys" in finding.reason
