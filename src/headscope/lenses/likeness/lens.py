r"""Likeness: do heads score related tokens of a text higher than unrelated ones in the same places?

A fold over text that keeps numbers only. For each head and distance t, the scores of queries with the keys t tokens
before them, and beside them the scores of the same queries with the keys that stand in those places in the window
before. The difference is Tr Cov(q, k) on real inputs. Beside it stands what the weights alone would make of tokens.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from headscope.core import About, Finding, ModelSpec, Site, WeightSource
from headscope.errors import LensError, UsageError
from headscope.lenses.lens import AS_IS, Batch, Lens, Needs
from headscope.lenses.likeness.definition import defined
from headscope.lenses.likeness.figures import figures
from headscope.lenses.shared.left_out_windows import jackknife, p_value
from headscope.lenses.shared.phrases import detectable_effect
from headscope.lenses.shared.plots import label_of, place
from headscope.lenses.shared.window_tests import FALSE_DISCOVERIES, adjusted, left_out

ORDER = 3.5
PLACES = 512  # tokens of a window that are used: one window of every site is held until the next has come

ABOUT = About(
    title="Likeness: scores of related tokens",
    question="Does a head score related tokens of a text higher than unrelated ones in the same places?",
    definition=(
        "For a query at position i and the key t tokens before it, the score is scale · q·k, before any bias or cap. "
        "Its mean over a window, less the mean of the same queries with the keys that stand in the same places in the "
        "window before, is Tr Cov(q, k) at distance t: what the two tokens have to do with each other. Positions "
        "cancel, since both sides have the same; with rotary positions the distance is that of the rotation, and other "
        "distances are other forms. At distance 0 a token meets itself. Beside it stand two predictions from the "
        "weights, in the same units, both for distance 0: isotropic, the trace of W_QK times the mean variance of a "
        "coordinate of what the head reads, and folded, the same with each coordinate's own variance, which holds the "
        "gains of the norm before it. The first tokens of each window are left out, and those behind the first "
        f"{PLACES}. The p-value of a difference is "
        "adjusted for the number of heads (Benjamini and Hochberg)."
    ),
    formulas=(
        r"\mathrm{Tr}\,\mathrm{Cov}(q, k)_t = \alpha \langle q_i \cdot k_{i-t} \rangle - "
        r"\alpha \langle q_i \cdot k'_{i-t} \rangle \qquad (k'\ \mathrm{of\ another\ window},\ "
        r"\alpha = \mathrm{scale})",
        r"\mathrm{isotropic} = \alpha\,\bar v\,\mathrm{Tr}\,W_{QK}, \qquad "
        r"\mathrm{folded} = \alpha \sum_c v_c\,(W_{QK})_{cc}, \qquad v_c = \mathrm{Var}(x_c)",
    ),
    reading=(
        "Above 0 at distance 0: a token scores itself higher than an unrelated token. Above 0 at other distances: "
        "tokens that far apart are scored higher than their places alone would have it. The effect is the difference "
        "in units of the spread of unrelated scores. Where isotropic or folded has the other sign than the value, the "
        "trace of the weights does not say what the head does on this text: coordinates of real tokens depend on each "
        "other. The lens describes scores; whether the head attends to the token also depends on all other keys."
    ),
    reference=(
        "Wertich, Exploring the Hidden Structures of Attention Layers in Transformer Models through the Lens of "
        "Gaussian Distributions, sections 6.2.3 to 6.2.5 (the trace of W_QK as the mean score of a token with itself). "
        "Benjamini and Hochberg (1995), Journal of the Royal Statistical Society B 57, 289."
    ),
    columns={
        "stack": "enc, dec, or only where the model has one stack; text, image or sound for towers side by side",
        "kind": "self: keys of another stack have no distance",
        "layer": "counted from 0",
        "head": "counted from 0",
        "distance": "tokens from the query back to the key; 0 is the token itself",
        "value": "mean score less that of unrelated tokens in the same places, mean over windows",
        "low": "lower end of the 95 % interval (Student t over windows); empty with fewer than three windows",
        "high": "upper end",
        "spread": "standard deviation of the scores of unrelated tokens",
        "effect": "value over spread; 0 is the null",
        "p": "two-sided p-value over windows: the value is 0",
        "adjusted": "p adjusted for the number of heads, at the same distance (Benjamini and Hochberg)",
        "isotropic": "distance 0: what Tr W_QK makes of tokens whose coordinates are independent and vary alike",
        "folded": "distance 0: the same with the variance of each coordinate as measured, norm gains included",
        "pairs": "pairs of tokens in the mean",
        "windows": "windows of text that have one before them",
    },
)

SCHEMA = pl.Schema(
    {"stack": pl.String, "kind": pl.String, "layer": pl.Int64, "head": pl.Int64, "distance": pl.Int64}
    | dict.fromkeys(("value", "low", "high", "spread", "effect", "p", "adjusted", "isotropic", "folded"), pl.Float64)
    | {"pairs": pl.Int64, "windows": pl.Int64}
)
DISTANCES = (0, 1, 4, 16, 64)
Row = dict[str, object]


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    skip: int = field(default=1, metadata={"help": "tokens left out at the start of each window"})


@dataclass(frozen=True)
class Tokens:
    """Queries and keys of one window: what is needed to pair it with the next."""

    q: Float[Tensor, "heads n d"]
    k: Float[Tensor, "kv_heads n d"]


@dataclass(frozen=True)
class Sums:
    """One site: sums of scores, their squares and counts by distance, for each window and for each pair of windows."""

    scale: float
    same: tuple[Float[Tensor, "distances 3 heads"], ...]
    other: tuple[Float[Tensor, "distances 3 heads"], ...]
    first: Tokens
    last: Tokens


@dataclass(frozen=True)
class State:
    """What has been seen of each site; `inputs` holds sum, sum of squares and count of what its projections read."""

    params: Params
    sites: tuple[Site, ...]
    sums: Mapping[Site, Sums] = field(default_factory=dict)
    inputs: Mapping[Site, tuple[Float[Tensor, " m"], Float[Tensor, " m"], int]] = field(default_factory=dict)


def needs(params: Params, spec: ModelSpec) -> Needs:
    """Queries and keys of every token, and what the projections read where it is shown."""
    if params.skip < 0:
        raise UsageError(f"skip={params.skip}: no fewer than 0 tokens can be left out")
    return Needs(weights=True, captures=frozenset({"q", "k", "scale"}), welcome=frozenset({"x"}), pieces=True)


def start(params: Params, spec: ModelSpec, sites: tuple[Site, ...]) -> State:
    """Nothing seen yet. Cross-attention is left out: its keys have no distance."""
    return State(params, tuple(site for site in sites if site.kind == "self"))


def update(state: State, batch: Batch) -> State:
    """Add the windows of one batch, as far as this piece of it goes."""
    if batch.variant != AS_IS:
        return state
    sums, inputs = dict(state.sums), dict(state.inputs)
    for site in state.sites:
        if site in batch.captures.get("q", {}):
            for window in _windows(site, batch):
                later = _sums(state.params, float(batch.captures["scale"][site]), window)
                sums[site] = _merged(state.params, sums[site], later) if site in sums else later
        if site in batch.captures.get("x", {}):
            inputs[site] = _added(inputs.get(site), _input_sums(state.params, batch, site))
    return replace(state, sums=sums, inputs=inputs)


def _real(x: Float[Tensor, "*parts n d"], real: Tensor) -> Float[Tensor, "*parts m d"]:
    return x[..., real, :] if x.shape[-2] == len(real) and not bool(real.all()) else x


def _windows(site: Site, batch: Batch) -> Iterator[Tokens]:
    q, k = batch.captures["q"][site], batch.captures["k"][site]
    for index, real in enumerate(batch.real):
        # Copies: the window before must not keep the whole batch alive.
        yield Tokens(*(_real(x[index], real)[:, :PLACES].clone() for x in (q, k)))


def _input_sums(params: Params, batch: Batch, site: Site) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"], int]:
    x = batch.captures["x"][site]
    rows = torch.cat([_real(x[index], real)[params.skip :] for index, real in enumerate(batch.real)]).double()
    return rows.sum(0), rows.square().sum(0), len(rows)


def _added(a: tuple[Tensor, Tensor, int] | None, b: tuple[Tensor, Tensor, int]) -> tuple[Tensor, Tensor, int]:
    return b if a is None else (a[0] + b[0], a[1] + b[1], a[2] + b[2])


def _sums(params: Params, scale: float, window: Tokens) -> Sums:
    return Sums(scale, (_pair(params, scale, window, window),), (), window, window)


def _pair(params: Params, scale: float, queries: Tokens, keys: Tokens) -> Float[Tensor, "distances 3 heads"]:
    """Sum, sum of squares and count of the scores of queries with the keys at each distance before their places."""
    n = min(queries.q.shape[1], keys.k.shape[1])
    share = queries.q.shape[0] // keys.k.shape[0]
    q, k = queries.q.double(), keys.k.double().repeat_interleave(share, 0)
    rows = []
    for distance in DISTANCES:
        scores = scale * (q[:, params.skip + distance : n] * k[:, params.skip : max(n - distance, params.skip)]).sum(-1)
        count = torch.full_like(scores[:, :1].sum(-1), scores.shape[1])
        rows.append(torch.stack((scores.sum(-1), scores.square().sum(-1), count)))
    return torch.stack(rows)


def _merged(params: Params, a: Sums, b: Sums) -> Sums:
    """Both, a's windows first; the first window of b is paired with the last of a."""
    across = _pair(params, b.scale, b.first, a.last)
    return Sums(a.scale, (*a.same, *b.same), (*a.other, across, *b.other), a.first, b.last)


