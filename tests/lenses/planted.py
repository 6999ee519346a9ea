"""Small made-up models for lens tests: weights of our choice, and the attention that they compute on random input.

No checkpoint and no transformers: scores are x w_q (x w_k)ᵀ with a plain float64 softmax, so that a symmetry of
the weights can be applied and its effect on every number followed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from headscope.attention.call import Call
from headscope.attention.maps import pairs_of, query_runs_of, score_rows
from headscope.attention.statistics import Request, pattern_statistics, uniform_statistics
from headscope.attention.token_repeats import repeat_masses
from headscope.core import (
    AfterHeads,
    Embedding,
    FeedForward,
    HeadWeights,
    ModelSpec,
    Rotary,
    Site,
    StreamNorm,
    StreamReading,
    Vocabulary,
    WeightStatus,
)
from headscope.errors import WeightsRefused
from headscope.lenses.lens import AS_IS, Batch
from headscope.shapes import CORNER

SPEC = ModelSpec(
    name="planted", source="test", family="planted", architecture="Planted", kind="decoder-only", n_layers=2,
    n_heads=4, n_kv_heads=2, d_model=24, d_head=5, vocabulary=50, context=64, n_parameters=1, dtype="float64",
)  # fmt: skip


def site(**changes: object) -> Site:
    return replace(Site("only", "self", 0, 4, 2, 5, 5, causal=True), **changes)


@dataclass(frozen=True)
class Planted:
    """A WeightSource, and what is needed to make batches from it."""

    weights_of: dict[Site, HeadWeights]
    spec: ModelSpec = SPEC
    statuses: dict[Site, WeightStatus] = field(default_factory=dict)
    method: str = "weights made up for the test"
    feeds: dict[FeedForward, Tensor] = field(default_factory=dict)
    feed_forward_notes: tuple[str, ...] = ()
    vectors: dict[Embedding, Tensor] = field(default_factory=dict)
    embedding_notes: tuple[str, ...] = ()
    vocabulary: Vocabulary | None = None
    stream: StreamReading | None = None
    turns: dict[Site, Rotary] = field(default_factory=dict)

    def stream_reading(self) -> StreamReading:
        """Norms with different gains before each site; the first site takes the mean away."""
        if self.stream is not None:
            return self.stream
        names = range(len(self.sites) + 1)
        width = self.spec.d_model
        norms = [StreamNorm(name == 0, gain, 0.1 * gain) for name in names for gain in [gains(width, name)]]
        return StreamReading(dict(zip(self.sites, norms, strict=False)), final=norms[-1], output="output")

    def rotary(self, of: Site) -> Rotary | None:
        return self.turns.get(of)

    @property
    def embeddings(self) -> tuple[Embedding, ...]:
        return tuple(self.vectors)

    def embedding_table(self, one: Embedding) -> Tensor:
        return self.vectors[one]

    @property
    def feed_forward(self) -> tuple[FeedForward, ...]:
        return tuple(self.feeds)

    def feed_forward_matrix(self, one: FeedForward) -> Tensor:
        return self.feeds[one]

    @property
    def sites(self) -> tuple[Site, ...]:
        return tuple(self.weights_of)

    def status(self, of: Site) -> WeightStatus:
        return self.statuses.get(of, WeightStatus("exact"))

    def weights(self, of: Site) -> HeadWeights:
        if self.status(of).status == "refused":
            raise WeightsRefused(self.status(of).reason)
        return self.weights_of[of]

    def after_heads(self, of: Site, stream: Tensor, z: Tensor) -> AfterHeads:
        """W_O and skip, a norm by the root mean square, a rectifier between two matrices, and their skip."""
        if any(one.kind == "cross" and one.stack == of.stack for one in self.sites):
            raise WeightsRefused(f"{of.label}: its layer attends more than once")
        up, down = (matrix for one, matrix in self.feeds.items() if (one.stack, one.layer) == (of.stack, of.layer))
        summed = stream + torch.einsum("whtv,hvo->wto", z, self.weights_of[of].w_o.to(z.dtype))
        normed = summed / summed.square().mean(-1, keepdim=True).sqrt()
        return AfterHeads(normed, summed + torch.relu(normed @ up) @ down)


def gains(width: int, seed: int) -> Tensor:
    """The gain of a norm: no two channels alike."""
    return 0.5 + torch.rand(width, generator=torch.Generator().manual_seed(400 + seed), dtype=torch.float64)


def head_weights(of: Site, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor) -> HeadWeights:
    """Weights without biases and gains."""
    heads, kv_heads = (of.n_heads, of.n_kv_heads)
    return HeadWeights(
        of, w_q, w_k, w_v, w_o,
        b_q=w_q.new_zeros(heads, of.d_head), b_k=w_q.new_zeros(kv_heads, of.d_head),
        b_v=w_q.new_zeros(kv_heads, of.d_value), b_o=w_q.new_zeros(w_o.shape[-1]),
        gain_q=w_q.new_ones(heads, of.d_head), gain_k=w_q.new_ones(kv_heads, of.d_head),
        gain_v=w_q.new_ones(kv_heads, of.d_value), status=WeightStatus("exact"),
    )  # fmt: skip


def gaussian_weights(of: Site, d_model: int = 24, seed: int = 0) -> HeadWeights:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) / d_model**0.5

    return head_weights(
        of,
        1.5 * normal(of.n_heads, d_model, of.d_head),
        1.5 * normal(of.n_kv_heads, d_model, of.d_head),
        normal(of.n_kv_heads, d_model, of.d_value),
        normal(of.n_heads, of.d_value, d_model),
    )


def feed_forward(*sites: Site, d_model: int = 24, d_ff: int = 9) -> dict[FeedForward, Tensor]:
    """Two random matrices per layer, out to d_ff and back."""
    found = {}
    for seed, one in enumerate(site for site in sites if site.kind == "self"):
        generator = torch.Generator().manual_seed(200 + seed)
        for name, sizes in (("mlp.up", (d_model, d_ff)), ("mlp.down", (d_ff, d_model))):
            matrix = torch.randn(*sizes, generator=generator, dtype=torch.float64) / d_model**0.5
            found[FeedForward(one.stack, one.layer, name, "", sizes)] = matrix
    return found


@dataclass(frozen=True)
class Words:
    """A vocabulary in which every token is a word."""

    words: tuple[str, ...]

    @property
    def size(self) -> int:
        return len(self.words)

    def token(self, word: str) -> int | None:
        return self.words.index(word) if word in self.words else None

    def spelled(self, tokens: Sequence[int]) -> tuple[str, ...]:
        return tuple(f" {self.words[token]}" for token in tokens)


# Three pairs of one relation, two of another, three that are related, a list in order, and others.
WORDS = Words(
    (
        *("king", "queen", "man", "woman", "boy", "girl", "car", "cars", "book", "books", "warm", "sunny", "time"),
        *("water", "river", "road"),
        *("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"),
        *(f"word{number}" for number in range(4)),
    )
)


def tables(d_model: int = 24) -> dict[Embedding, Tensor]:
    """Random vectors of tokens, an output head of its own, and positions of which the first is never reached."""
    generator = torch.Generator().manual_seed(300)
    rows, found = WORDS.size, {}
    for role, stack, count, first in (("token", None, rows, 0), ("output", None, rows, 0), ("position", "only", 12, 1)):
        table = torch.randn(count, d_model, generator=generator, dtype=torch.float64)
        found[Embedding(role, stack, role, (count, d_model), first)] = table + 0.3
    return found


def planted(*sites: Site, spec: ModelSpec = SPEC) -> Planted:
    weights = {one: gaussian_weights(one, seed=seed) for seed, one in enumerate(sites)}
    return Planted(weights, spec, feeds=feed_forward(*sites), vectors=tables(), vocabulary=WORDS)


# Every shape of model the lenses must handle.
MODELS: dict[str, Planted] = {
    "multi-head": planted(site(n_kv_heads=4), site(n_kv_heads=4, layer=1)),
    "grouped queries": planted(site(), site(layer=1)),
    "one key head, window": planted(site(n_kv_heads=1, window=4), site(n_kv_heads=1, layer=1)),
    "one head": planted(site(n_heads=1, n_kv_heads=1, d_value=3)),
    "encoder": planted(site(causal=False), site(causal=False, layer=1)),
    "sinks": planted(site(extras=("sinks",))),
    "encoder-decoder": planted(
        site(stack="enc", causal=False), site(stack="dec"), site(stack="dec", kind="cross", causal=False)
    ),
}


def residual(weights: HeadWeights, lengths: Sequence[int], n: int, seed: int) -> Tensor:
    """The random input of a site, the same for `attention`: what enters its layer."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(lengths), n, weights.w_q.shape[1], generator=generator, dtype=torch.float64)


