"""The sentences of the lens `structure`."""

import numpy as np
import polars as pl

from headscope.core import Headline
from headscope.lenses.lens import Tables
from headscope.lenses.shared.answers import answered, pictured
from headscope.lenses.shared.effects import share_effect
from headscope.lenses.shared.estimates import estimate
from headscope.lenses.shared.phrases import windows_phrase
from headscope.lenses.shared.plots import label_of
from headscope.lenses.shared.written_numbers import counted, part_of, percents, side_by_side
from headscope.lenses.structure.structures import BAND, BAND_FIRST
from headscope.lenses.structure.tables import FIRST_TOKEN, NONE, POSITIONAL, RARE, SYNTACTIC, USUAL_BOUND, shared_width


def sentences(tables: Tables) -> tuple[Headline, ...]:
    """How few pairs carry a head, what a band misses, and which families there are."""
    headlines = (_smallest(tables["smallest"]), _families(tables["families"]), _band(tables["structures"]))
    return pictured(headlines, ("smallest", "families", "band_first"))


def _median(rows: pl.DataFrame, column: str) -> float:
    return float(np.median(rows[column].drop_nulls().to_numpy()))


def _smallest(smallest: pl.DataFrame) -> Headline:
    rows = smallest.filter(pl.col("within") == USUAL_BOUND)
    pairs, visible, numbers = (_median(rows, name) for name in ("kept", "visible", "low_rank"))
    kept_text, visible_text, rank_text = side_by_side((pairs, visible, numbers))
    names = rows["form"].value_counts(sort=True).sort(["count", "form"], descending=[True, False])
    common, count = names.row(0)
    commonest = f"The most common structure is {common}, in {part_of(count, rows.height, 'head')}."
    full = (
        f"With {kept_text} of {visible_text} visible keys per query ({_kept_interval(rows)}) the output of the median "
        f"of {counted(rows.height, 'head')} changes by at most {USUAL_BOUND} % ({windows_phrase(rows)}); a "
        f"low rank that is fitted to the rows read alone needs {rank_text} numbers per query. {commonest}"
    )
    short = (
        f"The median head's output changes by at most a twentieth with {kept_text} of {visible_text} visible keys per "
        "query."
    )
    headline = Headline(full, short, share_effect(_median(rows, "share"), 1.0))
    return answered(headline, "few of the visible keys carry a head", f"{kept_text} keys per query", visible_text)


def _kept_interval(rows: pl.DataFrame) -> str:
    if not rows["kept_low"].count():
        return "no interval: too few windows"
    low, high = side_by_side((_median(rows, "kept_low"), _median(rows, "kept_high")))
    ends = "the ends of the 95 % intervals of the errors"
    return f"by both of {ends}" if low == high else f"{low} to {high} by {ends}"


def _band(structures: pl.DataFrame) -> Headline | None:
    """What a window and the first token miss, and what the window alone does."""
    width = shared_width(structures, BAND_FIRST)
    if width is None:
        return None
    of_width = structures.filter(pl.col("size") == width, pl.col("value").is_not_null())
    rows = of_width.filter(pl.col("form") == BAND_FIRST).sort("value", maintain_order=True)
    alone = of_width.filter(pl.col("form") == BAND)
    if rows.is_empty() or alone.is_empty():
        return None
    numbers = [_median(rows, name) for name in ("value", "visible_uniform", "low_rank")]
    value, even, rank, without = percents([*numbers, _median(alone, "value")])
    best = rows.row(0, named=True)
    full = (
        f"A band of half-width {width} with the first token misses {value} of what the median of "
        f"{counted(rows.height, 'head')} writes, without that token {without} (uniform attention over the visible "
        f"keys: {even}; the best rank with as many numbers: {rank}; {windows_phrase(rows)}). It serves "
        f"{label_of(best)} best: {estimate(best, null=1.0, percent=True)}."
    )
    short = f"A band with the first token misses {value} of the median head's output; uniform attention misses {even}."
    ratio = numbers[0] / max(numbers[1], 1e-9)
    return Headline(full, short, share_effect(min(ratio, 1.0), 1.0))


def _families(families: pl.DataFrame) -> Headline:
    total = families.height
    counts = {name: families.filter(pl.col("family") == name).height for name in _PHRASES}
    parts = [f"{count} {_PHRASES[name]}" for name, count in counts.items() if count]
    in_family = families.filter(pl.col("family").is_in([POSITIONAL, SYNTACTIC, RARE]))
    full = f"Of {counted(total, 'head')}, {', '.join(parts)} ({windows_phrase(families)}). {_strongest(in_family)}"
    share = in_family.height / total
    short = f"{in_family.height or 'None'} of {counted(total, 'head')} {_fit(in_family.height)} a family of Conti; " + (
        f"{counts[FIRST_TOKEN]} {'rests' if counts[FIRST_TOKEN] == 1 else 'rest'} on the first token."
    )
    return Headline(full, short, share_effect(share))


_PHRASES = {
    POSITIONAL: "on themselves (positional)",
    SYNTACTIC: "in a band (syntactic)",
    RARE: "on keys that neighbours share (rare token)",
    FIRST_TOKEN: "at rest on the first token",
    NONE: "in no family",
}


def _fit(heads: int) -> str:
    return "fits" if heads == 1 else "fit"


def _strongest(in_family: pl.DataFrame) -> str:
    if in_family.is_empty():
        return "No mass of any family exceeds that of permuted keys by half of what these leave over."
    top = in_family.row(int(np.argmax(in_family["value"].to_numpy())), named=True)
    location = {
        POSITIONAL: "on the token itself",
        SYNTACTIC: f"in a band of half-width {_plain(top['width'])}",
        RARE: f"on the token itself and on {_plain(top['positions'])} shared keys per 16 queries",
    }[top["family"]]
    (null,) = percents([top["null"]])
    return (
        f"{label_of(top)} has the most: {estimate(top, null=float(top['null']), percent=True)} of its mass, the first "
        f"token left out, is {location} (permuted keys: {null})."
    )


def _plain(value: object) -> str:
    (text,) = side_by_side([float(str(value))], digits=2)
    return text
