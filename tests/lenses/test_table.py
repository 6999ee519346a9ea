"""Cells and rows of tables: which quantities of heads a table holds."""

import polars as pl

from headscope.core import HeadQuantity
from headscope.lenses.shared.table import with_values


def test_a_quantity_without_values_is_not_offered():
    table = pl.DataFrame(
        {"head": [0, 1, 0, 1], "quantity": ["a", "a", "b", "b"], "value": [None, 1.0, None, None]},
        schema_overrides={"value": pl.Float64},
    )
    a, b, c = (HeadQuantity(key, key, "heads", where={"quantity": key}) for key in "abc")
    assert with_values((a, b, c), {"heads": table}) == (a,)