def merge(a: State, b: State) -> State:
    """What both have seen, a's windows first."""
    sums, inputs = dict(a.sums), dict(a.inputs)
    for site, later in b.sums.items():
        sums[site] = _merged(a.params, sums[site], later) if site in sums else later
    for site, read in b.inputs.items():
        inputs[site] = _added(inputs.get(site), read)
    return replace(a, sums=sums, inputs=inputs)


def finish(state: State, weights: WeightSource | None) -> Finding:
    """Differences, intervals and predictions of every site."""
    if weights is None:
        raise LensError("the lens likeness reads the model's weights, and was given none")
    params = asdict(state.params)
    rows: list[Row] = []
    for site in state.sites:
        if site in state.sums:
            rows += _rows(site, state.sums[site], _predictions(site, state, weights))
    if not rows:
        reason = "no two windows of self-attention with queries and keys were shown to the lens"
        return Finding("likeness", ABOUT, status="not applicable", reason=reason, params=params)
    table = adjusted(pl.DataFrame(rows, schema=SCHEMA), ["distance"])
    finding = Finding(
        "likeness",
        ABOUT,
        tables={"heads": table},
        figures=figures(table, [site for site in state.sites if site in state.sums]),
        method=(
            f"Products of queries and keys of the first {PLACES} tokens of each window, as the model computes them "
            "(rotated, where positions are rotary), sums in float64; each window with the one before it as its "
            "unrelated text. Successive differences share a window, which makes their intervals a little wider than "
            "needed."
        ),
        warnings=_warnings(state, table),
        params=params,
    )
    return replace(finding, headlines=headline(finding))