def attention(weights: HeadWeights, lengths: Sequence[int], n: int, seed: int) -> tuple[Tensor, Call, Tensor]:
    """The pattern of one site on random input, the call it answers, and which positions are real."""
    of = weights.site
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(len(lengths), n, weights.w_q.shape[1], generator=generator, dtype=torch.float64)
    source = torch.randn(len(lengths), n + 2, x.shape[-1], generator=generator, dtype=torch.float64)
    source = source if of.kind == "cross" else x
    q = torch.einsum("bnm,hmd->bhnd", x, weights.w_q.double())
    k = torch.einsum("bnm,hmd->bhnd", source, weights.w_k.double())
    v = torch.einsum("bnm,hmd->bhnd", source, weights.w_v.double())
    keys = source.shape[1]
    real = torch.arange(n) < torch.tensor(lengths)[:, None]
    key_real = real if of.kind == "self" else torch.arange(keys) < torch.tensor(lengths)[:, None] + 2
    call = Call(
        q, k, v, scale=of.d_head**-0.5,
        query_positions=torch.arange(n)[None], key_positions=torch.arange(keys)[None],
        left=None if of.window is None else of.window - 1, right=0 if of.causal else None, key_padding=key_real,
        sinks=torch.linspace(-1, 1, of.n_heads, dtype=torch.float64) if "sinks" in of.extras else None,
    )  # fmt: skip
    return softmax(call), call, real


