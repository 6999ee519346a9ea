r"""The scores of one head as a sum over the writers of the stream, on the query side and on the key side.

With the scale of the norm before the head held at that of the text, and that of a QK-norm too, queries and keys are
sums over writers, $q_i = \sum_u q_i^u$ and $k_j = \sum_w k_j^w$, and the score is bilinear in them:
$s_{ij} = \alpha \sum_{u,w} q_i^u \cdot k_j^w + \beta_{ij}$, with β what the family adds for positions.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headscope.core import Site
from headscope.errors import NumericsError, VariantRefused
from headscope.model.model import Model
from headscope.model.session.position_maps import PositionMap, following_layer, position_maps
from headscope.model.session.written_stream import REST, Reader, WrittenStream

Side = Literal["key", "query"]
BIASES, POSITIONS = "biases", "positions"
# What the sum may miss, of the largest score or of mass 1: massive activations cancel in sums of float32 numbers, and
# the norms of transformers compute in float32 in a float64 model too.
TOLERANCE = 1e-4
_ROUGH = 5e-2  # of the half-precision types


@dataclass(frozen=True)
class ScoreTerms:
    """The queries and keys of one head by writer, and what else makes its scores and its pattern; in float64.

    `added` is what the family adds to the scores for positions, `sink` the logit of a learned sink. `scores` and
    `pattern` are those that the model computed.
    """

    site: Site
    head: int
    writers: tuple[str, ...]
    queries: Float[Tensor, "writers tokens d_head"]
    keys: Float[Tensor, "writers tokens d_head"]
    scale: float
    visible: Bool[Tensor, "tokens tokens"]
    scores: Float[Tensor, "tokens tokens"]
    pattern: Float[Tensor, "tokens tokens"]
    added: Float[Tensor, "tokens tokens"] | None = None
    sink: float | None = None

    @property
    def label(self) -> str:
        """The name of the head."""
        return self.site.head_label(self.head)

    @property
    def names(self) -> tuple[str, ...]:
        """The writers, and the positions where the family adds something for them."""
        return self.writers if self.added is None else (*self.writers, POSITIONS)

    def terms(self, side: Side, rows: Int[Tensor, " queries"]) -> Float[Tensor, "names queries keys"]:
        """By writer of one side, its part of the scores of some queries; the parts add up to the scores."""
        if side == "key":
            parts = torch.einsum("qd,wkd->wqk", self.queries.sum(0)[rows], self.keys)
        else:
            parts = torch.einsum("wqd,kd->wqk", self.queries[:, rows], self.keys.sum(0))
        parts = self.scale * parts
        return parts if self.added is None else torch.cat([parts, self.added[rows][None]])

    def pair_terms(
        self, query_writer: int, key_writers: list[int], rows: Int[Tensor, " queries"]
    ) -> Float[Tensor, "key_writers queries keys"]:
        """The part of the scores that comes from one writer of the queries and each of some writers of the keys."""
        return self.scale * torch.einsum("qd,wkd->wqk", self.queries[query_writer, rows], self.keys[key_writers])

    def rebuilt_pattern(
        self, scores: Float[Tensor, "*batch queries keys"], rows: Int[Tensor, " queries"]
    ) -> Float[Tensor, "*batch queries keys"]:
        """The pattern that other scores of some queries give under the same mask and sink."""
        masked = scores.masked_fill(~self.visible[rows], -torch.inf)
        if self.sink is None:
            return torch.softmax(masked, dim=-1).nan_to_num(nan=0.0)
        sink = torch.full_like(masked[..., :1], self.sink)
        return torch.softmax(torch.cat([masked, sink], dim=-1), dim=-1)[..., :-1]

    def errors(self) -> tuple[float, float]:
        """How far the sum is from the model's scores (of the largest), and the rebuilt pattern from its pattern."""
        rows = torch.arange(len(self.scores))
        total = self.terms("key", rows).sum(0)
        seen_scores = self.scores[self.visible]
        score_error = float((total[self.visible] - seen_scores).abs().max() / seen_scores.abs().max())
        return score_error, float((self.rebuilt_pattern(total, rows) - self.pattern).abs().max())


