r"""Composition: which heads read what earlier heads write?

Weights only. The share of what one head writes that the queries, keys or values of another head read is the size of
the product of their maps over the product of their sizes. A later head cannot feed an earlier one: pairs in the wrong
order are chance, and each reader is compared with its impossible writers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, sqrt

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from headscope.core import Headline, Rotary, Selection, Site, StreamReading, WeightSource, WeightStatus
from headscope.errors import WeightsRefused
from headscope.lenses.composition.definition import definition
from headscope.lenses.composition.figures import figures
from headscope.lenses.composition.grams import readers_of, scores, writer_factors
from headscope.lenses.composition.sentences import sentences
from headscope.lenses.composition.settings import Params
from headscope.lenses.composition.tables import FEWEST, HEADS, PAIRS, head_quantities
from headscope.lenses.lens import Measurement, Needs, NotApplicable, Tables, WeightLens
from headscope.lenses.shared.head_threads import mapped
from headscope.lenses.shared.plots import place
from headscope.lenses.shared.weight_notes import origin, status_warnings

_HOW = (
    "Exact, from Gram matrices of d_head × d_head in the precision of the weights; no product of two heads is formed. "
    "The gain of the norm before the reader, and its removal of the mean, are folded into what it reads; its scale, "
    "one number for each token, cancels. The mean over rotary distances is a closed form."
)
# A median absolute deviation of normal numbers times this is their standard deviation.
_MAD = 1.482602218505602
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Head:
    """A head of the model: its site, its number, and its place among all writers."""

    site: Site
    number: int

    @property
    def label(self) -> str:
        """The head as people write it."""
        return self.site.head_label(self.number)

    def can_feed(self, reader: "Head") -> bool:
        """Whether this head writes before the other one reads."""
        return self.site.stack == reader.site.stack and self.site.layer < reader.site.layer

    def is_impossible_for(self, reader: "Head") -> bool:
        """Whether this head writes too late for the other one, which is another head of its stack."""
        return self.site.stack == reader.site.stack and self.site.layer >= reader.site.layer and self != reader


@dataclass(frozen=True)
class Scores:
    """All scores of the model: by quantity a table of readers × writers, and the sizes of the readers' maps."""

    heads: tuple[Head, ...]
    tables: Mapping[str, Array]
    sizes: Mapping[str, Array]

    def can_feed(self) -> NDArray[np.bool_]:
        """Readers × writers: whether the writer comes before the reader."""
        return np.array([[writer.can_feed(reader) for writer in self.heads] for reader in self.heads])

    def impossible(self) -> NDArray[np.bool_]:
        """Readers × writers: whether the writer comes too late for the reader."""
        return np.array([[writer.is_impossible_for(reader) for writer in self.heads] for reader in self.heads])


class Composition(WeightLens[Params]):
    """Which heads read what earlier heads write?"""

    name = "composition"
    params = Params
    invariant = frozenset({"heads:heads", "vo", "qk", "rotated qk", "rotated vo"})

    def needs(self, params: Params) -> Needs:
        """The weights of a built model, whose norms and positions are known."""
        params.check()
        return Needs(weights=True, built=True)

    def measure(self, params: Params, weights: WeightSource) -> Measurement:
        """Take the sites one by one as readers of all writers."""
        statuses = {site: weights.status(site) for site in weights.sites}
        normed = "W_QK does not give its scores, so only what its values read is measured"
        warnings = status_warnings(weights.spec, statuses, normed)
        sites = [site for site in weights.sites if site.kind == "self" and statuses[site].status != "refused"]
        try:
            reading = weights.stream_reading()
        except WeightsRefused as error:
            raise NotApplicable(error.message, warnings=warnings) from error
        usable = [site for site in sites if site in reading.before and site.stack not in reading.not_a_sum]
        if not usable:
            raise NotApplicable(_refusal(sites, reading), warnings=warnings)
        turns = {site: _turn(weights, site) for site in usable}
        measured = _scores(weights, usable, reading, turns)
        rows = _reader_rows(measured)
        heads = _heads_table(measured, rows, statuses, weights)
        pairs = _pairs_table(measured, rows, params)
        tables = {"heads": heads, "pairs": pairs}
        return Measurement(
            tables=tables,
            figures=figures(tables, {name: _layer_scores(measured, name) for name in measured.tables}, usable),
            method=f"{_HOW} {weights.method.capitalize()}.",
            warnings=(*warnings, *_warnings(sites, usable, reading, turns)),
            quantities=head_quantities(heads),
        )

    def sentences(self, tables: Tables) -> tuple[Headline, ...]:
        """What stands out, in numbers."""
        return sentences(tables)

    def definition(self, params: Params, weights: WeightSource) -> dict[str, pl.DataFrame]:
        """The formulas as written, on whole maps of d × d."""
        return definition(params, weights)


