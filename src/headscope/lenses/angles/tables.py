"""The tables of the lens `angles`, from the sums of its windows."""

from collections.abc import Iterator, Mapping, Sequence

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from headscope.core import HeadQuantity, Site
from headscope.lenses.angles.arcs import NUMBERS, POINTS, ArcSums
from headscope.lenses.angles.map_pair import Picture
from headscope.lenses.angles.window import TARGETS, VECTORS, Window
from headscope.lenses.shared.plots import place
from headscope.lenses.shared.table import Row, number
from headscope.maths.resampling.jackknife import jackknife, jackknife_p
from headscope.maths.resampling.rank_correlation import RankSums, row_centred, row_ranks

_PLACE = [("stack", pl.String), ("kind", pl.String), ("layer", pl.Int64), ("head", pl.Int64)]
_CORRELATIONS = "value low high null null_sd given_distance given_low given_high p adjusted slope"
_ARCS = "value low high predicted ratio ratio_low ratio_high law_misfit sinusoid line angle length"
_PICTURE = "value rank slope"
SCHEMAS = {
    name: pl.Schema(
        [
            *_PLACE,
            ("quantity", pl.String),
            *((column, pl.Float64) for column in columns.split()),
            ("samples", pl.Int64),
            ("windows", pl.Int64),
        ]
    )
    for name, columns in (("heads", _CORRELATIONS), ("arcs", _ARCS), ("drawn", _PICTURE))
}


_LABELS = {
    "input_rank": "rank correlation of weights and input angles",
    "embedding_rank": "rank correlation of weights and token angles",
    "input_score": "correlation of scores and input angles",
}


def head_quantities(tables: Mapping[str, pl.DataFrame]) -> tuple[HeadQuantity, ...]:
    """Correlations of each head, and how far its rows diverge along arcs where that was measured."""
    correlations = tuple(
        HeadQuantity(
            key=name, label=label, table="heads", where={"quantity": name}, null="null", unit="", notable="both"
        )
        for name, label in _LABELS.items()
    )
    partial = HeadQuantity(
        key="input_rank_given_distance",
        label="rank correlation with angles, distance aside",
        table="heads",
        column="given_distance",
        where={"quantity": "input_rank"},
        notable="both",
    )
    divergence = HeadQuantity(
        key="row_divergence",
        label="divergence of attention rows along arcs",
        table="arcs",
        where={"quantity": "row"},
        null="predicted",
        unit="nats",
        scale="log",
        notable="both",
    )
    has_rows = "arcs" in tables and "row" in tables["arcs"]["quantity"].to_list()
    return (*correlations, partial, divergence) if has_rows else (*correlations, partial)


def head_rows(site: Site, windows: Sequence[Window]) -> Iterator[Row]:
    """Correlations of each head: cosines of inputs and embeddings with score, weight and rank."""
    sums = _left_out(torch.stack([window.sums for window in windows]))
    rank_sums = RankSums(sums)
    aa = sums[0, ..., 0]
    mm = torch.stack([window.shuffled_mm for window in windows]).sum(0)
    am = torch.stack([window.shuffled_am for window in windows]).sum(0)
    size = (aa[..., None] * mm[:, :, None]).sqrt()
    mixed = torch.where(size > 0, am / size.clamp_min(1e-300), torch.nan)
    value, half = jackknife(rank_sums.correlation)
    partial, margin = jackknife(rank_sums.partial)
    p, slope = jackknife_p(rank_sums.partial), rank_sums.slope[0]
    counts = {"samples": sum(window.pairs for window in windows), "windows": len(windows)}
    for head in range(site.n_heads):
        for v, vectors in enumerate(VECTORS):
            for t, target in enumerate(TARGETS):
                at = v, t, head
                numbers = {
                    "value": value[at],
                    "low": value[at] - half[at],
                    "high": value[at] + half[at],
                    "null": mixed[at].mean(),
                    "null_sd": mixed[at].std(),
                    "given_distance": partial[at],
                    "given_low": partial[at] - margin[at],
                    "given_high": partial[at] + margin[at],
                    "p": p[at],
                    "slope": slope[at] if target != "rank" else torch.tensor(torch.nan),
                }
                cells = {name: number(estimate) for name, estimate in numbers.items()}
                yield {**place(site, head), "quantity": f"{vectors}_{target}", **cells, **counts}


