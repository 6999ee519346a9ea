"""The tables of an intervention: a row per state of the model, per head, per matrix, per text."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, isfinite, nan, sqrt
from typing import Literal

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from headscope.core import HeadQuantity, Site
from headscope.experiments.intervene.change_spelling import Change
from headscope.experiments.intervene.changes import Touched
from headscope.experiments.intervene.effects import Effects, Heads
from headscope.experiments.intervene.writing import Writing
from headscope.lenses.focus.lens import State as FocusState
from headscope.lenses.focus.lens import quantities as focus_quantities
from headscope.lenses.shared.plots import place
from headscope.maths.resampling.clustered_mean import Estimate, clustered_mean, exponential

# Quantities of the lens `focus` and what they are called here.
ROWS = {"entropy_share": "entropy_share", "effective_keys": "keys", "diagonal": "self", "first": "first"}
_POSITIONAL = ("diagonal", "distance")
StateName = Literal["original", "change", "control"]


@dataclass(frozen=True)
class Variant:
    """One state of the model: the original, a change, or the control of a change."""

    state: StateName
    change: Change | None
    effects: Effects
    touched: Sequence[Touched] = ()
    draws: Sequence[Effects] = ()  # of a control: what each draw showed

    @property
    def label(self) -> str:
        """The change as it is written."""
        return "original" if self.change is None else self.change.label


def effects_table(variants: Sequence[Variant], heads: Heads) -> pl.DataFrame:
    """A row per state; the original first. Intervals are 95 %, over windows of text (or sentences)."""
    original = variants[0].effects
    rows: list[dict[str, object]] = [
        {"change": variant.label, "which": variant.state, **_row(variant, original, heads), **_draws(variant, original)}
        for variant in variants
    ]
    # An interval stays where its mean is, also where one window gives none.
    means = [(name, re.sub("_(low|high|least|most)$", "", name)) for name in _ORDER]
    present = [name for name, mean in means if any(row.get(mean) is not None for row in rows)]
    if all(row[name] in (None, 1.0) for row in rows for name in COSTS):
        present = [name for name in present if name not in COSTS]
    words = {"change": pl.String, "which": pl.String}
    return pl.DataFrame(rows, schema=words | dict.fromkeys(present, pl.Float64))


COSTS = ("numbers", "flops")
_MAIN = ("perplexity", "ratio", "kl", "cosine", "found", "moved", *ROWS.values())
_ORDER = (
    "perplexity", "ratio", "ratio_low", "ratio_high", "kl", "cosine", "cosine_low", "cosine_high", "found", "numbers",
    "flops", "moved", "entropy_share", "keys", "self", "first", "size",
    *(f"{name}_{end}" for name in _MAIN for end in ("low", "high") if name not in ("ratio", "cosine")),
    "self_uniform", "first_uniform", "keys_uniform",
    *(f"{name}_{end}" for name in ("perplexity", "ratio", "kl", "cosine") for end in ("least", "most")), "draws",
)  # fmt: skip


def _draws(variant: Variant, original: Effects) -> dict[str, float | None]:
    """The least and the most of what the draws of a control showed, and how many they are."""
    if not variant.draws:
        return {}
    by_name: dict[str, list[float]] = {}
    for draw in variant.draws:
        if draw.predictions is not None and original.predictions is not None:
            now, before = draw.predictions, original.predictions
            total = float(now.tokens.sum())
            numbers = {
                "perplexity": exp(min(float(now.nats.sum()) / total, 700.0)),
                "ratio": exp(min(float((now.nats - before.nats).sum()) / total, 700.0)),
                "kl": float(now.kl.sum()) / total,
            }
        else:
            numbers = {"cosine": float(draw.embedded.cosine.mean())} if draw.embedded is not None else {}
        for name, number in numbers.items():
            by_name.setdefault(name, []).append(number)
    ends = {f"{name}_least": min(values) for name, values in by_name.items()}
    ends |= {f"{name}_most": max(values) for name, values in by_name.items()}
    return {**ends, "draws": float(len(variant.draws))}


def _row(variant: Variant, original: Effects, heads: Heads) -> dict[str, float | None]:
    effects, is_original = variant.effects, variant.state == "original"
    estimates: dict[str, Estimate] = {}
    ranges: dict[str, tuple[float, float]] = {}
    if effects.predictions is not None and original.predictions is not None:
        now, before = effects.predictions, original.predictions
        estimates["perplexity"] = exponential(clustered_mean(now.nats, now.tokens))
        if not is_original:
            estimates["ratio"] = exponential(clustered_mean(now.nats - before.nats, now.tokens))
            estimates["kl"] = clustered_mean(now.kl, now.tokens)
    if effects.embedded is not None and not is_original:
        ones = torch.ones(len(effects.embedded.cosine), dtype=torch.float64)
        estimates["cosine"] = clustered_mean(effects.embedded.cosine, ones)
        estimates["found"] = clustered_mean(effects.embedded.is_nearest.double(), ones)
        ranges |= {"cosine": (-1.0, 1.0), "found": (0.0, 1.0)}
    if not is_original:
        estimates["moved"] = _moved(effects, heads)
    uniform: dict[str, float | None] = {}
    for quantity, name in ROWS.items():
        of_rows = rows_mean(effects.rows, heads, quantity)
        if of_rows is not None:
            estimates[name], uniform[f"{name}_uniform"] = of_rows
    ranges |= {name: (0.0, 1.0) for name in ("moved", "entropy_share", "self", "first")}
    row: dict[str, float | None] = {}
    for name, estimate in estimates.items():
        low, high = ranges.get(name, (0.0, inf))
        row |= {name: _finite(estimate.mean), f"{name}_low": _finite(estimate.low, low, high)}
        row |= {f"{name}_high": _finite(estimate.high, low, high)}
    size = sqrt(sum(touched.change_norm**2 for touched in variant.touched))
    of = sqrt(sum(touched.norm**2 for touched in variant.touched))
    listed = {name: value for name, value in uniform.items() if name in _ORDER}
    return row | listed | {"size": size / of if of > 0 else None} | _costs(variant)


def _costs(variant: Variant) -> dict[str, float | None]:
    """What the chosen matrices cost, over what they cost without the change."""
    touched = variant.touched
    size = sum(rows * columns for rows, columns in (matrix.shape for matrix in touched))
    if not size:
        return dict.fromkeys(COSTS, 1.0 if variant.state == "original" else None)
    numbers, flops = (sum(getattr(matrix.cost, name) for matrix in touched) for name in COSTS)
    return {"numbers": numbers / size, "flops": flops / (2 * size)}


def _finite(x: float, low: float = -inf, high: float = inf) -> float | None:
    """A number in its range; None where there is none."""
    return min(max(x, low), high) if isfinite(x) else None


def _moved(effects: Effects, heads: Heads) -> Estimate:
    parts = [effects.moved[site][:, list(site_heads)] for site, site_heads in heads.items() if site in effects.moved]
    moved = torch.cat(parts, dim=1)
    return clustered_mean(moved.sum(1), torch.full((len(moved),), float(moved.shape[1]), dtype=torch.float64))


def rows_mean(state: FocusState, heads: Heads, quantity: str) -> tuple[Estimate, float] | None:
    """The mean of a quantity over all rows of these heads, and the same for uniform attention."""
    sums, counts, uniform = [], [], []
    for site, site_heads in heads.items():
        if site not in state.seen or (site.kind == "cross" and quantity in _POSITIONAL):
            continue
        index = focus_quantities(state.params, site).index(quantity)
        parts = state.seen[site]
        head_list = list(site_heads)
        sums.append(torch.cat([part.measured[:, index, head_list] for part in parts]).sum(1))
        uniform.append(torch.cat([part.uniform[:, index, head_list] for part in parts]).sum(1))
        counts.append(torch.cat([part.rows[:, head_list] for part in parts]).sum(1))
    if not sums or not float(torch.stack(counts).sum()):
        return None
    total = torch.stack(counts).sum(0)
    estimate = clustered_mean(torch.stack(sums).sum(0), total)
    return estimate, float(torch.stack(uniform).sum() / total.sum())


def heads_table(variants: Sequence[Variant], sites: Sequence[Site], changed: Heads) -> pl.DataFrame:
    """A row per head and state: means over all rows of all windows."""
    rows: list[dict[str, object]] = []
    for variant in variants:
        for site in sites:
            means = {name: _by_head(variant.effects.rows, site, quantity) for quantity, name in ROWS.items()}
            means["distance"] = _by_head(variant.effects.rows, site, "distance")
            means["moved"] = None
            if site in variant.effects.moved and variant.state != "original":
                moved = variant.effects.moved[site].double()
                means["moved"] = _ends(moved, torch.ones_like(moved))
            for head in range(site.n_heads):
                numbers: dict[str, float | None] = {}
                for name, ends in means.items():
                    for row, suffix in enumerate(("", "_low", "_high")):
                        numbers[name + suffix] = None if ends is None else _finite(float(ends[row, head]))
                is_changed = variant.state != "original" and head in changed.get(site, ())
                labels = {"change": variant.label, "which": variant.state, "is_changed": is_changed}
                rows.append({**labels, **place(site, head), **numbers})
    schema: dict[str, type[pl.DataType]] = {"change": pl.String, "which": pl.String, "stack": pl.String}
    schema |= {"kind": pl.String, "layer": pl.Int64, "head": pl.Int64, "is_changed": pl.Boolean}
    names = (*ROWS.values(), "distance", "moved")
    schema |= dict.fromkeys((*names, *(f"{name}_{end}" for name in names for end in ("low", "high"))), pl.Float64)
    return pl.DataFrame(rows, schema=schema)


# Changes that a grid of heads offers, in the order in which they were given.
SHOWN_CHANGES = 6


def head_quantities(heads: pl.DataFrame) -> tuple[HeadQuantity, ...]:
    """For each of the first changes, how much of a head's attention it moves."""
    changed = heads.filter(pl.col("which") == "change", pl.col("moved").is_not_null())
    return tuple(
        HeadQuantity(
            key=f"moved {change}",
            label=f"attention moved by {change}",
            table="heads",
            column="moved",
            where={"change": change, "which": "change"},
            unit="share",
        )
        for change in changed["change"].unique(maintain_order=True).to_list()[:SHOWN_CHANGES]
    )