def _refusal(sites: list[Site], reading: StreamReading) -> str:
    reasons = [*reading.not_a_sum.values(), *(reading.unclear[site] for site in sites if site in reading.unclear)]
    reason = f": {reasons[0]}" if reasons else ""
    return f"no self-attention of this model reads a stream that is a sum of what heads write{reason}"


def _warnings(
    sites: list[Site], usable: list[Site], reading: StreamReading, turns: Mapping[Site, Rotary | str | None]
) -> list[str]:
    texts: list[str] = []
    left_out = [site for site in sites if site not in usable]
    if left_out:
        texts.append(f"Left out: {', '.join(site.label for site in left_out)}. Reason: {_refusal(left_out, reading)}.")
    unknown = {site: turn for site, turn in turns.items() if isinstance(turn, str)}
    for reason in list(unknown.values())[:1]:
        texts.append(f"Only distance 0 for {len(unknown)} of {len(turns)} sites: {reason}.")
    return texts


def _turn(weights: WeightSource, site: Site) -> Rotary | str | None:
    try:
        return weights.rotary(site)
    except WeightsRefused as error:
        return error.message


def _scores(
    weights: WeightSource, sites: list[Site], reading: StreamReading, turns: Mapping[Site, Rotary | str | None]
) -> Scores:
    """All scores; writers of a whole model are held in factors, readers site by site."""
    writers = [writer_factors(weights.weights(site), reading.after.get(site)) for site in sites]

    def work(site: Site) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        tables: dict[str, list[Tensor]] = {}
        sizes: dict[str, Tensor] = {}
        for reader in readers_of(weights.weights(site), reading.before[site], turns[site]).values():
            sizes |= reader.sizes()
            for factors in writers:  # one layer at a time: bounded memory
                for name, table in scores(factors, reader, sizes).items():
                    tables.setdefault(name, []).append(table)
        return {name: torch.cat(parts, dim=1) for name, parts in tables.items()}, sizes

    results = mapped(work, sites)
    heads = tuple(Head(site, number) for site in sites for number in range(site.n_heads))
    names = [name for name in _QUANTITIES if any(name in tables for tables, _ in results)]
    tables = {name: _stacked([part.get(name) for part, _ in results], sites, len(heads)) for name in names}
    sizes = {name: _stacked([part.get(name) for _, part in results], sites, None) for name in names}
    return Scores(heads, tables, sizes)


_QUANTITIES = ("q at 0", "q at 1", "q average", "k at 0", "k at 1", "k average", "v")


def _stacked(parts: list[Tensor | None], sites: list[Site], width: int | None) -> Array:
    """The rows of all sites; NaN where a site does not have the quantity."""
    shapes = [(site.n_heads,) if width is None else (site.n_heads, width) for site in sites]
    rows = [
        np.full(shape, np.nan) if part is None else part.double().numpy()
        for part, shape in zip(parts, shapes, strict=True)
    ]
    return np.concatenate(rows)


@dataclass(frozen=True)
class ReaderRow:
    """One reader in one quantity: its strongest earlier writer, and its impossible writers."""

    value: float | None
    null: float | None
    spread: float | None
    largest: float | None
    writers: int
    late: int
    impossible: int

    def z(self, score: float | None) -> float | None:
        """The distance of a score from the impossible writers' median, in robust standard deviations."""
        if score is None or self.null is None or not self.spread:
            return None
        return (score - self.null) / self.spread


def _reader_rows(measured: Scores) -> dict[str, list[ReaderRow]]:
    can_feed, impossible = measured.can_feed(), measured.impossible()
    return {
        name: [_reader_row(measured, table, reader, can_feed, impossible) for reader in range(len(measured.heads))]
        for name, table in measured.tables.items()
    }


def _reader_row(
    measured: Scores, table: Array, reader: int, can_feed: NDArray[np.bool_], impossible: NDArray[np.bool_]
) -> ReaderRow:
    earlier = _finite(table[reader][can_feed[reader]])
    late_scores = _finite(table[reader][impossible[reader]])
    pool = _pooled(measured, table, reader, impossible, late_scores)
    median: float | None = None
    spread: float | None = None
    if len(pool) >= FEWEST:
        median = float(np.median(pool))
        spread = _MAD * float(np.median(np.abs(pool - median)))
    return ReaderRow(
        value=float(earlier.max()) if len(earlier) else None,
        null=median,
        spread=spread,
        largest=float(late_scores.max()) if len(late_scores) else None,
        writers=len(earlier),
        late=len(late_scores),
        impossible=len(pool),
    )