def arc_rows(site: Site, windows: Sequence[Window]) -> Iterator[Row]:
    """Arcs of the layer's input, at its own length and at length 1, and of each head's rows."""
    for name, index in (("input", 0), ("unit", 1)):
        yield from _arc_row(
            site, None, name, [ArcSums(window.arcs.sums[[index]], window.arcs.count[[index]]) for window in windows]
        )
    for head in range(site.n_heads):
        rows = [ArcSums(window.rows.sums[[head]], window.rows.count[[head]]) for window in windows]
        yield from _arc_row(site, head, "row", rows)


def _arc_row(site: Site, head: int | None, name: str, arcs: Sequence[ArcSums]) -> Iterator[Row]:
    nonempty = [window_arcs for window_arcs in arcs if float(window_arcs.count[0]) > 0]
    if not nonempty:
        return
    count = _left_out(torch.stack([window_arcs.count[0] for window_arcs in nonempty]))
    means = _left_out(torch.stack([window_arcs.sums[0] for window_arcs in nonempty])) / count.clamp_min(1)[:, None]
    curve, law = means[:, :POINTS], means[:, POINTS : 2 * POINTS]
    last = dict(zip(NUMBERS, means[0, 2 * POINTS :].tolist(), strict=True))
    value, half = jackknife(curve[:, 0])
    ratio, margin = jackknife(torch.where(law[:, 0] > 0, curve[:, 0] / law[:, 0].clamp_min(1e-300), torch.nan))
    misfit = (curve[0] - law[0]).abs().max() / law[0, 0] if float(law[0, 0]) > 0 else torch.nan
    numbers: dict[str, Tensor | float] = {
        "value": value,
        "low": (value - half).clamp_min(0.0),
        "high": value + half,
        "predicted": law[0, 0],
        "ratio": ratio,
        "ratio_low": (ratio - margin).clamp_min(0.0),
        "ratio_high": ratio + margin,
        "law_misfit": misfit,
        "sinusoid": last["residual"],
        "line": last["line"],
        "angle": last["angle"] * 180 / torch.pi,
        "length": last["length"],
    }
    cells = {key: number(estimate) for key, estimate in numbers.items()}
    yield {**place(site, head), "quantity": name, **cells, "samples": int(count[0]), "windows": len(nonempty)}


def arc_curves(windows: Sequence[Window], index: int) -> tuple[Float[Tensor, "points"], Float[Tensor, "points"]]:
    """The mean divergence and the mean law along the stream's arcs, at own length (0) or length 1 (1)."""
    total = torch.stack([window.arcs.sums[index] for window in windows]).sum(0)
    count = float(sum(float(window.arcs.count[index]) for window in windows))
    mean = total / max(1.0, count)
    return mean[:POINTS], mean[POINTS : 2 * POINTS]


def picture_rows(site: Site, picture: Picture) -> Iterator[Row]:
    """Correlations of the cosine maps with the averaged attention map, in the pictured window."""
    for name, cosine in (("input", picture.inputs), ("embedding", picture.embeddings)):
        mask = picture.visible & ~torch.eye(len(picture.visible), dtype=torch.bool)
        zero = torch.zeros_like(picture.weights)
        plain = RankSums.of(row_centred(picture.weights, mask), row_centred(cosine, mask), zero)
        ranks = RankSums.of(row_ranks(picture.weights, mask), row_ranks(cosine.round(decimals=9), mask), zero)
        cells = {
            "value": number(plain.correlation),
            "rank": number(ranks.correlation),
            "slope": number(plain.slope),
        }
        yield {**place(site, None), "quantity": name, **cells, "samples": int(mask.sum()), "windows": 1}


def frames(rows: Mapping[str, list[Row]]) -> dict[str, pl.DataFrame]:
    """The tables that have rows."""
    return {name: pl.DataFrame(rows[name], schema=schema) for name, schema in SCHEMAS.items() if rows[name]}


def _left_out(sums: Float[Tensor, "windows *rest"]) -> Float[Tensor, "sets *rest"]:
    """Sums over all windows, then over all windows but one, for each."""
    total = sums.sum(0)
    return torch.cat((total[None], total - sums))
