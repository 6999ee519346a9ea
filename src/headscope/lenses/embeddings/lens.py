r"""Embeddings: do the vectors of tokens lie on a sphere, point everywhere alike, and add up to meaning?

Weights only, and the tokenizer for what tokens spell. Lengths, cosines over all pairs and the spectrum of each table of
vectors (tokens, output head, learned positions) compared with random vectors; nearest tokens, related words and
analogies compared with the same words paired otherwise and with a random token.
"""

from collections.abc import Iterator, Sequence

import polars as pl

from headscope.core import Embedding, Headline, ModelSpec, WeightSource
from headscope.lenses.embeddings.definition import defined
from headscope.lenses.embeddings.figures import figures
from headscope.lenses.embeddings.meaning import Analogies, TokenVectors, neighbour_rows, related_rows
from headscope.lenses.embeddings.sentences import method, sentences, warnings
from headscope.lenses.embeddings.settings import Params
from headscope.lenses.embeddings.shape import (
    Summary,
    Table,
    cross_numbers,
    distance_numbers,
    own_cosine_number,
    shape_numbers,
)
from headscope.lenses.lens import Measurement, Needs, NotApplicable, Tables, WeightLens
from headscope.lenses.shared.weight_notes import origin

_Types = dict[str, type[pl.DataType]]
_PLACE: _Types = {"stack": pl.String, "kind": pl.String, "layer": pl.Int64, "head": pl.Int64, "table": pl.String}
_VALUE: _Types = {"value": pl.Float64, "null": pl.Float64}
_INTERVAL: _Types = {"value": pl.Float64, "low": pl.Float64, "high": pl.Float64, "null": pl.Float64}
SCHEMAS = {
    "tables": pl.Schema(
        _PLACE
        | {"quantity": pl.String}
        | _VALUE
        | {"z": pl.Float64, "gaussian": pl.Float64, "rows": pl.Int64, "dimensions": pl.Int64, "weights": pl.String}
    ),
    "spectra": pl.Schema(_PLACE | {"quantity": pl.String} | _VALUE | {"initial": pl.Float64, "weights": pl.String}),
    "positions": pl.Schema(
        _PLACE
        | {"distance": pl.Int64}
        | _VALUE
        | {"z": pl.Float64, "centred": pl.Float64, "sinusoid": pl.Float64, "pairs": pl.Int64, "dimensions": pl.Int64}
    ),
    "analogies": pl.Schema(
        _PLACE
        | {"relation": pl.String}
        | _INTERVAL
        | {
            "baseline": pl.Float64,
            "gain": pl.Float64,
            "gain_low": pl.Float64,
            "gain_high": pl.Float64,
            "z": pl.Float64,
            "rank": pl.Float64,
            "baseline_rank": pl.Float64,
            "null_rank": pl.Float64,
        }
        | {"given": pl.Float64}
        | {"analogies": pl.Int64, "example": pl.String}
    ),
    "related": pl.Schema(
        _PLACE | {"word": pl.String, "other": pl.String} | _INTERVAL | {"z": pl.Float64, "pairs": pl.Int64}
    ),
    "neighbours": pl.Schema(_PLACE | {"word": pl.String, "place": pl.Int64, "neighbour": pl.String} | _VALUE),
}


class _Answer:
    """Summaries of the tables measured so far, and the rows of the answer."""

    def __init__(self, spec: ModelSpec) -> None:
        self.summaries: list[Summary] = []
        self.rows: dict[str, list[dict[str, object]]] = {name: [] for name in ("tables", "spectra", "positions")}
        self._spec = spec

    def add(self, table: Table, tokens: Table) -> None:
        """Measure one table."""
        n, d = table.sizes
        if n < 3:
            return
        counts = {"rows": n, "dimensions": d, "weights": origin(self._spec)}
        self.rows["tables"] += [place_of(table.embedding) | row | counts for row in shape_numbers(table)]
        initial = table.spectrum.initial(self._spec.initial_sd) if self._spec.initial_sd else {}
        for quantity, (value, null) in table.spectrum.quantities.items():
            row = {"quantity": quantity, "value": value, "null": null, "initial": initial.get(quantity)}
            self.rows["spectra"].append(place_of(table.embedding) | row | {"weights": origin(self._spec)})
        if table.embedding.role != "token" and d == tokens.sizes[1]:
            cross_place = place_of(table.embedding) | {"table": f"{table.embedding.role} with token"}
            numbers = [
                *cross_numbers(table, tokens),
                *(own_cosine_number(table, tokens) if table.embedding.role == "output" else ()),
            ]
            self.rows["tables"] += [cross_place | row | counts | {"rows": n * tokens.sizes[0]} for row in numbers]
        if table.embedding.role == "position":
            self.rows["positions"] += [place_of(table.embedding) | row for row in distance_numbers(table)]
        self.summaries.append(Summary.of(table))


