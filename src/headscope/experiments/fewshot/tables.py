"""The tables of the few-shot study. Every interval is 95 %, by drawing words again (bootstrap)."""

from collections.abc import Mapping, Sequence
from math import isfinite, log

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from headscope.core import HeadQuantity, Site
from headscope.experiments.fewshot.likelihood import Circle
from headscope.experiments.fewshot.measures import MASSES, NEAR, SHAPES, Measured, shares
from headscope.experiments.fewshot.states import Seen, Uniform
from headscope.experiments.fewshot.writing import Written
from headscope.lenses.shared.plots import place
from headscope.maths.resampling.bootstrap import bootstrap_interval

QUANTITIES = (*MASSES, "inside_share", *SHAPES, "largest")
_PLACE = {"stack": pl.String, "kind": pl.String, "layer": pl.Int64, "head": pl.Int64}
_LABELS = {
    "inside": "attention within the own shot",
    "across": "attention to other shots",
    "target": "attention of a clue to its word",
    "separators": "attention to separators",
    "context": "attention to the instructions",
    "first": "attention to the first token",
}
# What a grid of heads can show; nearness says what a word would get for its distance alone.
head_quantities = tuple(
    HeadQuantity(
        key=name,
        label=label,
        table="heads",
        where={"quantity": name},
        null="nearness" if name in NEAR else "uniform",
        unit="share",
    )
    for name, label in _LABELS.items()
)


def shots_table(
    scores: Float[Tensor, "words shots"], exchanged: Float[Tensor, "words shots"], vocabulary: int, seed: int
) -> pl.DataFrame:
    """A row per number of shots."""
    columns = {
        "log_probability": scores,
        "gain": scores - scores[:, :1],
        "exchanged": exchanged,
        "word_worth": scores - exchanged,
    }
    rows: list[dict[str, float | int | None]] = [{"shots": k} for k in range(scores.shape[1])]
    for name, values in columns.items():
        low, high = bootstrap_interval(values, seed=seed)
        for k, row in enumerate(rows):
            row |= {name: float(values[:, k].mean()), f"{name}_low": float(low[k]), f"{name}_high": float(high[k])}
    for row in rows:
        row |= {"uniform": -log(vocabulary), "words": len(scores)}
    return pl.DataFrame(rows)


def layers_table(original: Seen, uniform: Mapping[Site, Uniform], initialised: Seen | None, seed: int) -> pl.DataFrame:
    """A row per layer and quantity: means over words of the mean over heads."""
    rows: list[dict[str, object]] = []
    for site, of in original.of.items():
        value, near = _of_words(of, near=False), _of_words(of, near=True)
        null = _of_null(uniform[site])
        fresh = None if initialised is None else _of_words(initialised.of[site], near=False)
        low, high = bootstrap_interval(value, seed=seed)
        below, above = bootstrap_interval(value - near, seed=seed)
        for index, name in enumerate(QUANTITIES):
            has_near = name in (*NEAR, "inside_share")
            rows.append(
                {
                    **place(site, None),
                    "quantity": name,
                    "value": _finite(value[:, index].mean()),
                    "low": _finite(low[index]),
                    "high": _finite(high[index]),
                    "uniform": _finite(null[:, index].mean()),
                    "nearness": _finite(near[:, index].mean()) if has_near else None,
                    "beyond_low": _finite(below[index]) if has_near else None,
                    "beyond_high": _finite(above[index]) if has_near else None,
                    "initialised": None if fresh is None else _finite(fresh[:, index].mean()),
                    "words": len(of),
                }
            )
    numbers = ("value", "low", "high", "uniform", "nearness", "beyond_low", "beyond_high", "initialised")
    words = {"quantity": pl.String}
    return pl.DataFrame(rows, schema=_PLACE | words | dict.fromkeys(numbers, pl.Float64) | {"words": pl.Int64})


def _of_words(of: Sequence[Measured], *, near: bool) -> Float[Tensor, "words quantities"]:
    """Each quantity of each word; what has no value for nearness repeats the measured one."""
    mass = torch.stack([(measures.near if near else measures.masses).mean(0) for measures in of])
    shape = torch.stack([measures.shapes for measures in of])
    largest = torch.tensor([[measures.largest] for measures in of], dtype=torch.float64)
    return torch.cat([mass, shares(mass)[:, None], shape, largest], dim=1)


