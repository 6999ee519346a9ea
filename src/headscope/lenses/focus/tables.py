"""The tables of the lens `focus`, and names that its files share."""

import polars as pl

from headscope.core import HeadQuantity

SCHEMA = pl.Schema(
    {"stack": pl.String, "kind": pl.String, "layer": pl.Int64, "head": pl.Int64, "quantity": pl.String}
    | dict.fromkeys(("value", "low", "high", "uniform"), pl.Float64)
    | {"rows": pl.Int64, "windows": pl.Int64}
)

_LABELS = {
    "entropy_share": "entropy, share of the largest",
    "effective_keys": "effective number of keys",
    "distance": "mean distance",
    "diagonal": "mass on the token itself",
    "first": "mass on the first token",
    "sink": "mass on the sink",
}
_UNITS = {"effective_keys": "keys", "distance": "tokens"}
_LOWEST = {"entropy_share": "sharpest"}
_HIGHEST = {
    "entropy_share": "flattest",
    "distance": "looks farthest",
    "diagonal": "most on itself",
    "first": "most on the first token",
    "sink": "most on the sink",
    "band_8": "most local",
}
_HABITS = {
    "entropy_share": ("spread almost evenly", 0.9),
    "diagonal": ("look mostly at the token itself", 0.5),
    "first": ("look mostly at the first token", 0.5),
    "sink": ("leave most of their mass in the sink", 0.5),
    "band_8": ("look mostly within 8 tokens", 0.5),
}


def head_quantities(table: pl.DataFrame) -> tuple[HeadQuantity, ...]:
    """The quantities of the table that a grid of heads can show."""
    names = table["quantity"].unique(maintain_order=True).to_list()
    bands = {name: f"mass within {name.removeprefix('band_')} of the token" for name in names if "band_" in name}
    labels = {name: label for name, label in (_LABELS | bands).items() if name in names}
    return tuple(
        HeadQuantity(
            key=name,
            label=label,
            table="heads",
            where={"quantity": name},
            null="uniform",
            unit=_UNITS.get(name, "share"),
            scale="log" if name in _UNITS else "linear",
            notable="both" if name in ("entropy_share", *_UNITS) else "high",
            lowest=_LOWEST.get(name, ""),
            highest=_HIGHEST.get(name, ""),
            habit=_HABITS.get(name, ("", 0.0))[0],
            habit_above=_HABITS.get(name, ("", 0.0))[1],
        )
        for name, label in labels.items()
    )
