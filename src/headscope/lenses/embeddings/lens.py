r"""Embeddings: do the vectors of tokens lie on a sphere, point everywhere alike, and add up to meaning?

Weights only, and the tokenizer for what tokens spell. Lengths, cosines over all pairs and the spectrum of each table of
vectors (tokens, output head, learned positions) beside random vectors; nearest tokens, related words and analogies
beside the same words paired otherwise and beside a random token.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from headscope.core import About, Embedding, Finding, ModelSpec, Site, WeightSource
from headscope.errors import LensError, UsageError
from headscope.lenses.embeddings.definition import defined
from headscope.lenses.embeddings.figures import figures
from headscope.lenses.embeddings.meaning import Analogies, Spelt, neighbour_rows, related_rows
from headscope.lenses.embeddings.sentences import method, sentences, warnings
from headscope.lenses.embeddings.shape import (
    Summary,
    Table,
    beside_numbers,
    distance_numbers,
    own_number,
    shape_numbers,
)
from headscope.lenses.lens import Batch, Lens, Needs
from headscope.lenses.shared.weight_notes import origin

ORDER = 4

ABOUT = About(
    title="Vectors of tokens and positions",
    question="Do token vectors lie on a sphere, do they point everywhere alike, and do their directions add up to "
    "meaning?",
    definition=(
        "Each token has a vector, a row x of the table that the first layer is given; the output head may have a "
        "table of its own, and learned positions have one. Lengths: their mean, and their spread beside that of a "
        "Gaussian without preferred directions, about 1/√(2d), and beside that of a Gaussian with the mean and the "
        "covariance of the table. Cosines: mean and mean square over all pairs of different rows, exact, because they "
        "follow from the sum and the Gram matrix of the unit vectors; random directions have mean 0 and mean square "
        "1/d. The same after the mean of all rows is taken away. Spectrum: the singular values of the table less its "
        "mean beside the Marchenko–Pastur law. Meaning: nearest tokens by cosine; cosines of related words beside the "
        "same words paired otherwise; analogies a : b as c : d, where the rank of d is counted among all tokens but a, "
        "b and c by their cosine with b − a + c, beside the rank by the cosine with c alone."
    ),
    formulas=(
        r"\frac{\mathrm{sd}\,\|x\|}{E\,\|x\|} \approx \frac{1}{\sqrt{2 d}}\ (\mathrm{isotropic}), \qquad "
        r"\mathrm{Var}\,\|x\|^2 = 2\,\mathrm{Tr}\,\Sigma^2 + 4\,\mu^{\top} \Sigma\, \mu\ (\mathrm{Gaussian})",
        r"E_{i \neq j} \cos = \frac{\|\sum_i u_i\|^2 - n}{n (n-1)}, \qquad "
        r"E_{i \neq j} \cos^2 = \frac{\|U^{\top} U\|_F^2 - n}{n (n-1)}, \qquad u_i = x_i\,/\,\|x_i\|",
        r"\mathrm{participation} = (\mathrm{Tr}\,M)^2\,/\,\mathrm{Tr}\,M^2, \qquad M = \frac{1}{n} X^{\top} X",
        r"\mathrm{rank}(d) = 1 + \#\{\,t \neq a, b, c : \cos(x_t,\, x_b - x_a + x_c) > "
        r"\cos(x_d,\, x_b - x_a + x_c)\,\}",
        r"k(\delta) = \frac{2}{d} \sum_{m} \cos(\omega_m \delta), \qquad \omega_m = 10000^{-2m/d}",
    ),
    reading=(
        "A spread of the lengths near the random one means a sphere as thin as chance makes it; a spread of a few "
        "times that is still a shell, one of a third of the length is none. If the Gaussian with the table's own "
        "covariance has that spread too, unequal directions explain it. A mean cosine far from 0 is a direction that "
        "all tokens share; it carries no meaning, and the numbers with the mean taken away are those without it. A "
        "participation far below d means that few directions hold the table. Analogies are additive where the share of "
        "right answers is above the baseline: a neighbour of the third word that happens to be right is no addition. "
        "When the three given words may be answers themselves, the nearest is mostly one of them. Rare tokens that "
        "were hardly trained are rows too: they are part of every number about all pairs."
    ),
    reference=(
        "Wertich, Exploring the Hidden Structures of Attention Layers in Transformer Models through the Lens of "
        "Gaussian Distributions, sections 2.3 (embeddings on a sphere, analogies, positions) and 4.3 (Gram matrix). "
        "Mikolov et al. (2013), Linguistic regularities in continuous space word representations (analogies). Mu and "
        "Viswanath (2018), All-but-the-top (the common direction). Ethayarajh (2019), How contextual are "
        "contextualized word representations? (anisotropy). Rogers et al. (2017), The (too many) problems of "
        "analogical reasoning (the given words left out, the baseline)."
    ),
    columns={
        "stack": "enc or dec where the table belongs to one of two stacks; empty where they share it; only; text",
        "kind": "empty: a table belongs to no attention",
        "layer": "empty: a table comes before all layers",
        "head": "empty",
        "table": (
            "token: what the first layer is given for a token; output: what logits are read off with, where that is "
            "another table; position: learned positions; position with token, output with token: cosines between two "
            "tables"
        ),
        "quantity": (
            "length_mean; length_spread: standard deviation over mean; length_low, length_high: 5 % and 95 % quantile "
            "over the mean; mean_share: |μ|² over the mean squared length; cosine_mean, cosine_square: over all pairs; "
            "centred_cosine_mean, centred_cosine_square: about the mean vector; participation, centred_participation: "
            "directions that hold the table, of d; own_cosine: a token's output vector with its input vector. In the "
            "table spectra as in the lens of that name: largest, smallest: singular value; stable_rank; "
            "effective_rank; above_edge; energy_above_edge; largest_tracy_widom; largest_p_value; bulk_variance; "
            "bulk_distance; spikes; energy_in_spikes; mean_square, sum_squares"
        ),
        "value": (
            "measured. Neighbours, related words, positions: cosine. Analogies: the share in which the right answer is "
            "the nearest token"
        ),
        "low": (
            "lower end of the 95 % interval. Related words: over pairs of words (Student t); analogies: jackknife over "
            "n pairs of words, with an error of no less than 1/2n"
        ),
        "high": "upper end",
        "null": (
            "vectors of independent Gaussian entries; own_cosine: any two vectors of the two tables; neighbours: the "
            "median of the largest cosine with so many random directions; related words: the same words paired "
            "otherwise; analogies: a random token"
        ),
        "gaussian": "the spread of lengths of a Gaussian with the mean and covariance of the table (first order)",
        "z": (
            "distance from the null in its standard deviations; empty where the null is no law. Analogies: distance "
            "from the baseline in standard errors (jackknife over n pairs of words, no less than 1/2n)"
        ),
        "initial": "a second null: entries of the standard deviation with which the configuration initialises matrices",
        "rows": "rows of the table that have a length (of both tables: pairs)",
        "dimensions": "entries of each vector",
        "distance": "between two positions, in tokens",
        "centred": "the cosine about the mean of all position vectors",
        "sinusoid": "k of the distance: the cosine of two positions by the sinusoidal formula",
        "pairs": "pairs of positions, or of words",
        "word": "a word that is one token; all: the mean over all of them",
        "other": "the word it is related to",
        "place": "1 is the nearest",
        "neighbour": "what the token spells; … in front where it goes on with a word",
        "relation": "of a to b, as of c to d; all: every relation together",
        "baseline": "the share in which the right answer is the nearest token of c alone",
        "gain": "value − baseline: what the two other words add",
        "gain_low": "lower end of its 95 % interval (jackknife over pairs of words)",
        "gain_high": "upper end",
        "rank": "median rank of the right answer, 1 is the nearest",
        "baseline_rank": "median rank among the neighbours of c alone",
        "null_rank": "mean rank of a random token",
        "given": "share in which the nearest of all tokens is a, b or c",
        "analogies": "how many: every ordered choice of two pairs of the relation",
        "example": "the one with the best rank",
        "weights": "as stored, or the quantised format they were expanded from (rounding noise included)",
    },
)

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


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    words: str = field(
        default="time,water,king,France,three,good,walked,she",
        metadata={"help": "words whose nearest tokens are shown, by commas"},
    )
    nearest: int = field(default=5, metadata={"help": "nearest tokens that are shown of each word"})

    def listed(self) -> list[str]:
        """The words, each once."""
        return list(dict.fromkeys(word.strip() for word in self.words.split(",") if word.strip()))


@dataclass(frozen=True)
class State:
    """Nothing is folded: the lens reads weights only."""

    params: Params


def needs(params: Params, spec: ModelSpec) -> Needs:
    """Only weights."""
    if params.nearest < 1:
        raise UsageError(f"nearest={params.nearest}: at least one token has to be shown")
    return Needs(weights=True)


def start(params: Params, spec: ModelSpec, sites: tuple[Site, ...]) -> State:
    """Remember what to measure."""
    return State(params)


def update(state: State, batch: Batch) -> State:
    """The text plays no part."""
    return state


def merge(a: State, b: State) -> State:
    """Both are the same."""
    return a


def finish(state: State, weights: WeightSource | None) -> Finding:
    """Read one table at a time; that of the tokens stays until the others were set beside it."""
    if weights is None:
        raise LensError("the lens embeddings reads the model's weights, and was given none")
    tokens = next((one for one in weights.embeddings if one.role == "token"), None)
    if tokens is None:
        reason = " ".join(weights.embedding_notes) or "the model has no table of token vectors that can be read"
        return Finding("embeddings", ABOUT, status="not applicable", reason=reason)
    stored = weights.embedding_table(tokens)
    first = Table.of(tokens, stored)
    if min(first.sizes) < 2 or len(first.rows) < 3:
        reason = f"the table of token vectors has {first.sizes[0]} rows that are not zero, of {first.sizes[1]} entries"
        return Finding("embeddings", ABOUT, status="not applicable", reason=reason)
    seen = _Seen(weights.spec)
    for one in weights.embeddings:
        seen.add(first if one is tokens else Table.of(one, weights.embedding_table(one)), first)
    vocabulary = weights.vocabulary
    analogies = None
    if vocabulary is not None:
        spelt = Spelt(stored, vocabulary)
        seen.rows["neighbours"] = _at(tokens, neighbour_rows(spelt, state.params.listed(), state.params.nearest))
        seen.rows["related"] = _at(tokens, related_rows(spelt))
        analogies = Analogies.of(spelt)
        seen.rows["analogies"] = _at(tokens, analogies.rows()) if analogies else []
    tables = {name: pl.DataFrame(rows, schema=SCHEMAS[name]) for name in SCHEMAS if (rows := seen.rows.get(name))}
    finding = Finding(
        "embeddings",
        ABOUT,
        tables=tables,
        arrays={f"lengths {one.one.label}": one.lengths.numpy() for one in seen.tables}
        | {f"singular values {one.one.label}": one.spectrum.sigma.numpy() for one in seen.tables},
        figures=figures(seen.tables, tables, analogies),
        method=method(weights, seen.tables),
        warnings=warnings(weights, seen.tables, tables, state.params.listed()),
        params={"words": state.params.words, "nearest": state.params.nearest},
    )
    return replace(finding, headlines=headline(finding))


class _Seen:
    """What is left of the tables seen so far, and the rows of the answer."""

    def __init__(self, spec: ModelSpec) -> None:
        self.tables: list[Summary] = []
        self.rows: dict[str, list[dict[str, object]]] = {name: [] for name in ("tables", "spectra", "positions")}
        self._spec = spec

    def add(self, table: Table, tokens: Table) -> None:
        """Measure one table."""
        n, d = table.sizes
        if n < 3:
            return
        counts = {"rows": n, "dimensions": d, "weights": origin(self._spec)}
        self.rows["tables"] += [place_of(table.one) | row | counts for row in shape_numbers(table)]
        initial = table.spectrum.initial(self._spec.initial_sd) if self._spec.initial_sd else {}
        for quantity, (value, null) in table.spectrum.quantities.items():
            row = {"quantity": quantity, "value": value, "null": null, "initial": initial.get(quantity)}
            self.rows["spectra"].append(place_of(table.one) | row | {"weights": origin(self._spec)})
        if table.one.role != "token" and d == tokens.sizes[1]:
            both = place_of(table.one) | {"table": f"{table.one.role} with token"}
            numbers = [
                *beside_numbers(table, tokens),
                *(own_number(table, tokens) if table.one.role == "output" else ()),
            ]
            self.rows["tables"] += [both | row | counts | {"rows": n * tokens.sizes[0]} for row in numbers]
        if table.one.role == "position":
            self.rows["positions"] += [place_of(table.one) | row for row in distance_numbers(table)]
        self.tables.append(Summary.of(table))


def place_of(one: Embedding) -> dict[str, object]:
    """The columns that every table starts with."""
    return {"stack": one.stack, "kind": None, "layer": None, "head": None, "table": one.role}


def _at(one: Embedding, rows: Iterator[dict[str, object]] | Sequence[dict[str, object]]) -> list[dict[str, object]]:
    return [place_of(one) | row for row in rows]


def headline(finding: Finding) -> tuple[str, ...]:
    """What stands out, in numbers."""
    return sentences(finding.tables) if finding.status == "ok" else ()


def definition(params: Params, weights: WeightSource | None, batches: Sequence[Batch]) -> dict[str, pl.DataFrame]:
    """The formulas as written, pair by pair, in float64."""
    if weights is None:
        raise LensError("the lens embeddings reads the model's weights, and was given none")
    rows = defined(weights, params.listed(), params.nearest)
    return {name: pl.DataFrame(rows[name], schema=SCHEMAS[name]) for name in SCHEMAS if rows.get(name)}


LENS = Lens(
    "embeddings", ABOUT, Params, needs, start, update, merge, finish, definition, headline,
    invariant=frozenset({"qk", "vo", "heads"}),
)  # fmt: skip
