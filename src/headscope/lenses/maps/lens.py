r"""Maps: what do the attention maps look like, and what does their average over heads hide?

A fold that keeps the first windows of the text: of each its first tokens, with the part of every head's pattern that
lies between them and the z of those tokens. From them the maps themselves, token by token and word by word, per head,
averaged over heads, and averaged by what each head writes; and how far each head is from the average.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import exp, log, nan, sqrt

import polars as pl
import torch
from jaxtyping import Bool, Float
from scipy import stats
from torch import Tensor

from headscope.attention.maps import CORNER
from headscope.core import About, Finding, ModelSpec, Selection, Site, WeightSource
from headscope.core.token_words import word_numbers
from headscope.errors import UsageError, WeightsRefused
from headscope.lenses.lens import AS_IS, Batch, Lens, Needs
from headscope.lenses.maps.figures import Shown, figures
from headscope.lenses.shared.plots import place
from headscope.maths.attention.block_sums import block_sums

ORDER = 12

ABOUT = About(
    title="The attention maps",
    question="What do the attention maps look like, and what does their average over heads hide?",
    definition=(
        "Of each window the first tokens are shown, without those that are left out (the first one, unless told "
        "otherwise, since it often takes most of the mass). What a row gives to tokens that are not shown is one cell "
        "more, so that every row is still a distribution. At word level the weights of all pairs of sub-words are "
        "summed, on both sides, so that the mass is kept: a word of three tokens has rows of three. Maps are shown per "
        "head, averaged over heads, and averaged with the weight that each head has through W_O: the mean length of "
        "the vector that it writes, over that of all heads. A head is apart from the average by the share of its mass "
        "that lies elsewhere; the mean over heads is what the average hides, or the least of it where much of the mass "
        "is not shown."
    ),
    formulas=(
        r"\mathrm{apart}_h = \frac{1}{2} \left\langle \sum_j |p^h_{ij} - \bar p_{ij}| \right\rangle_i, \qquad "
        r"\mathrm{hidden} = \frac{1}{H} \sum_h \mathrm{apart}_h \;\leq\; 1 - \frac{1}{H}",
        r"w_h = \frac{\langle \| z^h_i W_O^h \| \rangle_i}{\sum_g \langle \| z^g_i W_O^g \| \rangle_i}, \qquad "
        r"\bar p^w_{ij} = \sum_h w_h\,p^h_{ij}, \qquad B_{IJ} = \sum_{i \in I} \sum_{j \in J} \bar p_{ij}",
        r"\mathrm{divergence} = \left\langle S(\bar p_i) - \frac{1}{H} \sum_h S(p^h_i) \right\rangle_i \;\leq\; \ln H",
    ),
    reading=(
        "If all heads were equal, the average would hide nothing; if no two heads looked at the same key, it would "
        "hide 1 − 1/H of the mass. An averaged map looks flatter than its heads: its entropy is the mean of theirs and "
        "the divergence. Small weights in an averaged map therefore do not show that attention is spread. Where the "
        "weighted average differs from the plain one, some heads write much more than others. A window of a few tokens "
        "is a picture, not a statistic: for numbers over the whole text see the lens focus."
    ),
    reference=(
        "Wertich, Exploring the Hidden Structures of Attention Layers in Transformer Models through the Lens of "
        "Gaussian Distributions, sections 8.1 (average over heads, weighting by W_O) and 8.2, Figures 8.4, 8.5 and A.1 "
        "to A.18. Kobayashi et al. (2020), Attention is not only a weight: analyzing transformers with vector norms. "
        "Lin (1991), IEEE Trans. Inf. Theory 37, 145 (the divergence)."
    ),
    columns={
        "stack": "enc, dec, or only where the model has one stack; text, image or sound for towers side by side",
        "kind": "self- or cross-attention",
        "layer": "counted from 0",
        "head": "counted from 0; empty where the row is about the whole layer",
        "quantity": (
            "heads: apart: share of a head's mass that lies elsewhere than the average's; shown: its mass on the "
            "tokens that are shown; written: mean length of what it writes; weight: its share of what all heads write. "
            "layers: hidden: mean of apart; shown: mass on the tokens that are shown, mean over heads; "
            "divergence_nats: Jensen–Shannon divergence of the heads; weighting: share of the mass that lies elsewhere "
            "in the average weighted through W_O; effective_heads: exp of the entropy of the weights; largest_average, "
            "largest_head: the largest weight of a shown pair, in the average and in any head; diagonal_words: share "
            "of a row of the averaged word map on its diagonal"
        ),
        "value": "mean over windows",
        "low": "lower end of the 95 % interval over windows (Student t); empty with fewer than two windows",
        "high": "upper end",
        "null": (
            "what equal heads would give (apart, hidden, divergence, weighting: 0; weight: 1/H; effective_heads: H), "
            "or uniform attention (diagonal_words)"
        ),
        "most": "the largest value that is possible, where there is one",
        "windows": "windows of text in the mean",
    },
)

SCHEMA = pl.Schema(
    {"stack": pl.String, "kind": pl.String, "layer": pl.Int64, "head": pl.Int64, "quantity": pl.String}
    | dict.fromkeys(("value", "low", "high", "null", "most"), pl.Float64)
    | {"windows": pl.Int64}
)
FIRST = "first"
_HEADS = ("apart", "shown", "written", "weight")


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    tokens: int = field(default=32, metadata={"help": f"tokens of each window that are shown, at most {CORNER}"})
    windows: int = field(default=8, metadata={"help": "windows in the numbers; the first one is drawn"})
    leave_out: str = field(
        default=FIRST, metadata={"help": "tokens left out, by blanks: `first`, or as they are spelled"}
    )
    at: str = field(
        default="", metadata={"help": "layer that is drawn large, e.g. L3; by default the one whose average hides most"}
    )


@dataclass(frozen=True)
class Window:
    """The first tokens of a window: their spelling, and what each site showed of them; z where the family shows it."""

    spelling: tuple[str, ...]
    maps: Mapping[Site, Float[Tensor, "heads queries keys"]]
    z: Mapping[Site, Float[Tensor, "heads queries d_value"]]


@dataclass(frozen=True)
class State:
    """The first windows of the text; so many and no more."""

    params: Params
    sites: tuple[Site, ...]
    windows: tuple[Window, ...] = ()


def needs(params: Params, spec: ModelSpec) -> Needs:
    """The corner of every pattern, and the weights for what heads write."""
    if not 1 <= params.tokens <= CORNER or params.windows < 1:
        raise UsageError(
            f"tokens={params.tokens} and windows={params.windows}: between 1 and {CORNER} tokens of at least one "
            "window can be shown"
        )
    Selection.parse(params.at or "all")
    return Needs(weights=True, captures=frozenset({"corner"}), welcome=frozenset({"corner_z"}), spelling=True)


def start(params: Params, spec: ModelSpec, sites: tuple[Site, ...]) -> State:
    """Nothing seen yet."""
    Selection.parse(params.at or "all").resolve(sites)
    return State(params, sites)


def update(state: State, batch: Batch) -> State:
    """Keep the windows of this batch, as long as there is room."""
    room = state.params.windows - len(state.windows)
    if batch.variant != AS_IS or room <= 0:
        return state
    found = [_window(state, batch, index) for index in range(min(room, len(batch.real)))]
    return replace(state, windows=(*state.windows, *(one for one in found if one.maps)))


def _window(state: State, batch: Batch, index: int) -> Window:
    real = int(batch.real[index].sum())
    n = min(state.params.tokens, real)
    spelling = batch.spelling[index][:n] if batch.spelling else tuple(f" {position}" for position in range(n))
    maps, z = {}, {}
    for site in state.sites:
        if site in batch.captures.get("corner", {}):
            whole = batch.captures["corner"][site][index]
            maps[site] = whole[:, :n, : n if site.kind == "self" else state.params.tokens].clone()
            if site in batch.captures.get("corner_z", {}):
                z[site] = batch.captures["corner_z"][site][index, :, :n].clone()
    return Window(spelling, maps, z)


def merge(a: State, b: State) -> State:
    """The first windows of both, a's first."""
    return replace(a, windows=(*a.windows, *b.windows)[: a.params.windows])


