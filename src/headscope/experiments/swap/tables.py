"""The tables of a swap: quality and speed for each length, the mechanism of each head, the plans that were measured."""

import math
import statistics
from collections.abc import Mapping, Sequence

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from headscope.attention.mechanism_spelling import spelled
from headscope.core import HeadQuantity, Site
from headscope.experiments.swap.candidates import computed_pairs, full_pairs
from headscope.experiments.swap.decoding import Decoding
from headscope.experiments.swap.plan_cost import cached_share, forward_flops, plan_pairs
from headscope.experiments.swap.quality import Quality
from headscope.experiments.swap.recall import ABLE, Recall
from headscope.experiments.swap.search import Search
from headscope.experiments.swap.speed import Speed
from headscope.experiments.swap.yardstick import Loss
from headscope.lenses.shared.plots import place
from headscope.maths.resampling.clustered_mean import Estimate, clustered_mean
from headscope.model.model import Model
from headscope.model.plans.plan import Plan

_FLOAT, _WORD, _COUNT = pl.Float64, pl.String, pl.Int64


def quality_table(by_length: Mapping[int, Quality], repaired: Mapping[int, Quality] | None = None) -> pl.DataFrame:
    """Rows for the original, the plan and the repaired plan at each length."""
    rows: list[dict[str, object]] = []
    for length, measured in by_length.items():
        original = math.exp(float(measured.original_nats.sum() / measured.tokens.sum()))
        windows = len(measured.tokens)
        rows.append({"tokens": length, "which": "original", "perplexity": original, "windows": windows})
        rows.append({"tokens": length, "which": "plan", **_measured(measured)})
        if repaired:
            rows.append({"tokens": length, "which": "repaired", **_measured(repaired[length])})
    numbers = [f"{name}{end}" for name in ("ratio", "kl", "agreement") for end in ("", "_low", "_high")]
    schema = {"tokens": _COUNT, "which": _WORD, "perplexity": _FLOAT, **dict.fromkeys(numbers, _FLOAT)}
    return pl.DataFrame(rows, schema={**schema, "windows": _COUNT})


def _measured(measured: Quality) -> dict[str, object]:
    """The columns of a plan at one length."""
    row: dict[str, object] = {"perplexity": measured.perplexity, "windows": len(measured.tokens)}
    row |= interval_columns("ratio", measured.ratio)
    if measured.kl is not None and measured.agreeing is not None:
        row |= interval_columns("kl", measured.mean(measured.kl))
        row |= interval_columns("agreement", measured.mean(measured.agreeing))
    return row


def speed_table(speeds: Sequence[Speed]) -> pl.DataFrame:
    """A row for the original and one for the plan at each length."""
    rows: list[dict[str, object]] = []
    for speed in speeds:
        rows.append(
            {
                "tokens": speed.n,
                "which": "original",
                "seconds": statistics.median(speed.original_seconds),
                "peak_bytes": speed.original_bytes,
                "turns": len(speed.seconds),
            }
        )
        least, most = speed.range
        rows.append(
            {
                "tokens": speed.n,
                "which": "plan",
                "seconds": statistics.median(speed.seconds),
                "speedup": speed.ratio,
                "speedup_least": least,
                "speedup_most": most,
                "peak_bytes": speed.bytes,
                "turns": len(speed.seconds),
            }
        )
    schema = {"tokens": _COUNT, "which": _WORD, "seconds": _FLOAT, "speedup": _FLOAT, "speedup_least": _FLOAT}
    return pl.DataFrame(rows, schema={**schema, "speedup_most": _FLOAT, "peak_bytes": _COUNT, "turns": _COUNT})


def decoding_table(measured: Sequence[Decoding]) -> pl.DataFrame:
    """A row for the original and one for the plan at each length."""
    rows: list[dict[str, object]] = []
    for decoding in measured:
        least, most = decoding.range
        shared = {"tokens": decoding.n, "steps": decoding.steps, "turns": len(decoding.speeds)}
        speeds = statistics.median(decoding.original_speeds), statistics.median(decoding.speeds)
        original = {"which": "original", "cache_bytes": decoding.original_bytes, "tokens_per_second": speeds[0]}
        plan = {"which": "plan", "cache_bytes": decoding.bytes, "tokens_per_second": speeds[1]}
        smaller = {"cache_share": decoding.bytes / decoding.original_bytes}
        faster = {"faster": decoding.ratio, "faster_least": least, "faster_most": most}
        rows += [shared | original, shared | plan | smaller | faster]
    schema = {"tokens": _COUNT, "which": _WORD, "cache_bytes": _COUNT, "cache_share": _FLOAT}
    speeds_schema = dict.fromkeys(("tokens_per_second", "faster", "faster_least", "faster_most"), _FLOAT)
    return pl.DataFrame(rows, schema={**schema, **speeds_schema, "steps": _COUNT, "turns": _COUNT})


