r"""Sizes of products of heads from small Gram matrices.

A reader has two factors: it reads the stream with $b$ (d × d_head) and goes on with the other one, so that its map is
$b\,C$ with $C C^\top = S$ of d_head × d_head. A writer is $A$ (d_value × d) with $A^\top A = W_{OV}^\top W_{OV}$. Then
$|W_{OV}\,b\,C|^2 = \langle P, S\rangle$ with $P = b^\top A^\top A\,b$. Rotary positions turn S and leave P: every
distance, and the mean over distances, comes from the same P.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.core import HeadWeights, Rotary, StreamNorm
from headscope.lenses.composition.tables import AVERAGE
from headscope.lenses.shared.stream_norms import read_through, written_through


@dataclass(frozen=True)
class Reader:
    """One way in which the heads of a site read: the factors `read`, and S of each head at each distance.

    `factor_of` names the factor of each head: heads of a group share their keys and values.
    """

    read: Float[Tensor, "factors d width"]
    factor_of: list[int]
    forms: dict[str, Float[Tensor, "heads width width"]]

    def sizes(self) -> dict[str, Float[Tensor, " heads"]]:
        """The Frobenius norm of the map of each head, by quantity."""
        grams = (self.read.mT @ self.read)[self.factor_of]
        return {name: (grams * form).sum((-2, -1)).clamp_min(0).sqrt() for name, form in self.forms.items()}


def writer_factors(w: HeadWeights, after: StreamNorm | None) -> Float[Tensor, "heads d_value d"]:
    """A of each head with |A X| = |W_OV X|, of norm 1; NaN where the head writes nothing."""
    kv = [w.kv_of_head(head) for head in range(w.site.n_heads)]
    values = (w.w_v * w.gain_v.to(w.w_v)[:, None])[kv]
    reduced = torch.linalg.qr(values.double()).R @ written_through(after, w.w_o.double())
    factors: Tensor = (reduced / torch.linalg.matrix_norm(reduced, keepdim=True)).to(w.w_o.dtype)
    return factors


def readers_of(w: HeadWeights, norm: StreamNorm | None, turn: Rotary | str | None) -> dict[str, Reader]:
    """How the heads of a site read: as values, and where W_QK gives their scores, as queries and keys.

    `turn` is a reason where it is not known how positions turn queries and keys: then only distance 0 is there.
    """
    kv = [w.kv_of_head(head) for head in range(w.site.n_heads)]
    values = read_through(norm, w.w_v * w.gain_v.to(w.w_v)[:, None])
    readers = {"v": Reader(values, kv, {"v": w.w_o @ w.w_o.mT})}
    if w.status.status == "normed":
        return readers
    queries, keys = (read_through(norm, m * g.to(m)[:, None]) for m, g in ((w.w_q, w.gain_q), (w.w_k, w.gain_k)))
    query_grams, key_grams = queries.mT @ queries, (keys.mT @ keys)[kv]
    forms = (_forms("q", key_grams, turn, transposed=False), _forms("k", query_grams, turn, transposed=True))
    readers["q"] = Reader(queries, list(range(len(queries))), forms[0])
    readers["k"] = Reader(keys, kv, forms[1])
    return readers


def _forms(letter: str, grams: Tensor, turn: Rotary | str | None, *, transposed: bool) -> dict[str, Tensor]:
    """S at distance 0, at distance 1, and its mean over distances."""
    forms = {f"{letter} at 0": grams}
    if isinstance(turn, Rotary):
        matrix = turn.turn(1).to(grams)
        matrix = matrix.mT if transposed else matrix
        forms[f"{letter} at 1"] = matrix @ grams @ matrix.mT
        forms[f"{letter} {AVERAGE}"] = distance_mean(grams, turn)
    return forms


def distance_mean(grams: Float[Tensor, "heads width width"], turn: Rotary) -> Float[Tensor, "heads width width"]:
    r"""The mean of $R_\Delta S R_\Delta^\top$ over distances: half the trace on each plane, nothing between planes.

    Channels that are not turned keep their block. Planes of the same angle are taken as independent.
    """
    still = torch.ones(turn.width, dtype=torch.bool)
    still[turn.first] = still[turn.second] = False
    mean = grams * (still[:, None] & still)
    half = (grams[:, turn.first, turn.first] + grams[:, turn.second, turn.second]) / 2
    mean[:, turn.first, turn.first] = half
    mean[:, turn.second, turn.second] = half
    return mean


def scores(
    writers: Float[Tensor, "writers d_value d"], reader: Reader, sizes: dict[str, Tensor]
) -> dict[str, Float[Tensor, "readers writers"]]:
    """The composition of every writer with every head of a site, by quantity; NaN where a map is 0."""
    n_writers, d_value, d = writers.shape
    n_factors, _, width = reader.read.shape
    flat = reader.read.movedim(0, 1).reshape(d, n_factors * width)
    products = (writers.reshape(-1, d) @ flat).reshape(n_writers, d_value, n_factors, width).movedim(2, 1)
    grams = (products.mT @ products).flatten(2).transpose(0, 1)  # factors, writers, width²
    tables: dict[str, Tensor] = {}
    for name, form in reader.forms.items():
        squares = torch.stack(
            [grams[factor] @ form[head].reshape(-1) for head, factor in enumerate(reader.factor_of)]
        ).double()
        size = sizes[name].double()[:, None]
        table = squares.clamp_min(0).sqrt() / torch.where(size > 0, size, 1.0)
        tables[name] = torch.where(size > 0, table, torch.nan)
    return tables
