"""Switches heads off together, more and more of them, and measures the perplexity on the split `test`.

A curve is an order of the heads. Random orders are the null: what as many heads cost that nobody chose.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.core import Site
from headscope.experiments.prune.ablation import Outputs, switched_off
from headscope.experiments.prune.importance import Head
from headscope.experiments.swap.quality import PairedNats, scored_tokens, window_nats
from headscope.experiments.text_sample import Tokens
from headscope.model.model import Model
from headscope.progress import Step

ORIGINAL_TASK = "reading the test text with all heads"
# The shares of the heads that are off, finer where the first losses are.
SHARES = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.75, 1.0)
RANDOM = "random"


@dataclass(frozen=True)
class Point:
    """The quality with a number of heads off; of several orders, the mean of their nats and each alone."""

    count: int
    quality: PairedNats
    draws: Sequence[PairedNats] = ()


Curves = Mapping[str, Sequence[Point]]


@runtime_checkable
class ScoredText(Protocol):
    """A text in parts that are independent of each other, each with a number of predicted tokens."""

    @property
    def tokens(self) -> Float[Tensor, " parts"]:
        """How many tokens of each part are predicted."""
        ...

    def nats(self, model: Model) -> Float[Tensor, " parts"]:
        """The nats of the predicted tokens of each part."""
        ...


@dataclass(frozen=True)
class WindowText:
    """Windows of a text, each token of which but the first is predicted from those before it."""

    windows: Sequence[Tokens]

    @property
    def tokens(self) -> Float[Tensor, " windows"]:
        """How many tokens of each window are predicted."""
        return scored_tokens(self.windows)

    def nats(self, model: Model) -> Float[Tensor, " windows"]:
        """The nats of each window."""
        return torch.tensor([window_nats(model, tokens) for tokens in self.windows], dtype=torch.float64)


@dataclass(frozen=True)
class Pruner:
    """Measures orders of heads on the same text."""

    model: Model
    text: ScoredText
    heads: Sequence[Head]
    outputs: Outputs
    original: Float[Tensor, " parts"]
    step: Step

    def curve(self, name: str, order: Sequence[int]) -> list[Point]:
        """The quality with the first heads of an order off, for each count of `counts`."""
        points, total = [], len(counts(len(self.heads)))
        for number, count in enumerate(counts(len(self.heads))):
            self.step(task_of(name), number, total)
            points.append(Point(count, self._quality(order[:count])))
        self.step(task_of(name), total, total)
        return points

    def random(self, draws: int, seed: int) -> list[Point]:
        """The same for random orders: part by part the mean of their nats, and each order alone."""
        generator = torch.Generator().manual_seed(seed)
        orders = [torch.randperm(len(self.heads), generator=generator).tolist() for _ in range(draws)]
        curves = [self.curve(random_name(draw, draws), order) for draw, order in enumerate(orders)]
        return [self._mean_of(points) for points in zip(*curves, strict=True)]

    def _mean_of(self, points: Sequence[Point]) -> Point:
        nats = torch.stack([point.quality.nats for point in points]).mean(0)
        return Point(points[0].count, self._paired(nats), tuple(point.quality for point in points))

    def _quality(self, numbers: Sequence[int]) -> PairedNats:
        heads_by_site: dict[Site, list[int]] = {}
        for number in numbers:
            site, head = self.heads[number]
            heads_by_site.setdefault(site, []).append(head)
        with switched_off(self.model, heads_by_site, self.outputs):
            return self._paired(self.text.nats(self.model))

    def _paired(self, nats: Float[Tensor, " parts"]) -> PairedNats:
        return PairedNats(nats, self.original, self.text.tokens)


def original_nats(model: Model, text: ScoredText, step: Step) -> Float[Tensor, " parts"]:
    """The nats of each part with all heads on."""
    step(ORIGINAL_TASK, 0, 1)
    nats = text.nats(model)
    step(ORIGINAL_TASK, 1, 1)
    return nats


def counts(heads: int) -> tuple[int, ...]:
    """How many heads are off at the points of a curve, at least one and in the end all."""
    return tuple(sorted({max(1, round(share * heads)) for share in SHARES}))


def spared(points: Sequence[Point], budget: float, *, surely: bool) -> tuple[int, int | None]:
    """How many heads can go, and the next number that was measured, with which it is too much.

    Definition:
        The largest measured count such that the perplexity ratio (`surely`: the upper end of its interval) is within
        the budget there and at every smaller count; 0 if it is nowhere, None where all heads can go.
    Properties:
        - a curve that comes back into the budget does not count  (tested: test_how_many_heads_can_go)
    """
    largest = 0
    for point in points:
        ratio = point.quality.ratio
        if not (ratio.high if surely else ratio.mean) <= 1.0 + budget:
            return largest, point.count
        largest = point.count
    return largest, None


def task_of(name: str) -> str:
    """The task of measuring one order."""
    return f"switching off heads by {name}, point"


def random_name(draw: int, draws: int) -> str:
    """The name of a random order, with its number where there are several."""
    return RANDOM if draws == 1 else f"{RANDOM} order {draw + 1}"
