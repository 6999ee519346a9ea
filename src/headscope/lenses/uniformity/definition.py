"""The numbers of the lens `uniformity` by their formulas, window by window in float64; the fold shares none of it."""

from collections.abc import Iterable, Mapping, Sequence
from math import exp, log, nan, sqrt

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from headscope.core import Site, WeightSource
from headscope.errors import WeightsRefused
from headscope.lenses.lens import Batch
from headscope.lenses.shared.table import Row

Array = NDArray[np.float64]
_TEXT, _INT, _REAL = pl.String, pl.Int64, pl.Float64
_PLACE = {"stack": _TEXT, "kind": _TEXT, "layer": _INT, "head": _INT}
_STREAMS = {
    **_PLACE, "variant": _TEXT, "quantity": _TEXT, "value": _REAL, "low": _REAL, "high": _REAL,
    "change": _REAL, "change_low": _REAL, "change_high": _REAL, "rounding": _REAL,
    "null": _REAL, "z": _REAL, "dimensions": _INT, "samples": _INT, "windows": _INT,
}  # fmt: skip
_RATES = {
    **_PLACE, "variant": _TEXT, "quantity": _TEXT, "value": _REAL, "low": _REAL, "high": _REAL, "predicted": _REAL,
    "ratio": _REAL, "ratio_low": _REAL, "ratio_high": _REAL, "windows": _INT,
}  # fmt: skip
_LAYERS = {**_PLACE, "quantity": _TEXT, "value": _REAL, "null": _REAL}
_ORDER = ("as is", "initialised", "without skips", "without mlp", "without attention", "attention alone")


class _Variant:
    """The captures of one variant: lists of windows, each a matrix of tokens."""

    def __init__(self, batches: Sequence[Batch], skip: int, tokens: int) -> None:
        self.windows: dict[tuple[str, Site], list[Array]] = {}
        self.rounding = 0.0
        tokens_read = 0
        for batch in batches:
            for index, real in enumerate(batch.real):
                if tokens_read >= tokens:
                    return
                tokens_read += int(real.sum())
                for capture in ("resid", "final", "x", "v", "z"):
                    for site, captured in batch.captures[capture].items():
                        self._keep(capture, site, captured[index], real, skip)

    def _keep(self, capture: str, site: Site, x: Tensor, real: Tensor, skip: int) -> None:
        self.rounding = max(self.rounding, torch.finfo(x.dtype).eps)
        rows = x if x.ndim == 2 else x.permute(1, 0, 2)  # tokens first
        rows = rows[real] if len(rows) == len(real) else rows
        self.windows.setdefault((capture, site), []).append(rows[skip:].double().numpy())


def defined(batches: Sequence[Batch], weights: WeightSource | None, skip: int, tokens: int) -> dict[str, pl.DataFrame]:
    """The tables."""
    names = [name for name in _ORDER if any(batch.variant == name for batch in batches)]
    refused = {batch.variant for batch in batches if batch.refused}
    streams: list[Row] = []
    rates: list[Row] = []
    layers: list[Row] = []
    as_is: _Variant | None = None
    for name in (name for name in names if name not in refused):
        recording = _Variant([batch for batch in batches if batch.variant == name], skip, tokens)
        as_is = recording if name == "as is" else as_is
        sites = [site for capture, site in recording.windows if capture == "resid" and site.kind == "self"]
        chains: dict[str, list[Site]] = {}
        for site in sites:
            chains.setdefault(site.stack, []).append(site)
        for chain in chains.values():
            taus: list[list[float]] = []
            for site in chain:
                start = chain[0] if name == "as is" else site
                base = None if as_is is None or (as_is is recording and site is start) else (as_is, ("resid", start))
                streams += _stream((recording, ("resid", site)), site.layer, name, base)
                taus.append([_tau(x) for x in recording.windows["resid", site]])
            last = chain[-1]
            base = None if as_is is None else (as_is, ("resid", chain[0]) if name == "as is" else ("final", last))
            streams += _stream((recording, ("final", last)), last.layer + 1, name, base)
            taus.append([_tau(x) for x in recording.windows["final", last]])
            layer_rates, mean_rate, plane_rows = _rates(recording, chain, taus, name, weights)
            rates += [*layer_rates, mean_rate]
            layers += plane_rows if name == "as is" else []
    rates = _ordered(rates)
    return {
        "streams": pl.DataFrame(streams, schema=_STREAMS),
        "rates": pl.DataFrame(rates, schema=_RATES),
        "layers": pl.DataFrame(layers, schema=_LAYERS),
    }


