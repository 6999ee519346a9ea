"""The induction model written by hand: roles, composition and `why` find its circuit, in every basis and order."""

from dataclasses import dataclass
from math import sqrt

import polars as pl
import pytest
import torch

import headscope
from headscope.core import Run
from headscope.model.model import Model, open_model
from headscope.pipeline import measure
from tests.planted_induction import (
    D_MODEL,
    INDUCTION,
    SHIFT,
    WORDS,
    layers,
    planted_model,
    planted_tokenizer,
    turned,
)

ROLES = {"with_text": False, "tokens": 16, "sequences": 6}
DISTINCT = " ".join(WORDS[2:22])  # words that all differ


@dataclass(frozen=True)
class Planted:
    """A model, what was measured, and where its written heads are."""

    model: Model
    run: Run
    shift: str
    induction: str


def planted(heads=None, shift: str = SHIFT, induction: str = INDUCTION) -> Planted:
    model = open_model(planted_model(heads), tokenizer=planted_tokenizer())
    run = measure(model, lenses=["roles", "composition"], params={"roles": ROLES})
    return Planted(model, run, shift, induction)


@pytest.fixture(scope="module")
def as_written() -> Planted:
    return planted()


@pytest.fixture(scope="module")
def disguised() -> Planted:
    """The same function: every head in other inner bases, and the heads of both layers in another order."""
    generator = torch.Generator().manual_seed(1)
    order = [[1, 2, 0], [2, 0, 1]]
    heads = [
        [turned(layer[place], generator) for place in places] for layer, places in zip(layers(), order, strict=True)
    ]
    return planted(heads, "L0.H2", "L1.H1")


def by_label(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(label=pl.format("L{}.H{}", "layer", "head"))


def score(case: Planted, label: str, role: str) -> float:
    rows = by_label(case.run["roles"].tables["heads"])
    return float(rows.filter(pl.col("label") == label, pl.col("role") == role)["value"][0])


@pytest.fixture(params=["as_written", "disguised"])
def case(request: pytest.FixtureRequest) -> Planted:
    return request.getfixturevalue(request.param)


def test_the_written_heads_have_their_roles_and_no_other_head_has_one(case: Planted):
    assert score(case, case.shift, "previous token") >= 0.99
    assert score(case, case.induction, "induction") >= 0.99
    roles = by_label(case.run["roles"].tables["roles"])
    named = {row["label"]: (row["role"], row["further_roles"]) for row in roles.to_dicts() if row["role"]}
    assert named == {case.shift: ("previous token", None), case.induction: ("induction", None)}


def test_the_keys_of_the_induction_head_are_fed_most(case: Planted):
    """Codes of 48 tokens pass whole, so the score is 1/√48 but for the mean that the norm removes."""
    pairs = by_label(case.run["composition"].tables["pairs"]).sort("value", descending=True)
    assert pairs.select("writer", "label", "quantity").row(0) == (case.shift, case.induction, "k at 0")
    assert pairs["value"][0] == pytest.approx(1 / sqrt(len(WORDS)), rel=0.01)
    assert pairs["value"][1] < 1.1 / sqrt(D_MODEL)


def test_why_names_the_shift_head_and_the_mass_goes_with_its_path(case: Planted):
    finding = headscope.why(case.model, head=case.induction, text=f"{DISTINCT} {DISTINCT}")["why"]
    keys = finding.tables["keys"].row(0, named=True)
    assert keys["writer"] == case.shift
    assert keys["contrast"] > 10 * keys["null_high"]
    assert keys["alone"] > 0.99
    checks = finding.tables["checks"].filter(pl.col("side") == "key", pl.col("writer") == case.shift)
    assert checks["mass"][0] > 0.99
    assert checks["without"][0] < 0.02
    assert checks["patched"][0] < 0.02


def test_other_bases_and_another_order_change_no_score(as_written: Planted, disguised: Planted):
    first, second = ({"H0": "H2", "H1": "H0", "H2": "H1"}, {"H0": "H1", "H1": "H2", "H2": "H0"})
    places = {f"L{n}.{old}": f"L{n}.{new}" for n, layer in enumerate((first, second)) for old, new in layer.items()}
    for lens, keys in (("roles", ["label", "source", "role"]), ("composition", ["label", "quantity"])):
        before, after = (by_label(each.run[lens].tables["heads"]) for each in (as_written, disguised))
        before = before.with_columns(pl.col("label").replace_strict(places))
        both = before.join(after, on=keys, suffix="_after", how="full")
        assert both.height == before.height == after.height
        assert both["value"].to_numpy() == pytest.approx(both["value_after"].to_numpy(), abs=1e-4, nan_ok=True)
