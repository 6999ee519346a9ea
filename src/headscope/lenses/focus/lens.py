r"""Focus: where does each head look, and how sharply?

A fold over text. Per row (query) of the attention pattern: its entropy, the number of keys that effectively
share it, how far away they are, and how much of it lies on the diagonal, on the first token and near the
diagonal; averaged over rows, beside the value for attention that is uniform over the visible keys.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, log, nan, sqrt

import numpy as np
import polars as pl
import torch
from jaxtyping import Bool, Float
from scipy import stats
from torch import Tensor

from headscope.attention.statistics import Request, RowStatistics
from headscope.core import About, Finding, ModelSpec, Site, WeightSource
from headscope.errors import UsageError
from headscope.lenses.focus.figures import figures, tokens
from headscope.lenses.lens import AS_IS, Batch, Lens, Needs
from headscope.lenses.shared.phrases import interval_phrase, percent, windows_phrase
from headscope.lenses.shared.plots import label_of, place

ORDER = 2

ABOUT = About(
    title="Focus of the attention heads",
    question="Where does each head look, and how sharply?",
    definition=(
        "A row of the attention pattern says how a query divides its attention among the n keys that it may "
        "see, in shares p that sum to 1. Its entropy is 0 when one key has everything and ln n when all "
        "share it equally; 1/Σp² says how many keys effectively share it. The other numbers say where the "
        "mass lies. Each is computed row by row and averaged over all rows that see at least two keys: "
        "with a single visible key (the first row of a causal model) there is nothing to divide. Padding "
        "is left out. The null is attention that is uniform over the visible keys of the same rows."
    ),
    formulas=(
        r"H_i = -\sum_j p_{ij} \ln p_{ij}, \qquad \mathrm{entropy\ share} = H_i\,/\,\ln n_i, \qquad "
        r"\mathrm{effective\ keys} = 1\,/\,\sum_j p_{ij}^2",
        r"d_i = \sum_j p_{ij}\,|i-j|, \qquad s_i^2 = \sum_j p_{ij}\,(|i-j| - d_i)^2",
        r"\mathrm{diagonal} = p_{ii}, \qquad \mathrm{first} = p_{i0}, \qquad "
        r"\mathrm{band}_w = \sum_{|i-j| \leq w} p_{ij}",
    ),
    reading=(
        "Compare each value with its uniform value. A head with most of its mass in a narrow band looks "
        "at neighbours and could be replaced by a window. Much mass on the first token often marks a head "
        "that has nothing to say for most queries. An entropy share near 1 means that the head averages "
        "over everything it sees. Means over rows hide differences between rows: a head may be sharp on "
        "some tokens only."
    ),
    reference=(
        "Clark, Khandelwal, Levy and Manning (2019), What does BERT look at?, sections 3.1 and 3.2; Xiao "
        "et al. (2023), Efficient streaming language models with attention sinks (the first token); "
        "Conti, The Math behind transformers (band-shaped heads). The interval: Cochran (1977), Sampling "
        "techniques, section 6.3."
    ),
    columns={
        "stack": "enc, dec, or only where the model has one stack; text, image or sound for towers side by side",
        "kind": "self- or cross-attention",
        "layer": "counted from 0",
        "head": "counted from 0",
        "quantity": (
            "entropy_nats; entropy_share: over ln of the visible keys, 0 to 1; effective_keys: 1/Σp²; "
            "distance: mean |i − j| in tokens; distance_sd: its spread within a row; diagonal: mass on "
            "the token itself; first: mass on the first token; band_w: mass within w tokens; sink: mass "
            "on a learned sink, where the model has one (entropy, keys and distance are then of the row "
            "divided by its sum). All of them are unchanged by a change of a head's inner basis"
        ),
        "value": "mean over rows; empty where a position has no meaning (cross-attention)",
        "low": "lower end of the 95 % interval of the mean; empty with fewer than two windows",
        "high": (
            "upper end. Student t over windows of text, since the rows of one window are not independent; "
            "neighbouring windows of one text are not quite either"
        ),
        "uniform": "the null: the same rows with attention uniform over the visible keys",
        "rows": "rows (queries) in the mean",
        "windows": "windows of text they came from",
    },
)

SCHEMA = pl.Schema(
    {"stack": pl.String, "kind": pl.String, "layer": pl.Int64, "head": pl.Int64, "quantity": pl.String}
    | dict.fromkeys(("value", "low", "high", "uniform"), pl.Float64)
    | {"rows": pl.Int64, "windows": pl.Int64}
)

# Without meaning in cross-attention, where query and key count different texts; and those that end at 1.
_POSITIONAL = ("distance", "diagonal", "band_")
_SHARES = ("entropy_share", "diagonal", "first", "band_", "sink")


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    bands: str = field(default="1,8,64", metadata={"help": "half-widths of the bands, in tokens, by commas"})

    def widths(self) -> tuple[int, ...]:
        """The half-widths as numbers, ascending."""
        parts = [part.strip() for part in self.bands.split(",") if part.strip()]
        if not all(part.isdecimal() for part in parts):
            raise UsageError(
                f"bands={self.bands!r} cannot be read: expected whole numbers ≥ 0 separated by commas",
                hint="write for example 1,8,64",
            )
        return tuple(sorted({int(part) for part in parts}))


@dataclass(frozen=True)
class Sums:
    """Sums over the counted rows of each window; kept apart by window, so that merging is exact."""

    measured: Float[Tensor, "windows quantities heads"]
    uniform: Float[Tensor, "windows quantities heads"]
    rows: Float[Tensor, "windows heads"]


@dataclass(frozen=True)
class State:
    """What has been seen so far, per site, and how it was obtained."""

    params: Params
    sites: tuple[Site, ...]
    seen: Mapping[Site, tuple[Sums, ...]] = field(default_factory=dict)
    methods: frozenset[str] = frozenset()


def needs(params: Params, spec: ModelSpec) -> Needs:
    """Streaming statistics with the chosen bands."""
    return Needs(statistics=Request(bands=params.widths()), pieces=True)


def start(params: Params, spec: ModelSpec, sites: tuple[Site, ...]) -> State:
    """Nothing seen yet."""
    return State(params, sites)


def update(state: State, batch: Batch) -> State:
    """Add the windows of one batch."""
    if batch.variant != AS_IS:
        return state
    seen, methods = dict(state.seen), set(state.methods)
    for site in state.sites:
        if site in batch.statistics:
            rows = batch.statistics[site]
            seen[site] = (*seen.get(site, ()), _sums(state.params, site, rows, batch.uniform[site]))
            methods.add(rows.method)
    return replace(state, seen=seen, methods=frozenset(methods))


def merge(a: State, b: State) -> State:
    """The windows of both, a's first."""
    sites = dict.fromkeys((*a.seen, *b.seen))
    seen = {site: (*a.seen.get(site, ()), *b.seen.get(site, ())) for site in sites}
    return replace(a, seen=seen, methods=a.methods | b.methods)


