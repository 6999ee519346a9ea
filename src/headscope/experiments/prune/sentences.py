"""What pruning showed, in sentences made of its numbers."""

from collections.abc import Mapping
from typing import Any

import polars as pl

from headscope.core import Headline
from headscope.experiments.prune.curve import RANDOM
from headscope.experiments.prune.settings import BUDGETS, Off
from headscope.lenses.shared.effects import clear_effect, correlation_effect, share_effect
from headscope.lenses.shared.plots import label_of

Row = dict[str, Any]
_TOP = 10  # the part of the heads whose share of the importance is told
_CRITERIA = {
    "zero": "ablation to zero",
    "mean": "ablation to the mean",
    "gradient": "the gradient",
    "curvature": "the gradient to second order",
}


def headlines(tables: Mapping[str, pl.DataFrame], off: Off, text_name: str) -> tuple[Headline, ...]:
    """How many heads can go, which head matters most, and whether gradients tell."""
    return (
        _spared(tables["spared"], tables["curve"], off, text_name),
        _concentration(tables["heads"], off),
        _likeness(tables["correlations"], off),
    )


def _spared(spared: pl.DataFrame, curve: pl.DataFrame, off: Off, text_name: str) -> Headline:
    rows = {(row["order"], row["budget"], row["by"]): row for row in spared.iter_rows(named=True)}
    orders = spared["order"].unique(maintain_order=True).to_list()
    windows, draws = curve["windows"][0], curve.filter(pl.col("order") == RANDOM)["draws"][0]
    row, budget = rows[off.value, BUDGETS[-1], "estimate"], _percent(BUDGETS[-1])
    surely = rows[off.value, BUDGETS[-1], "upper end"]["spared"]
    other_orders = ", ".join(
        f"{_CRITERIA[order]} {rows[order, BUDGETS[-1], 'estimate']['spared']}" for order in orders if order != off.value
    )
    full = (
        f"By {_CRITERIA[off.value]}, {row['spared']} of {row['heads']} heads can be switched off together "
        f"({_gives(off)}) within {budget} of the perplexity on {text_name}, and {surely} by the upper end "
        f"of the 95 % interval over {windows} windows. "
        f"At random {row['random']} can, in the mean of {draws} order{'' if draws == 1 else 's'}. "
        f"Other orders: {other_orders}."
    )
    return Headline(
        full=full,
        short=f"{row['spared']} of {row['heads']} heads can go within {budget} of the perplexity, at random "
        f"{row['random']}.",
        effect=share_effect(row["spared"] / row["heads"], row["random"] / row["heads"]),
        answer=f"heads that can go within {budget}",
        value=f"{row['spared']} of {row['heads']}",
        null=f"{row['random']} at random",
        figure="curve",
    )


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


def _gives(off: Off) -> str:
    return "each gives zero" if off is Off.ZERO else "each gives its mean"


def _concentration(heads: pl.DataFrame, off: Off) -> Headline:
    """Which head matters most, and how much of all importance the first tenth of the heads has."""
    ordered = heads.sort(f"{off.value}_rank").to_dicts()
    values = [max(row[off.value], 0.0) for row in ordered]
    n_top, total = max(1, len(values) // _TOP), sum(values)
    first, median = ordered[0], values[len(values) // 2]
    interval = "" if first[f"{off.value}_low"] is None else (
        f", 95 % interval {first[f'{off.value}_low']:.2g} to {first[f'{off.value}_high']:.2g}"
    )  # fmt: skip
    share = sum(values[:n_top]) / total if total > 0 else n_top / len(values)
    equal = n_top / len(values)
    windows = f"{first['windows']} windows"
    return Headline(
        full=f"Switched off alone ({_gives(off)}), {label_of(first)} moves the predictions most: by "
        f"{values[0]:.2g} nats per token ({windows}{interval}); the median head by {median:.2g}. The {n_top} most "
        f"important of {len(values)} heads have {100 * share:.0f} % of the importance of all; equal heads would have "
        f"{100 * equal:.0f} %.",
        short=f"A tenth of the heads has {100 * share:.0f} % of the importance; of equal heads {100 * equal:.0f} %.",
        effect=share_effect(share, equal),
        answer="importance of the first tenth of the heads",
        value=f"{100 * share:.0f} %",
        null=f"{100 * equal:.0f} %",
        figure=f"importance_{off.value}",
    )


def _likeness(correlations: pl.DataFrame, off: Off) -> Headline:
    """Whether gradients order the heads as ablation does."""
    rows = {row["first"] + row["second"]: row for row in correlations.iter_rows(named=True)}
    parts = [
        f"{rows[off.value + name]['correlation']:.2f}{_interval(rows[off.value + name])} for {_CRITERIA[name]}"
        for name in ("gradient", "curvature")
    ]
    ways = rows["zeromean"]
    row = rows[f"{off.value}gradient"]
    effect = clear_effect(correlation_effect(row["correlation"]), row["correlation_low"], row["correlation_high"])
    return Headline(
        full=f"Rank correlation over {row['heads']} heads with {_CRITERIA[off.value]}, over {row['windows']} windows: "
        f"{' and '.join(parts)}; of the two ablations {ways['correlation']:.2f}{_interval(ways)}. 0 is chance.",
        short=f"Gradients order the heads with a rank correlation of {row['correlation']:.2f} to ablation; chance "
        "gives 0.",
        effect=effect,
        answer="rank correlation of gradient and ablation",
        value=f"{row['correlation']:.2f}",
        null="0",
    )


def _interval(row: Row) -> str:
    low, high = row["correlation_low"], row["correlation_high"]
    return "" if low is None or high is None else f" (95 % interval {low:.2f} to {high:.2f})"
