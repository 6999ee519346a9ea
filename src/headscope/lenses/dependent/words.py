"""What the lens `dependence` says in words: its method, its warnings and its headlines."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import polars as pl

from headscope.core import Site
from headscope.lenses.dependent.pairs import PairSample
from headscope.lenses.dependent.pooled import PER_DIMENSION
from headscope.lenses.dependent.windows import KEYS, SHIFTS, Shown
from headscope.lenses.figures.layout import label_of

# Heads are counted below this adjusted p, from this size on: less can be left over from what a key does by itself.
LEVEL, SMALL = 0.05, 0.02
# Fewer windows than these are called few.
FEW = 8


def method(sample: PairSample, shown: Shown, skipped: int, step: int) -> str:
    """How the numbers were obtained."""
    drawn = len(sample.windows)
    layers = f" Every {step}th layer only: the pairs of all would not fit." if step > 1 else ""
    left = f" The first {f'{skipped} tokens' if skipped > 1 else 'token'} of each window left out." if skipped else ""
    return (
        f"Sampled: {shown.kept} tokens of each of {shown.windows} windows of {shown.length} tokens ({drawn} "
        f"of {sample.seen} windows drawn by a hash of their tokens), all pairs among them; the tokens stand in "
        "runs, the last ones of the window and others ever further before them. Rows with fewer than "
        f"{KEYS} keys are not ranked. Joint Gaussians with at least {PER_DIMENSION} pairs per dimension, distances "
        "pooled in half octaves or wider until there are. Intervals and tests: jackknife over windows, not over pairs. "
        f"Null: queries of up to {SHIFTS} other windows at the same positions, so that key, position and distance "
        "stay. Trace: of queries and keys as they meet (after any normalisation and rotation), so that C holds what "
        f"the model does with positions.{left}{layers}"
    )


def unseen(crossed: Sequence[Site], missing: Sequence[Site]) -> Iterator[str]:
    """Which sites there is nothing about, and why."""
    if crossed:
        names = ", ".join(site.label for site in crossed)
        yield f"Left out: {names}. The vectors from which cross-attention makes its keys are not shown."
    if missing:
        yield f"No row with {KEYS} visible keys in {', '.join(site.label for site in missing)}."


def warnings(
    tables: Mapping[str, pl.DataFrame], seen: Mapping[Site, Shown], drawn: int, components: int
) -> tuple[str, ...]:
    """What could not be estimated, and why."""
    found = []
    windows = min(one.windows for one in seen.values())
    if windows < 2:
        found.append("One window only: no interval, no null, and no Gaussian of other windows to judge it by.")
    elif windows < FEW:
        found.append(f"Only {windows} windows of equal length: intervals are wide and tests weak.")
    others = drawn - windows
    if others > 0:
        told = f"{others} windows of other length were" if others > 1 else "1 window of other length was"
        found.append(f"{told} not used: positions must be comparable.")
    profile = tables["profile"]
    without = [site.label for site in seen if _of_site(profile, site).is_empty()]
    if without and windows > 1:
        found.append(
            f"No joint Gaussian of two tokens in {', '.join(without)}: too few pairs, or one token determines another."
        )
    used = min(profile["dimensions"].to_list(), default=components)
    if used < components:
        found.append(f"Information in {used} principal components, not {components}: too few pairs.")
    return tuple(found)


def _of_site(table: pl.DataFrame, site: Site) -> pl.DataFrame:
    return table.filter(pl.col("stack") == site.stack, pl.col("kind") == site.kind, pl.col("layer") == site.layer)


def sentences(tables: Mapping[str, pl.DataFrame]) -> tuple[str, ...]:
    """Whether attention follows dependence, in numbers."""
    heads = tables["heads"]
    told = (_answer(heads), _compared(heads), _scores_sentence(tables["pairs"]))
    return tuple(sentence for sentence in told if sentence)


def _followers(heads: pl.DataFrame, measure: str) -> tuple[pl.DataFrame, int, int]:
    """The heads that could be judged, and how many of them follow a measure beyond positions and look away from it."""
    judged = heads.filter(pl.col("quantity") == measure, pl.col("adjusted").is_not_null())
    clear = judged.filter(pl.col("adjusted") < LEVEL, pl.col("beyond").abs() >= SMALL)
    return judged, clear.filter(pl.col("beyond") > 0).height, clear.filter(pl.col("beyond") < 0).height


def _two(value: float) -> str:
    """Two decimals, and never −0.00."""
    return f"{round(value, 2) + 0.0:.2f}"


def _answer(heads: pl.DataFrame) -> str:
    judged, up, down = _followers(heads, "pointwise")
    if judged.is_empty():
        return ""
    ordered = judged.sort("beyond", maintain_order=True)
    least, most = ordered.row(0, named=True), ordered.row(-1, named=True)
    middle, chance = (float(np.median(judged[name].to_numpy())) for name in ("beyond", "beyond_null"))
    many, windows = judged.height, max(judged["windows"].to_list())
    verdict = (
        "Attention mostly follows dependence beyond distance"
        if up > many / 2
        else "Attention mostly looks away from dependence beyond distance"
        if down > many / 2
        else "Attention follows dependence beyond distance in some heads only"
        if up
        else "No head was found whose attention follows dependence beyond distance"
    )
    return (
        f"{verdict}: of {many} heads {up} follow it and {down} look away from it (false discoveries held at 5 %, "
        f"{windows} windows); the rank correlation with the pointwise mutual information at fixed "
        f"positions is {_two(middle)} in the median head (with another window's query {_two(chance)}) and goes from "
        f"{_two(least['beyond'])} in {label_of(least)} to {_two(most['beyond'])} in {label_of(most)}."
    )


def _compared(heads: pl.DataFrame) -> str:
    """The median correlation of each measure, without any control."""
    names = {
        "nearness": "nearness",
        "information": "mutual information at that distance",
        "trace": "Tr(CΣ_ji)",
        "cosine": "cosine",
        "pointwise": "pointwise information",
    }
    told = []
    for name, words in names.items():
        rows = heads.filter(pl.col("quantity") == name, pl.col("value").is_not_null())
        if rows.height:
            null = rows["null"].drop_nulls().to_numpy()
            beside = f" (null {_two(float(np.median(null)))})" if len(null) and name != "nearness" else ""
            told.append(f"{words} {_two(float(np.median(rows['value'].to_numpy())))}{beside}")
    if not told:
        return ""
    judged, up, down = _followers(heads, "cosine")
    beyond = f"; at fixed positions {up} heads follow the cosine and {down} go against it" if judged.height else ""
    return f"Rank correlation of the pattern in the median head, distance included: with {', '.join(told)}{beyond}."


def _scores_sentence(pairs: pl.DataFrame) -> str:
    told = []
    for name, words in (("dependent", "tokens 1 to 8 apart"), ("self", "a token with itself")):
        rows = pairs.filter(pl.col("quantity") == name, pl.col("adjusted").is_not_null())
        if rows.is_empty():
            continue
        clear = rows.filter(pl.col("adjusted") < LEVEL)
        up, down = (clear.filter(test).height for test in (pl.col("shift") > 0, pl.col("shift") < 0))
        told.append(f"of {words} in {up} of {rows.height} heads and lowers it in {down}")
    if not told:
        return ""
    judged = pairs.filter(pl.col("quantity") == "dependent", pl.col("predicted_variance") > 0, pl.col("variance") > 0)
    ratio = ""
    if judged.height:
        shares = judged["variance"].to_numpy() / judged["predicted_variance"].to_numpy()
        low, middle, high = np.quantile(shares, (0.05, 0.5, 0.95))
        ratio = (
            f"; their variance is {middle:.2f} times the Gaussian prediction in the median head ({low:.2f} to "
            f"{high:.2f} in nine of ten)"
        )
    return f"Dependence raises the mean score {', '.join(told)}{ratio}."
