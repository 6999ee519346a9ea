r"""Circuits: do heads write the tokens that they read?

Weights only. The map W_OV = w_v w_o of a head, or the map from source tokens to logits that goes through it, copies
where its eigenvalues are positive. Each copying score is compared with that of the layer's heads turned at random. For
words of ordinal lists the same map shows which heads write successors. For chosen heads the strongest pairs of tokens
are listed. No matrix of vocabulary × vocabulary is ever formed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import polars as pl

from headscope.core import Headline, HeadWeights, Selection, Site, Vocabulary, WeightSource, WeightStatus
from headscope.errors import WeightsRefused
from headscope.lenses.circuits.copying import ReadWrite, Row, frames_for, site_rows
from headscope.lenses.circuits.definition import definition
from headscope.lenses.circuits.figures import figures
from headscope.lenses.circuits.sentences import sentences
from headscope.lenses.circuits.settings import Params
from headscope.lenses.circuits.subject import Subject, subject_of
from headscope.lenses.circuits.successors import successor_rows
from headscope.lenses.circuits.tables import CENTRED, SCHEMA, STREAM, SUCCESSORS, TOKENS, VOCABULARY, head_quantities
from headscope.lenses.circuits.token_pairs import (
    Pair,
    PairScores,
    lists_of_head,
    moved_tokens,
    refusal,
    scored_tokens,
    turned_heads,
    turned_lists,
)
from headscope.lenses.circuits.vocabulary import Grams, folded, gram
from headscope.lenses.lens import Measurement, Needs, NotApplicable, Tables, WeightLens
from headscope.lenses.shared.head_threads import mapped
from headscope.lenses.shared.plots import place
from headscope.lenses.shared.weight_notes import origin, status_warnings

_HOW = (
    "Eigenvalues in float64, from matrices of d_head × d_head. Gains of the norms before the heads and before the "
    "output head are folded into the vocabulary's scores, not into those of the stream; biases of norms move no "
    "eigenvalue. The null turns what the heads of a layer read by random rotations; its range is mean ± 1.96 standard "
    "deviations."
)


class Circuits(WeightLens[Params]):
    """Do heads write the tokens that they read?"""

    name = "circuits"
    params = Params
    invariant = frozenset({"heads:heads", "vo", "qk", "rotated qk", "rotated vo"})

    def needs(self, params: Params) -> Needs:
        """The weights of a built model, whose norms are known."""
        params.check()
        return Needs(weights=True, built=True)

    def measure(self, params: Params, weights: WeightSource) -> Measurement:
        """Read one site at a time; of the vocabulary only d × d sums are kept."""
        statuses = {site: weights.status(site) for site in weights.sites}
        warnings = status_warnings(weights.spec, statuses, "W_OV is as it is, pairs of queries and keys are left out")
        sites = [site for site in weights.sites if site.kind == "self" and statuses[site].status != "refused"]
        if not sites:
            raise NotApplicable("no self-attention of this model has W_OV in canonical form", warnings=warnings)
        subject = subject_of(params, weights)
        warnings = (*warnings, *_warnings(subject, sites))
        rows_by_site = _copying(subject, sites)
        heads = _heads_table(rows_by_site, statuses, origin(weights.spec), params)
        tokens, notes = _tokens_table(subject, heads, sites)
        rows, lists = successor_rows(subject, sites)
        successors = pl.DataFrame(rows, schema=SUCCESSORS)
        tables = {"heads": heads, "tokens": tokens, "successors": successors}
        return Measurement(
            tables=tables,
            figures=figures(tables, sites),
            method=" ".join(filter(None, (_how(params), lists, f"{weights.method.capitalize()}."))),
            warnings=(*warnings, *notes),
            quantities=head_quantities(heads, successors),
        )

    def sentences(self, tables: Tables) -> tuple[Headline, ...]:
        """What stands out, in numbers."""
        return sentences(tables)

    def definition(self, params: Params, weights: WeightSource) -> dict[str, pl.DataFrame]:
        """The formulas as written, on the whole matrix of all pairs of tokens."""
        return definition(params, weights)


def _how(params: Params) -> str:
    rows = "at the scale of the norm" if params.rows == "normed" else "as stored"
    later = "; after the first layer they are those of the stream behind it" if params.effective else ""
    return f"{_HOW} Token vectors are {rows}{later}."


def _warnings(subject: Subject, sites: list[Site]) -> Iterator[str]:
    reading = subject.reading
    if isinstance(subject.tables, str):
        yield f"Only scores within the stream: {subject.tables}."
        if subject.params.effective:
            raise NotApplicable(f"there are no effective token vectors: {subject.tables}")
        return
    if reading.embedding and not subject.params.effective:
        yield f"The token vectors are those of the table alone, and {reading.embedding}."
    unclear = [site for site in sites if site in reading.unclear]
    for site in unclear[:1]:
        why = reading.unclear[site]
        yield f"Only scores within the stream for {len(unclear)} sites (first {site.label}): {why}."


def _copying(subject: Subject, sites: list[Site]) -> dict[Site, dict[str, list[Row]]]:
    """The rows of each site in each basis."""
    grams: dict[object, Grams] = {}

    def grams_of(site: Site) -> Grams:
        """Sums over tokens: the same for all layers whose norms treat rows alike."""
        tables, norm = subject.followed(), subject.reading.before[site]
        is_first = tables.later is None or site.layer == 0
        key = (is_first, None if norm is None else norm.centred)
        if key not in grams:
            grams[key] = gram(tables.unembedding, tables.rows(site.layer, norm, subject.params))
        return grams[key]

    def work(site: Site) -> dict[str, list[Row]]:
        heads = ReadWrite.of(subject.weights.weights(site))
        frames = frames_for(subject.params.rotations, heads)
        turned = heads.turned_outputs()
        rows = {STREAM: site_rows(heads, turned, None, frames)}
        if subject.reaches_tokens(site):
            sums = grams_of(site)
            rows[VOCABULARY] = site_rows(heads, turned, folded(sums.raw, subject.reading, site), frames)
            rows[CENTRED] = site_rows(heads, turned, folded(sums.centred, subject.reading, site), frames)
        return rows

    for site in sites:
        if subject.reaches_tokens(site):
            grams_of(site)
    return dict(zip(sites, mapped(work, sites), strict=True))


def _heads_table(
    rows_by_site: Mapping[Site, Mapping[str, list[Row]]],
    statuses: Mapping[Site, WeightStatus],
    read_from: str,
    params: Params,
) -> pl.DataFrame:
    rows = [
        {
            **place(site, head),
            "quantity": name,
            **row,
            "rotations": max(-(-params.rotations // site.n_heads), 2) * site.n_heads,
            "status": statuses[site].status,
            "weights": read_from,
        }
        for site, by_name in rows_by_site.items()
        for name, heads in by_name.items()
        for head, row in enumerate(heads)
    ]
    return pl.DataFrame(rows, schema=SCHEMA)


def _tokens_table(subject: Subject, heads: pl.DataFrame, sites: list[Site]) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """The lists of the chosen heads; by default of the head that copies most."""
    params, rows, notes = subject.params, list[dict[str, object]](), list[str]()
    spelling = _Spelling.by(subject.weights.vocabulary)
    heads_by_site = _chosen(params, heads, sites)
    for site, numbers in heads_by_site.items():
        if not subject.reaches_tokens(site):
            notes.append(f"No pairs of tokens of {site.label}: its heads are not followed from tokens to logits.")
            continue
        why = _score_refusal(subject, site)
        notes += [f"No pairs of queries and keys: {why}."] if why else []
        for head in numbers:
            rows += _head_lists(subject, spelling, site, head, scored=not why)
    return pl.DataFrame(rows, schema=TOKENS), tuple(dict.fromkeys(notes))


def _chosen(params: Params, heads: pl.DataFrame, sites: list[Site]) -> dict[Site, tuple[int, ...]]:
    if params.at:
        return Selection.parse(params.at).resolve(sites)
    measured = heads.filter(pl.col("quantity") == CENTRED, pl.col("value").is_finite())
    if measured.is_empty():
        return {}
    best = measured.sort("value", descending=True, maintain_order=True).row(0, named=True)
    return {site: (best["head"],) for site in sites if (site.stack, site.layer) == (best["stack"], best["layer"])}


def _score_refusal(subject: Subject, site: Site) -> str:
    status = subject.weights.status(site)
    try:
        subject.weights.rotary(site)
    except WeightsRefused as error:
        return error.message
    return refusal(site, status.status, status.reason)


def _head_lists(
    subject: Subject, spelling: "_Spelling", site: Site, head: int, *, scored: bool
) -> Iterator[dict[str, object]]:
    params, tables, reading = subject.params, subject.followed(), subject.reading
    w, norm = subject.weights.weights(site), reading.before[site]
    rows = tables.rows(site.layer, norm, params)
    count = min(params.tokens or len(rows), len(rows))
    rows = rows[:count]
    rotary = subject.weights.rotary(site) if scored else None

    def moved_by(weights: HeadWeights) -> PairScores:
        return moved_tokens(tables, rows, weights, head, reading)

    def attended_by(weights: HeadWeights) -> PairScores | None:
        return scored_tokens(rows, weights, head, norm, rotary, params.distance) if scored else None

    attended = attended_by(w)
    turns = ((attended_by(turn), moved_by(turn)) for turn in turned_heads(w, head))
    turned = turned_lists(attended, turns, params.top)
    for circuit, pairs in lists_of_head(attended, moved_by(w), params.top).items():
        for rank, pair in enumerate(pairs, 1):
            yield {
                **place(site, head),
                "circuit": circuit,
                "rank": rank,
                **spelling.of(pair),
                "score": pair.score,
                "null": turned[circuit].get(rank),
                "tokens": count,
            }


@dataclass(frozen=True)
class _Spelling:
    """Tokens as texts; as numbers where the checkpoint has no tokenizer."""

    vocabulary: Vocabulary | None
    size: int

    @classmethod
    def by(cls, vocabulary: Vocabulary | None) -> "_Spelling":
        return cls(vocabulary, 0 if vocabulary is None else vocabulary.size)

    def of(self, pair: Pair) -> dict[str, str | None]:
        return {name: self._text(getattr(pair, name)) for name in ("source", "query", "target")}

    def _text(self, token: int | None) -> str | None:
        if token is None:
            return None
        if self.vocabulary is None or token >= self.size:
            return f"#{token}"
        return self.vocabulary.spelled([token])[0]


LENS = Circuits()
