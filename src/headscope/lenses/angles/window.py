"""One window at one site: sums over token pairs that give the correlations of any set of windows."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headscope.core import Site
from headscope.lenses.angles.arcs import ArcSums, row_arcs, stream_arcs
from headscope.lenses.shared.token_pairs import Part
from headscope.maths.resampling.rank_correlation import RankSums, row_centred, row_ranks

# Whose cosine, and what it is compared with.
VECTORS = ("input", "embedding")
TARGETS = ("score", "weight", "rank")
# Keys that a row must have, how often tokens are shuffled, and decimals to which cosines are ranked.
KEYS, DRAWS, DECIMALS = 4, 16, 9


@dataclass(frozen=True)
class Window:
    """Sums of products within rows of a target a, a cosine m and the distance d; of shuffled tokens only mm and am."""

    priority: int
    length: int
    tokens: int
    pairs: int
    sums: Float[Tensor, "vectors targets heads six"]
    shuffled_mm: Float[Tensor, "vectors targets draws"]
    shuffled_am: Float[Tensor, "vectors targets heads draws"]
    arcs: ArcSums
    rows: ArcSums


def window_of(site: Site, part: Part, embedding: Float[Tensor, "kept d_model"], scale: float, skip: int) -> Window:
    """All sums and arcs of the sampled tokens of one window."""
    inside = part.positions >= skip
    # A key that no head gives anything is masked: exactly 0.
    visible = (part.pattern > 0).any(0) & inside & inside[:, None]
    counted = visible & ~torch.eye(len(inside), dtype=torch.bool)
    counted &= counted.sum(-1, keepdim=True) >= KEYS
    shared = [site.kv_head(head) for head in range(site.n_heads)]
    score = scale * part.q.to(torch.float64) @ part.k.to(torch.float64)[shared].mT
    weight = part.pattern.to(torch.float64)
    targets = (row_centred(score, counted), row_centred(weight, counted), row_ranks(weight, counted))
    distance = (part.positions[:, None] - part.positions).abs().to(torch.float64)
    far = row_centred(distance.clamp_min(1).log(), counted)
    controls = (far, far, row_ranks(distance, counted))
    orders = _orders(inside, part.priority)
    sums, mm, am = [], [], []
    for vectors in (part.x, embedding):
        cosine = cosines(vectors)
        shuffled = torch.stack([cosine[order][:, order] for order in orders])
        measures = [_by_target(cosine_maps, counted) for cosine_maps in (cosine, shuffled)]
        for target, control, measure, mixed in zip(targets, controls, *measures, strict=True):
            sums.append(RankSums.of(target, measure, control).sums)
            mm.append(mixed.square().sum((-2, -1)))
            am.append(torch.einsum("hij,dij->hd", target, mixed))
    return Window(
        part.priority,
        part.length,
        int(inside.sum()),
        int(counted.sum()),
        _shaped(sums),
        _shaped(mm),
        _shaped(am),
        stream_arcs(part.x[inside]),
        row_arcs(part.x, score, visible, inside),
    )


def _shaped(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).reshape(len(VECTORS), len(TARGETS), *parts[0].shape)


def cosines(vectors: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """The cosines of all pairs of vectors; 0 where a vector is 0."""
    x = vectors.to(torch.float64)
    unit = x / x.norm(dim=-1, keepdim=True).clamp_min(1e-300)
    cosine_map: Tensor = unit @ unit.mT
    return cosine_map


def _by_target(cosine: Float[Tensor, "*some n n"], counted: Bool[Tensor, "n n"]) -> tuple[Tensor, Tensor, Tensor]:
    """The cosine in the form of each target: centred for score and weight, ranked for the rank."""
    plain = row_centred(cosine, counted)
    # Rounded, so that vectors that are the same (a word twice) tie.
    return plain, plain, row_ranks(cosine.round(decimals=DECIMALS), counted)


def _orders(inside: Bool[Tensor, "n"], priority: int) -> list[Tensor]:
    """Shuffles of the counted tokens, seeded by the text of the window; skipped tokens stay."""
    generator = torch.Generator().manual_seed(priority >> 8)
    at = inside.nonzero()[:, 0]
    orders = []
    for _ in range(DRAWS):
        order = torch.arange(len(inside))
        order[at] = at[torch.randperm(len(at), generator=generator)]
        orders.append(order)
    return orders
