r"""Where the attention of a few-shot prompt goes: inside a shot, across shots, to the separators, to the context.

A row is a query that belongs to the word or the clue of a shot, of the second shot on, so that it has both its own and
earlier shots to look at. Its mass is divided, without rest, among: itself; the other tokens of words and clues in its
own shot (inside) and in earlier ones (across); separators; the context; the first token of all. Of rows in clues also:
the mass on the word that the clue is about (target).

Two nulls. Uniform: attention uniform over the visible keys. Nearness: what the same maps give to tokens for being near.
For inside and across every weight is replaced by the mean of all weights between words and clues at the same distance;
for the target by that of all such pairs but those of a clue and its word. So a map that knows only distances is its own
null. Beside it stands the ratio of the two kinds at equal distance (`equal_distance`): how much more weight a token of
the own shot gets than one of an earlier shot that is as far away.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headscope.core import Site
from headscope.experiments.fewshot.prompt import Labels, Part
from headscope.maths.attention.block_sums import block_sums

DIVIDED = ("self", "inside", "across", "separators", "context", "first")
MASSES = (*DIVIDED, "target")
NEAR = ("inside", "across", "target")  # what nearness says something about
SHAPES = ("diagonal_tokens", "diagonal_words", "dominant_words", "equal_distance")

Pattern = Float[Tensor, "heads tokens tokens"]


@dataclass(frozen=True)
class Measured:
    """The means over the rows of one prompt, and of its averaged map."""

    masses: Float[Tensor, "heads masses"]
    near: Float[Tensor, "heads masses"]
    shapes: Float[Tensor, " shapes"]
    largest: float


def measured(pattern: Pattern, labels: Labels) -> Measured:
    """Everything about one site and one prompt."""
    mean_map, head_masses = pattern.mean(0), masses(pattern, labels)
    near = head_masses.clone()
    near[:, [MASSES.index(name) for name in NEAR]] = nearness(pattern, labels)
    return Measured(head_masses, near, shapes(mean_map, labels), float(content_map(mean_map, labels).max()))


def masses(pattern: Pattern, labels: Labels) -> Float[Tensor, "heads masses"]:
    """The mean over rows of the mass on each kind of key; NaN where there is no such row.

    Properties:
        - the six kinds of keys take all of the mass  (tested: test_the_mass_is_divided_without_rest)
        - finds mass that was planted  (tested: test_planted_mass_is_found)
    """
    pairs = Pairs.of(labels)
    rows = pattern[:, pairs.places].to(torch.float64)
    between = rows[:, :, pairs.places]
    later = torch.arange(len(labels.part)) > 0

    def over_rows(mass: Float[Tensor, "heads rows"]) -> Float[Tensor, " heads"]:
        return mass[:, pairs.counted].mean(1)

    mass_of = {
        "self": over_rows(between.diagonal(dim1=1, dim2=2)),
        "inside": over_rows((between * pairs.inside).sum(-1)),
        "across": over_rows((between * pairs.across).sum(-1)),
        "separators": over_rows(rows[:, :, (labels.part == Part.SEPARATOR) & later].sum(-1)),
        "context": over_rows(rows[:, :, (labels.part == Part.CONTEXT) & later].sum(-1)),
        "first": over_rows(rows[:, :, 0]),
        "target": (between * pairs.target)[:, pairs.in_clue].sum(-1).mean(1),
    }
    return torch.stack([mass_of[name] for name in MASSES], dim=-1)


@dataclass(frozen=True)
class Pairs:
    """The tokens of words and clues, which of them are rows that count, and which pairs of them are what.

    Pairs are of a counted row and an earlier token: in its own shot, in an earlier one, a clue and its word.
    """

    places: Int[Tensor, " shown"]
    counted: Bool[Tensor, " shown"]
    in_clue: Bool[Tensor, " shown"]
    distance: Int[Tensor, "shown shown"]
    inside: Bool[Tensor, "shown shown"]
    across: Bool[Tensor, "shown shown"]
    target: Bool[Tensor, "shown shown"]

    @classmethod
    def of(cls, labels: Labels) -> "Pairs":
        """From the labels of a prompt."""
        places = torch.nonzero(labels.content).flatten()
        part, shot = labels.part[places], labels.shot[places]
        distance = places[:, None] - places[None, :]
        counted = shot >= 1
        earlier = counted[:, None] & (distance > 0)
        same = shot[:, None] == shot[None, :]
        in_clue = counted & (part == Part.CLUE)
        target = earlier & same & in_clue[:, None] & (part == Part.WORD)[None, :]
        return cls(places, counted, in_clue, distance, earlier & same, earlier & ~same, target)


def nearness(pattern: Pattern, labels: Labels) -> Float[Tensor, "heads near"]:
    """What inside, across and target would be if only distances counted.

    Properties:
        - equals the masses where attention knows only distances  (tested: test_nearness_explains_a_local_map)
    """
    pairs = Pairs.of(labels)
    between = pattern[:, pairs.places][:, :, pairs.places].to(torch.float64)
    every = pairs.inside | pairs.across
    not_target = every & pairs.in_clue[:, None] & ~pairs.target
    n, n_clue = pairs.counted.sum(), pairs.in_clue.sum()
    columns = [
        _profile(between, pairs.distance, every, pairs.inside) / n,
        _profile(between, pairs.distance, every, pairs.across) / n,
        _profile(between, pairs.distance, not_target, pairs.target) / n_clue,
    ]
    return torch.stack(columns, dim=1)


def _profile(
    between: Float[Tensor, "heads shown shown"],
    distance: Int[Tensor, "shown shown"],
    source_pairs: Bool[Tensor, "shown shown"],
    target_pairs: Bool[Tensor, "shown shown"],
) -> Float[Tensor, " heads"]:
    """The sum over the target pairs of the mean weight of the source pairs at their distance.

    A distance without a source pair is interpolated from the nearest ones that have some.
    """
    if not bool(source_pairs.any()):
        return torch.full((len(between),), torch.nan, dtype=torch.float64)
    span = int(distance.max()) + 1
    counts = torch.bincount(distance[source_pairs], minlength=span)
    sums = torch.zeros(len(between), span, dtype=torch.float64).index_add(
        1, distance[source_pairs], between[:, source_pairs]
    )
    at = torch.nonzero(counts).flatten()
    return _interpolated(at, sums[:, at] / counts[at], distance[target_pairs]).sum(1)


def _interpolated(
    places: Int[Tensor, " places"], values: Float[Tensor, "heads places"], at: Int[Tensor, " at"]
) -> Float[Tensor, "heads at"]:
    """Linear between the places, constant beyond them."""
    low = (torch.searchsorted(places, at, right=True) - 1).clamp_min(0)
    high = (low + 1).clamp_max(len(places) - 1)
    gap = (places[high] - places[low]).clamp_min(1)
    part = ((at - places[low]) / gap).clamp(0.0, 1.0)
    return values[:, low] * (1 - part) + values[:, high] * part


def shapes(mean_map: Float[Tensor, "tokens tokens"], labels: Labels) -> Float[Tensor, " shapes"]:
    """Of the map that is drawn (averaged over heads, words and clues only): its diagonal, and own against other shots.

    For the diagonal rows are divided by their sum over what is drawn; the first row, which has nothing else, does not
    count. A row is dominant if its diagonal is at least as large as all the rest of it.
    """
    tokens = _row_shares(content_map(mean_map, labels))
    words = _row_shares(block_sums(mean_map, labels.word, labels.word))
    dominant = (words >= 0.5).to(torch.float64).mean()
    return torch.stack([tokens.mean(), words.mean(), dominant, equal_distance(mean_map, labels)])


def equal_distance(mean_map: Float[Tensor, "tokens tokens"], labels: Labels) -> Float[Tensor, ""]:
    """The mean weight on the own shot over that on earlier shots, at distances that have both; NaN if none has.

    Each distance counts as often as the rarer of the two kinds has pairs there.

    Properties:
        - 1 where attention knows only distances, whatever these are  (tested: test_nearness_explains_a_local_map)
    """
    pairs, weights = Pairs.of(labels), content_map(mean_map, labels)
    span = int(pairs.distance.max()) + 1
    counts, means = [], []
    for kind in (pairs.inside, pairs.across):
        count = torch.bincount(pairs.distance[kind], minlength=span).to(torch.float64)
        total = torch.zeros(span, dtype=torch.float64).index_add(0, pairs.distance[kind], weights[kind])
        counts.append(count)
        means.append(total / count.clamp_min(1.0))
    rarer = torch.minimum(counts[0], counts[1])
    return (rarer * means[0]).sum() / (rarer * means[1]).sum()


def content_map(mean_map: Float[Tensor, "tokens tokens"], labels: Labels) -> Float[Tensor, "shown shown"]:
    """Rows and columns of words and clues alone."""
    is_content = labels.content
    return mean_map[is_content][:, is_content].to(torch.float64)


def _row_shares(weights: Float[Tensor, "n n"]) -> Float[Tensor, " rows"]:
    total = weights.sum(1)
    counted = total > 0
    counted[0] = False
    return (weights.diagonal() / total)[counted]


def uniform_pattern(site: Site, n: int) -> Float[Tensor, "1 n n"]:
    """Attention uniform over the keys that a causal site lets each query see."""
    distance = torch.arange(n)[:, None] - torch.arange(n)[None, :]
    visible = (distance >= 0) & (distance < (site.window or n))
    return (visible / visible.sum(1, keepdim=True)).to(torch.float64)[None]


def shares(mass: Float[Tensor, "*rest masses"]) -> Float[Tensor, "*rest"]:
    """Of the mass on words and clues other than itself, the part in its own shot."""
    inside, across = mass[..., MASSES.index("inside")], mass[..., MASSES.index("across")]
    return inside / (inside + across)