def _of_null(uniform: Uniform) -> Float[Tensor, "words quantities"]:
    nothing = torch.full((len(uniform.masses), 1), torch.nan, dtype=torch.float64)
    return torch.cat([uniform.masses, shares(uniform.masses)[:, None], uniform.shapes, nothing], dim=1)


def heads_table(original: Seen, uniform: Mapping[Site, Uniform]) -> pl.DataFrame:
    """A row per head and quantity: means over words."""
    rows: list[dict[str, object]] = []
    for site, of in original.of.items():
        value = torch.stack([measures.masses for measures in of]).mean(0)
        near = torch.stack([measures.near for measures in of]).mean(0)
        null = uniform[site].masses.mean(0)
        for head in range(site.n_heads):
            for index, name in enumerate(MASSES):
                has_near = name in NEAR
                numbers = {"value": _finite(value[head, index]), "uniform": _finite(null[index])}
                numbers["nearness"] = _finite(near[head, index]) if has_near else None
                rows.append({**place(site, head), "quantity": name, **numbers})
    schema = _PLACE | {"quantity": pl.String} | dict.fromkeys(("value", "uniform", "nearness"), pl.Float64)
    return pl.DataFrame(rows, schema=schema)


def clues_table(circle: Circle, written: Sequence[Written]) -> pl.DataFrame:
    """A row per word: its reference clue, and what was written after each number of shots."""
    rows: dict[str, dict[str, str]] = {}
    references = {clue.word: clue.clue for clue in circle.clues}
    for text in written:
        row = rows.setdefault(text.word, {"word": text.word, "reference": references[text.word]})
        row[_after(text.shots)] = text.clue
    return pl.DataFrame(list(rows.values()))


def _after(shots: int) -> str:
    return f"{shots} shot" if shots == 1 else f"{shots} shots"


def quality_table(circle: Circle, written: Sequence[Written]) -> pl.DataFrame:
    """A row per number of shots: what can be counted about the clues; the last row is about the reference clues."""
    rows: list[dict[str, object]] = []
    for shots in dict.fromkeys(text.shots for text in written):
        texts = [text for text in written if text.shots == shots]
        rows.append(
            {
                "which": _after(shots),
                "clues": len(texts),
                "ended": sum(text.ended for text in texts) / len(texts),
                "names_word": sum(text.names_word for text in texts) / len(texts),
                "copied": sum(text.copied for text in texts) / len(texts),
                "distinct": len({text.clue for text in texts}) / len(texts),
                "length": sum(text.n_words for text in texts) / len(texts),
            }
        )
    references = [clue.clue for clue in circle.clues]
    reference: dict[str, object] = {"which": "reference", "clues": len(references), "ended": 1.0, "names_word": 0.0}
    reference |= {
        "copied": 0.0,
        "distinct": 1.0,
        "length": sum(len(clue.split()) for clue in references) / len(references),
    }
    return pl.DataFrame([*rows, reference])


def states_table(states: Sequence[Seen], shots: int, seed: int) -> pl.DataFrame:
    """A row per state: how expected the clues are, where the mass lies, and the clue for the chosen word."""
    rows = []
    for observation in states:
        low, high = bootstrap_interval(observation.scores, seed=seed)
        most = observation.scores.shape[1] - 1
        mean = torch.stack([_of_words(of, near=False).nanmean(0) for of in observation.of.values()]).nanmean(0)
        row: dict[str, object] = {"state": observation.state.label, "clue": observation.written.clue}
        for k in dict.fromkeys((0, min(shots, most), most)):
            row |= {f"after_{k}": float(observation.scores[:, k].mean())}
            row |= {f"after_{k}_low": float(low[k]), f"after_{k}_high": float(high[k])}
        row |= {name: _finite(mean[index]) for index, name in enumerate(QUANTITIES)}
        rows.append(row | {"words": len(observation.scores)})
    return pl.DataFrame(rows)


def _finite(x: Tensor | float) -> float | None:
    value = float(x)
    return value if isfinite(value) else None
