"""The sentences of the lens `roles`."""

import polars as pl

from headscope.core import Headline
from headscope.lenses.lens import Tables
from headscope.lenses.roles.tables import FIRST, REPEATED, main_rows
from headscope.lenses.shared.answers import answered, pictured
from headscope.lenses.shared.effects import share_effect
from headscope.lenses.shared.estimates import estimate, how_many
from headscope.lenses.shared.phrases import percent, windows_phrase
from headscope.lenses.shared.plots import label_of

_PLACE = ("stack", "kind", "layer", "head")
# Role → the noun for its heads, where they look, and what the null is.
_WORDS = {
    "induction": (
        "induction head",
        "on the token that followed the earlier copy",
        "at the same distance where nothing repeats",
    ),
    "previous token": ("previous-token head", "on the token before", "in uniform attention"),
}


def sentences(tables: Tables) -> tuple[Headline, ...]:
    """Induction, the previous token, and how many heads have a role."""
    heads = tables["heads"]
    headlines = [_role_headline(heads, role) for role in _WORDS]
    return pictured([*headlines, _count_headline(tables)], ["induction", "previous_token", "strongest"])


def _role_headline(table: pl.DataFrame, role: str) -> Headline | None:
    rows = table.filter(pl.col("source") == REPEATED, pl.col("role") == role).sort("value", maintain_order=True)
    if rows.is_empty():
        return None
    noun, where, chance = _WORDS[role]
    top = rows.row(-1, named=True)
    count = int(rows["has_role"].sum())
    null, threshold = _largest_null(rows), float(top["threshold"])
    mass = estimate(top, null=threshold, percent=True)
    nulls = f"the largest null of all heads is {percent(null)} {chance}{_initialised_clause(rows)}"
    largest = max([null, *rows["initialised"].drop_nulls().to_list()])
    if count:
        grammar = f"are {noun}s" if count > 1 else f"is {_article(noun)}"
        full = (
            f"{how_many(count, rows.height).capitalize()} {grammar} on random tokens that repeat. {label_of(top)} puts "
            f"the most {where}: {mass.value} ({mass.interval}; {windows_phrase(rows)}); {nulls}."
        )
        short = f"{label_of(top)} puts {mass.value} {where}; by chance it is at most {percent(largest)}."
        headline = Headline(full, short, share_effect(float(top["value"]), largest))
    else:
        full = (
            f"No {noun} was detected among {rows.height} heads: {label_of(top)} puts the most {where}, {mass.value} "
            f"({mass.interval}; {windows_phrase(rows)}). An interval above {percent(threshold)} would have been "
            f"counted; {nulls}."
        )
        short = f"No {noun} was detected; an interval above {percent(threshold)} would have been."
        headline = Headline(full, short, 0.0)
    if role != "induction":
        return headline
    return answered(headline, f"{how_many(count, rows.height)} {_verb(count)} induction", mass.value, percent(largest))


def _verb(count: int) -> str:
    return "perform" if count > 1 else "performs"


def _article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def _largest_null(rows: pl.DataFrame) -> float:
    nulls = rows["null"].drop_nulls().to_list()
    return max(nulls, default=0.0)


def _initialised_clause(rows: pl.DataFrame) -> str:
    initialised = rows["initialised"].drop_nulls().to_list()
    return f", and {percent(max(initialised))} in the initialised model" if initialised else ""


def _count_headline(tables: Tables) -> Headline | None:
    """How many heads have a role besides resting on the first token, and which roles there are."""
    heads, total = tables["heads"], tables["roles"].height
    if not total:
        return None
    initialised = heads["initialised"].drop_nulls().to_list()
    compared = f"in the initialised model no mass exceeds {percent(max(initialised))}" if initialised else ""
    rows = main_rows(heads).filter("has_role")
    busy, resting = rows.filter(pl.col("role") != FIRST), rows.filter(pl.col("role") == FIRST).height
    n_busy = busy.select(_PLACE).unique().height
    if rows.is_empty():
        threshold = percent(max(heads["threshold"].to_list()))
        full = (
            f"None of {total} heads has a role ({windows_phrase(heads)}): every interval above {threshold} would have "
            f"been counted{'; ' * bool(compared)}{compared}."
        )
        return Headline(full, f"None of {total} heads has a role{'; ' * bool(compared)}{compared}.", 0.0)
    counts = busy["role"].value_counts(name="heads").sort(["heads", "role"], descending=[True, False])
    listed = ", ".join(f"{role} ({number})" for role, number in counts.iter_rows())
    several = ", and some have several" if busy.height > n_busy else ""
    begin = f"{how_many(n_busy, total).capitalize()} {'has' if n_busy == 1 else 'have'} a role"
    full = (
        f"{begin} other than resting on the first token{several}{': ' * bool(listed)}{listed}. "
        f"{how_many(resting, total).capitalize()} {'rests' if resting == 1 else 'rest'} on the first token "
        f"({windows_phrase(heads)}{'; ' * bool(compared)}{compared})."
    )
    null = f"; initialised, no mass exceeds {percent(max(initialised))}" if initialised else ""
    return Headline(full, f"{begin} beyond resting on the first token{null}.", n_busy / total)