def softmax(call: Call) -> Tensor:
    """The pattern by its formula, with the sink's mass taken away."""
    heads = [head // call.groups for head in range(call.q.shape[1])]
    scores = call.scale * call.q @ call.k[:, heads].mT
    scores = scores.masked_fill(~call.visible(), -torch.inf)
    if call.sinks is None:
        return torch.softmax(scores, -1).nan_to_num(0.0)
    sink = call.sinks[None, :, None, None].expand(*scores.shape[:-1], 1)
    return torch.softmax(torch.cat((scores, sink), -1), -1)[..., :-1]


def batches(
    model: Planted, request: Request, shapes: Sequence[Sequence[int]] = ((9, 6), (9,), (7, 5, 2))
) -> list[Batch]:
    """One batch per entry of `shapes`, which lists the lengths of its windows (padded to the longest)."""
    found = []
    for seed, lengths in enumerate(shapes):
        n = max(lengths)
        statistics, uniform = {}, {}
        names = (
            "pattern", "pairs", "q", "k", "v", "z", "resid", "x", "rows", "scale", "corner", "corner_z", "early"
        )  # fmt: skip
        captures: dict[str, dict[Site, Tensor]] = {name: {} for name in names}
        real = torch.zeros(0)
        tokens = torch.randint(2, (len(lengths), n), generator=torch.Generator().manual_seed(2 + seed))
        for number, of in enumerate(model.sites):
            pattern, call, real = attention(model.weights_of[of], lengths, n, seed=100 * seed + number)
            options = {"real_queries": real, "positional": of.kind == "self"}
            statistics[of] = pattern_statistics(pattern, call, request, **options)
            uniform[of] = uniform_statistics(call, request, **options)
            kv_heads = [of.kv_head(head) for head in range(of.n_heads)]
            parts = {"pattern": pattern, "q": call.q, "k": call.k, "v": call.v, "z": pattern @ call.v[:, kv_heads]}
            parts["scale"], parts["rows"] = torch.tensor(call.scale, dtype=torch.float64), score_rows(call)
            parts["pairs"], parts["query_runs"] = pairs_of(pattern), query_runs_of(pattern)
            w_o = model.weights_of[of].w_o.double()
            parts["output_gram"] = (w_o @ w_o.mT).expand(len(lengths), -1, -1, -1)
            parts["resid"] = parts["x"] = residual(model.weights_of[of], lengths, n, seed=100 * seed + number)
            parts["corner"], parts["corner_z"] = pattern[:, :, :CORNER, :CORNER], parts["z"][:, :, :CORNER]
            parts["corner:256"] = pattern[:, :, :256, :256]
            parts["repeats:40"] = repeat_masses(call, 40, tokens if of.kind == "self" else None)
            parts["early"] = pattern[:, :, :CORNER, : CORNER if of.causal else None]
            for name, part in parts.items():
                captures.setdefault(name, {})[of] = part
        last = {of.stack: of for of in model.sites if of.kind == "self"}.values()
        captures["final"] = {of: residual(model.weights_of[of], lengths, n, seed=100 * seed + 50) for of in last}
        spelling = tuple(spelled(n) for _ in lengths)
        found.append(Batch(AS_IS, tokens, real, statistics, uniform, captures, spelling))
    return found


def spelled(n: int) -> tuple[str, ...]:
    """Words of one, two, three, one, … tokens."""
    return tuple(("a", " b", "c", " d", "e", "f", " g")[position % 7] for position in range(n))


def batch_of(pattern: Tensor, of: Site, request: Request) -> Batch:
    """A batch whose pattern [batch, heads, queries, keys] is given as it is."""
    batch, heads, n, keys = pattern.shape
    empty = torch.zeros(batch, heads, n, of.d_head)
    call = Call(
        empty, torch.zeros(batch, of.n_kv_heads, keys, of.d_head), torch.zeros(batch, of.n_kv_heads, keys, of.d_value),
        1.0, torch.arange(n)[None], torch.arange(keys)[None], right=0 if of.causal else None,
    )  # fmt: skip
    statistics = {of: pattern_statistics(pattern, call, request)}
    real = torch.ones(batch, n, dtype=torch.bool)
    return Batch(
        AS_IS, real.long(), real, statistics, {of: uniform_statistics(call, request)}, {"pattern": {of: pattern}}
    )


def transformed(model: Planted, symmetry: str) -> Planted:
    """The same function with other weights: a change of the inner basis, or a permutation of heads."""
    return replace(model, weights_of={of: TRANSFORMS[symmetry](w) for of, w in model.weights_of.items()})


def _bases(count: int, d: int, rotation: bool) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    g = torch.randn(count, d, d, generator=generator, dtype=torch.float64)
    q = torch.linalg.qr(g).Q
    return q if rotation else q @ torch.diag_embed(torch.linspace(0.5, 2.0, d, dtype=torch.float64))


def _qk(w: HeadWeights, rotation: bool = False) -> HeadWeights:
    g = _bases(w.site.n_kv_heads, w.site.d_head, rotation)
    of_heads = g[[w.kv_of_head(head) for head in range(w.site.n_heads)]]
    return replace(w, w_q=w.w_q @ of_heads, w_k=w.w_k @ torch.linalg.inv(g).mT)


def _vo(w: HeadWeights, rotation: bool = False) -> HeadWeights:
    g = _bases(w.site.n_kv_heads, w.site.d_value, rotation)
    of_heads = g[[w.kv_of_head(head) for head in range(w.site.n_heads)]]
    return replace(w, w_v=w.w_v @ g, w_o=torch.linalg.inv(of_heads) @ w.w_o)


def permutation(of: Site) -> tuple[list[int], list[int]]:
    """New order of heads and of key/value heads: groups reversed, and heads within a group reversed."""
    return list(range(of.n_heads))[::-1], list(range(of.n_kv_heads))[::-1]


def _permuted(w: HeadWeights) -> HeadWeights:
    heads, kv_heads = permutation(w.site)
    return replace(w, w_q=w.w_q[heads], w_k=w.w_k[kv_heads], w_v=w.w_v[kv_heads], w_o=w.w_o[heads])


TRANSFORMS = {
    "qk": _qk,
    "vo": _vo,
    "rotated qk": lambda w: _qk(w, rotation=True),
    "rotated vo": lambda w: _vo(w, rotation=True),
    "heads": _permuted,
}