def _predictions(site: Site, state: State, weights: WeightSource) -> Float[Tensor, "two heads"] | None:
    """Isotropic and folded, before the scale; None where the weights or their inputs are not known."""
    if site not in state.inputs or weights.status(site).status != "exact":
        return None
    total, squares, count = state.inputs[site]
    variance = squares / count - (total / count).square()
    w = weights.weights(site)
    keys = [w.kv_of_head(head) for head in range(site.n_heads)]
    q = w.w_q.double() * w.gain_q.double()[:, None]
    k = (w.w_k.double() * w.gain_k.double()[:, None])[keys]
    diagonal = (q * k).sum(-1)
    if diagonal.shape[1] != len(variance):
        return None
    return torch.stack((variance.mean() * diagonal.sum(-1), diagonal @ variance))


def _rows(site: Site, sums: Sums, predictions: Float[Tensor, "two heads"] | None) -> Iterator[Row]:
    if not sums.other:
        return
    same, other = torch.stack(sums.same[1:]), torch.stack(sums.other)
    for index, distance in enumerate(DISTANCES):
        near, far = same[:, index], other[:, index]
        used = (near[:, 2, 0] > 0) & (far[:, 2, 0] > 0)
        near, far = near[used], far[used]
        if not len(near):
            continue
        values = near[:, 0] / near[:, 2] - far[:, 0] / far[:, 2]
        estimates = left_out(values)
        value, half = jackknife(estimates)
        p = p_value(estimates)
        total = far.sum(0)
        spread = (total[1] / total[2] - (total[0] / total[2]).square()).clamp_min(0.0).sqrt()
        sure = len(values) > 1
        for head in range(site.n_heads):
            mean, width = float(value[head]), float(spread[head])
            at_itself = distance == 0 and predictions is not None
            yield {
                **place(site, head),
                "distance": distance,
                "value": mean,
                "low": mean - float(half[head]) if sure else None,
                "high": mean + float(half[head]) if sure else None,
                "spread": width,
                "effect": mean / width if width > 0 else None,
                "p": _number(float(p[head])) if sure else None,
                "isotropic": sums.scale * float(predictions[0, head])
                if at_itself and predictions is not None
                else None,
                "folded": sums.scale * float(predictions[1, head]) if at_itself and predictions is not None else None,
                "pairs": int(near[:, 2, head].sum()),
                "windows": len(values),
            }


def _number(value: float) -> float | None:
    return value if value == value else None


