r"""Alignment: do queries and keys look for the same things?

Weights only, one tensor at a time. A head scores a pair of tokens by the form W_QK = w_q w_kᵀ. Its trace, its symmetric
share and the overlap of what its two sides read say how the two sides of the weights lie to each other; each is
compared with what is left when the queries' side is turned at random against the keys' side. What the head does on a
text is another question: the lens `likeness` measures it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log, sqrt

import numpy as np
import polars as pl
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from headscope.core import Headline, HeadWeights, Site, WeightSource
from headscope.lenses.alignment.definition import definition
from headscope.lenses.alignment.figures import figures
from headscope.lenses.alignment.sentences import sentences
from headscope.lenses.alignment.settings import Params
from headscope.lenses.alignment.tables import SCHEMA, Row, head_quantities
from headscope.lenses.lens import Measurement, Needs, NotApplicable, Tables, WeightLens
from headscope.lenses.shared.plots import place
from headscope.lenses.shared.weight_notes import gain_warning, has_gain, method_of, origin, status_warnings
from headscope.maths.linear_algebra.alignment import (
    FormMoments,
    alignment,
    form_moments,
    independent_trace_variance,
    turned_overlap,
    turned_symmetric_share,
    turned_trace_variance,
)
from headscope.maths.random_matrices.haar import largest_cosine_square, subspace_overlap
from headscope.maths.random_matrices.marchenko_pastur import TRACY_WIDOM_MEAN, TRACY_WIDOM_SD

_ALMOST_ONE = 1 - 1e-9
_HOW = (
    "Exact, in float64, from the factors: W_QK is never formed. The nulls are exact means and variances over random "
    "rotations, except that of largest_cosine, which is a law for large subspaces."
)


@dataclass(frozen=True)
class SiteNumbers:
    """The numbers of one site."""

    heads: list[dict[str, Row]]
    factors: list[dict[str, Row]]
    layer: dict[str, Row]
    layer_factors: dict[str, Row]
    cosines: list[NDArray[np.float64]] = field(default_factory=list)


@dataclass(frozen=True)
class _Factor:
    """w_q or w_k of one head, and its thin SVD: u towards the token, v inside the head."""

    w: Float[Tensor, "n d"]
    u: Float[Tensor, "n rank"]
    sigma: Float[Tensor, " rank"]
    v: Float[Tensor, "d rank"]

    @classmethod
    def of(cls, w: Float[Tensor, "n d"]) -> "_Factor":
        w = w.to(torch.float64)
        u, sigma, vh = torch.linalg.svd(w, full_matrices=False)
        rank = int((sigma > float(sigma[0]) * max(w.shape) * torch.finfo(torch.float64).eps).sum())
        return cls(w, u[:, :rank], sigma[:rank], vh[:rank].mT)

    @property
    def shares(self) -> Float[Tensor, " rank"]:
        """Squared singular values as shares of their sum."""
        return self.sigma.square() / self.sigma.square().sum()


class Alignment(WeightLens[Params]):
    """Do queries and keys look for the same things?"""

    name = "alignment"
    params = Params
    invariant = frozenset({"heads", "qk:heads", "qk:layers", "rotated qk", "vo"})

    def needs(self, params: Params) -> Needs:
        """Only weights."""
        return Needs(weights=True)

    def measure(self, params: Params, weights: WeightSource) -> Measurement:
        """Read one site at a time and keep only its numbers."""
        statuses = {site: weights.status(site) for site in weights.sites}
        readable_sites = [site for site in weights.sites if statuses[site].status != "refused"]
        warnings = status_warnings(weights.spec, statuses, "W_QK is the form before it")
        numbers_by_site: dict[Site, SiteNumbers] = {}
        gained: list[Site] = []
        unlike: list[Site] = []
        for site in readable_sites:
            w = weights.weights(site)
            if w.w_q.shape[1] != w.w_k.shape[1]:
                unlike.append(site)
                continue
            numbers_by_site[site] = _site_numbers(w)
            gained += [site] if has_gain(w, "qk") else []
            del w
        warnings = (
            *warnings,
            *_unlike_warning(unlike),
            *_cross_warning(numbers_by_site),
            *gain_warning(gained, readable_sites, "q or k"),
        )
        if not numbers_by_site:
            reason = (
                "no attention site of this model has queries and keys in canonical form that read vectors of one size"
            )
            raise NotApplicable(reason, warnings=warnings)
        tables = _tables(
            numbers_by_site, {site: statuses[site].status for site in numbers_by_site}, origin(weights.spec)
        )
        return Measurement(
            tables=tables,
            arrays={
                f"{site.label}.cosines": _padded(site_numbers.cosines) for site, site_numbers in numbers_by_site.items()
            },
            figures=figures(
                {site: site_numbers.heads for site, site_numbers in numbers_by_site.items()},
                {s: site_numbers.layer for s, site_numbers in numbers_by_site.items()},
            ),
            method=method_of(weights, _HOW),
            quantities=head_quantities,
            warnings=warnings,
        )

    def sentences(self, tables: Tables) -> tuple[Headline, ...]:
        """What stands out, in numbers."""
        return sentences(tables)

    def definition(self, params: Params, weights: WeightSource) -> dict[str, pl.DataFrame]:
        """The tables by their formulas."""
        return definition(params, weights)


def _unlike_warning(unlike: Sequence[Site]) -> tuple[str, ...]:
    if not unlike:
        return ()
    labels = ", ".join(site.label for site in unlike)
    return (f"Left out: {labels}. Reason: queries and keys read vectors of different sizes, so W_QK has no trace.",)


def _cross_warning(numbers_by_site: Mapping[Site, SiteNumbers]) -> tuple[str, ...]:
    cross = [site for site in numbers_by_site if site.kind == "cross"]
    if not cross:
        return ()
    return (
        f"{len(cross)} of {len(numbers_by_site)} sites (first {cross[0].label}) are cross-attention: queries and keys "
        "read different stacks, and their alignment means something only as far as these share their coordinates.",
    )


def _padded(rows: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Cosines of the principal angles, heads down; a head of lower rank ends in NaN."""
    cells = np.full((len(rows), max(len(row) for row in rows)), np.nan)
    for index, row in enumerate(rows):
        cells[index, : len(row)] = row
    return cells


