r"""Maps: what do the attention maps look like, and what does their average over heads hide?

A fold that keeps the first windows of the text, site by site: of each its first tokens, with the part of every head's
pattern that lies between them and the z of those tokens; and of the first window more tokens, rounded to
bytes. From them the maps themselves, token by token and word by word, per head, averaged over heads, and averaged by
what each head writes; and how far each head is from the average.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log, nan, sqrt

import polars as pl
import torch
from jaxtyping import Bool, Float
from scipy import stats
from torch import Tensor

from headscope.core import Headline, ModelSpec, Selection, Site, WeightSource
from headscope.core.token_words import word_numbers
from headscope.errors import WeightsRefused
from headscope.lenses.lens import (
    Batch,
    Measurement,
    Needs,
    NotApplicable,
    Tables,
    TextLens,
    TextSize,
)
from headscope.lenses.maps.definition import definition
from headscope.lenses.maps.figures import LargeMap, SiteMaps, figures
from headscope.lenses.maps.opening_maps import OpeningMap, head_patterns, opening_map
from headscope.lenses.maps.sentences import sentences
from headscope.lenses.maps.settings import FIRST, Params
from headscope.lenses.maps.tables import HEAD_QUANTITIES, SCHEMA, head_quantities
from headscope.lenses.shared.plots import place
from headscope.maths.attention.block_sums import block_sums
from headscope.shapes import OPENING

_OPENING = f"corner:{OPENING}"


@dataclass(frozen=True)
class Window:
    """The first tokens of a window at one site: their spelling and their maps; z where the family shows it."""

    spelling: tuple[str, ...]
    maps: Float[Tensor, "heads queries keys"]
    z: Float[Tensor, "heads queries d_value"] | None


@dataclass(frozen=True)
class State:
    """The first windows of the text at each site, at most `params.windows`, and the maps of the first one."""

    params: Params
    sites: tuple[Site, ...]
    windows: Mapping[Site, tuple[Window, ...]] = field(default_factory=dict)
    opening: Mapping[Site, OpeningMap] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """One site in one window, without the tokens left out; `outside` is each row's mass on tokens not shown."""

    maps: Float[Tensor, "heads rows columns"]
    outside: Float[Tensor, "heads rows"]
    visible: Bool[Tensor, "rows columns"] | None
    written: Float[Tensor, " heads"] | None
    row_words: Tensor
    column_words: Tensor
    row_names: tuple[str, ...]
    column_names: tuple[str, ...]

    @property
    def weights(self) -> Float[Tensor, " heads"] | None:
        """The share of each head in what is written."""
        return None if self.written is None or not float(self.written.sum()) else self.written / self.written.sum()