def _warnings(state: State, table: pl.DataFrame) -> tuple[str, ...]:
    found = []
    unseen = [site.label for site in state.sites if site not in state.sums]
    if unseen:
        found.append(f"No queries and keys of {', '.join(unseen)} were seen.")
    if table["isotropic"].null_count() == table.height:
        found.append("No prediction from weights: what the projections read, or their weights, are not known.")
    if max(table["windows"].to_list()) < 2:
        found.append("One pair of windows: there are no intervals.")
    missing = [str(distance) for distance in DISTANCES if distance not in set(table["distance"].to_list())]
    if missing:
        found.append(f"No window is long enough for the distance {', '.join(missing)}.")
    return tuple(found)


def headline(finding: Finding) -> tuple[str, ...]:
    """Whether tokens score themselves higher, whether the weights say so, and other distances."""
    if finding.status != "ok":
        return ()
    table = finding.tables["heads"]
    sentences = (_itself_sentence(table), _weights_sentence(table), _distance_sentence(table))
    return tuple(sentence for sentence in sentences if sentence)


def _clear(rows: pl.DataFrame) -> tuple[int, int]:
    """Heads clearly above and clearly below 0."""
    sure = rows.filter(pl.col("adjusted") < FALSE_DISCOVERIES)
    return sure.filter(pl.col("value") > 0).height, sure.filter(pl.col("value") < 0).height


def _detectable(rows: pl.DataFrame) -> str:
    """What one test detects in the median head, in standard deviations."""
    size = detectable_effect(rows, scale="spread")
    return "" if size is None else f"; one test detects {size:.2g} in four of five texts"


def _itself_sentence(table: pl.DataFrame) -> str:
    rows = table.filter(pl.col("distance") == 0, pl.col("effect").is_not_null())
    if rows.is_empty():
        return ""
    ordered = rows.sort("effect", maintain_order=True)
    low, high = ordered.row(0, named=True), ordered.row(-1, named=True)
    windows = max(rows["windows"].to_list())
    text = (
        f"On the text ({windows} windows, each beside the one before it) the score of a token with itself differs "
        f"from that of an unrelated token in its place by {_median(rows, 'effect'):+.2g} times the spread of "
        f"the head's scores, in the median of {rows.height} heads; most in {label_of(high)} ({_interval(high)}), least "
        f"in {label_of(low)} ({_interval(low)})."
    )
    if windows < 2:
        return text
    above, below = _clear(rows)
    return f"{text} {above} heads score it higher and {below} lower (false discovery rate 5 %{_detectable(rows)})."


def _interval(row: Mapping[str, object]) -> str:
    """The effect of a row with its interval."""
    value, spread, low, high = (row[name] for name in ("effect", "spread", "low", "high"))
    if not (isinstance(low, float) and isinstance(high, float) and isinstance(spread, float) and spread > 0):
        return f"{value:+.2g}"
    return f"{value:+.2g}, 95 % interval {low / spread:+.2g} to {high / spread:+.2g}"


def _median(rows: pl.DataFrame, column: str) -> float:
    return float(np.median(rows[column].to_numpy()))


def _weights_sentence(table: pl.DataFrame) -> str:
    rows = table.filter(
        pl.col("distance") == 0, pl.col("isotropic").is_not_null(), pl.col("adjusted") < FALSE_DISCOVERIES
    )
    if rows.is_empty():
        return ""
    agree = {name: rows.filter((pl.col(name) > 0) == (pl.col("value") > 0)).height for name in ("isotropic", "folded")}
    return (
        f"Of the {rows.height} heads with a clear effect, the trace of W_QK has its sign in {agree['isotropic']}, and "
        f"in {agree['folded']} when each coordinate is weighted with its variance on the text, norm gains included."
    )


def _distance_sentence(table: pl.DataFrame) -> str:
    parts = []
    for distance in sorted(set(table["distance"].to_list()) - {0}):
        rows = table.filter(pl.col("distance") == distance, pl.col("effect").is_not_null())
        if rows.is_empty():
            continue
        above, below = _clear(rows)
        parts.append(
            f"{_median(rows, 'effect'):+.2g} at {distance} ({above} heads above 0, {below} below{_detectable(rows)})"
        )
    if not parts:
        return ""
    return f"At other distances, in tokens, the median effect is {'; '.join(parts)}."


def definition(params: Params, weights: WeightSource | None, batches: Sequence[Batch]) -> dict[str, pl.DataFrame]:
    """The formulas as written, pair by pair, in float64."""
    if weights is None:
        raise LensError("the lens likeness reads the model's weights, and was given none")
    shown = [batch for batch in batches if batch.variant == AS_IS]
    return {"heads": pl.DataFrame(defined(weights, shown, params.skip), schema=SCHEMA)}


LENS = Lens(
    "likeness", ABOUT, Params, needs, start, update, merge, finish, definition, headline,
    invariant=frozenset({"qk", "rotated qk", "vo", "heads"}),
)  # fmt: skip