class Embeddings(WeightLens[Params]):
    """Do the vectors of tokens lie on a sphere, point everywhere alike, and add up to meaning?"""

    name = "embeddings"
    params = Params
    invariant = frozenset({"qk", "vo", "heads"})

    def needs(self, params: Params) -> Needs:
        """Only weights."""
        params.check()
        return Needs(weights=True)

    def measure(self, params: Params, weights: WeightSource) -> Measurement:
        """Read one table at a time; the token table stays until the others were compared with it."""
        tokens = next((embedding for embedding in weights.embeddings if embedding.role == "token"), None)
        if tokens is None:
            reason = " ".join(weights.embedding_notes) or "the model has no table of token vectors that can be read"
            raise NotApplicable(reason)
        stored = weights.embedding_table(tokens)
        first = Table.of(tokens, stored)
        if min(first.sizes) < 2 or len(first.rows) < 3:
            reason = (
                f"the table of token vectors has {first.sizes[0]} rows that are not zero, of {first.sizes[1]} entries"
            )
            raise NotApplicable(reason)
        answer = _Answer(weights.spec)
        for embedding in weights.embeddings:
            answer.add(first if embedding is tokens else Table.of(embedding, weights.embedding_table(embedding)), first)
        vocabulary = weights.vocabulary
        analogies = None
        if vocabulary is not None:
            token_vectors = TokenVectors(stored, vocabulary)
            answer.rows["neighbours"] = _at(tokens, neighbour_rows(token_vectors, params.listed(), params.nearest))
            answer.rows["related"] = _at(tokens, related_rows(token_vectors))
            analogies = Analogies.of(token_vectors)
            answer.rows["analogies"] = _at(tokens, analogies.rows()) if analogies else []
        tables = {name: pl.DataFrame(rows, schema=SCHEMAS[name]) for name in SCHEMAS if (rows := answer.rows.get(name))}
        return Measurement(
            tables=tables,
            arrays={f"lengths {summary.embedding.label}": summary.lengths.numpy() for summary in answer.summaries}
            | {
                f"singular values {summary.embedding.label}": summary.spectrum.sigma.numpy()
                for summary in answer.summaries
            },
            figures=figures(answer.summaries, tables, analogies),
            method=method(weights, answer.summaries),
            warnings=warnings(weights, answer.summaries, tables, params.listed()),
        )

    def definition(self, params: Params, weights: WeightSource) -> dict[str, pl.DataFrame]:
        """The formulas as written, pair by pair, in float64."""
        rows = defined(weights, params.listed(), params.nearest)
        return {name: pl.DataFrame(rows[name], schema=SCHEMAS[name]) for name in SCHEMAS if rows.get(name)}

    def sentences(self, tables: Tables) -> tuple[Headline, ...]:
        """What stands out, in numbers."""
        return sentences(tables)


def place_of(embedding: Embedding) -> dict[str, object]:
    """The columns that every table starts with."""
    return {"stack": embedding.stack, "kind": None, "layer": None, "head": None, "table": embedding.role}


def _at(
    embedding: Embedding, rows: Iterator[dict[str, object]] | Sequence[dict[str, object]]
) -> list[dict[str, object]]:
    return [place_of(embedding) | row for row in rows]


LENS = Embeddings()