def _site_numbers(w: HeadWeights) -> SiteNumbers:
    """All heads one by one, then their sum."""
    heads, factors, cosines = [], [], []
    read, key = 0, _Factor.of(w.w_k[0])
    for head in range(w.site.n_heads):
        if w.kv_of_head(head) != read:  # the heads of a group follow one another
            read = w.kv_of_head(head)
            key = _Factor.of(w.w_k[read])
        query = _Factor.of(w.w_q[head])
        numbers, angles = _head(query, key)
        heads.append(numbers)
        cosines.append(angles)
        factors.append(_factor_numbers(query, key))
    layer, of_factors = _layer(w)
    return SiteNumbers(heads, factors, layer, of_factors, cosines)


def _head(query: _Factor, key: _Factor) -> tuple[dict[str, Row], NDArray[np.float64]]:
    """The numbers that the inner basis of a head does not change, and its principal cosines."""
    n = len(query.w)
    across = query.u.mT @ key.u
    cosines = torch.linalg.svdvals(across).clamp(0.0, 1.0) if across.numel() else across.new_zeros(0)
    core = (query.sigma[:, None] * query.v.mT) @ (key.v * key.sigma)
    left, sigma, right = torch.linalg.svd(core, full_matrices=False)
    energy = sigma.square().sum()
    if not float(energy) > 0:
        nothing = ("trace_share", "symmetric_share", "weighted_overlap", "leading_cosine")
        angles = _angle_numbers(cosines, n, query.u.shape[1], key.u.shape[1])
        return {"trace": (0.0, 0.0, 0.0, None)} | dict.fromkeys(nothing, (None,) * 4) | angles, cosines.numpy()
    # ⟨u_i, v_j⟩ of the form's own singular vectors: left.T · (queries' basis · keys' basis) · right.
    overlaps = left.mT @ across @ right.mT
    shares = sigma.square() / energy
    trace = float(alignment(query.w, key.w))
    trace_sd = sqrt(float(turned_trace_variance(energy, n)))
    nuclear = float(sigma.sum())
    weighted = float(shares @ overlaps.square() @ shares)
    mean, variance = turned_overlap(shares, shares, n)
    return {
        "trace": _row(trace, 0.0, trace_sd),
        "trace_share": _row(trace / nuclear, 0.0, trace_sd / nuclear),
        "symmetric_share": _symmetric(form_moments(query.w, key.w), n),
        "weighted_overlap": _row(weighted, float(mean), sqrt(float(variance))),
        "leading_cosine": _row(float(overlaps[0, 0]), 0.0, n**-0.5),
        **_angle_numbers(cosines, n, query.u.shape[1], key.u.shape[1]),
    }, cosines.numpy()


def _row(value: float, null: float, sd: float) -> Row:
    # Rounding can leave a trace of a spread where chance has none.
    return value, null, sd, (value - null) / sd if sd > 1e-9 * max(abs(value), abs(null)) else None


def _symmetric(moments: FormMoments, n: int) -> Row:
    if not float(moments.energy) > 0:
        return (None,) * 4
    mean, variance = turned_symmetric_share(moments.purity, n)
    return _row(float(moments.symmetric_share), mean, sqrt(float(variance)))