def _ordered(rates: list[Row]) -> list[Row]:
    """Variant by variant: the layers of all stacks, then the means over depth; rows without a value left out."""
    rows = [row for row in rates if row["value"] is not None]
    return [
        row
        for name in _ORDER
        for over in (False, True)
        for row in rows
        if row["variant"] == name and (row["quantity"] == "factor_over_depth") == over
    ]


def _place(site: Site, layer: int | None) -> Row:
    return {"stack": site.stack, "kind": site.kind, "layer": layer, "head": None}


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _cell(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and mean ± t s/√w."""
    w = len(values)
    mean = sum(values) / w
    if w == 1:
        return mean, nan, nan
    variance = sum((value - mean) ** 2 for value in values) / (w - 1)
    low, high = stats.t.interval(0.95, w - 1, loc=mean, scale=sqrt(variance / w)) if variance > 0 else (mean, mean)
    return mean, float(low), float(high)


def _tau(x: Array) -> float:
    if len(x) < 2:
        return nan
    mean = x.mean(0)
    common = float(np.linalg.norm(np.ones((len(x), 1)) * mean))
    return float(np.linalg.norm(x - mean)) / common if common > 0 else nan


def _alike(x: Array) -> dict[str, float]:
    """All numbers of one window."""
    n, d = x.shape
    units = x / np.linalg.norm(x, axis=1, keepdims=True)
    cosines = units @ units.T
    pairs = [cosines[i, j] for i in range(n) for j in range(n) if i != j]
    deviations = x - np.full((n, n), 1 / n) @ x

    def composite(matrix: Array) -> float:
        return sqrt(float(np.linalg.norm(matrix, 1)) * float(np.linalg.norm(matrix, np.inf)))

    rank_tokens = min(n, 128)
    picked = units[[index * n // rank_tokens for index in range(rank_tokens)]]
    energy = np.linalg.svd(picked, compute_uv=False) ** 2
    p = energy / energy.sum()
    p = p[p > 1e-30]
    small, large = sorted((rank_tokens, d))
    return {
        "mean_cosine": float(np.mean(pairs)),
        "residual_share": float(np.linalg.norm(deviations) / np.linalg.norm(x)),
        "composite_share": composite(deviations) / composite(x),
        "participation_ratio": 1 / float((p**2).sum()),
        "effective_rank": exp(-float((p * np.log(p)).sum())),
        "differences": _tau(x),
        "length": sqrt(float((x**2).sum()) / n),
        "null share": sqrt(1 - 1 / n),
        "null participation": rank_tokens * rank_tokens / (rank_tokens + rank_tokens * (rank_tokens - 1) / d),
        "null effective": exp(log(small) - small / (2 * large)),
        "variance": 2 / (n * (n - 1) * d),
    }


# A stream: the variant it belongs to, what was captured, and where.
_Stream = tuple[_Variant, tuple[str, Site]]


def _changes(of: _Stream, base: _Stream | None) -> dict[str, tuple[float, float, float]]:
    """Mean over windows of each quantity less that of the base in the same window, with its interval."""
    if base is None or base[1] not in base[0].windows:
        return {}
    (ours, key), (theirs, other) = of, base
    pairs = zip(ours.windows[key], theirs.windows[other], strict=True)
    numbers = [(_alike(x), _alike(y)) for x, y in pairs if len(x) > 1 and len(y) > 1]
    if not numbers:
        return {}
    changes = {name: _interval([a[name] - b[name] for a, b in numbers]) for name in numbers[0][0]}
    bounds = [variant.rounding * sqrt(ours.windows[key][0].shape[1]) for variant in (ours, theirs)]
    if any(
        window_numbers["differences"] <= bound
        for pair in numbers
        for window_numbers, bound in zip(pair, bounds, strict=True)
    ):
        return {name: ends for name, ends in changes.items() if not (name.endswith("_share") or name == "differences")}
    return changes


def _stream(of: _Stream, layer: int, variant: str, base: _Stream | None) -> list[Row]:
    recording, (captured, site) = of
    rounding = recording.rounding
    sized = [x for x in recording.windows[captured, site] if len(x) > 1]
    if not sized:
        return []
    by_window = [_alike(x) for x in sized]
    nulls = {
        "mean_cosine": 0.0,
        "residual_share": _mean(numbers["null share"] for numbers in by_window),
        "composite_share": _mean(numbers["null share"] for numbers in by_window),
        "participation_ratio": _mean(numbers["null participation"] for numbers in by_window),
        "effective_rank": _mean(numbers["null effective"] for numbers in by_window),
    }
    deviation = sqrt(sum(numbers["variance"] for numbers in by_window)) / len(by_window)
    longest = max(len(x) for x in sized)
    rows: list[Row] = []
    changes = _changes(of, base)
    for quantity in (*nulls, "differences", "length"):
        value, low, high = _interval([numbers[quantity] for numbers in by_window])
        bound = rounding * sqrt(sized[0].shape[1]) if quantity.endswith("_share") or quantity == "differences" else nan
        if any(numbers["differences"] <= bound for numbers in by_window):
            value, low, high = nan, nan, nan
        ends = zip(("change", "change_low", "change_high"), changes.get(quantity, (nan,) * 3), strict=True)
        rows.append(
            {
                **_place(site, layer), "variant": variant, "quantity": quantity, "value": _cell(value),
                "low": _cell(low), "high": _cell(high), **{name: _cell(end) for name, end in ends},
                "rounding": _cell(bound),
                "null": _cell(nulls.get(quantity, nan)), "z": value / deviation if quantity == "mean_cosine" else None,
                "dimensions": sized[0].shape[1],
                "samples": min(128, longest) if quantity in ("participation_ratio", "effective_rank") else longest,
                "windows": len(by_window),
            }
        )  # fmt: skip
    return rows


def _rates(
    recording: _Variant,
    chain: Sequence[Site],
    taus: Sequence[Sequence[float]],
    variant: str,
    weights: WeightSource | None,
) -> tuple[list[Row], Row, list[Row]]:
    rows: list[Row] = []
    layers: list[Row] = []
    logs: dict[int, list[float]] = {}
    guesses: dict[int, list[float]] = {}
    complete = True
    floor = recording.rounding * sqrt(recording.windows["resid", chain[0]][0].shape[1])
    for number, site in enumerate(chain):
        windows = len(taus[number])
        kept_differences, common = _averaged(recording.windows["v", site], recording.windows["z", site], site)
        gains, value_map = _gains(recording, site, weights)
        log_factors: list[float] = []
        guessed: list[float] = []
        for w in range(windows):
            before, after = taus[number][w], taus[number + 1][w]
            if not (before > floor and after > floor):
                continue
            guess = _predicted(variant, kept_differences[w], common[w], gains[w])
            log_factors.append(log(after / before))
            logs.setdefault(w, []).append(log_factors[-1])
            if np.isfinite(guess) and guess > 0:
                guessed.append(log(guess))
                guesses.setdefault(w, []).append(guessed[-1])
        complete = complete and len(guessed) == len(log_factors)
        if log_factors:
            rows.append(
                _factor(
                    site,
                    site.layer,
                    variant,
                    "factor",
                    log_factors,
                    guessed if len(guessed) == len(log_factors) else [],
                )
            )
        shares_and_gain = (("kept_differences", kept_differences), ("kept_common", common), ("gain", gains))
        for quantity, values in shares_and_gain:
            finite = [value for value in values if np.isfinite(value)]
            if finite and not (quantity == "gain" and variant == "initialised"):
                mean, low, high = _interval(finite)
                rows.append(
                    {**_place(site, site.layer), "variant": variant, "quantity": quantity, "value": mean,
                     "low": _cell(low), "high": _cell(high), "windows": len(finite)}
                )  # fmt: skip
        finite = [gain for gain in gains if np.isfinite(gain)]
        if value_map is not None and finite:
            layers += _phase(site, value_map, sum(finite) / len(finite))
    means = [sum(window_logs) / len(window_logs) for _, window_logs in sorted(logs.items())]
    expected = [sum(window_logs) / len(window_logs) for _, window_logs in sorted(guesses.items())] if complete else []
    if not means:
        return rows, {"variant": variant, "quantity": "factor_over_depth", "value": None}, layers
    return rows, _factor(chain[0], None, variant, "factor_over_depth", means, expected), layers


def _factor(
    site: Site, layer: int | None, variant: str, quantity: str, logs: Sequence[float], guesses: Sequence[float]
) -> Row:
    value, low, high = (exp(log_end) for log_end in _interval(logs))
    gaps = (
        [_cell(exp(log_end)) for log_end in _interval([a - b for a, b in zip(logs, guesses, strict=True)])]
        if guesses
        else []
    )
    ratio, ratio_low, ratio_high = gaps or (None, None, None)
    return {
        **_place(site, layer), "variant": variant, "quantity": quantity, "value": value, "low": _cell(low),
        "high": _cell(high), "predicted": exp(sum(guesses) / len(guesses)) if guesses else None,
        "ratio": ratio, "ratio_low": ratio_low, "ratio_high": ratio_high, "windows": len(logs),
    }  # fmt: skip


def _averaged(values: Sequence[Array], mixed: Sequence[Array], site: Site) -> tuple[list[float], list[float]]:
    """Shares of the differences and of the common part of the values that are left behind attention, by window."""
    differences, common = [], []
    for v, z in zip(values, mixed, strict=True):
        if len(v) < 2:
            differences.append(nan)
            common.append(nan)
            continue
        read = v[:, [site.kv_head(head) for head in range(site.n_heads)]]
        differences.append(float(np.linalg.norm(z - z.mean(0)) / np.linalg.norm(read - read.mean(0))))
        common.append(float(np.linalg.norm(z.mean(0)) / np.linalg.norm(read.mean(0))))
    return differences, common


def _gains(recording: _Variant, site: Site, weights: WeightSource | None) -> tuple[list[float], Array | None]:
    try:
        w = None if weights is None else weights.weights(site)
    except WeightsRefused:
        w = None
    stream = recording.windows["resid", site]
    if w is None or ("x", site) not in recording.windows:
        return [nan] * len(stream), None
    value_map: Array = np.zeros((w.w_v.shape[1], w.w_o.shape[2]))
    for head in range(site.n_heads):
        shared = w.kv_of_head(head)
        gains_of_values = np.diag(w.gain_v[shared].double().numpy())
        value_map += w.w_v[shared].double().numpy() @ gains_of_values @ w.w_o[head].double().numpy()
    typical = sqrt(float(np.trace(value_map @ value_map.T)) / len(value_map))
    gains = [
        typical * float(np.linalg.norm(x) / np.linalg.norm(stream[index])) if len(x) > 1 else nan
        for index, x in enumerate(recording.windows["x", site])
    ]
    return gains, value_map


def _predicted(variant: str, a: float, c: float, g: float) -> float:
    """√((s² + g²a²) / (s² + g²c²))."""
    match variant:
        case "without attention":
            return 1.0
        case "as is" | "without mlp":
            return sqrt((1 + (g * a) ** 2) / (1 + (g * c) ** 2))
        case "without skips" | "attention alone":
            return a / c
        case _:
            return nan


def _phase(site: Site, value_map: Array, gain: float) -> list[Row]:
    largest = float(np.linalg.svd(value_map, compute_uv=False)[0])
    typical = float(np.linalg.norm(value_map)) / sqrt(len(value_map))
    generator = torch.Generator().manual_seed(0)
    width = site.n_kv_heads * site.d_value
    a, b = (torch.randn(rows, width, generator=generator, dtype=torch.float64).numpy() for rows in value_map.shape)
    random_sigma = np.linalg.svd(a @ b.T, compute_uv=False)
    null = float(random_sigma[0] / np.linalg.norm(random_sigma)) * sqrt(len(value_map))
    stretch = largest / typical
    values: Mapping[str, tuple[float, float]] = {
        "operator_norm": (largest, typical * null),
        "stretch": (stretch, null),
        "skip_share": (1 / (1 + gain), nan),
        "flat_factor": (1 / sqrt(1 + gain**2), nan),
        "fastest_factor": (1 / sqrt(1 + (gain * stretch) ** 2), nan),
    }
    return [
        {**_place(site, site.layer), "quantity": name, "value": value, "null": _cell(null)}
        for name, (value, null) in values.items()
    ]
