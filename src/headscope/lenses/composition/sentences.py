"""The sentences of the lens `composition`."""

import polars as pl

from headscope.core import Headline
from headscope.lenses.composition.tables import KINDS
from headscope.lenses.lens import Tables
from headscope.lenses.shared.answers import answered, pictured
from headscope.lenses.shared.effects import share_effect
from headscope.lenses.shared.estimates import fixed
from headscope.lenses.shared.plots import label_of
from headscope.lenses.shared.written_numbers import counted


def sentences(tables: Tables) -> tuple[Headline, ...]:
    """What stands out, in numbers."""
    heads, pairs = tables["heads"], tables["pairs"]
    fed = heads.filter(pl.col("value").is_finite(), pl.col("null_largest").is_finite())
    if fed.is_empty():
        count = heads.select("stack", "layer", "head").unique().height
        nothing = f"No head feeds another: {counted(count, 'head')}, and none comes before another in its stack."
        return (Headline(nothing, nothing),)
    quantities = set(fed["quantity"].to_list())
    letters = [letter for letter in ("k", "v", "q") if _at_zero(letter) in quantities]
    counts = {letter: _count(fed, letter) for letter in letters}
    strongest = [_strongest(pairs, heads, letter) for letter in letters[:2]]
    names = (f"composition_{letters[0]}", *("graph" for _ in strongest))
    return pictured((_counted_headline(counts, letters), *strongest), names)


def _at_zero(letter: str) -> str:
    return "v" if letter == "v" else f"{letter} at 0"


def _count(fed: pl.DataFrame, letter: str) -> tuple[int, float, int]:
    """Readers whose strongest earlier writer exceeds all impossible ones; how many chance gives; all."""
    rows = fed.filter(pl.col("quantity") == _at_zero(letter))
    beyond = rows.filter(pl.col("value") > pl.col("null_largest")).height
    expected = float((rows["writers"] / (rows["writers"] + rows["late"])).sum())
    return beyond, expected, rows.height


def _counted_headline(counts: dict[str, tuple[int, float, int]], letters: list[str]) -> Headline:
    parts = [
        f"{counts[letter][0]} of {counts[letter][2]} for {KINDS[letter]} (by chance {fixed(counts[letter][1], 0)})"
        for letter in letters
    ]
    beyond, expected, total = counts[letters[0]]
    full = (
        "Readers whose strongest earlier head scores more than every head that comes too late to feed them: "
        f"{_listed(parts)}. Distance 0, gains of the norms folded."
    )
    name = KINDS[letters[0]]
    share, null = 100 * beyond / total, 100 * expected / total
    short = f"The {name} of {share:.0f} % of heads are fed beyond all impossible writers; by chance {null:.0f} %."
    headline = Headline(full, short, share_effect(beyond / total, expected / total))
    return answered(headline, f"{beyond} of {total} heads, through their {name}", f"{share:.0f} %", f"{null:.0f} %")


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _strongest(pairs: pl.DataFrame, heads: pl.DataFrame, letter: str) -> Headline | None:
    """The pair that exceeds the impossible writers of its reader most."""
    rows = pairs.filter(pl.col("quantity") == _at_zero(letter))
    if rows.is_empty():
        return None
    pair = rows.row(0, named=True)
    keys = ("stack", "layer", "head", "quantity")
    reader = heads.filter(*(pl.col(key) == pair[key] for key in keys)).row(0, named=True)
    name, score = KINDS[letter], fixed(pair["value"], 3)
    null = reader["null"] if reader["null"] is not None else reader["random"]
    is_pooled = reader["impossible"] != reader["late"] or reader["null_largest"] is None
    late = "" if is_pooled else f", the largest {fixed(reader['null_largest'], 3)}"
    spread = "" if reader["null_spread"] is None else f" ± {fixed(reader['null_spread'], 3)}"
    full = (
        f"{pair['writer']} feeds the {name} of {label_of(pair)} with a score of {score}: among "
        f"{counted(reader['writers'], 'earlier head')} it exceeds the null most. "
        f"{counted(reader['impossible'], 'pair')} in the wrong order have a median of {fixed(null, 3)}{spread}{late}; "
        f"random directions give {fixed(reader['random'], 3)}."
    )
    short = (
        f"{pair['writer']} feeds the {name} of {label_of(pair)} with a score of {score}; heads that come too late "
        f"score {fixed(null, 3)}."
    )
    return Headline(full, short, share_effect(pair["value"], null))