@dataclass(frozen=True)
class Part:
    """One site in one window, the tokens left out taken away; `rest` is each row's mass on what is not shown."""

    maps: Float[Tensor, "heads rows columns"]
    rest: Float[Tensor, "heads rows"]
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


def _part(params: Params, site: Site, window: Window, w_o: Tensor | None) -> Part | None:
    maps = window.maps[site].to(torch.float64)
    rows = _kept(params, window.spelling)
    own_keys = site.kind == "self" or maps.shape[2] == len(window.spelling)
    # The source of a cross-attention may be another text: its keys are then known by their numbers alone.
    names = window.spelling if own_keys else tuple(f" {key}" for key in range(maps.shape[2]))
    columns = _kept(params, names)
    if not rows or not columns:
        return None
    inner = maps[:, rows][:, :, columns]
    written = None
    if w_o is not None and site in window.z:
        z = window.z[site][:, rows].to(torch.float64)
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


def _kept(params: Params, spelling: Sequence[str]) -> list[int]:
    out = set(params.leave_out.split())
    return [i for i, text in enumerate(spelling) if not (i == 0 and FIRST in out) and text.strip() not in out - {FIRST}]


def _words(spelling: Sequence[str], kept: Sequence[int]) -> Tensor:
    """Numbers of words from 0 on, without gaps; a word of which a token is left out keeps the others."""
    numbers = [word_numbers(spelling)[i] for i in kept]
    order = {number: index for index, number in enumerate(dict.fromkeys(numbers))}
    return torch.tensor([order[number] for number in numbers])