class Maps(TextLens[Params, State]):
    """What do the attention maps look like, and what does their average over heads hide?"""

    name = "maps"
    params = Params
    invariant = frozenset({"qk", "vo", "heads"})

    def needs(self, params: Params) -> Needs:
        """The corner of every pattern, and the weights for what heads write."""
        params.check()
        return Needs(
            weights=True,
            captures=frozenset({"corner"}),
            welcome=frozenset({"corner_z"}),
            opening=frozenset({_OPENING}),
            pieces=True,
            spelling=True,
        )

    def start(self, params: Params, model: ModelSpec, sites: tuple[Site, ...], text: TextSize) -> State:
        """Nothing seen yet."""
        Selection.parse(params.at or "all").resolve(sites)
        return State(params, sites)

    def update(self, state: State, batch: Batch) -> State:
        """Keep the windows of this batch, as long as there is room."""
        windows, opening = dict(state.windows), dict(state.opening)
        for site in batch.captures.get("corner", {}):
            earlier = windows.get(site, ())
            room = min(state.params.windows - len(earlier), len(batch.real))
            windows[site] = (*earlier, *(_window(state.params, site, batch, index) for index in range(room)))
        for site, weights in batch.captures.get(_OPENING, {}).items():
            if site not in opening and len(weights):
                opening[site] = opening_map(weights[0], _spelling(batch, 0), int(batch.real[0].sum()))
        return replace(state, windows=windows, opening=opening)

    def merge(self, a: State, b: State) -> State:
        """The first windows of both, a's first."""
        sites = dict.fromkeys((*a.windows, *b.windows))
        windows = {site: (*a.windows.get(site, ()), *b.windows.get(site, ())) for site in sites}
        first = {site: site_windows[: a.params.windows] for site, site_windows in windows.items()}
        return replace(a, windows=first, opening={**b.opening, **a.opening})

    def finish(self, state: State, weights: WeightSource | None) -> Measurement:
        """Numbers over the kept windows, and the maps of the first."""
        parts, refused = _parts(state, weights)
        if not parts:
            is_seen = any(state.windows.values())
            reason = "no attention map with a token to show was seen" if is_seen else "no window of text was seen"
            raise NotApplicable(reason)
        heads = [row for site, site_parts in parts.items() for row in _head_rows(site, site_parts)]
        layers = [row for site, site_parts in parts.items() for row in _layer_rows(site, site_parts)]
        tables = {"layers": pl.DataFrame(layers, schema=SCHEMA), "heads": pl.DataFrame(heads, schema=SCHEMA)}
        return Measurement(
            tables=tables,
            figures=figures(
                {site: _site_maps(site_parts[0]) for site, site_parts in parts.items()},
                tables["layers"],
                _large(state, parts),
            ),
            method=_method(state),
            quantities=head_quantities(tables["heads"]),
            patterns=head_patterns({site: state.opening[site] for site in state.sites if site in state.opening}),
            warnings=tuple(_warnings(state, parts, refused)),
        )

    def sentences(self, tables: Tables) -> tuple[Headline, ...]:
        """What stands out, in numbers."""
        return sentences(tables)

    def definition(
        self, params: Params, weights: WeightSource | None, batches: Sequence[Batch]
    ) -> dict[str, pl.DataFrame]:
        """The tables by their formulas."""
        return definition(params, weights, batches)


def _window(params: Params, site: Site, batch: Batch, index: int) -> Window:
    n = min(params.tokens, int(batch.real[index].sum()))
    spelling = _spelling(batch, index)[:n] or tuple(f" {position}" for position in range(n))
    corner = batch.captures["corner"][site][index]
    maps = corner[:, :n, : n if site.kind == "self" else params.tokens].clone()
    z = batch.captures.get("corner_z", {}).get(site)
    return Window(spelling, maps, None if z is None else z[index, :, :n].clone())


def _spelling(batch: Batch, index: int) -> tuple[str, ...]:
    return batch.spelling[index] if batch.spelling else ()


def _part(params: Params, site: Site, window: Window, w_o: Tensor | None) -> Part | None:
    maps = window.maps.to(torch.float64)
    rows = _shown_positions(params, window.spelling)
    own_keys = site.kind == "self" or maps.shape[2] == len(window.spelling)
    # The source of a cross-attention may be another text: its keys are then known by their numbers alone.
    names = window.spelling if own_keys else tuple(f" {key}" for key in range(maps.shape[2]))
    columns = _shown_positions(params, names)
    if not rows or not columns:
        return None
    inner = maps[:, rows][:, :, columns]
    written = None
    if w_o is not None and window.z is not None:
        z = window.z[:, rows].to(torch.float64)
        written = (z @ w_o.to(torch.float64)).norm(dim=-1).mean(1)
    visible = _visible(site, maps.shape[1])[rows][:, columns] if site.kind == "self" else None
    return Part(
        inner,
        (1.0 - inner.sum(-1)).clamp_min(0.0),
        visible,
        written,
        _words(window.spelling, rows),
        _words(names, columns),
        tuple(window.spelling[row] for row in rows),
        tuple(names[column] for column in columns),
    )


def _shown_positions(params: Params, spelling: Sequence[str]) -> list[int]:
    out = set(params.leave_out.split())
    return [i for i, text in enumerate(spelling) if not (i == 0 and FIRST in out) and text.strip() not in out - {FIRST}]