def quantities(params: Params, site: Site) -> tuple[str, ...]:
    """The names of what is measured at a site, in the order of the table."""
    sharpness = ("entropy_nats", "entropy_share", "effective_keys")
    bands = tuple(f"band_{width}" for width in params.widths())
    sink = ("sink",) if "sinks" in site.extras else ()
    return (*sharpness, "distance", "distance_sd", "diagonal", "first", *bands, *sink)


def _sums(params: Params, site: Site, measured: RowStatistics, uniform: RowStatistics) -> Sums:
    counted = (measured.n_visible >= 2) & measured.entropy_nats.isfinite()
    return Sums(
        _window_sums(params, site, measured, counted),
        _window_sums(params, site, uniform, counted),
        counted.sum(-1).to(torch.float64),
    )


def _window_sums(
    params: Params, site: Site, rows: RowStatistics, counted: Bool[Tensor, "windows heads queries"]
) -> Float[Tensor, "windows quantities heads"]:
    columns = _columns(params, site, rows)
    # One column at a time: a stack of all of them would be the largest tensor of the run.
    return torch.stack([torch.where(counted, column, 0.0).sum(-1) for column in columns], dim=1)


def _columns(params: Params, site: Site, rows: RowStatistics) -> Iterator[Tensor]:
    """Each quantity per row, in float64. A row with a sink is divided by its sum for the first three."""
    mass = 1.0 if rows.sink is None else 1.0 - rows.sink.to(torch.float64)
    entropy = rows.entropy_nats.to(torch.float64)
    if isinstance(mass, Tensor):
        entropy = (entropy / mass + mass.log()).clamp_min(0.0)
    yield entropy
    yield entropy / rows.n_visible.to(torch.float64).log()
    yield mass**2 / rows.participation.to(torch.float64)
    for column in (rows.distance, rows.distance_sd, rows.diagonal, rows.first):
        yield column.to(torch.float64)
    for width in params.widths():
        yield rows.bands[width].to(torch.float64)
    if "sinks" in site.extras:
        yield torch.zeros_like(entropy) if rows.sink is None else rows.sink.to(torch.float64)


