"""What the lens `angles` says in words: its method, its warnings and its headlines."""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from headscope.core import Headline, Site
from headscope.lenses.angles.arcs import ARCS, POINTS
from headscope.lenses.angles.window import DRAWS, KEYS, Window
from headscope.lenses.shared.effects import (
    correlation_effect,
    excludes_null,
    majority_effect,
    mean_effect,
    ratio_effect,
    share_effect,
)
from headscope.lenses.shared.phrases import detectable_effect, undetected
from headscope.lenses.shared.plots import Array, label_of

# Heads are counted below this adjusted p; correlations below these sizes are called almost none, and weak.
LEVEL, NONE, WEAK = 0.05, 0.1, 0.3
FEW = 8


def method(windows_by_site: Mapping[Site, Sequence[Window]], windows_read: int, skipped: int) -> str:
    """How the numbers were obtained."""
    first = next(iter(windows_by_site.values()))
    left = f" The first {f'{skipped} tokens' if skipped > 1 else 'token'} of each window left out." if skipped else ""
    return (
        f"Sampled: up to {max(window.tokens for window in first)} tokens of each of {len(first)} windows "
        f"({windows_read} seen), all "
        "pairs among them that attention can see, a token with itself left out; in long windows the tokens stand in "
        f"runs, the last ones and others ever further before them. Rows with fewer than {KEYS} keys do not count. "
        f"Null: {DRAWS} shuffles of the tokens of each window. Arcs: at most {ARCS} per window and {POINTS} points "
        "each, between tokens half the sample apart. Scores of a moving query are mixed exactly where queries are "
        "linear in directions (no bias, no rotation between the two positions), and are a model of it elsewhere. "
        f"Intervals and tests: jackknife over windows.{left}"
    )


def warnings(windows_by_site: Mapping[Site, Sequence[Window]], crossed: Sequence[Site]) -> tuple[str, ...]:
    """Which sites were not measured, and whether there are few windows."""
    lines = []
    if crossed:
        names = ", ".join(site.label for site in crossed)
        lines.append(f"Left out: {names}. The vectors from which cross-attention makes its keys are not shown.")
    missing = [site.label for site, windows in windows_by_site.items() if not windows]
    if missing:
        lines.append(f"No row with {KEYS} visible keys in {', '.join(missing)}.")
    least = min(len(windows) for windows in windows_by_site.values() if windows)
    if least < 2:
        lines.append("One window only: no interval and no test.")
    elif least < FEW:
        lines.append(f"Only {least} windows: intervals are wide and tests weak.")
    return tuple(lines)


def sentences(tables: Mapping[str, pl.DataFrame]) -> tuple[Headline, ...]:
    """Up to three statements: rank correlations, linear fits, arcs."""
    heads, arcs = tables["heads"], tables.get("arcs")
    headlines = []
    if full := _ranks(heads):
        headlines.append(Headline(full, *_ranks_short(heads)))
    if full := _linear(heads):
        headlines.append(Headline(full, *_linear_short(heads)))
    if arcs is not None and (full := _arcs(arcs)):
        headlines.append(Headline(full, *_arcs_short(arcs)))
    return tuple(headlines)


_Short = tuple[str, float | None]  # the short form of a headline, and its effect


def _ranks_short(heads: pl.DataFrame) -> _Short:
    """How many heads look at tokens like their own, or away from them, given the distance."""
    rows = heads.filter(pl.col("quantity") == "input_rank", pl.col("value").is_not_null())
    tested = rows.filter(pl.col("adjusted").is_not_null())
    if tested.is_empty():
        value, null = (_two_decimals(median(rows, "input_rank", column)) for column in ("value", "null"))
        return (
            f"Attention follows likeness with rank correlation {value} in the median head; shuffled tokens {null}.",
            None,
        )
    clear = tested.filter(pl.col("adjusted") < LEVEL)
    if clear.is_empty():
        limit = detectable_effect(tested, ("given_low", "given_high")) or 0.0
        return undetected("preference for similar tokens beyond distance", f"a rank correlation of {limit:.2g}"), 0.0
    size = float(np.median(np.abs(clear["given_distance"].to_numpy())))
    short = (
        f"Distance aside, {clear.height} of {rows.height} heads look at, or away from, similar tokens; typical rank "
        f"correlation {size:.2f}."
    )
    return short, mean_effect(
        correlation_effect(partial) if p is not None and p < LEVEL else 0.0
        for partial, p in rows.select("given_distance", "adjusted").iter_rows()
    )