def _words(spelling: Sequence[str], positions: Sequence[int]) -> Tensor:
    """Numbers of words from 0 on, without gaps; a word of which a token is left out keeps the others."""
    numbers = [word_numbers(spelling)[i] for i in positions]
    order = {number: index for index, number in enumerate(dict.fromkeys(numbers))}
    return torch.tensor([order[number] for number in numbers])


def _visible(site: Site, n: int) -> Bool[Tensor, "n n"]:
    distance = torch.arange(n)[:, None] - torch.arange(n)[None, :]
    visible = (distance >= 0) if site.causal else torch.ones(n, n, dtype=torch.bool)
    return visible if site.window is None else visible & (distance.abs() < site.window)


def _parts(state: State, weights: WeightSource | None) -> tuple[dict[Site, list[Part]], list[Site]]:
    """The parts of each site, window by window; and the sites whose W_O is not known."""
    parts_by_site: dict[Site, list[Part]] = {}
    refused = []
    for site in state.sites:
        windows = state.windows.get(site, ())
        w_o = None
        if windows and weights is not None:
            try:
                w_o = weights.weights(site).w_o
            except WeightsRefused:
                refused.append(site)
        parts = [part for window in windows if (part := _part(state.params, site, window, w_o)) is not None]
        if parts:
            parts_by_site[site] = parts
    return parts_by_site, refused


def _large(state: State, parts: Mapping[Site, Sequence[Part]]) -> LargeMap:
    """The map that is drawn large: of the selected heads, at the site whose average hides most."""
    selection = Selection.parse(state.params.at or "all")
    candidates = [site for site in parts if selection.heads_of(site)]
    site = max(
        candidates or parts,
        key=lambda site: sum(float(_distance_from_average(part).mean()) for part in parts[site]) / len(parts[site]),
    )
    heads = selection.heads_of(site) or tuple(range(site.n_heads))
    return LargeMap(site, heads, _site_maps(parts[site][0], heads))


def _site_maps(part: Part, heads: Sequence[int] | None = None) -> SiteMaps:
    """The maps of one site; `mean` and `words` are averages over all heads, or over these."""
    weights = part.weights
    mean = part.maps.mean(0) if heads is None else part.maps[list(heads)].mean(0)
    names = [_joined(part.row_names, part.row_words), _joined(part.column_names, part.column_words)]
    return SiteMaps(
        heads=part.maps,
        mean=mean,
        weighted=None if weights is None else torch.einsum("h,hij->ij", weights, part.maps),
        words=block_sums(mean, part.row_words, part.column_words),
        row_names=tuple(name.strip() or "·" for name in part.row_names),
        column_names=tuple(name.strip() or "·" for name in part.column_names),
        row_words=names[0],
        column_words=names[1],
    )


def _joined(names: Sequence[str], numbers: Tensor) -> tuple[str, ...]:
    texts: dict[int, str] = {}
    for name, number in zip(names, numbers.tolist(), strict=True):
        texts[number] = texts.get(number, "") + name
    return tuple(name.strip() or "·" for name in texts.values())


def _head_rows(site: Site, parts: Sequence[Part]) -> Iterator[dict[str, object]]:
    n = site.n_heads
    columns: dict[str, list[Float[Tensor, " heads"]]] = {"apart": [_distance_from_average(part) for part in parts]}
    columns["shown"] = [part.maps.sum(-1).mean(1) for part in parts]
    columns["written"] = [part.written for part in parts if part.written is not None]
    columns["weight"] = [part.weights for part in parts if part.weights is not None]
    nulls: dict[str, tuple[float | None, float | None]] = {
        "apart": (0.0, 1 - 1 / n), "shown": (None, 1.0), "written": (None, None), "weight": (1 / n, 1.0)
    }  # fmt: skip
    for head in range(n):
        for name in HEAD_QUANTITIES:
            values = [float(by_head[head]) for by_head in columns[name]]
            if values:
                yield {**place(site, head), "quantity": name, **_estimate(values, *nulls[name])}


