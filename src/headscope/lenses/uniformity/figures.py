"""The pictures of the lens `uniformity`."""

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl

from headscope.core import Curves, Series
from headscope.core.figure import Array, Role
from headscope.lenses.lens import AS_IS
from headscope.lenses.uniformity.rates import ATTENTION_ALONE, INITIALISED, VARIANTS, WITHOUT_MLP

# Factors per layer whose lines are drawn in the plane of skip strength and operator norm.
LEVELS = (0.9, 0.7, 0.5, 0.3, 0.1)


def figures(tables: Mapping[str, pl.DataFrame]) -> tuple[Curves, ...]:
    """Similarity, what is left of the differences, effective rank, rates, and the plane of the layers."""
    streams, rates = tables["streams"], tables["rates"]
    candidates = [
        Curves(
            "cosine",
            "How alike tokens are, by layer",
            "Mean cosine of two tokens of a window, with 95 % intervals over windows, in the stream that enters each "
            "layer; the last point is what leaves the last one. Independent tokens would be at 0, equal ones at 1. "
            "Dotted: the same model freshly initialised.",
            "layer",
            "mean cosine",
            tuple(_courses(streams, "mean_cosine")),
        ),
        Curves(
            "differences",
            "What is left of the differences between tokens",
            "The share of the tokens' length that distinguishes them, |X − 1x̄ᵀ| / |X|, on a logarithmic axis: a "
            "straight line falls by the same factor in every layer, a bent one ever faster. Values that can be "
            "rounding are left out: a line ends there.",
            "layer",
            "share that distinguishes tokens",
            tuple(_courses(streams, "residual_share")),
            log_y=True,
        ),
        Curves(
            "rank",
            "How many directions the tokens of a window use",
            "Effective rank (exponential of the entropy of the squared singular values) of up to "
            f"{_most(streams)} tokens scaled to length 1. Equal tokens have rank 1; independent ones would have "
            f"{_isotropic(streams):.3g}.",
            "layer",
            "effective rank",
            tuple(_courses(streams, "effective_rank")),
            log_y=True,
        ),
        Curves(
            "rates",
            "What a layer does to the differences, measured and predicted",
            "Factor of the differences in units of the common part from one layer to the next; below 1 tokens grow "
            "alike. Dashed: what averaging predicts from the shares of differences and common part that attention "
            "keeps and the typical gain of its value map, the same in every direction; feed-forward parts are not in "
            "it. Layers whose differences are rounding are left out.",
            "layer",
            "factor per layer",
            tuple(_rates(rates)),
            log_y=True,
        ),
        _plane(tables["layers"]),
    ]
    return tuple(figure for figure in candidates if figure.series)


def _most(streams: pl.DataFrame) -> int:
    rows = streams.filter(pl.col("quantity") == "effective_rank")
    return max(rows["samples"].to_list(), default=0)


def _isotropic(streams: pl.DataFrame) -> float:
    rows = streams.filter(pl.col("quantity") == "effective_rank", pl.col("null").is_not_null())
    return float(rows["null"].to_list()[0]) if rows.height else float("nan")


def _column(table: pl.DataFrame, name: str) -> Array:
    return table[name].cast(pl.Float64).fill_null(np.nan).to_numpy()


def _stacks(table: pl.DataFrame) -> list[str]:
    return list(dict.fromkeys(table["stack"].to_list()))


def _label(stack: str, name: str) -> str:
    return name if stack == "only" else f"{stack} {name}"


def _courses(table: pl.DataFrame, quantity: str) -> Iterator[Series]:
    """A quantity over the layers of each stack, variant by variant."""
    for stack in _stacks(table):
        for variant in VARIANTS:
            rows = table.filter(
                pl.col("quantity") == quantity,
                pl.col("variant") == variant,
                pl.col("stack") == stack,
                pl.col("value").is_not_null(),
            )
            if rows.is_empty():
                continue
            role: Role = "null" if variant == INITIALISED else "measured"
            bare = role == "null" or rows["low"].null_count() == rows.height
            low, high = (None, None) if bare else _band(rows, positive=quantity != "mean_cosine")
            yield Series(_label(stack, variant), _column(rows, "layer"), _column(rows, "value"), low, high, role=role)


def _band(rows: pl.DataFrame, positive: bool) -> tuple[Array, Array]:
    """The interval; an end that reaches 0 on a logarithmic axis, or passes a cosine of 1, is cut off."""
    low, high = _column(rows, "low"), _column(rows, "high")
    if positive:
        return np.fmax(low, 0.2 * _column(rows, "value")), high
    return low, np.fmin(high, 1.0)


def _rates(table: pl.DataFrame) -> Iterator[Series]:
    """Measured and predicted factors of the variants that the theory is about."""
    for stack in _stacks(table):
        for variant in (AS_IS, WITHOUT_MLP, ATTENTION_ALONE):
            rows = table.filter(
                pl.col("quantity") == "factor",
                pl.col("variant") == variant,
                pl.col("stack") == stack,
                pl.col("predicted").is_not_null(),
            )
            if not rows.is_empty():
                x = _column(rows, "layer")
                yield Series(_label(stack, variant), x, _column(rows, "value"))
                yield Series(_label(stack, f"{variant}, predicted"), x, _column(rows, "predicted"), role="theory")


def _plane(table: pl.DataFrame) -> Curves:
    """The layers in the plane of skip strength and operator norm, over lines of equal predicted factor."""
    points = {name: _column(table.filter(pl.col("quantity") == name), "value") for name in ("skip_share", "stretch")}
    series: list[Series] = []
    if len(points["stretch"]):
        top, bottom = 2.0 * float(points["stretch"].max()), 0.5
        share = np.linspace(0.02, 0.99, 195)
        for level in LEVELS:
            v = share / (1 - share) * np.sqrt(1 / level**2 - 1)
            inside = (v >= bottom) & (v <= top)
            if inside.any():
                series.append(
                    Series("equal factor: 0.9 (right) to 0.1 (left)", share[inside], v[inside], role="theory")
                )
        null = _column(table.filter(pl.col("quantity") == "stretch"), "null")
        series.append(
            Series("random value maps", np.array([0.02, 0.99]), np.full(2, float(np.median(null))), role="null")
        )
        for stack in _stacks(table):
            stack_rows = table.filter(pl.col("stack") == stack)
            x, y = (
                _column(stack_rows.filter(pl.col("quantity") == name), "value") for name in ("skip_share", "stretch")
            )
            order = np.argsort(x, kind="stable")
            series.append(Series(_label(stack, "layers"), x[order], y[order], points=True))
    return Curves(
        "phases",
        "Skip strength and operator norm of the layers, and how fast tokens can become one there",
        "Each point is a layer. Across: the skip connection's share, 1/(1 + g), where g is what the layer's value map "
        "(the sum of its heads' W_OV, behind the norm) makes of a typical vector of the stream: 1 is all skip, 0 none. "
        "Up: the operator norm of that map scaled to a typical gain of 1; random maps lie on the dotted line. Dashed, "
        "from the right to the left: lines on which the differences shrink by 0.9, 0.7, 0.5, 0.3 and 0.1 of the common "
        "part per layer where attention is flat and the common part lies along the map's strongest direction, the "
        "fastest that averaging can be. At height 1 it lies along a typical one.",
        "share of the skip connection",
        "operator norm / typical gain",
        tuple(series),
        log_y=True,
    )
