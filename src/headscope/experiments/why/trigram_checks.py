"""Skip trigrams of a head, found in its weights and checked on a text, with the head and without it.

A skip trigram is source … query → target: the query attends to the source, and what the head moves from there raises
the target. The weights score it (`lenses.circuits.token_pairs`). On a text the question is whether the target becomes
more likely at this query once the source came before, and whether that is the work of this head.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import nan

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscope.core import Site, WeightSource
from headscope.corpora.text import Text, shipped_text
from headscope.errors import HeadscopeError, UsageError, VariantRefused
from headscope.experiments.why.settings import Params
from headscope.lenses.circuits.settings import Params as CircuitParams
from headscope.lenses.circuits.token_pairs import (
    Pair,
    PairScores,
    moved_tokens,
    refusal,
    scored_tokens,
    skip_trigrams,
)
from headscope.lenses.circuits.vocabulary import token_tables
from headscope.maths.resampling.clustered_mean import Estimate, clustered_mean
from headscope.model.model import Model

WINDOW, WINDOWS = 256, 4  # tokens of a window, and windows that are read
LEAST_QUERIES = 5  # of a trigram of the text; fewer say little
_CHARACTERS = 12  # of a text, for each token that is read


@dataclass(frozen=True)
class TrigramCheck:
    """The log-probabilities of the target at its queries, in the model and with the mean output of the head.

    `after_source` are queries with the source before them in their window, `elsewhere` the others; each has a row per
    query, model and mean. `occurs` says whether the trigram was chosen among those of the text.
    """

    pair: Pair
    occurs: bool
    after_source: Float[Tensor, "queries 2"]
    elsewhere: Float[Tensor, "other_queries 2"]

    def effect(self) -> Estimate:
        """By how much the head raises the log-probability after the source: mean over queries and 95 % interval."""
        return _effect(self.after_source)

    def effect_elsewhere(self) -> Estimate:
        """The same where the source did not come before."""
        return _effect(self.elsewhere)


def _effect(rows: Float[Tensor, "queries 2"]) -> Estimate:
    if not len(rows):
        return Estimate(nan, nan, nan)
    differences = rows[:, 0] - rows[:, 1]
    return clustered_mean(differences, torch.ones_like(differences))


@dataclass(frozen=True)
class TrigramChecks:
    """The skip trigrams that were checked, and on what: name and windows of the text."""

    text: str
    windows: Int[Tensor, "windows tokens"]
    checks: tuple[TrigramCheck, ...]


@dataclass(frozen=True)
class HeadScores:
    """Standardised scores of the tokens of a text: rows are sources; tokens by their place in `ids`."""

    ids: Int[Tensor, " ids"]
    attended: PairScores
    moved: PairScores

    def strongest(self, top: int) -> list[Pair]:
        """The strongest trigrams of all pairs of tokens, by id."""
        return [self._by_id(pair) for pair in skip_trigrams(self.attended, self.moved, top)]

    def strongest_of(self, sources: Int[Tensor, " pairs"], queries: Int[Tensor, " pairs"], top: int) -> list[Pair]:
        """The strongest trigrams of some pairs of source and query, by their places; each with its best target."""
        (mean_a, sd_a), (mean_m, sd_m) = self.attended.moments(), self.moved.moments()
        if not sd_a or not sd_m:
            return []
        attended = (self.attended.left[sources] * self.attended.right[queries]).sum(-1)
        scores = (attended - mean_a) / sd_a + (self.moved.row_maxima[sources] - mean_m) / sd_m
        best = scores.topk(min(top, len(scores)))
        return [
            self._by_id(
                Pair(score, int(sources[i]), int(queries[i]), self.moved.best(int(sources[i]), 1)[1][0])
            )
            for score, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]  # fmt: skip

    def _by_id(self, pair: Pair) -> Pair:
        query, target = (None if place is None else int(self.ids[place]) for place in (pair.query, pair.target))
        return replace(pair, source=int(self.ids[pair.source]), query=query, target=target)


def trigram_checks(model: Model, site: Site, head: int, params: Params) -> TrigramChecks | None:
    """The strongest trigrams by weights, and the strongest that occur in the text; each checked on the text."""
    if not params.trigrams:
        return None
    name, windows = _windows(model, params)
    scores = head_scores(model.weight_source(), site, head, windows)
    every = scores.strongest(params.trigrams)
    occurring = scores.strongest_of(*frequent_pairs(windows, scores.ids), params.trigrams)
    check_pairs = {_key(pair): (pair, False) for pair in every} | {_key(pair): (pair, True) for pair in occurring}
    pairs = [pair for pair, _ in check_pairs.values()]
    rows_by_pair = _measured(model, site.head_label(head), windows, pairs)
    checks = (
        TrigramCheck(pair, occurs, *rows)
        for (pair, occurs), rows in zip(check_pairs.values(), rows_by_pair, strict=True)
    )
    return TrigramChecks(name, windows, tuple(checks))


def head_scores(weights: WeightSource, site: Site, head: int, windows: Int[Tensor, "windows tokens"]) -> HeadScores:
    """The scores of the head for the tokens of the windows.

    Raises:
        VariantRefused: The head is not followed from tokens to logits, or its scores are not those of its weights.
    """
    settings, ids = CircuitParams(), torch.from_numpy(np.unique(windows.numpy()))
    try:
        reading, status = weights.stream_reading(), weights.status(site)
        tables = token_tables(weights, reading, settings)
        why = tables if isinstance(tables, str) else refusal(site, status.status, status.reason)
        if why or isinstance(tables, str) or site not in reading.before:
            raise VariantRefused(why or f"what {site.label} reads is not known")
        rotary = weights.rotary(site)
    except HeadscopeError as error:
        raise VariantRefused(f"no skip trigrams: {error.message}", hint="leave out --trigrams") from error
    tables = replace(tables, embedding=tables.embedding[ids], unembedding=tables.unembedding[ids])
    norm, w = reading.before[site], weights.weights(site)
    rows = tables.rows(site.layer, norm, settings)
    return HeadScores(
        ids=ids,
        attended=scored_tokens(rows, w, head, norm, rotary, settings.distance),
        moved=moved_tokens(tables, rows, w, head, reading),
    )


def _windows(model: Model, params: Params) -> tuple[str, Int[Tensor, "windows tokens"]]:
    if not model.reads_text:
        raise UsageError(f"{model.spec.name} reads no text, and trigrams need one", hint="leave out --trigrams")
    text: Text = params.text or shipped_text()
    size = min(WINDOW, model.spec.context or WINDOW)
    tokens = model.encode(text.beginning(_CHARACTERS * size * WINDOWS))[: size * WINDOWS]
    size = min(size, len(tokens))
    return text.name, tokens[: len(tokens) // size * size].reshape(-1, size)


def frequent_pairs(
    windows: Int[Tensor, "windows tokens"], ids: Int[Tensor, " ids"]
) -> tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"]]:
    """The pairs of a source and a query that have enough queries after the source, by their places in `ids`."""
    places, count = torch.searchsorted(ids, windows), len(ids)
    later, earlier = torch.tril_indices(windows.shape[1], windows.shape[1], -1)
    pairs = []
    for row in places:
        # A query counts once, however often the source came before.
        by_position = np.unique((row[earlier] * len(row) + later).numpy())
        sources, positions = by_position // len(row), by_position % len(row)
        pairs.append(sources * count + row.numpy()[positions])
    codes, occurrences = np.unique(np.concatenate(pairs), return_counts=True)
    frequent = torch.from_numpy(codes[occurrences >= LEAST_QUERIES])
    return frequent // count, frequent % count


def _key(pair: Pair) -> tuple[int, int | None, int | None]:
    return pair.source, pair.query, pair.target


def _measured(
    model: Model, label: str, windows: Int[Tensor, "windows tokens"], pairs: Sequence[Pair]
) -> list[tuple[Tensor, Tensor]]:
    """For each trigram the rows of its queries with the source before them, and of those without it."""
    before, mean = _state(model, label, windows, pairs, None)
    after, _ = _state(model, label, windows, pairs, mean)
    rows_by_pair = []
    for index, pair in enumerate(pairs):
        is_query = windows == pair.query
        came_before = ((windows == pair.source).cumsum(-1) - (windows == pair.source).long()) > 0
        rows = torch.stack([before[..., index], after[..., index]], -1)
        rows_by_pair.append((rows[is_query & came_before], rows[is_query & ~came_before]))
    return rows_by_pair


def _state(
    model: Model,
    label: str,
    windows: Int[Tensor, "windows tokens"],
    pairs: Sequence[Pair],
    mean: Float[Tensor, " d_head"] | None,
) -> tuple[Float[Tensor, "windows tokens pairs"], Float[Tensor, " d_head"]]:
    """The log-probability of each target at every token, and the mean output of the head; it may be replaced by one."""
    targets = torch.tensor([pair.target for pair in pairs])
    rows, outputs = [], []
    for window in windows:  # in turn, because logits are tokens × vocabulary
        with model.session() as session:
            if mean is not None:
                session.patch(label, "z", mean)
            captured = session.capture("z", at=label)
            logits = session.run(window).logits[0]
            (output,) = captured.take()["z"].values()
        rows.append((logits[:, targets].double() - logits.double().logsumexp(-1, keepdim=True)).cpu())
        outputs.append(output.mean((0, 1, 2)))
    return torch.stack(rows), torch.stack(outputs).mean(0)