def _layer_rows(site: Site, parts: Sequence[Part]) -> Iterator[dict[str, object]]:
    n = site.n_heads
    weighted = [part for part in parts if part.weights is not None]
    columns: dict[str, tuple[list[float], float | None, float | None]] = {
        "hidden": ([float(_distance_from_average(part).mean()) for part in parts], 0.0, 1 - 1 / n),
        "divergence_nats": ([_divergence(part) for part in parts], 0.0, log(n)),
        "shown": ([float(part.maps.sum(-1).mean()) for part in parts], None, 1.0),
        "weighting": ([_weighting(part) for part in weighted], 0.0, 1 - 1 / n),
        "effective_heads": ([_effective(part) for part in weighted], float(n), float(n)),
        "largest_average": ([float(part.maps.mean(0).max()) for part in parts], None, 1.0),
        "largest_head": ([float(part.maps.max()) for part in parts], None, 1.0),
    }
    if site.kind == "self":
        pairs = [_diagonals(part) for part in parts]
        finite_pairs = [(value, null) for value, null in pairs if value == value]
        if finite_pairs:
            columns["diagonal_words"] = (
                [value for value, _ in finite_pairs],
                sum(null for _, null in finite_pairs) / len(finite_pairs),
                1.0,
            )
    for name, (values, null, most) in columns.items():
        if values:
            yield {**place(site, None), "quantity": name, **_estimate(values, null, most)}


def _distance_from_average(part: Part) -> Float[Tensor, " heads"]:
    between = (part.maps - part.maps.mean(0)).abs().sum(-1)
    return ((between + (part.outside - part.outside.mean(0)).abs()) / 2).mean(1)


def _divergence(part: Part) -> float:
    distributions = torch.cat([part.maps, part.outside[..., None]], dim=-1)
    entropy = torch.special.entr(distributions).sum(-1).mean(0)
    return float((torch.special.entr(distributions.mean(0)).sum(-1) - entropy).mean().clamp_min(0.0))


def _weighting(part: Part) -> float:
    weights = part.weights
    if weights is None:
        return nan
    excess = weights - 1 / len(weights)
    cells = torch.einsum("h,hij->ij", excess, part.maps).abs().sum(-1)
    return float(((cells + (excess @ part.outside).abs()) / 2).mean())


def _effective(part: Part) -> float:
    weights = part.weights
    return nan if weights is None else exp(float(torch.special.entr(weights).sum()))


def _diagonals(part: Part) -> tuple[float, float]:
    """The share of the diagonal in the rows of the word map, and the same for uniform attention."""
    if part.visible is None:
        return nan, nan
    shares = []
    for cells in (part.maps.mean(0), part.visible.to(torch.float64)):
        summed = block_sums(cells, part.row_words, part.column_words)
        total = summed.sum(1)
        has_mass = total > 0
        shares.append(float((summed.diagonal() / total)[has_mass].mean()) if bool(has_mass.any()) else nan)
    return shares[0], shares[1]


def _estimate(values: Sequence[float], null: float | None, most: float | None) -> dict[str, object]:
    """Mean and Student interval over windows, within what is possible."""
    count = len(values)
    mean = sum(values) / count
    low = high = None
    if count > 1:
        spread = sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
        half = float(stats.t.ppf(0.975, count - 1)) * spread / sqrt(count)
        low, high = max(mean - half, 0.0), mean + half if most is None else min(mean + half, most)
    return {"value": mean, "low": low, "high": high, "null": null, "most": most, "windows": count}


def _method(state: State) -> str:
    out = f" without {state.params.leave_out}" if state.params.leave_out.strip() else ""
    n_windows = max(map(len, state.windows.values()))
    return (
        f"Exact, on the first {state.params.tokens} tokens{out} of the first {n_windows} windows; the maps "
        "that are drawn are those of the first window."
    )


def _warnings(state: State, parts: Mapping[Site, Sequence[Part]], refused: Sequence[Site]) -> list[str]:
    messages = []
    if refused:
        messages.append(
            f"What heads write is not known in {', '.join(site.label for site in refused[:4])}"
            f"{' …' if len(refused) > 4 else ''}: the weights have no canonical form there."
        )
    unseen = [site.label for site in state.sites if site not in parts]
    if unseen:
        messages.append(f"No map of {', '.join(unseen)} was seen.")
    return messages


LENS = Maps()