def _linear_short(heads: pl.DataFrame) -> _Short:
    """Which share of the variance of the score (or weight) the cosine explains, compared with shuffled tokens."""
    target = "score" if len(sizes(heads, "input_score")) else "weight"
    rows = heads.filter(pl.col("quantity") == f"input_{target}", pl.col("value").is_not_null())
    share = float(np.median(np.square(rows["value"].to_numpy())))
    by_chance = rows.select((pl.col("null") ** 2 + pl.col("null_sd").fill_null(0.0) ** 2).median()).item() or 0.0
    effect = majority_effect(share_effect(share, by_chance), excludes_null(rows, "null"))
    if effect == 0.0:
        size = _percent((detectable_effect(rows) or 0.0) ** 2)
        return undetected(f"part of the {target}'s variance that the tokens' angle explains", size), effect
    short = (
        f"In the median head, two tokens' angle explains {_percent(share)} of their {target}'s variance; shuffled "
        f"tokens' {_percent(by_chance)}."
    )
    return short, effect


def _arcs_short(arcs: pl.DataFrame) -> _Short:
    """How far softmaxes between inputs diverge, compared with the law; rows of attention where no input is there."""
    ratios = arcs.filter(pl.col("ratio").is_not_null())
    name = next(name for name in ("input", "unit", "row") if name in ratios["quantity"].to_list())
    rows = ratios.filter(pl.col("quantity") == name)
    ratio = float(np.median(rows["ratio"].to_numpy()))
    effect = majority_effect(ratio_effect(ratio, 1.0), excludes_null(rows, 1.0, ("ratio_low", "ratio_high")))
    if effect == 0.0:
        size = _percent(detectable_effect(rows, ("ratio_low", "ratio_high")) or 0.0)
        return undetected("departure from the law of divergence along arcs", size), effect
    between = "attention rows" if name == "row" else "inputs"
    return (
        f"Between {between}, softmaxes diverge {ratio:.2f} times as much as the law for random vectors predicts.",
        effect,
    )


def _percent(share: float) -> str:
    """Two digits, and no powers of ten."""
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"


def _two_decimals(value: float) -> str:
    return f"{round(value, 2) + 0.0:.2f}"


def median(table: pl.DataFrame, quantity: str, column: str = "value") -> float:
    """The median of a column over the heads that have it; NaN where none has."""
    values = table.filter(pl.col("quantity") == quantity)[column].drop_nulls().to_numpy()
    return float(np.median(values)) if len(values) else float("nan")


def sizes(table: pl.DataFrame, quantity: str) -> Array:
    """Absolute values over heads."""
    magnitudes: Array = np.abs(table.filter(pl.col("quantity") == quantity)["value"].drop_nulls().to_numpy())
    return magnitudes


def _ranks(heads: pl.DataFrame) -> str:
    clauses = [
        _related(heads, name, words) for name, words in (("embedding", "embeddings"), ("input", "layer's inputs"))
    ]
    rows = heads.filter(pl.col("quantity") == "input_rank", pl.col("value").is_not_null())
    if rows.is_empty() or not all(clauses):
        return ""
    ordered = rows.sort("value", maintain_order=True)
    least, most = ordered.row(0, named=True), ordered.row(-1, named=True)
    clear = rows.filter(pl.col("adjusted") < LEVEL)
    up, down = (clear.filter(test).height for test in (pl.col("given_distance") > 0, pl.col("given_distance") < 0))
    return (
        f"Over {rows['windows'][0]} windows: {clauses[0]}; {clauses[1]}, and goes from "
        f"{_two_decimals(least['value'])} in {label_of(least)}{_ends(least)} to {_two_decimals(most['value'])} in "
        f"{label_of(most)}{_ends(most)}. Given the "
        f"distance {up} of {rows.height} heads look at tokens whose inputs are like their own and {down} away from "
        f"them (false discoveries held at 5 %{_detectable(rows)})."
    )