def heads_table(
    sites: Sequence[Site], heads_by_mechanism: Mapping[str, Mapping[Site, Sequence[int]]], n: int
) -> pl.DataFrame:
    """A row per head: its mechanism, and the pairs that it computes at n tokens over the original's."""
    mechanism_of: dict[tuple[Site, int], str] = {}
    share_of: dict[tuple[Site, int], float] = {}
    for spelling, heads_by_site in heads_by_mechanism.items():
        mechanism = spelled(spelling)
        for site, heads in heads_by_site.items():
            share = computed_pairs(mechanism, site, n) / full_pairs(site, n)
            mechanism_of |= dict.fromkeys([(site, head) for head in heads], spelling)
            share_of |= dict.fromkeys([(site, head) for head in heads], share)
    rows = [
        {
            **place(site, head),
            "mechanism": mechanism_of.get((site, head), "original"),
            "share": share_of.get((site, head), 1.0),
        }
        for site in sites
        for head in range(site.n_heads)
    ]
    schema = {"stack": _WORD, "kind": _WORD, "layer": _COUNT, "head": _COUNT, "mechanism": _WORD, "share": _FLOAT}
    return pl.DataFrame(rows, schema=schema)


def embedding_table(by_length: Mapping[int, Float[Tensor, " windows"]]) -> pl.DataFrame:
    """A row for the plan at each length: how near its embeddings are to the original's."""
    rows = [
        {
            "tokens": length,
            "which": "plan",
            **interval_columns("cosine", clustered_mean(cosines, torch.ones_like(cosines))),
            "cosine_least": float(cosines.min()),
            "windows": len(cosines),
        }
        for length, cosines in by_length.items()
    ]
    numbers = dict.fromkeys(("cosine", "cosine_low", "cosine_high", "cosine_least"), _FLOAT)
    return pl.DataFrame(rows, schema={"tokens": _COUNT, "which": _WORD, **numbers, "windows": _COUNT})


def frontier_table(search: Search, model: Model) -> pl.DataFrame:
    """A row for every plan, length and text that the search measured: predicted cost, measured time, quality."""
    rows = [
        {
            "replaced": tried.steps,
            "tokens": tried.tokens,
            "text": tried.text,
            "share": plan_pairs(Plan(tried.rules), model.sites, tried.tokens)
            / plan_pairs(Plan({}), model.sites, tried.tokens),
            "flops": forward_flops(model, Plan(tried.rules), tried.tokens)
            / forward_flops(model, Plan({}), tried.tokens),
            "cached": cached_share(Plan(tried.rules), model.sites, tried.tokens),
            "speedup": tried.speedup,
            **interval_columns("loss", tried.loss),
            "windows": tried.windows,
            "recall_lost": search.recall_lost.get(tried.steps),
            "within": tried.within,
        }
        for tried in sorted(search.tried, key=lambda tried: (tried.steps, tried.tokens, tried.text))
    ]
    floats = ("share", "flops", "cached", "speedup", "loss", "loss_low", "loss_high")
    schema = {"replaced": _COUNT, "tokens": _COUNT, "text": _WORD, **dict.fromkeys(floats, _FLOAT), "windows": _COUNT}
    return pl.DataFrame(rows, schema={**schema, "recall_lost": _FLOAT, "within": pl.Boolean})


def recall_table(outcomes: Sequence[Recall]) -> pl.DataFrame:
    """A row per length, task and depth: the trials, and how many each way got right.

    `counts` is false for a task that the original solves in less than `ABLE` of its trials at that length.
    """
    able = {
        (n, task): sum(row.original for row in of_task) >= ABLE * sum(row.trials for row in of_task)
        for (n, task) in {(row.n, row.task) for row in outcomes}
        for of_task in [[row for row in outcomes if (row.n, row.task) == (n, task)]]
    }
    rows = [
        {
            "tokens": row.n,
            "task": row.task,
            "depth": row.depth,
            "trials": row.trials,
            "original": row.original,
            "plan": row.plan,
            "counts": able[row.n, row.task],
        }
        for row in outcomes
    ]
    schema = {"tokens": _COUNT, "task": _WORD, "depth": _FLOAT, "trials": _COUNT, "original": _COUNT, "plan": _COUNT}
    return pl.DataFrame(rows, schema={**schema, "counts": pl.Boolean})


def head_quantities() -> tuple[HeadQuantity, ...]:
    """What a grid of heads can show."""
    return (
        HeadQuantity(
            key="share",
            label="pairs computed by the plan",
            table="heads",
            column="share",
            unit="share",
            notable="low",
            lowest="cheapest",
        ),
    )


def interval_columns(name: str, estimate: Estimate | Loss) -> dict[str, float | None]:
    """A value and its interval, with None for an end that one window does not give."""
    ends = {name: estimate.mean, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
    return {column: end if math.isfinite(end) else None for column, end in ends.items()}