def _visible(site: Site, n: int) -> Bool[Tensor, "n n"]:
    ahead = torch.arange(n)[:, None] - torch.arange(n)[None, :]
    seen = (ahead >= 0) if site.causal else torch.ones(n, n, dtype=torch.bool)
    return seen if site.window is None else seen & (ahead.abs() < site.window)


def finish(state: State, weights: WeightSource | None) -> Finding:
    """Numbers over the kept windows, and the maps of the first."""
    params = asdict(state.params)
    parts, refused = _parts(state, weights)
    if not parts:
        reason = "no attention map with a token to show was seen" if state.windows else "no window of text was seen"
        return Finding("maps", ABOUT, status="not applicable", reason=reason, params=params)
    heads = [row for site, of in parts.items() for row in _head_rows(site, of)]
    layers = [row for site, of in parts.items() for row in _layer_rows(site, of)]
    tables = {"layers": pl.DataFrame(layers, schema=SCHEMA), "heads": pl.DataFrame(heads, schema=SCHEMA)}
    finding = Finding(
        "maps",
        ABOUT,
        tables=tables,
        figures=figures({site: _shown(of[0]) for site, of in parts.items()}, tables["layers"], _large(state, parts)),
        method=_method(state),
        warnings=tuple(_warnings(state, parts, refused)),
        params=params,
    )
    return replace(finding, headlines=headline(finding))


def _parts(state: State, weights: WeightSource | None) -> tuple[dict[Site, list[Part]], list[Site]]:
    """What is shown of each site, window by window; and the sites whose W_O is not known."""
    found: dict[Site, list[Part]] = {}
    refused = []
    for site in state.sites:
        seen = [window for window in state.windows if site in window.maps]
        w_o = None
        if seen and weights is not None:
            try:
                w_o = weights.weights(site).w_o
            except WeightsRefused:
                refused.append(site)
        parts = [part for window in seen if (part := _part(state.params, site, window, w_o)) is not None]
        if parts:
            found[site] = parts
    return found, refused


