"""The figures of the few-shot study: shots against log-probability, mass over depth, and the maps themselves."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl
import torch

from headscope.core import Curves, Figure, HeatMap, Series, Site
from headscope.core.figure import Array, Role
from headscope.experiments.fewshot.measures import content_map
from headscope.experiments.fewshot.prompt import Part, Prompt
from headscope.experiments.fewshot.states import INITIALISED, ORIGINAL, Seen
from headscope.maths.attention.block_sums import block_sums

ACROSS = 6
STATE_LAYERS = 3
_TOP = 0.98  # values above this quantile of a figure share one colour


def figures(
    states: Sequence[Seen], tables: dict[str, pl.DataFrame], word_sites: Sequence[Site], token_sites: Sequence[Site]
) -> tuple[Figure, ...]:
    """Everything that is drawn; `word_sites` are the layers drawn large by words, `token_sites` those by tokens."""
    original = states[0]
    word_maps = {site: _words(values, original.prompt) for site, values in original.maps.items()}
    parts: list[Figure] = [
        _shots(tables["shots"], states),
        *_depths(tables["layers"]),
        *(_labelled(word_maps[site], original.prompt.words, site, "word") for site in word_sites),
        *(_labelled(_tokens(original, site), _pieces(original.prompt), site, "token") for site in token_sites),
        _grid(list(word_maps.items()), len(original.prompt.words)),
    ]
    return (*parts, *([_state_grid(states, word_sites)] if len(states) > 1 else []))


def _shots(shots: pl.DataFrame, states: Sequence[Seen]) -> Curves:
    x = shots["shots"].cast(pl.Float64).to_numpy()
    series = [
        _banded("reference clue", x, shots, "log_probability"),
        replace(_banded("words exchanged", x, shots, "exchanged"), role="theory"),
    ]
    for observation in states:
        if observation.state.label != ORIGINAL:
            role: Role = "null" if observation.state.label == INITIALISED else "measured"
            series.append(Series(observation.state.label, x, observation.scores.mean(0).numpy(), role=role))
    return Curves(
        "shots",
        "How expected the reference clue is",
        "Log-probability of a clue's token, mean over words with 95 % intervals. Dashed: each clue stands behind "
        "another word, in the shots too. Without a band: other states of the model, over fewer words.",
        "shots before the word",
        "nats per token",
        tuple(series),
    )


_DEPTHS = {
    "inside_share": (
        "Own shot against earlier shots",
        "share of the own shot",
        "Of the mass that words and clues give to other words and clues, the part in their own shot. Nearness: "
        "every weight replaced by the mean of those between words and clues at the same distance.",
    ),
    "equal_distance": (
        "Own shot against an earlier one at equal distance",
        "ratio of weights",
        "How much more weight a token of the own shot gets than one in an earlier shot that is as far away; 1 where "
        "only nearness counts.",
    ),
    "target": (
        "From a clue to its word",
        "mass on the word",
        "Mass that the tokens of a clue give to the word that it is about. Nearness: other tokens of words and clues "
        "at the same distance.",
    ),
    "diagonal_words": (
        "Diagonal of the word map",
        "share of the diagonal",
        "Of a row of the map that is drawn (averaged over heads, words and clues only, sub-words summed), the part on "
        "its diagonal; the thesis calls the first and the last layers diagonal-dominant, which is more than one half.",
    ),
}


def _depths(layers: pl.DataFrame) -> list[Curves]:
    curves = [_division(layers)]
    for quantity, (title, axis, caption) in _DEPTHS.items():
        rows = layers.filter(pl.col("quantity") == quantity).sort("layer")
        x = rows["layer"].cast(pl.Float64).to_numpy()
        series = [_banded("measured", x, rows)]
        references: dict[str, Role] = {"nearness": "theory", "uniform": "null", "initialised": "null"}
        for name, role in references.items():
            y = _column(rows, name)
            if np.isfinite(y).any():
                series.append(Series(name, x, y, role=role))
        curves.append(
            Curves(
                f"depth_{quantity}",
                title,
                f"{caption} Mean over words.",
                "layer",
                axis,
                tuple(series),
                log_y=quantity == "equal_distance",
            )
        )
    return curves


def _division(layers: pl.DataFrame) -> Curves:
    series = []
    for quantity in ("inside", "across", "self", "separators", "context", "first"):
        rows = layers.filter(pl.col("quantity") == quantity).sort("layer")
        x = rows["layer"].cast(pl.Float64).to_numpy()
        series.append(_banded(quantity, x, rows))
    return Curves(
        "depth_division",
        "Where the mass of words and clues goes",
        "The six add up to 1 (but for a learned sink). Inside and across: other words and clues of the own and of "
        "earlier shots. First: the first token of all. The maps below show inside, across and self alone.",
        "layer",
        "mass",
        tuple(series),
    )


def _banded(label: str, x: Array, rows: pl.DataFrame, name: str = "") -> Series:
    """A curve with its interval, from the columns value, low, high or NAME, NAME_low, NAME_high."""
    value, low, high = (name, f"{name}_low", f"{name}_high") if name else ("value", "low", "high")
    return Series(label, x, _column(rows, value), _column(rows, low), _column(rows, high))


def _column(rows: pl.DataFrame, name: str) -> Array:
    return rows[name].cast(pl.Float64).fill_null(np.nan).to_numpy()


def _words(mean_map: torch.Tensor, prompt: Prompt) -> Array:
    words = prompt.labels.word
    return _lower(block_sums(mean_map, words, words).numpy())


def _tokens(observation: Seen, site: Site) -> Array:
    return _lower(content_map(observation.maps[site], observation.prompt.labels).numpy())


def _pieces(prompt: Prompt) -> tuple[str, ...]:
    return tuple(
        piece for piece, is_content in zip(prompt.pieces, prompt.labels.content.tolist(), strict=True) if is_content
    )


def _lower(values: Array) -> Array:
    values = values.copy()
    values[np.triu_indices(len(values), 1)] = np.nan
    return values


def _top(values: Array) -> tuple[float, float]:
    return 0.0, max(float(np.nanquantile(values, _TOP)), 1e-6)


def _labelled(values: Array, names: Sequence[str], site: Site, level: str) -> HeatMap:
    labels = tuple(f"{number + 1} {name}" for number, name in enumerate(names))
    how = "sub-words summed on both sides, so that the mass is kept" if level == "word" else "token by token"
    limits = _top(values)
    return HeatMap(
        name=f"map_{level}_{site.label}",
        title=f"Map of {site.label}, {level} level",
        caption=f"Averaged over heads; {how}. Who looks: down; at what: across. Context and separators are left out, "
        f"so that rows do not sum to 1. Values above {limits[1]:.2g} have one colour.",
        values=values,
        row_labels=labels,
        column_labels=labels,
        row_axis="from",
        column_axis="to",
        unit="weight",
        limits=limits,
    )


def _grid(maps: Sequence[tuple[Site, Array]], n: int) -> HeatMap:
    """All layers, six in a line."""
    lines = [maps[start : start + ACROSS] for start in range(0, len(maps), ACROSS)]
    wide = min(ACROSS, len(maps))
    cells: Array = np.full((len(lines) * (n + 1) - 1, wide * (n + 1) - 1), np.nan)
    for down, line in enumerate(lines):
        for across, (_, values) in enumerate(line):
            cells[down * (n + 1) :][:n, across * (n + 1) :][:, :n] = values
    limits = _top(cells)
    rows = [f"{line[0][0].label} …" for line in lines]
    return HeatMap(
        name="maps_all_layers",
        title="Word maps of all layers",
        caption=f"Line by line from left to right; each line begins with the layer at its left. One scale for all; "
        f"values above {limits[1]:.2g} have one colour.",
        values=cells,
        row_labels=_numbered(len(lines), n),
        column_labels=_numbered(wide, n),
        row_axis="from",
        column_axis="to",
        unit="weight",
        limits=limits,
        panels=(tuple(rows), tuple(f"+{number}" if number else "first" for number in range(wide))),
    )


def _state_grid(states: Sequence[Seen], word_sites: Sequence[Site]) -> HeatMap:
    """Layers down, states across; only the prompt's words, which all states share."""
    sites = (
        [word_sites[0], word_sites[len(word_sites) // 2], word_sites[-1]]
        if len(word_sites) >= STATE_LAYERS
        else list(word_sites)
    )
    common = min(_prompt_words(observation) for observation in states)
    cells: Array = np.full((len(sites) * (common + 1) - 1, len(states) * (common + 1) - 1), np.nan)
    for down, site in enumerate(sites):
        for across, observation in enumerate(states):
            values = _words(observation.maps[site], observation.prompt)[:common, :common]
            cells[down * (common + 1) :][:common, across * (common + 1) :][:, :common] = values
    limits = _top(cells)
    return HeatMap(
        name="maps_states",
        title="Word maps of the states of the model",
        caption=f"Layers down, states across; the prompt up to the target word. One scale for all; values above "
        f"{limits[1]:.2g} have one colour.",
        values=cells,
        row_labels=_numbered(len(sites), common),
        column_labels=_numbered(len(states), common),
        row_axis="from",
        column_axis="to",
        unit="weight",
        limits=limits,
        panels=(tuple(site.label for site in sites), tuple(observation.state.label for observation in states)),
    )


def _prompt_words(observation: Seen) -> int:
    """Words up to the target word itself, without the answer."""
    labels = observation.prompt.labels
    answer = (labels.shot == labels.shot.max()) & (labels.part == Part.CLUE)
    return int(labels.word[answer].min()) if bool(answer.any()) else len(observation.prompt.words)


def _numbered(count: int, n: int) -> tuple[str, ...]:
    joined = [str(number + 1) for _ in range(count) for number in (*range(n), -1)]
    return tuple("" if label == "0" else label for label in joined[:-1])
