"""The lens `maps` by its formulas, in float64; the fast path shares none of it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log

import polars as pl
from scipy import stats
from torch import Tensor

from headscope.core import Site, WeightSource
from headscope.lenses.lens import AS_IS, Batch
from headscope.lenses.maps.settings import FIRST, Params
from headscope.lenses.maps.tables import SCHEMA
from headscope.lenses.shared.table import Row

Map = list[list[float]]
# The value for equal heads (or uniform attention), and the largest possible one; None where there is none.
Bounds = Mapping[str, tuple[float | None, float | None]]


def definition(params: Params, weights: WeightSource | None, batches: Sequence[Batch]) -> dict[str, pl.DataFrame]:
    """The formulas as written, cell by cell on the stored maps, in float64."""
    places = [(batch, index) for batch in batches if batch.variant == AS_IS for index in range(len(batch.real))]
    places = places[: params.windows]
    layers: list[Row] = []
    heads: list[Row] = []
    for site in places[0][0].captures["pattern"] if places else ():
        w_o = None if weights is None else weights.weights(site).w_o.double()
        cut = (_window(params, site, batch, index, w_o) for batch, index in places)
        windows = [window for window in cut if window is not None]
        bounds = _bounds(site, windows)
        layers += _rows(site, None, [_layer_numbers(site, window) for window in windows], bounds)
        for head in range(site.n_heads):
            heads += _rows(site, head, [_head_numbers(window, head) for window in windows], bounds)
    return {"layers": pl.DataFrame(layers, schema=SCHEMA), "heads": pl.DataFrame(heads, schema=SCHEMA)}


@dataclass(frozen=True)
class _Window:
    """One site in one window, without the tokens left out.

    `maps[h][a]` is the distribution of the query at position `rows[a]`: its weight on each shown key, and in the last
    cell what it gives to all other keys. `written` is the mean length of what each head writes.
    """

    texts: list[str]
    rows: list[int]
    maps: list[Map]
    written: list[float] | None

    @property
    def average(self) -> Map:
        """The map averaged over heads."""
        return [[_mean(cells) for cells in zip(*rows, strict=True)] for rows in zip(*self.maps, strict=True)]

    @property
    def weights(self) -> list[float]:
        """w_h, the share of each head in what all of them write."""
        return [length / sum(self.written) for length in self.written] if self.written else []


def _window(params: Params, site: Site, batch: Batch, index: int, w_o: Tensor | None) -> _Window | None:
    """None where no query or no key is shown."""
    pattern = batch.captures["pattern"][site][index].double().tolist()
    n = min(params.tokens, int(batch.real[index].sum()))
    n_keys = n if site.kind == "self" else min(params.tokens, len(pattern[0][0]))
    texts = list(batch.spelling[index][:n])
    rows = _shown(params, texts)
    columns = _shown(params, texts if n_keys == n else [f" {key}" for key in range(n_keys)])
    if not rows or not columns:
        return None
    maps = [[_with_others([head[i][j] for j in columns]) for i in rows] for head in pattern]
    if w_o is None:
        return _Window(texts, rows, maps, None)
    z = batch.captures["z"][site][index].double()
    written = [_mean([float((z[h, i] @ w_o[h]).norm()) for i in rows]) for h in range(site.n_heads)]
    return _Window(texts, rows, maps, written)


def _shown(params: Params, texts: Sequence[str]) -> list[int]:
    """The positions of the tokens that are not left out."""
    names = params.leave_out.split()
    spelled = [name for name in names if name != FIRST]
    return [i for i, text in enumerate(texts) if not (i == 0 and FIRST in names) and text.strip() not in spelled]


def _with_others(weights: list[float]) -> list[float]:
    """The weights on the shown keys, and the weight on all others."""
    return [*weights, 1 - sum(weights)]


def _layer_numbers(site: Site, window: _Window) -> dict[str, float]:
    """The quantities of the layer in one window, by name."""
    average = window.average
    numbers = {
        "hidden": _mean([_distance(head_map, average) for head_map in window.maps]),
        "divergence_nats": max(_entropy(average) - _mean([_entropy(head_map) for head_map in window.maps]), 0.0),
        "shown": _shown_mass(average),
    }
    if window.written is not None:
        weighted = [
            [sum(w * p for w, p in zip(window.weights, cells, strict=True)) for cells in zip(*rows, strict=True)]
            for rows in zip(*window.maps, strict=True)
        ]
        numbers["weighting"] = _distance(weighted, average)
        numbers["effective_heads"] = exp(_entropy([window.weights]))
    numbers["largest_average"] = _largest(average)
    numbers["largest_head"] = max(_largest(head_map) for head_map in window.maps)
    if site.kind == "self":
        numbers["diagonal_words"] = _diagonal_words(window, average)
    return numbers


def _head_numbers(window: _Window, head: int) -> dict[str, float]:
    """The quantities of one head in one window, by name."""
    numbers = {"apart": _distance(window.maps[head], window.average), "shown": _shown_mass(window.maps[head])}
    if window.written is not None:
        numbers |= {"written": window.written[head], "weight": window.weights[head]}
    return numbers


def _distance(p: Map, q: Map) -> float:
    """⟨½ Σ_j |p_ij − q_ij|⟩ over rows i: the share of mass that lies elsewhere."""
    return _mean([sum(abs(x - y) for x, y in zip(a, b, strict=True)) / 2 for a, b in zip(p, q, strict=True)])


def _entropy(p: Map) -> float:
    """⟨−Σ_j p_ij ln p_ij⟩ over rows i, in nats."""
    return _mean([-sum(x * log(x) for x in row if x > 0) for row in p])


def _shown_mass(p: Map) -> float:
    """⟨Σ_j p_ij⟩ over rows i, for the shown keys j."""
    return _mean([sum(row[:-1]) for row in p])


def _largest(p: Map) -> float:
    """The largest weight on a shown key."""
    return max(x for row in p for x in row[:-1])


def _diagonal_words(window: _Window, p: Map) -> float:
    """⟨B_II / Σ_J B_IJ⟩ over words I, where B_IJ sums p over the tokens of the words I and J."""
    numbers = _word_numbers(window.texts)
    words = [numbers[i] for i in window.rows]
    shares = []
    for word in dict.fromkeys(words):
        # The last cell of a row is no word: zip leaves it out.
        cells = [
            (x, key_word)
            for query_word, row in zip(words, p, strict=True)
            if query_word == word
            for x, key_word in zip(row, words, strict=False)
        ]
        total = sum(x for x, _ in cells)
        if total > 0:
            shares.append(sum(x for x, key_word in cells if key_word == word) / total)
    return _mean(shares)


def _word_numbers(texts: Sequence[str]) -> list[int]:
    """How many words the text has up to each token; a lone blank belongs to the word that follows."""
    numbers = []
    for i, text in enumerate(texts):
        until = next((k for k in range(i, len(texts)) if texts[k].strip()), i) if text.isspace() else i
        numbers.append(max(len("".join(texts[: until + 1]).split()), 1))
    return numbers


def _uniform(site: Site, rows: Sequence[int]) -> Map:
    """1 for each key that a query sees, 0 for the others."""
    width = float("inf") if site.window is None else site.window
    return [[float((j <= i or not site.causal) and abs(i - j) < width) for j in rows] for i in rows]


def _bounds(site: Site, windows: Sequence[_Window]) -> Bounds:
    """The bounds of every quantity; that of `diagonal_words` is uniform attention over the same keys."""
    n = site.n_heads
    uniform = [_diagonal_words(window, _uniform(site, window.rows)) for window in windows if site.kind == "self"]
    return {
        "hidden": (0.0, 1 - 1 / n), "divergence_nats": (0.0, log(n)), "weighting": (0.0, 1 - 1 / n),
        "effective_heads": (float(n), float(n)), "largest_average": (None, 1.0), "largest_head": (None, 1.0),
        "diagonal_words": (_mean(uniform) if uniform else None, 1.0),
        "apart": (0.0, 1 - 1 / n), "shown": (None, 1.0), "written": (None, None), "weight": (1 / n, 1.0),
    }  # fmt: skip


def _rows(site: Site, head: int | None, windows: Sequence[Mapping[str, float]], bounds: Bounds) -> Iterator[Row]:
    """One row for each quantity: mean over windows, interval and bounds."""
    for name in windows[0] if windows else ():
        null, most = bounds[name]
        values = [numbers[name] for numbers in windows]
        low, high = _interval(values, most)
        yield {
            "stack": site.stack, "kind": site.kind, "layer": site.layer, "head": head, "quantity": name,
            "value": _mean(values), "low": low, "high": high, "null": null, "most": most, "windows": len(values),
        }  # fmt: skip


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _interval(values: Sequence[float], most: float | None) -> tuple[float | None, float | None]:
    """Student's 95 % interval of the mean, within what is possible; none for a single window."""
    if len(values) < 2:
        return None, None
    half = float(stats.t.ppf(0.975, len(values) - 1)) * float(stats.sem(values))
    high = _mean(values) + half
    return max(0.0, _mean(values) - half), high if most is None else min(most, high)