def _large(state: State, parts: Mapping[Site, Sequence[Part]]) -> Site:
    """The site that is drawn large."""
    chosen = [site for site in parts if Selection.parse(state.params.at or "all").heads_of(site)]
    return max(
        chosen or parts, key=lambda site: sum(float(_apart(part).mean()) for part in parts[site]) / len(parts[site])
    )


def _shown(part: Part) -> Shown:
    weights = part.weights
    mean = part.maps.mean(0)
    names = [_joined(part.row_names, part.row_words), _joined(part.column_names, part.column_words)]
    return Shown(
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
    found: dict[int, str] = {}
    for name, number in zip(names, numbers.tolist(), strict=True):
        found[number] = found.get(number, "") + name
    return tuple(name.strip() or "·" for name in found.values())


def _head_rows(site: Site, parts: Sequence[Part]) -> Iterator[dict[str, object]]:
    n = site.n_heads
    columns: dict[str, list[Float[Tensor, " heads"]]] = {"apart": [_apart(part) for part in parts]}
    columns["shown"] = [part.maps.sum(-1).mean(1) for part in parts]
    columns["written"] = [part.written for part in parts if part.written is not None]
    columns["weight"] = [part.weights for part in parts if part.weights is not None]
    nulls: dict[str, tuple[float | None, float | None]] = {
        "apart": (0.0, 1 - 1 / n), "shown": (None, 1.0), "written": (None, None), "weight": (1 / n, 1.0)
    }  # fmt: skip
    for head in range(n):
        for name in _HEADS:
            values = [float(one[head]) for one in columns[name]]
            if values:
                yield {**place(site, head), "quantity": name, **_estimate(values, *nulls[name])}


def _layer_rows(site: Site, parts: Sequence[Part]) -> Iterator[dict[str, object]]:
    n = site.n_heads
    weighted = [part for part in parts if part.weights is not None]
    columns: dict[str, tuple[list[float], float | None, float | None]] = {
        "hidden": ([float(_apart(part).mean()) for part in parts], 0.0, 1 - 1 / n),
        "divergence_nats": ([_divergence(part) for part in parts], 0.0, log(n)),
        "shown": ([float(part.maps.sum(-1).mean()) for part in parts], None, 1.0),
        "weighting": ([_weighting(part) for part in weighted], 0.0, 1 - 1 / n),
        "effective_heads": ([_effective(part) for part in weighted], float(n), float(n)),
        "largest_average": ([float(part.maps.mean(0).max()) for part in parts], None, 1.0),
        "largest_head": ([float(part.maps.max()) for part in parts], None, 1.0),
    }
    if site.kind == "self":
        pairs = [_diagonals(part) for part in parts]
        kept = [(value, null) for value, null in pairs if value == value]
        if kept:
            columns["diagonal_words"] = ([value for value, _ in kept], sum(null for _, null in kept) / len(kept), 1.0)
    for name, (values, null, most) in columns.items():
        if values:
            yield {**place(site, None), "quantity": name, **_estimate(values, null, most)}


def _apart(part: Part) -> Float[Tensor, " heads"]:
    between = (part.maps - part.maps.mean(0)).abs().sum(-1)
    return ((between + (part.rest - part.rest.mean(0)).abs()) / 2).mean(1)


def _divergence(part: Part) -> float:
    whole = torch.cat([part.maps, part.rest[..., None]], dim=-1)
    entropy = torch.special.entr(whole).sum(-1).mean(0)
    return float((torch.special.entr(whole.mean(0)).sum(-1) - entropy).mean().clamp_min(0.0))


def _weighting(part: Part) -> float:
    weights = part.weights
    if weights is None:
        return nan
    excess = weights - 1 / len(weights)
    cells = torch.einsum("h,hij->ij", excess, part.maps).abs().sum(-1)
    return float(((cells + (excess @ part.rest).abs()) / 2).mean())


def _effective(part: Part) -> float:
    weights = part.weights
    return nan if weights is None else exp(float(torch.special.entr(weights).sum()))


def _diagonals(part: Part) -> tuple[float, float]:
    """The share of the diagonal in the rows of the word map, and the same for uniform attention."""
    if part.visible is None:
        return nan, nan
    found = []
    for cells in (part.maps.mean(0), part.visible.to(torch.float64)):
        summed = block_sums(cells, part.row_words, part.column_words)
        total = summed.sum(1)
        kept = total > 0
        found.append(float((summed.diagonal() / total)[kept].mean()) if bool(kept.any()) else nan)
    return found[0], found[1]


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
    return (
        f"Exact, on the first {state.params.tokens} tokens{out} of the first {len(state.windows)} windows; the maps "
        "that are drawn are those of the first window."
    )


def _warnings(state: State, parts: Mapping[Site, Sequence[Part]], refused: Sequence[Site]) -> list[str]:
    found = []
    if refused:
        found.append(
            f"What heads write is not known in {', '.join(site.label for site in refused[:4])}"
            f"{' …' if len(refused) > 4 else ''}: the weights have no canonical form there."
        )
    unseen = [site.label for site in state.sites if site not in parts]
    if unseen:
        found.append(f"No map of {', '.join(unseen)} was seen.")
    return found


def headline(finding: Finding) -> tuple[str, ...]:
    """What the average hides, what the weighting changes, and how flat averages are."""
    if finding.status != "ok":
        return ()
    layers = finding.tables["layers"]
    return tuple(line for line in (_hidden(layers), _weighted(layers), _largest(layers)) if line)


def _rows(layers: pl.DataFrame, quantity: str) -> list[dict[str, object]]:
    return layers.filter(pl.col("quantity") == quantity).to_dicts()


def _number(row: Mapping[str, object], name: str = "value") -> float:
    value = row[name]
    return float(value) if isinstance(value, (int, float)) else nan


def _median(rows: Sequence[Mapping[str, object]]) -> float:
    values = sorted(_number(row) for row in rows)
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2


def _where(row: Mapping[str, object]) -> str:
    stack = "" if row["stack"] == "only" else f"{row['stack']}."
    return f"{stack}L{row['layer']}" + (".cross" if row["kind"] == "cross" else "")


def _percent(row: Mapping[str, object], digits: int = 0) -> str:
    """A share in percent, with its 95 % interval over windows."""
    value, low, high = (f"{100 * _number(row, name):.{digits}f}" for name in ("value", "low", "high"))
    return f"{value} %" if row["low"] is None else f"{value} % ({low} to {high})"


def _hidden(layers: pl.DataFrame) -> str:
    rows = _rows(layers, "hidden")
    top = max(rows, key=_number)
    most = max(_number(row, "most") for row in rows)
    shown = _median(_rows(layers, "shown"))
    if most == 0:
        return "There is 1 head per layer: the average over heads is the head, and hides 0 % of the mass."
    windows = max(int(_number(row, "windows")) for row in rows)
    return (
        f"Over {windows} window{'' if windows == 1 else 's'}, the average over heads hides "
        f"{'' if shown > 0.5 else 'at least '}{100 * _median(rows):.0f} % of the mass in the median layer (equal "
        f"heads: 0 %, heads that share no key: {100 * most:.0f} %), and most in {_where(top)}: {_percent(top)}; "
        f"{100 * shown:.0f} % of the mass lies between the tokens that are shown."
    )


def _weighted(layers: pl.DataFrame) -> str:
    gaps, heads = _rows(layers, "weighting"), _rows(layers, "effective_heads")
    if not gaps:
        return ""
    top = max(gaps, key=_number)
    count = max(_number(row, "null") for row in heads)
    return (
        f"Weighted by what each head writes through W_O the averaged map moves by {100 * _median(gaps):.1f} % of its "
        f"mass in the median layer, most in {_where(top)}: {_percent(top, 1)}; the writing is shared as by "
        f"{_median(heads):.1f} of {count:.0f} heads."
    )


def _largest(layers: pl.DataFrame) -> str:
    average, single = _rows(layers, "largest_average"), _rows(layers, "largest_head")
    top = max(average, key=_number)
    return (
        f"The largest weight of an averaged map is {_median(average):.2f} in the median layer and {_number(top):.2f} "
        f"in {_where(top)}, that of a single head {_median(single):.2f}."
    )


def definition(params: Params, weights: WeightSource | None, batches: Sequence[Batch]) -> dict[str, pl.DataFrame]:
    """The formulas as written, cell by cell on the stored maps, in float64."""
    windows = [(batch, i) for batch in batches if batch.variant == AS_IS for i in range(len(batch.real))]
    windows = windows[: params.windows]
    layers: list[dict[str, object]] = []
    heads: list[dict[str, object]] = []
    for site in windows[0][0].captures["pattern"] if windows else ():
        w_o = None if weights is None else weights.weights(site).w_o.double()
        of_layer: dict[str, list[float]] = {}
        of_head: dict[tuple[int, str], list[float]] = {}
        nulls: list[float] = []
        for batch, index in windows:
            seen = _defined(params, site, batch, index, w_o)
            for name, value in seen[0].items():
                if name == "uniform":
                    nulls.append(value)
                else:
                    of_layer.setdefault(name, []).append(value)
            for key, value in seen[1].items():
                of_head.setdefault(key, []).append(value)
        n = site.n_heads
        ends: dict[str, tuple[float | None, float | None]] = {
            "hidden": (0.0, 1 - 1 / n), "divergence_nats": (0.0, log(n)), "weighting": (0.0, 1 - 1 / n),
            "effective_heads": (float(n), float(n)), "largest_average": (None, 1.0), "largest_head": (None, 1.0),
            "diagonal_words": (sum(nulls) / len(nulls) if nulls else None, 1.0),
            "apart": (0.0, 1 - 1 / n), "shown": (None, 1.0), "written": (None, None), "weight": (1 / n, 1.0),
        }  # fmt: skip
        where = {"stack": site.stack, "kind": site.kind, "layer": site.layer}
        layers += [
            {**where, "head": None, "quantity": name, **_defined_estimate(values, *ends[name])}
            for name, values in of_layer.items()
        ]
        heads += [
            {**where, "head": head, "quantity": name, **_defined_estimate(values, *ends[name])}
            for (head, name), values in sorted(of_head.items(), key=lambda item: (item[0][0], _HEADS.index(item[0][1])))
        ]
    return {"layers": pl.DataFrame(layers, schema=SCHEMA), "heads": pl.DataFrame(heads, schema=SCHEMA)}


def _defined(
    params: Params, site: Site, batch: Batch, index: int, w_o: Tensor | None
) -> tuple[dict[str, float], dict[tuple[int, str], float]]:
    p = batch.captures["pattern"][site][index].double().tolist()
    heads = range(site.n_heads)
    n = min(params.tokens, int(batch.real[index].sum()))
    keys = n if site.kind == "self" else min(params.tokens, len(p[0][0]))
    chosen = params.leave_out.split()
    out = [text for text in chosen if text != "first"]
    texts = list(batch.spelling[index][:n])
    key_texts = texts if keys == n else [f" {key}" for key in range(keys)]
    rows = [i for i in range(n) if not (i == 0 and "first" in chosen) and texts[i].strip() not in out]
    columns = [j for j in range(keys) if not (j == 0 and "first" in chosen) and key_texts[j].strip() not in out]
    if not rows or not columns:
        return {}, {}
    cells = {h: [[*(p[h][i][j] for j in columns), 1 - sum(p[h][i][j] for j in columns)] for i in rows] for h in heads}
    mean = [
        [sum(cells[h][a][b] for h in heads) / len(heads) for b in range(len(columns) + 1)] for a in range(len(rows))
    ]
    apart = {
        h: sum(abs(x - y) for r, s in zip(cells[h], mean, strict=True) for x, y in zip(r, s, strict=True))
        for h in heads
    }
    apart = {h: value / 2 / len(rows) for h, value in apart.items()}

    def entropy(row: Sequence[float]) -> float:
        return -sum(x * log(x) for x in row if x > 0)

    flat = sum(entropy(row) for row in mean) / len(rows)
    sharp = sum(entropy(row) for h in heads for row in cells[h]) / len(rows) / len(heads)
    layer = {"hidden": sum(apart.values()) / len(heads), "divergence_nats": max(flat - sharp, 0.0)}
    layer["shown"] = sum(sum(row[:-1]) for row in mean) / len(rows)
    head = {(h, "apart"): apart[h] for h in heads}
    head |= {(h, "shown"): sum(sum(row[:-1]) for row in cells[h]) / len(rows) for h in heads}
    if w_o is not None:
        z = batch.captures["z"][site][index].double()
        length = [sum(float((z[h, i] @ w_o[h]).norm()) for i in rows) / len(rows) for h in heads]
        w = [one / sum(length) for one in length]
        moved = [
            [sum((w[h] - 1 / len(heads)) * cells[h][a][b] for h in heads) for b in range(len(columns) + 1)]
            for a in range(len(rows))
        ]
        layer["weighting"] = sum(abs(x) for row in moved for x in row) / 2 / len(rows)
        layer["effective_heads"] = exp(entropy(w))
        head |= {(h, "written"): length[h] for h in heads} | {(h, "weight"): w[h] for h in heads}
    layer["largest_average"] = max(x for row in mean for x in row[:-1])
    layer["largest_head"] = max(x for h in heads for row in cells[h] for x in row[:-1])
    if site.kind == "self":
        layer |= _defined_diagonal(site, rows, texts, mean)
    return layer, head


def _defined_diagonal(
    site: Site, rows: Sequence[int], texts: Sequence[str], mean: Sequence[Sequence[float]]
) -> dict[str, float]:
    word = []
    for i, text in enumerate(texts):
        # The words of the text up to here; a lone blank belongs to the word behind it.
        upto = next((k for k in range(i, len(texts)) if texts[k].strip()), i) if text.isspace() else i
        word.append(max(len("".join(texts[: upto + 1]).split()), 1))
    found: dict[str, float] = {}
    for name in ("diagonal_words", "uniform"):
        values = []
        for of in dict.fromkeys(word[i] for i in rows):
            own = total = 0.0
            for a, i in enumerate(rows):
                for b, j in enumerate(rows):
                    seen = (j <= i or not site.causal) and (site.window is None or abs(i - j) < site.window)
                    x = mean[a][b] if name == "diagonal_words" else float(seen)
                    if word[i] == of:
                        total += x
                        own += x if word[j] == of else 0.0
            if total > 0:
                values.append(own / total)
        found[name] = sum(values) / len(values)
    return found


def _defined_estimate(values: Sequence[float], null: float | None, most: float | None) -> dict[str, object]:
    mean = sum(values) / len(values)
    low = high = None
    if len(values) > 1:
        half = float(stats.t.ppf(0.975, len(values) - 1)) * float(stats.sem(values))
        low, high = max(0.0, mean - half), mean + half
        high = high if most is None else min(most, high)
    return {"value": mean, "low": low, "high": high, "null": null, "most": most, "windows": len(values)}


LENS = Lens(
    "maps", ABOUT, Params, needs, start, update, merge, finish, definition, headline,
    invariant=frozenset({"qk", "vo", "heads"}),
)  # fmt: skip
