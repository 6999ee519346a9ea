"""Counting by running, and the judge of a claim about trained models."""

import polars as pl
import pytest
import torch

from headscope.claims import claims, judged
from headscope.claims.work import Work
from headscope.core import Finding
from headscope.lenses.focus import LENS


def test_products_and_systems_are_counted():
    work = Work()
    a, b = torch.eye(6, 6, dtype=torch.float64) * 2, torch.ones(6, 4, dtype=torch.float64)
    torch.testing.assert_close(work.product(a, b), a @ b)
    assert work.multiplications == 6 * 6 * 4
    torch.testing.assert_close(work.solve(a, b), b / 2)
    assert work.multiplications == 6 * 6 * 4 + 72 + 144


@pytest.mark.parametrize(("share", "verdict"), [(0.5, "refuted"), (0.99, "holds")])
def test_flat_attention_is_judged_by_its_entropy(share, verdict):
    table = pl.DataFrame({"quantity": ["entropy_share", "first"], "value": [share, 0.1]})
    finding = Finding(lens="focus", about=LENS.about, tables={"heads": table})
    (claim,) = claims(["W-7.3e"])
    assert judged(claim, findings={"focus": finding}, model="m").verdict == verdict
