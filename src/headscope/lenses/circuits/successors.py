"""Successor heads: of the words of an ordinal list, does a head raise the next one most?

The OV map of a head is applied to the token vectors of a list, and the logits of the tokens of that list are compared.
They are all candidates, the source itself included: a head that copies gives no successor.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headscope.core import HeadWeights, Site, StreamReading
from headscope.lenses.circuits.ordinal_lists import OrdinalTokens, lists_in
from headscope.lenses.circuits.subject import Subject
from headscope.lenses.circuits.tables import ALL_LISTS
from headscope.lenses.circuits.vocabulary import TokenTables, after_first_layer
from headscope.lenses.lens import NotApplicable
from headscope.lenses.shared.plots import place
from headscope.lenses.shared.stream_norms import read_through, written_through
from headscope.lenses.shared.table import Row

PERMUTATIONS = 1000
_ENDS = (0.025, 0.975)
_LARGEST = 0.95  # of the permutations, for the largest share of all heads


@dataclass(frozen=True)
class Hits:
    """How often the heads of a site raise the successor most, and permuted successors."""

    measured: Float[Tensor, " heads"]
    permuted: Float[Tensor, "permutations heads"]
    pairs: int

    def __add__(self, other: "Hits") -> "Hits":
        return Hits(self.measured + other.measured, self.permuted + other.permuted, self.pairs + other.pairs)


@dataclass(frozen=True)
class ListVectors:
    """A list with the vectors of its words as the first layer reads them, and as later ones do; and its logits."""

    ordinal: OrdinalTokens
    first: Float[Tensor, "words d"]
    later: Float[Tensor, "words d"]
    unembedding: Float[Tensor, "words d"]

    def hits(self, w: HeadWeights, reading: StreamReading) -> Hits:
        """The pairs of each head whose successor has the largest logit of the list."""
        rows = self.first if w.site.layer == 0 else self.later
        logits = list_logits(rows, self.unembedding, w, reading)
        choice = logits.argmax(-1)[:, : len(self.ordinal.successors)]
        orders = permuted_successors(self.ordinal)
        matches = (choice == orders[:, None]) & writes(logits)[:, None]
        counts = matches.sum(-1).double()
        return Hits(counts[0], counts[1:], len(self.ordinal.successors))


def list_logits(
    rows: Float[Tensor, "words d"], unembedding: Float[Tensor, "words d"], w: HeadWeights, reading: StreamReading
) -> Float[Tensor, "heads words words"]:
    """What each head adds to the logit of each word of a list for each source, up to a factor of the source."""
    kv = [w.kv_of_head(head) for head in range(w.site.n_heads)]
    w_v = read_through(reading.before[w.site], w.w_v.double() * w.gain_v.double()[:, None])[kv]
    w_o = written_through(reading.final, written_through(reading.after.get(w.site), w.w_o.double()))
    logits: Tensor = rows @ w_v @ w_o @ unembedding.T
    return logits


def writes(logits: Float[Tensor, "heads words words"]) -> Bool[Tensor, " heads"]:
    """Whether a head adds anything at all."""
    return (logits != 0).flatten(1).any(1)


@lru_cache(maxsize=16)
def permuted_successors(ordinal: OrdinalTokens) -> Int[Tensor, "orders pairs"]:
    """The places of the successors, then as many random orders of them as the null needs."""
    successors = torch.tensor(ordinal.successors)
    generator = torch.Generator().manual_seed(0)
    orders = [torch.randperm(len(successors), generator=generator) for _ in range(PERMUTATIONS)]
    return torch.stack([successors, *(successors[order] for order in orders)])


def successor_rows(subject: Subject, sites: Sequence[Site]) -> tuple[list[Row], str]:
    """A row for each head and list, all lists together first; and which lists there are, or why there is none."""
    if isinstance(subject.tables, str):
        return [], ""
    vocabulary = subject.weights.vocabulary
    if vocabulary is None:
        return [], "Successors are not looked for: without a tokenizer nothing tells which tokens are words of lists."
    measured, left_out = lists_in(vocabulary)
    notes = [f"Lists for successors: {', '.join(part.name for part in measured) or 'none'}."]
    notes += [f"Left out, as a word takes several tokens: {', '.join(left_out)}."] if left_out else []
    try:
        vectors = _vectors(subject, subject.tables, measured)
    except NotApplicable as error:
        return [], f"Successors are not looked for: {error.message}."
    reached = [site for site in sites if vectors and subject.reaches_tokens(site)]
    hits_by_site = {site: _hits(subject.weights.weights(site), subject.reading, vectors) for site in reached}
    return list(_rows(hits_by_site)), " ".join(notes)


def _vectors(subject: Subject, tables: TokenTables, lists: Sequence[OrdinalTokens]) -> list[ListVectors]:
    """The vectors of all lists; the first layer is run once."""
    tokens = [token for ordinal in lists for token in ordinal.tokens]
    first, unembedding = tables.embedding[tokens], tables.unembedding[tokens]
    if tables.later is not None:
        later = tables.later[tokens]
    else:
        later = after_first_layer(subject.weights, subject.reading, first) if tokens else first
    sizes = [len(ordinal.tokens) for ordinal in lists]
    parts = [torch.split(rows.double(), sizes) for rows in (first, later, unembedding)]
    return [ListVectors(ordinal, *rows) for ordinal, *rows in zip(lists, *parts, strict=True)]


def _hits(w: HeadWeights, reading: StreamReading, lists: Sequence[ListVectors]) -> dict[str, Hits]:
    """The hits of a site by list, those of all lists together first."""
    by_list = {part.ordinal.name: part.hits(w, reading) for part in lists}
    together = sum(list(by_list.values())[1:], next(iter(by_list.values())))
    return {ALL_LISTS: together, **by_list}


def _rows(hits_by_site: Mapping[Site, Mapping[str, Hits]]) -> Iterator[Row]:
    by_list: dict[str, list[Hits]] = {}
    for hits_of_site in hits_by_site.values():
        for name, hits in hits_of_site.items():
            by_list.setdefault(name, []).append(hits)
    largest = {
        name: float(torch.quantile(torch.cat([hits.permuted for hits in parts], 1).amax(1), _LARGEST)) / parts[0].pairs
        for name, parts in by_list.items()
    }
    for site, hits_of_site in hits_by_site.items():
        for head in range(site.n_heads):
            for name, hits in hits_of_site.items():
                shares = hits.permuted[:, head] / hits.pairs
                low, high = (float(torch.quantile(shares, end)) for end in _ENDS)
                yield {
                    **place(site, head),
                    "list": name,
                    "value": float(hits.measured[head]) / hits.pairs,
                    "null": float(shares.mean()),
                    "null_low": low,
                    "null_high": high,
                    "null_largest": largest[name],
                    "has_role": float(hits.measured[head]) / hits.pairs > largest[name],
                    "pairs": hits.pairs,
                }