def _ends(row: Mapping[str, object]) -> str:
    """The 95 % interval of a row."""
    low, high = row["low"], row["high"]
    return f" ({low:.2f} to {high:.2f})" if isinstance(low, float) and isinstance(high, float) else ""


def _detectable(rows: pl.DataFrame) -> str:
    """The partial correlation that one test detects in the median head, as a clause."""
    size = detectable_effect(rows, ("given_low", "given_high"))
    return "" if size is None else f"; in the median head one test detects {size:.2g} in four of five texts"


def _related(heads: pl.DataFrame, name: str, words: str) -> str:
    """A clause about the rank correlation of one of the cosines with the weight."""
    quantity = f"{name}_rank"
    size = sizes(heads, quantity)
    if not len(size):
        return ""
    typical = float(np.median(size))
    verdict = "almost unrelated to" if typical < NONE else "weakly related to" if typical < WEAK else "related to"
    partial = median(heads, quantity, "given_distance")
    distance_clause = f", given the distance {_two_decimals(partial)}" if partial == partial else ""
    return (
        f"{'the angles of the' if name == 'embedding' else 'those of the'} {words} are {verdict} attention in the "
        f"typical head: their rank correlation within rows is {_two_decimals(median(heads, quantity))} in the median "
        f"head (in size {_two_decimals(typical)}, tokens shuffled "
        f"{_two_decimals(median(heads, quantity, 'null'))}{distance_clause})"
    )


def _linear(heads: pl.DataFrame) -> str:
    clauses = []
    for target in ("score", "weight"):
        size = sizes(heads, f"input_{target}")
        if len(size):
            clauses.append(
                f"{_percent(float(np.median(size**2)))} of the variance of the {target} within rows "
                f"(embedding {_percent(float(np.median(sizes(heads, f'embedding_{target}') ** 2)))})"
            )
    if not clauses:
        return ""
    slope = median(heads, "input_score", "slope")
    return (
        f"The cosine of the inputs explains {' and '.join(clauses)} in the median head, where a cosine of 1 in place "
        f"of 0 changes the score by {slope:.2g}."
    )


def _arcs(arcs: pl.DataFrame) -> str:
    clauses = []
    for name, words in (
        ("input", "between inputs at their own length"),
        ("unit", "at length 1"),
        ("row", "between attention rows"),
    ):
        rows = arcs.filter(pl.col("quantity") == name, pl.col("ratio").is_not_null())
        if rows.height:
            ratio, misfit = (float(np.median(rows[column].to_numpy())) for column in ("ratio", "law_misfit"))
            beyond = rows.filter((pl.col("ratio_low") > 1) | (pl.col("ratio_high") < 1)).height
            tested = rows.filter(pl.col("ratio_low").is_not_null()).height
            size = detectable_effect(rows, ("ratio_low", "ratio_high"))
            judged = (
                ""
                if size is None
                else f" (the intervals of {beyond} of {tested} leave 1 out, by chance one in twenty; one test detects "
                f"{_percent(size)} in four of five texts)"
            )
            clauses.append(
                f"{words} it starts at {ratio:.2f} times the law{judged} and strays from it by {_percent(misfit)}"
            )
    if not clauses:
        return ""
    residual, line = (median(arcs, "input", column) for column in ("sinusoid", "line"))
    return (
        f"Divergence along arcs against B(1 − cos): {'; '.join(clauses)} (medians). A single curve is a sinusoid "
        f"within {_percent(residual)} of its range, where a straight line would be one within {_percent(line)}."
    )
