"""The sentences of the lens `structure` say what its tables hold."""

import re

import polars as pl
import torch

from headscope.lenses.structure.lens import LENS
from headscope.maths.linear_algebra.structured_maps import syntactic_head
from tests.contract.test_lenses import finding_on
from tests.lenses.test_structure import CAUSAL, N, batch_of, finding_of


def band_finding(windows: int):
    generator = torch.Generator().manual_seed(4)
    maps = torch.stack([syntactic_head(N, 2, 0.0, generator) for _ in range(windows)])
    return finding_of(batch_of(maps[:, None]))


def test_one_window_gives_no_interval():
    full = " ".join(headline.full for headline in band_finding(1).headlines)
    assert "no interval: too few windows" in full
    assert "(1 window)" in full


def test_the_families_are_counted():
    finding = band_finding(3)
    _, families, _ = finding.headlines
    row = finding.tables["families"].row(0, named=True)
    assert families.short == "1 of 1 head fits a family of Conti; 0 rest on the first token."
    assert families.full.startswith("Of 1 head, 1 in a band (syntactic) (3 windows). L0.H0 has the most: ")
    assert f"in a band of half-width {row['width']:.2g} " in families.full
    assert families.effect == 1.0


def test_heads_of_no_family_are_said_to_have_none():
    even = torch.ones(N, N, dtype=torch.float64).tril()
    finding = finding_of(batch_of((even / even.sum(-1, keepdim=True)).expand(3, 1, N, N), CAUSAL), of=CAUSAL)
    _, families, _ = finding.headlines
    assert "1 in no family (3 windows). No mass of any family exceeds" in families.full
    assert families.short.startswith("None of 1 head fit a family of Conti; 0 rest")
    assert families.effect == 0.0


def test_the_fewest_keys_are_those_of_the_table():
    finding = finding_on("structure", "encoder")
    rows = finding.tables["smallest"].filter(pl.col("within") == 5)
    pairs, visible = re.findall(r"With ([\d.]+) of ([\d.]+) visible keys", finding.headlines[0].full)[0]
    assert abs(float(pairs) - rows["kept"].median()) < 0.01
    assert abs(float(visible) - rows["visible"].median()) < 0.01
    assert finding.headlines[0].answer


def test_tables_without_a_band_have_no_sentence_about_one():
    finding = band_finding(2)
    tables = {**finding.tables, "structures": finding.tables["structures"].filter(pl.col("form") == "blocks")}
    assert len(LENS.sentences(tables)) == 2