def _pooled(measured: Scores, table: Array, reader: int, impossible: NDArray[np.bool_], late_scores: Array) -> Array:
    """The impossible scores of a reader; of its layer, or of the model, where these are fewer than `FEWEST`."""
    if len(late_scores) >= FEWEST:
        return late_scores
    site = measured.heads[reader].site
    alike = np.array([head.site == site for head in measured.heads])
    layer = _finite(table[alike][impossible[alike]])
    if len(layer) >= FEWEST:
        return layer
    stack = np.array([head.site.stack == site.stack for head in measured.heads])
    return _finite(table[stack][impossible[stack]])


def _finite(scores_of_reader: Array) -> Array:
    return scores_of_reader[np.isfinite(scores_of_reader)]


def _heads_table(
    measured: Scores,
    rows: Mapping[str, list[ReaderRow]],
    statuses: Mapping[Site, WeightStatus],
    weights: WeightSource,
) -> pl.DataFrame:
    random = 1 / sqrt(weights.weights(measured.heads[0].site).w_q.shape[1])
    table = [
        {
            **place(head.site, head.number),
            "quantity": name,
            "value": row.value,
            "null": row.null,
            "null_spread": row.spread,
            "null_largest": row.largest,
            "z": row.z(row.value),
            "random": random,
            "size": float(measured.sizes[name][index]),
            "writers": row.writers,
            "late": row.late,
            "impossible": row.impossible,
            "status": statuses[head.site].status,
            "weights": origin(weights.spec),
        }
        for name, by_reader in rows.items()
        for index, (head, row) in enumerate(zip(measured.heads, by_reader, strict=True))
        if isfinite(measured.sizes[name][index])
    ]
    return pl.DataFrame(table, schema=HEADS)


def _pairs_table(measured: Scores, rows: Mapping[str, list[ReaderRow]], params: Params) -> pl.DataFrame:
    """The possible pairs that exceed the reader's null most, a group of keys and values counted once."""
    selection = Selection.parse(params.at or "all")
    readers = selection.resolve({head.site for head in measured.heads}) if params.at else None
    can_feed = measured.can_feed()
    table: list[dict[str, object]] = []
    for name, scores_of_pairs in measured.tables.items():
        excess = _excess(scores_of_pairs, rows[name], can_feed)
        if readers is not None:
            is_chosen = [head.number in readers.get(head.site, ()) for head in measured.heads]
            excess[~np.array(is_chosen)] = -np.inf
        table += _strongest(measured, name, excess, rows[name], params.top)
    return pl.DataFrame(table, schema=PAIRS)


def _excess(table: Array, rows: list[ReaderRow], can_feed: NDArray[np.bool_]) -> Array:
    nulls = np.array([row.null if row.null is not None else 0.0 for row in rows])
    return np.where(can_feed & np.isfinite(table), table - nulls[:, None], -np.inf)


def _strongest(measured: Scores, name: str, excess: Array, rows: list[ReaderRow], top: int) -> list[dict[str, object]]:
    counted_groups: set[tuple[Site, int, int]] = set()
    table: list[dict[str, object]] = []
    width = len(measured.heads)
    for flat in np.argsort(-excess, axis=None, kind="stable"):
        reader, writer = divmod(int(flat), width)
        if len(table) == top or not np.isfinite(excess[reader, writer]):
            break
        head = measured.heads[reader]
        group = head.number if name.startswith("q") else head.site.kv_head(head.number)
        if (head.site, group, writer) in counted_groups:
            continue
        counted_groups.add((head.site, group, writer))
        score = float(measured.tables[name][reader, writer])
        table.append(
            {
                **place(head.site, head.number),
                "quantity": name,
                "rank": len(table) + 1,
                "writer": measured.heads[writer].label,
                "value": score,
                "null": rows[reader].null,
                "z": rows[reader].z(score),
            }
        )
    return table


def _layer_scores(measured: Scores, name: str) -> Array:
    """The largest score between two layers: reading layer × writing layer, possible or not."""
    sites = list(dict.fromkeys(head.site for head in measured.heads))
    index = np.array([sites.index(head.site) for head in measured.heads])
    table = np.where(np.eye(len(index), dtype=bool), np.nan, measured.tables[name])
    layers = np.full((len(sites), len(sites)), np.nan)
    for row in range(len(sites)):
        for column in range(len(sites)):
            block = _finite(table[np.ix_(index == row, index == column)])
            layers[row, column] = block.max() if len(block) else np.nan
    return layers


LENS = Composition()
