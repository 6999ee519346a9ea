r"""Likeness: do heads score related tokens of a text higher than unrelated ones in the same places?

A fold over text that keeps numbers only. For each head and distance t, the scores of queries with the keys t tokens
before them, and the scores of the same queries with the keys at those places in the window before. The difference is
Tr Cov(q, k) on real inputs. Next to it: what the weights alone predict.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from headscope.core import Headline, ModelSpec, Site, WeightSource
from headscope.errors import LensError
from headscope.lenses.lens import (
    AS_IS,
    Batch,
    Measurement,
    Needs,
    NotApplicable,
    Tables,
    TextLens,
    TextSize,
)
from headscope.lenses.likeness.definition import defined
from headscope.lenses.likeness.figures import figures
from headscope.lenses.likeness.sentences import sentences
from headscope.lenses.likeness.settings import Params
from headscope.lenses.likeness.tables import head_quantities
from headscope.lenses.shared.plots import place
from headscope.lenses.shared.table import Row
from headscope.lenses.shared.window_tests import adjusted, left_out
from headscope.maths.resampling.jackknife import jackknife, jackknife_p

PLACES = 512  # tokens of a window that are used: one window of every site is held until the next has come
SCHEMA = pl.Schema(
    {"stack": pl.String, "kind": pl.String, "layer": pl.Int64, "head": pl.Int64, "distance": pl.Int64}
    | dict.fromkeys(("value", "low", "high", "spread", "effect", "p", "adjusted", "isotropic", "folded"), pl.Float64)
    | {"pairs": pl.Int64, "windows": pl.Int64}
)
DISTANCES = (0, 1, 4, 16, 64)


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
    """Sums of each site; `inputs` holds sum, sum of squares and count of what its projections read."""

    params: Params
    sites: tuple[Site, ...]
    sums: Mapping[Site, Sums] = field(default_factory=dict)
    inputs: Mapping[Site, tuple[Float[Tensor, " m"], Float[Tensor, " m"], int]] = field(default_factory=dict)


class Likeness(TextLens[Params, State]):
    """Do heads score related tokens of a text higher than unrelated ones in the same places?"""

    name = "likeness"
    params = Params
    invariant = frozenset({"qk", "rotated qk", "vo", "heads"})

    def needs(self, params: Params) -> Needs:
        """Queries and keys of every token, and what the projections read where it is shown."""
        params.check()
        return Needs(weights=True, captures=frozenset({"q", "k", "scale"}), welcome=frozenset({"x"}), pieces=True)

    def start(self, params: Params, model: ModelSpec, sites: tuple[Site, ...], text: TextSize) -> State:
        """Nothing seen yet. Cross-attention is left out: its keys have no distance."""
        return State(params, tuple(site for site in sites if site.kind == "self"))

    def update(self, state: State, batch: Batch) -> State:
        """Add the windows of one batch."""
        sums, inputs = dict(state.sums), dict(state.inputs)
        for site in state.sites:
            if site in batch.captures.get("q", {}):
                for window in _windows(site, batch):
                    later = _sums(state.params, float(batch.captures["scale"][site]), window)
                    sums[site] = _merged(state.params, sums[site], later) if site in sums else later
            if site in batch.captures.get("x", {}):
                inputs[site] = _added(inputs.get(site), _input_sums(state.params, batch, site))
        return replace(state, sums=sums, inputs=inputs)

    def merge(self, a: State, b: State) -> State:
        """The sums of both states, a's windows first."""
        sums, inputs = dict(a.sums), dict(a.inputs)
        for site, later in b.sums.items():
            sums[site] = _merged(a.params, sums[site], later) if site in sums else later
        for site, read in b.inputs.items():
            inputs[site] = _added(inputs.get(site), read)
        return replace(a, sums=sums, inputs=inputs)

    def finish(self, state: State, weights: WeightSource | None) -> Measurement:
        """Differences, intervals and predictions of every site."""
        if weights is None:
            raise LensError("the lens likeness reads the model's weights, and was given none")
        rows: list[Row] = []
        for site in state.sites:
            if site in state.sums:
                rows += _rows(site, state.sums[site], _predictions(site, state, weights))
        if not rows:
            reason = "no two windows of self-attention with queries and keys were shown to the lens"
            raise NotApplicable(reason)
        table = adjusted(pl.DataFrame(rows, schema=SCHEMA), ["distance"])
        return Measurement(
            tables={"heads": table},
            figures=figures(table, [site for site in state.sites if site in state.sums]),
            method=(
                f"Products of queries and keys of the first {PLACES} tokens of each window, as the model computes them "
                "(rotated, where positions are rotary), sums in float64; each window with the one before it as its "
                "unrelated text. Successive differences share a window, which makes their intervals a little "
                "wider than "
                "needed."
            ),
            quantities=head_quantities(table),
            warnings=_warnings(state, table),
        )

    def definition(
        self, params: Params, weights: WeightSource | None, batches: Sequence[Batch]
    ) -> dict[str, pl.DataFrame]:
        """The formulas as written, pair by pair, in float64."""
        if weights is None:
            raise LensError("the lens likeness reads the model's weights, and was given none")
        batches_as_is = [batch for batch in batches if batch.variant == AS_IS]
        return {"heads": pl.DataFrame(defined(weights, batches_as_is, params.skip), schema=SCHEMA)}

    def sentences(self, tables: Tables) -> tuple[Headline, ...]:
        """What stands out, in numbers."""
        return sentences(tables)


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
        p = jackknife_p(estimates)
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
    messages = []
    unseen = [site.label for site in state.sites if site not in state.sums]
    if unseen:
        messages.append(f"No queries and keys of {', '.join(unseen)} were seen.")
    if table["isotropic"].null_count() == table.height:
        messages.append("No prediction from weights: what the projections read, or their weights, are not known.")
    if max(table["windows"].to_list()) < 2:
        messages.append("One pair of windows: there are no intervals.")
    missing = [str(distance) for distance in DISTANCES if distance not in set(table["distance"].to_list())]
    if missing:
        messages.append(f"No window is long enough for the distance {', '.join(missing)}.")
    return tuple(messages)


LENS = Likeness()
