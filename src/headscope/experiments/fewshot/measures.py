r"""Where the attention of a few-shot prompt goes: inside a shot, across shots, to the separators, to the context.

A row is a query that belongs to the word or the clue of a shot, of the second shot on, so that it has both its own and
earlier shots to look at. Its mass is divided, without rest, among: itself; the other tokens of words and clues in its
own shot (inside) and in earlier ones (across); separators; the context; the first token of all. Of rows in clues also:
the mass on the word that the clue is about (target).

Two nulls. Uniform: attention uniform over the visible keys. Nearness: what the same maps give to tokens for being near.
For inside and across the borders of the shots are moved: their blocks put in another order and shifted round over the
same tokens. For the target: the mass on other tokens of words and clues at the same distance.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headscope.core import Site
from headscope.experiments.fewshot.prompt import Labels, Part
from headscope.maths.blocks import block_sums

DIVIDED = ("self", "inside", "across", "separators", "context", "first")
MASSES = (*DIVIDED, "target")
DIAGONALS = ("diagonal_tokens", "diagonal_words", "dominant_words")
MOVES = 24

Pattern = Float[Tensor, "heads tokens tokens"]


@dataclass(frozen=True)
class Measured:
    """The means over the rows of one prompt, and of its averaged map."""

    masses: Float[Tensor, "heads masses"]
    near: Float[Tensor, "heads masses"]
    diagonals: Float[Tensor, " diagonals"]
    largest: float


def measured(pattern: Pattern, labels: Labels, moves: Sequence[Labels]) -> Measured:
    """Everything about one site and one prompt."""
    mean_map = pattern.mean(0)
    near = masses(pattern, moves).nanmean(0)
    near[:, MASSES.index("target")] = same_distance(pattern, labels)
    return Measured(
        masses(pattern, [labels])[0],
        near,
        diagonals(mean_map, labels),
        float(content_map(mean_map, labels).max()),
    )


def masses(pattern: Pattern, divisions: Sequence[Labels]) -> Float[Tensor, "divisions heads masses"]:
    """The mean over rows of the mass on each kind of key; NaN where there is no such row.

    The labels may differ in how words and clues are divided into shots, not in which tokens are words and clues.

    Properties:
        - the six kinds of keys take all of the mass  (tested: test_the_mass_is_divided_without_rest)
        - finds mass that was planted  (tested: test_planted_mass_is_found)
    """
    shown = divisions[0].content
    rows = pattern[:, shown].to(torch.float64)
    places = torch.nonzero(shown).flatten()
    between = rows[:, :, shown]
    off_diagonal = ~torch.eye(len(places), dtype=torch.bool)
    part = torch.stack([one.part[shown] for one in divisions])
    shot = torch.stack([one.shot[shown] for one in divisions])
    counted = (shot >= 1).to(torch.float64)
    in_clue = counted * (part == Part.CLUE)
    same = (shot[:, :, None] == shot[:, None, :]) & off_diagonal
    target = same & (part == Part.WORD)[:, None, :]

    def pairs(of_rows: Float[Tensor, "divisions rows"], keys: Bool[Tensor, "divisions rows rows"]) -> Tensor:
        return torch.einsum("hij,dij->dh", between, of_rows[:, :, None] * keys) / of_rows.sum(1)[:, None]

    def whole(mass: Float[Tensor, "heads rows"]) -> Tensor:
        return torch.einsum("hi,di->dh", mass, counted) / counted.sum(1)[:, None]

    elsewhere = {kind: (divisions[0].part == kind) & (torch.arange(len(shown)) > 0) for kind in Part}
    found = {
        "self": whole(between.diagonal(dim1=1, dim2=2)),
        "inside": pairs(counted, same),
        "across": pairs(counted, ~(shot[:, :, None] == shot[:, None, :])),
        "separators": whole(rows[:, :, elsewhere[Part.SEPARATOR]].sum(-1)),
        "context": whole(rows[:, :, elsewhere[Part.CONTEXT]].sum(-1)),
        "first": whole(rows[:, :, 0]),
        "target": pairs(in_clue, target),
    }
    return torch.stack([found[name] for name in MASSES], dim=-1)


def same_distance(pattern: Pattern, labels: Labels) -> Float[Tensor, " heads"]:
    """What a clue would give to its word if that were any token of words and clues at the same distance.

    A distance at which the word alone stands is interpolated from the nearest ones that have others.

    Properties:
        - equals the mass on the target where attention knows only distances  (tested:
        test_nearness_explains_a_local_map)
    """
    places = torch.nonzero(labels.content).flatten()
    part, shot = labels.part[places], labels.shot[places]
    distance = places[:, None] - places[None, :]
    rows = (shot >= 1) & (part == Part.CLUE)
    pairs = rows[:, None] & (distance > 0)
    target = pairs & (shot[:, None] == shot[None, :]) & (part == Part.WORD)[None, :]
    between = pattern[:, places][:, :, places].to(torch.float64)
    span = int(distance.max()) + 1
    others = pairs & ~target
    counts = torch.bincount(distance[others], minlength=span)
    sums = torch.zeros(len(pattern), span, dtype=torch.float64).index_add(1, distance[others], between[:, others])
    known = torch.nonzero(counts).flatten()
    if not len(known):
        return torch.full((len(pattern),), torch.nan, dtype=torch.float64)
    profile = _interpolated(known, sums[:, known] / counts[known], distance[target])
    return profile.sum(1) / rows.sum()


def _interpolated(
    known: Int[Tensor, " known"], values: Float[Tensor, "heads known"], at: Int[Tensor, " at"]
) -> Float[Tensor, "heads at"]:
    """Linear between the known places, level beyond them."""
    low = (torch.searchsorted(known, at, right=True) - 1).clamp_min(0)
    high = (low + 1).clamp_max(len(known) - 1)
    gap = (known[high] - known[low]).clamp_min(1)
    part = ((at - known[low]) / gap).clamp(0.0, 1.0)
    return values[:, low] * (1 - part) + values[:, high] * part


def moves_of(labels: Labels, seed: int, count: int = MOVES) -> list[Labels]:
    """Some draws of moved borders."""
    generator = torch.Generator().manual_seed(seed)
    return [borders_moved(labels, generator) for _ in range(count)]


def borders_moved(labels: Labels, generator: torch.Generator) -> Labels:
    """The same tokens with the blocks of the shots in a random order, shifted round by a random number of tokens."""
    places = torch.nonzero(labels.content).flatten()
    part, shot = labels.part[places], labels.shot[places]
    blocks = [torch.nonzero(shot == one).flatten() for one in sorted(set(shot.tolist()))]
    order = torch.randperm(len(blocks), generator=generator).tolist()
    shift = int(torch.randint(len(places), (1,), generator=generator))
    parts = torch.cat([part[blocks[one]] for one in order]).roll(shift)
    numbers = torch.cat([torch.full_like(blocks[one], at) for at, one in enumerate(order)]).roll(shift)
    # A block that was cut by the shift is two: one at each end.
    step = torch.cat([torch.zeros(1, dtype=torch.int64), (numbers[1:] != numbers[:-1]).to(torch.int64)]).cumsum(0)
    new_part, new_shot = labels.part.clone(), labels.shot.clone()
    new_part[places], new_shot[places] = parts, step
    return Labels(new_part, new_shot, labels.word)


def diagonals(mean_map: Float[Tensor, "tokens tokens"], labels: Labels) -> Float[Tensor, " diagonals"]:
    """Of the map that is drawn (averaged over heads, words and clues only): how much of a row is on its diagonal.

    Rows are divided by their sum over what is drawn; the first row, which has nothing else, does not count. A row is
    dominant if its diagonal is at least as large as all the rest of it.
    """
    tokens = _row_shares(content_map(mean_map, labels))
    words = _row_shares(block_sums(mean_map, labels.word, labels.word))
    return torch.stack([tokens.mean(), words.mean(), (words >= 0.5).to(torch.float64).mean()])


def content_map(mean_map: Float[Tensor, "tokens tokens"], labels: Labels) -> Float[Tensor, "shown shown"]:
    """Rows and columns of words and clues alone."""
    shown = labels.content
    return mean_map[shown][:, shown].to(torch.float64)


def _row_shares(shown: Float[Tensor, "n n"]) -> Float[Tensor, " rows"]:
    total = shown.sum(1)
    kept = total > 0
    kept[0] = False
    return (shown.diagonal() / total)[kept]


def uniform_pattern(site: Site, n: int) -> Float[Tensor, "1 n n"]:
    """Attention uniform over the keys that a causal site lets each query see."""
    distance = torch.arange(n)[:, None] - torch.arange(n)[None, :]
    visible = (distance >= 0) & (distance < (site.window or n))
    return (visible / visible.sum(1, keepdim=True)).to(torch.float64)[None]


def shares(mass: Float[Tensor, "*rest masses"]) -> Float[Tensor, "*rest"]:
    """Of the mass on words and clues other than itself, the part in its own shot."""
    inside, across = mass[..., MASSES.index("inside")], mass[..., MASSES.index("across")]
    return inside / (inside + across)