def _ends(sums: Float[Tensor, "windows heads"], counts: Float[Tensor, "windows heads"]) -> Float[Tensor, "3 heads"]:
    """Means of all heads, and both ends of their 95 % intervals over windows."""
    nothing = Estimate(nan, nan, nan)
    ends = [clustered_mean(s, n) if bool((n > 0).any()) else nothing for s, n in zip(sums.T, counts.T, strict=True)]
    return torch.tensor([[end.mean, end.low, end.high] for end in ends], dtype=torch.float64).T


def _by_head(state: FocusState, site: Site, quantity: str) -> Float[Tensor, "3 heads"] | None:
    if site not in state.seen or (site.kind == "cross" and quantity in _POSITIONAL):
        return None
    index = focus_quantities(state.params, site).index(quantity)
    sums = torch.cat([part.measured[:, index] for part in state.seen[site]])
    return _ends(sums, torch.cat([part.rows for part in state.seen[site]]))


def matrices_table(variants: Sequence[Variant]) -> pl.DataFrame:
    """A row per changed matrix and state: its size, and the size of the change and of its control."""
    rows = [
        {
            "change": variant.label,
            "which": variant.state,
            **place(touched.site, None),
            "matrix": f"W_{touched.letter.upper()}",
            "heads": ", ".join(map(str, touched.heads)),
            "rows": touched.shape[0],
            "columns": touched.shape[1],
            "norm": touched.norm,
            "change_norm": touched.change_norm,
            "kept": touched.n_kept,
            "numbers": touched.cost.numbers,
            "flops": touched.cost.flops,
        }
        for variant in variants
        for touched in variant.touched
    ]
    return pl.DataFrame(rows, schema_overrides={"head": pl.Int64})


def texts_table(
    variants: Sequence[Variant], writings: Sequence[Sequence[Writing]], references: Mapping[str, float]
) -> pl.DataFrame:
    """A row per prompt and state: what was written, and what it is like."""
    rows = [
        {
            "prompt": writing.prompt,
            "change": variant.label,
            "which": variant.state,
            "text": writing.text.replace("\n", "↵"),
            "tokens": writing.n_tokens,
            "surprise": writing.surprise,
            "copied": writing.copied,
            "repeated": writing.repeated,
            **references,
        }
        for of_prompt in zip(*writings, strict=True)
        for variant, writing in zip(variants, of_prompt, strict=True)
    ]
    numbers = ("surprise", "copied", "repeated", *references)
    return pl.DataFrame(rows, schema_overrides=dict.fromkeys(numbers, pl.Float64))