def _angle_numbers(cosines: Float[Tensor, " rank"], n: int, first: int, second: int) -> dict[str, Row]:
    """Overlap and largest cosine of two subspaces of n dimensions, from their principal cosines."""
    if not len(cosines):
        return {"subspace_overlap": (None,) * 4, "largest_cosine": (None,) * 4}
    smaller = min(first, second)
    mean, variance = subspace_overlap(n, first, second)
    overlap = _row(float(cosines.square().sum()) / smaller, mean / smaller, sqrt(variance) / smaller)
    return {"subspace_overlap": overlap, "largest_cosine": _largest_cosine(float(cosines[0]), n, first, second)}


def _largest_cosine(value: float, n: int, first: int, second: int) -> Row:
    if first + second > n - 1:
        return value, 1.0 if first + second > n else None, None, None
    centre, scale = largest_cosine_square(n, first, second)
    log_odds_mean, spread = centre + scale * TRACY_WIDOM_MEAN, scale * TRACY_WIDOM_SD
    null = (1 + exp(-log_odds_mean)) ** -0.5
    square = min(value**2, _ALMOST_ONE)
    place_of = log(max(square, 1e-300) / (1 - square))
    return value, null, null * (1 - null**2) / 2 * spread, (place_of - log_odds_mean) / spread


def _factor_numbers(query: _Factor, key: _Factor) -> dict[str, Row]:
    """The numbers that depend on the inner basis, unless it is changed by a rotation."""
    n, d = query.w.shape
    trace = float(alignment(query.w, key.w))
    factor_rows: dict[str, Row] = {"trace": _row(trace, 0.0, sqrt(_gaussian_variance(query.w, key.w)))}
    if not (len(query.sigma) and len(key.sigma)):
        return factor_rows | dict.fromkeys(("input_overlap", "inner_overlap"), (None,) * 4)
    for name, a, b, size in (
        ("input_overlap", query.u, key.u, n),
        ("inner_overlap", query.v, key.v, d),
    ):
        value = float(query.shares @ (a.mT @ b).square() @ key.shares)
        mean, variance = turned_overlap(query.shares, key.shares, size)
        factor_rows[name] = _row(value, float(mean), sqrt(float(variance)))
    return factor_rows


def _gaussian_variance(a: Float[Tensor, "n d"], b: Float[Tensor, "n d"]) -> float:
    n, d = a.shape
    return independent_trace_variance(n, d, *(float(x.to(torch.float64).square().mean()) for x in (a, b)))


def _layer(w: HeadWeights) -> tuple[dict[str, Row], dict[str, Row]]:
    """The sum of the heads' forms. The queries of a group share their keys, so they are added first."""
    grouped = w.w_q.to(torch.float64).reshape(w.site.n_kv_heads, -1, *w.w_q.shape[1:]).sum(1)
    queries, keys = (x.transpose(0, 1).flatten(1) for x in (grouped, w.w_k.to(torch.float64)))
    moments = form_moments(queries, keys)
    trace = float(alignment(queries, keys))
    layer = {
        "trace": _row(trace, 0.0, sqrt(float(turned_trace_variance(moments.energy, len(queries))))),
        "symmetric_share": _symmetric(moments, len(queries)),
    }
    # Traces of different heads are uncorrelated under the null, also where they share their keys.
    variance = sum(_gaussian_variance(w_q, w.w_k[w.kv_of_head(head)]) for head, w_q in enumerate(w.w_q))
    return layer, {"trace": _row(trace, 0.0, sqrt(variance))}


def _tables(
    numbers_by_site: Mapping[Site, SiteNumbers], statuses: Mapping[Site, str], read_from: str
) -> dict[str, pl.DataFrame]:
    """One row per head (or layer) and quantity."""

    def rows(site: Site, head: int | None, numbers: Mapping[str, Row]) -> Iterator[dict[str, object]]:
        for quantity, (value, null, sd, z) in numbers.items():
            measured = {"quantity": quantity, "value": value, "null": null, "sd": sd, "z": z}
            yield {**place(site, head), **measured, "status": statuses[site], "weights": read_from}

    heads: list[dict[str, object]] = []
    layers: list[dict[str, object]] = []
    factors: list[dict[str, object]] = []
    for site, site_numbers in numbers_by_site.items():
        heads += [row for head, numbers in enumerate(site_numbers.heads) for row in rows(site, head, numbers)]
        layers += rows(site, None, site_numbers.layer)
        factors += [row for head, numbers in enumerate(site_numbers.factors) for row in rows(site, head, numbers)]
        factors += rows(site, None, site_numbers.layer_factors)
    parts = {"heads": heads, "layers": layers, "factors": factors}
    return {name: pl.DataFrame(part, schema=SCHEMA) for name, part in parts.items()}


LENS = Alignment()