def finish(state: State, weights: WeightSource | None) -> Finding:
    """Means over rows with their intervals."""
    params: dict[str, str | int | float | bool | None] = {"bands": state.params.bands}
    seen = [site for site in state.sites if any(bool((part.rows > 0).any()) for part in state.seen.get(site, ()))]
    unseen = [site.label for site in state.sites if site not in seen]
    if not seen:
        reason = "no row of attention that sees at least two keys was shown to the lens"
        return Finding("focus", ABOUT, status="not applicable", reason=reason, params=params)
    rows = [row for site in seen for row in _rows(state.params, site, _joined(state.seen[site]))]
    table = pl.DataFrame(rows, schema=SCHEMA)
    finding = Finding(
        "focus",
        ABOUT,
        tables={"heads": table},
        figures=figures(table, seen, state.params.widths()),
        method=_method(state.methods),
        warnings=(f"No attention of {', '.join(unseen)} was seen.",) if unseen else (),
        params=params,
    )
    return replace(finding, headlines=headline(finding))


def _joined(parts: Sequence[Sums]) -> Sums:
    return Sums(
        torch.cat([part.measured for part in parts]),
        torch.cat([part.uniform for part in parts]),
        torch.cat([part.rows for part in parts]),
    )


def _method(methods: frozenset[str]) -> str:
    how = "; ".join(sorted(method for method in methods if method))
    rows = "Every row of every window counts, but those with fewer than two visible keys and padding."
    return f"Row statistics: {how}. {rows}" if how else rows


def _rows(params: Params, site: Site, sums: Sums) -> Iterator[dict[str, object]]:
    n_rows, windows = sums.rows.sum(0), (sums.rows > 0).sum(0)
    value, uniform = sums.measured.sum(0) / n_rows, sums.uniform.sum(0) / n_rows
    margin = _margin(sums, value)
    for head in range(site.n_heads):
        for index, quantity in enumerate(quantities(params, site)):
            meant = not (site.kind == "cross" and quantity.startswith(_POSITIONAL))
            mean, half = float(value[index, head]), float(margin[index, head])
            ceiling = 1.0 if quantity.startswith(_SHARES) else inf
            # A mean of numbers between 0 and the ceiling lies there too.
            low, high = max(mean - half, 0.0), min(mean + half, ceiling)
            if half != half:
                low = high = nan
            numbers = {"value": mean, "low": low, "high": high, "uniform": float(uniform[index, head])}
            yield {
                **place(site, head),
                "quantity": quantity,
                **{name: number if meant and number == number else None for name, number in numbers.items()},
                "rows": int(n_rows[head]),
                "windows": int(windows[head]),
            }


