"""The tables of pruning: perplexity with heads off, importance of each head, heads that can go, rank correlations."""

import math
from collections.abc import Mapping, Sequence

import polars as pl

from headscope.core import HeadQuantity
from headscope.experiments.prune.curve import RANDOM, Curves, spared
from headscope.experiments.prune.importance import Importance
from headscope.experiments.prune.settings import BUDGETS
from headscope.lenses.shared.plots import place
from headscope.maths.resampling.clustered_mean import Estimate

_FLOAT, _WORD, _COUNT = pl.Float64, pl.String, pl.Int64
Schema = dict[str, type[pl.DataType]]


def curve_table(curves: Curves, heads: int) -> pl.DataFrame:
    """A row for each order and number of heads that are off; random orders share their rows."""
    rows: list[dict[str, object]] = []
    for order, points in curves.items():
        for point in points:
            draws = [draw.ratio.mean for draw in point.draws]
            row: dict[str, object] = {"order": order, "off": point.count, "share": point.count / heads}
            row |= {"perplexity": point.quality.perplexity, **_ends("ratio", point.quality.ratio)}
            if draws:
                row |= {"ratio_least": min(draws), "ratio_most": max(draws), "draws": len(draws)}
            rows.append(row | {"windows": len(point.quality.tokens)})
    numbers = ("share", "perplexity", "ratio", "ratio_low", "ratio_high", "ratio_least", "ratio_most")
    schema: Schema = {"order": _WORD, "off": _COUNT, **dict.fromkeys(numbers, _FLOAT)}
    return pl.DataFrame(rows, schema={**schema, "draws": _COUNT, "windows": _COUNT})


def heads_table(importance: Importance) -> pl.DataFrame:
    """A row per head: its importance by every criterion, and its rank among all heads."""
    names = [*importance.by_criterion, *importance.rises]
    estimates = {name: importance.estimates(name) for name in names}
    ranks = {name: _ranks(importance.order(name)) for name in importance.by_criterion}
    windows = len(next(iter(importance.by_criterion.values())))
    rows = [
        {
            **place(site, head),
            **{end: value for name in names for end, value in _ends(name, estimates[name][number]).items()},
            **{f"{name}_rank": ranks[name][number] for name in ranks},
            "windows": windows,
        }
        for number, (site, head) in enumerate(importance.heads)
    ]
    schema: Schema = {"stack": _WORD, "kind": _WORD, "layer": _COUNT, "head": _COUNT}
    schema |= {f"{name}{end}": _FLOAT for name in names for end in ("", "_low", "_high")}
    return pl.DataFrame(rows, schema={**schema, **{f"{name}_rank": _COUNT for name in ranks}, "windows": _COUNT})


def _ranks(order: Sequence[int]) -> list[int]:
    """The rank of each head, 1 for the most important one."""
    ranks = [0] * len(order)
    for position, number in enumerate(order):
        ranks[number] = len(order) - position
    return ranks


def spared_table(curves: Curves, heads: int) -> pl.DataFrame:
    """A row for each order, budget and way to read it: how many heads can go, and at random."""
    rows = [
        {
            "order": order,
            "budget": budget,
            "by": "upper end" if surely else "estimate",
            **_spared("spared", spared(points, budget, surely=surely)),
            **_spared("random", spared(curves[RANDOM], budget, surely=surely)),
            "heads": heads,
        }
        for budget in BUDGETS
        for order, points in curves.items()
        if order != RANDOM
        for surely in (False, True)
    ]
    schema: Schema = {"order": _WORD, "budget": _FLOAT, "by": _WORD, "spared": _COUNT, "spared_next": _COUNT}
    return pl.DataFrame(rows, schema={**schema, "random": _COUNT, "random_next": _COUNT, "heads": _COUNT})


def _spared(name: str, numbers: tuple[int, int | None]) -> dict[str, int | None]:
    return {name: numbers[0], f"{name}_next": numbers[1]}


def correlations_table(importance: Importance) -> pl.DataFrame:
    """A row for every two criteria: how alike they order the heads."""
    windows = len(next(iter(importance.by_criterion.values())))
    rows = [
        {"first": first, "second": second, **_ends("correlation", estimate), "heads": len(importance.heads),
         "windows": windows}
        for (first, second), estimate in importance.correlations().items()
    ]  # fmt: skip
    ends = dict.fromkeys(("correlation", "correlation_low", "correlation_high"), _FLOAT)
    return pl.DataFrame(rows, schema={"first": _WORD, "second": _WORD, **ends, "heads": _COUNT, "windows": _COUNT})


def head_quantities() -> tuple[HeadQuantity, ...]:
    """What a grid of heads can show."""
    labels = {"zero": "importance, off to zero", "mean": "importance, off to its mean"}
    return tuple(
        HeadQuantity(
            key=name,
            label=label,
            table="heads",
            column=name,
            unit="nats",
            scale="log",
            highest="most important",
            lowest="least important",
        )
        for name, label in labels.items()
    )


def by_order(curve: pl.DataFrame) -> pl.DataFrame:
    """A row for each number of heads that are off, a column with the perplexity ratio of each order."""
    ratios = curve.pivot("order", index=["off", "share"], values="ratio")
    ends = curve.filter(pl.col("order") == RANDOM).select("off", least="ratio_least", most="ratio_most")
    return ratios.join(ends, on="off", how="left")


def _ends(name: str, estimate: Estimate) -> Mapping[str, float | None]:
    """A value and its interval, with None for what is not finite."""
    ends = {name: estimate.mean, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
    return {column: end if math.isfinite(end) else None for column, end in ends.items()}
