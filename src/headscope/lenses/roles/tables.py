"""The tables of the lens `roles`, and names that its files share."""

import polars as pl

from headscope.core import HeadQuantity

REPEATED, FRESH, TEXT = "repeated tokens", "fresh tokens", "text"
# Repeated tokens that the initialised model reads; they count as repeated tokens.
FEW_REPEATED = "few repeated tokens"

FIRST = "first token"
NEAR_ROLES = ("previous token", "2 back", "3 back", "4 back")
PLAIN_ROLES = (*NEAR_ROLES, FIRST, "self")
REPEAT_ROLES = ("induction", "duplicate token")
MADE_ROLES = (*REPEAT_ROLES, *PLAIN_ROLES)
TEXT_ROLES = ("prefix matching", *PLAIN_ROLES)
ROLES = {REPEATED: MADE_ROLES, TEXT: TEXT_ROLES}

_PLACE = {"stack": pl.String, "kind": pl.String, "layer": pl.Int64, "head": pl.Int64}
SCHEMA = pl.Schema(
    _PLACE
    | {"source": pl.String, "role": pl.String}
    | dict.fromkeys(("value", "low", "high", "null", "initialised", "threshold"), pl.Float64)
    | {"has_role": pl.Boolean, "queries": pl.Int64, "windows": pl.Int64}
)
ROLES_SCHEMA = pl.Schema(
    _PLACE
    | {"role": pl.String, "source": pl.String}
    | dict.fromkeys(("value", "low", "high", "threshold"), pl.Float64)
    | {"further_roles": pl.String, "windows": pl.Int64}
)

# Role → label, name of the head with the most, noun for heads that have it, what these do. The rows are those of the
# first source.
_QUANTITIES = {
    "induction": ("induction: after the earlier copy", "strongest induction", "induction head", "perform induction"),
    "prefix matching": ("prefix matching in text", "strongest prefix matching", "prefix-matching head", ""),
    "previous token": (
        "mass on the previous token",
        "strongest on the previous token",
        "previous-token head",
        "look at the previous token",
    ),
    "duplicate token": (
        "mass on the earlier copy",
        "strongest on the earlier copy",
        "duplicate-token head",
        "look at an earlier copy",
    ),
    "2 back": ("mass 2 tokens back", "", "two-back head", "look 2 tokens back"),
    "3 back": ("mass 3 tokens back", "", "three-back head", "look 3 tokens back"),
    "4 back": ("mass 4 tokens back", "", "four-back head", "look 4 tokens back"),
    "self": ("mass on itself, random tokens", "", "self-attending head", ""),
    "first token": ("mass on the first of random tokens", "", "first-token head", ""),
}


def main_rows(heads: pl.DataFrame) -> pl.DataFrame:
    """The rows of each role on its main source: text for prefix matching, repeated tokens for the others."""
    source = pl.when(pl.col("role") == "prefix matching").then(pl.lit(TEXT)).otherwise(pl.lit(REPEATED))
    return heads.filter(pl.col("source") == source)


def head_quantities(table: pl.DataFrame) -> tuple[HeadQuantity, ...]:
    """The mass of each role, one number per head."""
    present = set(table.select("source", "role").iter_rows())
    sources = {role: TEXT if role == "prefix matching" else REPEATED for role in _QUANTITIES}
    return tuple(
        HeadQuantity(
            key=role.replace(" ", "_"),
            label=label,
            table="heads",
            where={"source": sources[role], "role": role},
            null="null",
            unit="share",
            highest=highest,
            habit=habit,
            role=noun,
        )
        for role, (label, highest, noun, habit) in _QUANTITIES.items()
        if (sources[role], role) in present
    )