def score_terms(
    model: Model, tokens: Int[Tensor, " tokens"], site: Site, head: int, stream: WrittenStream
) -> ScoreTerms:
    """Take the scores of one head on a text apart.

    Raises:
        VariantRefused: The scores of this head are no sum over writers; the message says why.
        NumericsError: The sum misses the model's scores.
    """
    label = site.head_label(head)
    if "softcap" in site.extras:
        raise VariantRefused(
            f"{label}: {model.spec.family} models bend each score by a softcap, so it is no sum over writers"
        )
    status = model.weight_status(site)
    if status.status == "refused":
        raise VariantRefused(
            f"{label}: {status.reason}; so its scores are not known as a sum over writers",
            hint="this needs one projection of the stream for queries and one for keys, which latent attention has not",
        )
    maps = position_maps(model, tokens, site, head)
    sums = {letter: _by_writer(model, stream, site, head, letter, maps[letter]) for letter in ("q", "k")}
    if not any(parts[BIASES].any() for parts in sums.values()):
        sums = {letter: {name: parts[name] for name in parts if name != BIASES} for letter, parts in sums.items()}
    captured, dtype = _captured(model, tokens, label, site)
    visible, sink = _mask(model, tokens, label, site)
    added = None
    scale = float(captured["scale"])
    if "bias" in site.extras:
        added = captured["scores"] - scale * captured["q"] @ captured["k"].T
    terms = ScoreTerms(
        site=site,
        head=head,
        writers=tuple(sums["q"]),
        queries=torch.stack(list(sums["q"].values())),
        keys=torch.stack(list(sums["k"].values())),
        scale=scale,
        visible=visible,
        scores=captured["scores"],
        pattern=captured["pattern"],
        added=added,
        sink=sink if "sinks" in site.extras else None,
    )
    worst = max(terms.errors())
    if not worst <= (TOLERANCE if torch.finfo(dtype).bits >= 32 else _ROUGH):
        raise NumericsError(
            f"{label}: the writers together miss the model's scores or pattern by {worst:.1g}",
            hint="name another head; this family does something to scores that headscope does not know",
        )
    return terms


def _by_writer(
    model: Model, stream: WrittenStream, site: Site, head: int, letter: Literal["q", "k"], position_map: PositionMap
) -> dict[str, Float[Tensor, "tokens d_head"]]:
    """By writer, its part of the queries or keys; all biases are one writer, the last."""
    weights, reader = model.weights(site), stream.reader(site.head_label(head), letter)
    matrix, bias = (weights.w_q[head], weights.b_q[head]) if letter == "q" else (
        weights.w_k[site.kv_head(head)],
        weights.b_k[site.kv_head(head)],
    )  # fmt: skip
    # Gains after the projection are part of the position map.
    exact: Reader = replace(
        reader,
        writers={name: part.cpu().double() for name, part in reader.writers.items()},
        sight=None if reader.sight is None else replace(reader.sight, scale=reader.sight.scale.cpu().double()),
        matrix=matrix.double(),
        bias=bias.double(),
    )
    parts, biases = dict[str, Tensor](), position_map.shift
    for name, part in exact.received().items():
        read = position_map.linear(part.reshape(-1, part.shape[-1]).expand_as(position_map.shift))
        if name == REST or name.endswith(".bias"):
            biases = biases + read
        else:
            parts[name] = read
    return {**parts, BIASES: biases}


def _captured(
    model: Model, tokens: Int[Tensor, " tokens"], label: str, site: Site
) -> tuple[dict[str, Tensor], torch.dtype]:
    with model.session() as session:
        captured = session.capture("q", "k", "scores", "pattern", "scale", at=label)
        session.run(tokens, head=False, stop_at=following_layer(model, site))
        tensors = {name: by_site[site] for name, by_site in captured.take().items()}
    dtype = tensors["q"].dtype
    return {
        name: (tensor if tensor.ndim == 0 else tensor[0, 0]).cpu().double() for name, tensor in tensors.items()
    }, dtype


def _mask(
    model: Model, tokens: Int[Tensor, " tokens"], label: str, site: Site
) -> tuple[Bool[Tensor, "tokens tokens"], float]:
    """Which keys each query may see, and the logit of a sink: both follow from the pattern of equal scores."""
    with model.session() as session:
        session.patch(label, "scores", "zero")
        captured = session.capture("pattern", at=label)
        session.run(tokens, head=False, stop_at=following_layer(model, site))
        even = captured.take()["pattern"][site][0, 0].cpu().double()
    visible = even > 0
    last = int(visible.sum(-1).argmax())
    besides = 1 / float(even[last].max()) - int(visible[last].sum())
    return visible, float(torch.tensor(max(besides, 1e-30)).log())
