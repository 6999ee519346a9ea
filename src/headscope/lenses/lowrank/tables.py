"""The tables of the lens `lowrank`, and names that its files share."""

from collections.abc import Mapping

import polars as pl

from headscope.core import HeadQuantity

FITS = 0.1  # the misfit up to which a law is said to hold

_LABELS = {
    "components_90": "components for 90 % of the energy",
    "stable_rank": "stable rank",
    "beyond_log": "energy beyond ln n components",
}


def head_quantities(tables: Mapping[str, pl.DataFrame]) -> tuple[HeadQuantity, ...]:
    """Ranks at the largest n, and how they grow where that was fitted."""
    size = max(tables["components"]["tokens"].to_list())
    ranks = tuple(
        HeadQuantity(
            key=name,
            label=label,
            table="components",
            where={"tokens": size, "quantity": name},
            null="popular",
            unit="share" if name == "beyond_log" else "components",
            scale="linear" if name == "beyond_log" else "log",
            notable="both",
        )
        for name, label in _LABELS.items()
    )
    growth = HeadQuantity(
        key="growth",
        label="power of n by which components grow",
        table="growth",
        where={"quantity": "components_90"},
        null="popular",
        notable="both",
    )
    return (*ranks, growth) if "growth" in tables else ranks
