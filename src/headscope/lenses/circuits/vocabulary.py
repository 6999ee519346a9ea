"""Token vectors as heads read them, and the vectors that give the logits; why a model has none."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.core import Embedding, Site, StreamNorm, StreamReading, WeightSource
from headscope.errors import WeightsRefused
from headscope.lenses.circuits.settings import Params
from headscope.lenses.lens import NotApplicable
from headscope.lenses.shared.stream_norms import normed_rows, read_through, written_through

BLOCK = 4096


@dataclass(frozen=True)
class TokenTables:
    """The rows of token vectors and of output vectors of a model."""

    embedding: Float[Tensor, "tokens d"]
    unembedding: Float[Tensor, "tokens d"]
    later: Float[Tensor, "tokens d"] | None = None  # after the first layer, where that was asked for

    def rows(self, layer: int, norm: StreamNorm | None, params: Params) -> Float[Tensor, "tokens d"]:
        """What the norm of a layer receives for each token, at the scale that was asked for."""
        table = self.embedding if self.later is None or layer == 0 else self.later
        return normed_rows(norm, table) if params.rows == "normed" else table


@dataclass(frozen=True)
class Grams:
    """Uᵀ E with and without the means over tokens: d × d, whatever the size of the vocabulary."""

    raw: Float[Tensor, "d d"]
    centred: Float[Tensor, "d d"]


def gram(outputs: Float[Tensor, "tokens d"], rows: Float[Tensor, "tokens d"]) -> Grams:
    """Sums over all tokens, block by block, in float64."""
    raw = torch.zeros(outputs.shape[1], rows.shape[1], dtype=torch.float64)
    for a, b in zip(torch.split(outputs, BLOCK), torch.split(rows, BLOCK), strict=True):
        raw += a.double().T @ b.double()
    means = outputs.double().mean(0)[:, None] * rows.double().mean(0)
    return Grams(raw, raw - len(rows) * means)


def folded(grams: Float[Tensor, "d d"], reading: StreamReading, site: Site) -> Float[Tensor, "d d"]:
    """Between w_o and w_v of a site: final norm, logits, tokens, and the norm before the site."""
    inner = read_through(reading.final, grams)
    inner = written_through(reading.before[site], inner)
    after = reading.after.get(site)
    return read_through(after, inner)


def token_tables(weights: WeightSource, reading: StreamReading, params: Params) -> TokenTables | str:
    """The tables of the stack that writes; a reason where heads cannot be followed to the logits."""
    tables: dict[str, Embedding] = {}
    last = weights.sites[-1].stack
    for table in weights.embeddings:
        if table.stack in (None, "only", last):
            tables.setdefault(table.role, table)
    if not reading.output or "token" not in tables or reading.output not in tables:
        return "the model has no output head that reads the stream behind a final norm"
    if reading.final is None:
        return "no norm before the output head was found"
    if last in reading.not_a_sum:
        return reading.not_a_sum[last]
    embedding, unembedding = (_read(weights, tables[role]) for role in ("token", reading.output))
    if embedding.shape != unembedding.shape:
        return f"token vectors {tuple(embedding.shape)} and output vectors {tuple(unembedding.shape)} differ in size"
    later = after_first_layer(weights, reading, embedding) if params.effective else None
    return TokenTables(embedding, unembedding, later)


def _read(weights: WeightSource, table: Embedding) -> Float[Tensor, "rows d"]:
    rows = weights.embedding_table(table)
    return rows if rows.dtype in (torch.float32, torch.float64) else rows.float()


def after_first_layer(
    weights: WeightSource, reading: StreamReading, embedding: Float[Tensor, "tokens d"]
) -> Float[Tensor, "tokens d"]:
    """The stream after the first layer where a token is alone in its text and so attends to itself.

    Raises:
        NotApplicable: The first layer cannot be run alone.
    """
    site = weights.sites[0]
    refusal = "effective token vectors need the first layer by itself, and "
    if reading.embedding or site not in reading.before:
        raise NotApplicable(refusal + (reading.embedding or "what its heads read is not known"))
    try:
        w, norm = weights.weights(site), reading.before[site]
        gain = norm.gain if norm is not None else torch.ones(embedding.shape[1])
        normed = normed_rows(norm, embedding) * gain.to(embedding)
        normed = normed if norm is None else normed + norm.bias.to(embedding)
        values = torch.einsum("td,hdv->htv", normed, w.w_v.to(embedding)) + w.b_v.to(embedding)[:, None]
        values = values * w.gain_v.to(embedding)[:, None]
        z = values[[site.kv_head(head) for head in range(site.n_heads)]]
        return weights.after_heads(site, embedding[None], z[None]).out[0].to(embedding)
    except WeightsRefused as error:
        raise NotApplicable(refusal + error.message) from error