def _margin(sums: Sums, value: Float[Tensor, "quantities heads"]) -> Float[Tensor, "quantities heads"]:
    r"""Half-width of the 95 % interval of a mean over rows that come in windows of unequal length.

    The mean is the ratio $\bar{x} = \sum_w s_w / \sum_w n_w$ of two sums over windows, so its error is that
    of the residuals $e_w = s_w - \bar{x}\,n_w$.
    """
    windows = (sums.rows > 0).sum(0).to(torch.float64)
    residual = sums.measured - value * sums.rows[:, None, :]
    error = (windows / (windows - 1) * residual.square().sum(0)).sqrt() / sums.rows.sum(0)
    factor = torch.from_numpy(stats.t.ppf(0.975, np.maximum(windows.numpy() - 1, 1)))
    return torch.where(windows > 1, error * factor, nan)


def headline(finding: Finding) -> tuple[str, ...]:
    """What stands out, in numbers."""
    if finding.status != "ok":
        return ()
    table = finding.tables["heads"]
    bands = sorted(
        (name for name in table["quantity"].unique().to_list() if name.startswith("band_")),
        key=lambda name: int(name.removeprefix("band_")),
    )
    sentences = [_half_sentence(table, "first", "on the first token"), _entropy_sentence(table)]
    if bands:
        middle = bands[(len(bands) - 1) // 2]
        width = tokens(int(middle.removeprefix("band_")))
        sentences.append(_half_sentence(table, middle, f"within {width}"))
    return tuple(sentence for sentence in sentences if sentence)


def _half_sentence(table: pl.DataFrame, quantity: str, where: str) -> str:
    """How many heads have more than half of their mass somewhere, and the head that has the most."""
    rows = table.filter(pl.col("quantity") == quantity, pl.col("value").is_not_null())
    if rows.is_empty():
        return ""
    many, surely = rows.filter(pl.col("value") > 0.5).height, rows.filter(pl.col("low") > 0.5).height
    top = rows.sort("value", descending=True, maintain_order=True).row(0, named=True)
    who = f"{many or 'None'} of {rows.height} heads {'put' if many > 1 else 'puts'}"
    uniform = 100 * float(np.mean(rows["uniform"].to_numpy()))
    clear = f"; in {surely} the whole interval lies above one half" if many and rows["low"].count() else ""
    return (
        f"{who} more than half of {'their' if many > 1 else 'its'} mass {where} (uniform attention: "
        f"{uniform:.2g} %; {windows_phrase(rows)}){clear}; {label_of(top)} has the most, {_percent_of(top)}."
    )


def _percent_of(row: Mapping[str, object]) -> str:
    """A share with its interval."""
    return f"{100 * float(str(row['value'])):.0f} % ({interval_phrase(row, percent, ('low', 'high'))})"


def _entropy_sentence(table: pl.DataFrame) -> str:
    rows = table.filter(pl.col("quantity") == "entropy_share").sort("value", maintain_order=True)
    sharpest, flattest = rows.row(0, named=True), rows.row(-1, named=True)
    median = float(np.median(rows["value"].to_numpy()))
    uniform = float(np.mean(rows["uniform"].to_numpy()))
    return (
        f"The median head has {100 * median:.0f} % of the largest possible entropy (uniform attention: "
        f"{percent(uniform)}; {windows_phrase(rows)}); the sharpest, {label_of(sharpest)}, {_percent_of(sharpest)}, "
        f"the flattest, {label_of(flattest)}, {_percent_of(flattest)}."
    )


def definition(params: Params, weights: WeightSource | None, batches: Sequence[Batch]) -> dict[str, pl.DataFrame]:
    """The formulas as written, row by row on the stored maps, in float64."""
    rows: list[dict[str, object]] = []
    kept = [batch for batch in batches if batch.variant == AS_IS]
    for site in kept[0].captures["pattern"] if kept else ():
        maps = [
            (one.double(), real)
            for batch in kept
            for one, real in zip(batch.captures["pattern"][site], batch.real, strict=True)
        ]
        for head in range(site.n_heads):
            windows = [list(_defined_window(params, site, one, real, head)) for one, real in maps]
            rows += _defined_rows(site, head, [window for window in windows if window])
    return {"heads": pl.DataFrame(rows, schema=SCHEMA)}


def _defined_window(
    params: Params, site: Site, maps: Float[Tensor, "heads queries keys"], real: Tensor, head: int
) -> Iterator[dict[str, tuple[float, float]]]:
    """Each quantity of each counted row of one window: measured, and uniform over the same keys."""
    for i in range(maps.shape[1]):
        keys = _defined_keys(site, maps, real, i)
        if bool(real[i]) and len(keys) > 1:
            first = next(iter(torch.nonzero(real).flatten().tolist())) if site.kind == "self" else keys[0]
            p = maps[head, i, keys].tolist()
            sunk = "sinks" in site.extras
            measured = _defined_row(params, i, first, dict(zip(keys, p, strict=True)), sunk)
            uniform = _defined_row(params, i, first, dict.fromkeys(keys, 1 / len(keys)), sunk)
            yield {name: (measured[name], uniform[name]) for name in measured}


def _defined_keys(site: Site, maps: Tensor, real: Tensor, i: int) -> list[int]:
    """The keys that query i may see. Where the geometry is not the site's alone, those that got any mass."""
    if site.kind == "cross" or (site.window is not None and not site.causal):
        return torch.nonzero((maps[:, i] > 0).any(0)).flatten().tolist()
    ahead = [(j, i - j) for j in range(maps.shape[2]) if bool(real[j])]
    return [
        j
        for j, distance in ahead
        if (distance >= 0 or not site.causal) and (site.window is None or distance < site.window)
    ]


def _defined_row(params: Params, i: int, first: int, p: Mapping[int, float], sunk: bool) -> dict[str, float]:
    total = sum(p.values())
    r = {j: x / total for j, x in p.items()} if sunk else p
    entropy = -sum(x * log(x) for x in r.values() if x > 0)
    distance = sum(x * abs(i - j) for j, x in r.items()) / sum(r.values())
    variance = sum(x * (abs(i - j) - distance) ** 2 for j, x in r.items()) / sum(r.values())
    row = {
        "entropy_nats": entropy,
        "entropy_share": entropy / log(len(p)),
        "effective_keys": 1 / sum(x * x for x in r.values()),
        "distance": distance,
        "distance_sd": sqrt(variance),
        "diagonal": p.get(i, 0.0),
        "first": p.get(first, 0.0),
    }
    for width in sorted({int(part) for part in params.bands.split(",")}):
        row[f"band_{width}"] = sum(x for j, x in p.items() if abs(i - j) <= width)
    return row | ({"sink": 1 - total} if sunk else {})


def _defined_rows(
    site: Site, head: int, windows: Sequence[Sequence[Mapping[str, tuple[float, float]]]]
) -> Iterator[dict[str, object]]:
    n = sum(len(window) for window in windows)
    for name in windows[0][0] if windows else ():
        mean, uniform = (sum(row[name][k] for window in windows for row in window) / n for k in (0, 1))
        low = high = None
        if len(windows) > 1:
            residuals = [sum(row[name][0] - mean for row in window) for window in windows]
            variance = len(windows) / (len(windows) - 1) * sum(e * e for e in residuals) / n**2
            half = float(stats.t.ppf(0.975, len(windows) - 1)) * sqrt(variance)
            bounded = name.startswith(("entropy_share", "diagonal", "first", "band", "sink"))
            low, high = max(mean - half, 0.0), min(mean + half, 1.0) if bounded else mean + half
        numbers: dict[str, float | None] = {"value": mean, "low": low, "high": high, "uniform": uniform}
        if site.kind == "cross" and name.startswith(("distance", "diagonal", "band")):
            numbers = dict.fromkeys(numbers)
        where = {"stack": site.stack, "kind": site.kind, "layer": site.layer, "head": head, "quantity": name}
        yield {**where, **numbers, "rows": n, "windows": len(windows)}


LENS = Lens(
    "focus", ABOUT, Params, needs, start, update, merge, finish, definition, headline,
    invariant=frozenset({"qk", "vo", "heads"}),
)  # fmt: skip
