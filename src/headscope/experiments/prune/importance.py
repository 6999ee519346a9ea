"""The importance of every head by each criterion, window by window, and how alike the criteria order the heads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.core import Site
from headscope.experiments.prune.ablation import Scores
from headscope.experiments.prune.settings import Off
from headscope.maths.resampling.clustered_mean import Estimate, clustered_mean
from headscope.maths.resampling.jackknife import jackknife
from headscope.maths.resampling.rank_correlation import RankSums, row_ranks

Head = tuple[Site, int]


@dataclass(frozen=True)
class Importance:
    """Nats per token of every head on every window, by criterion.

    `zero`, `mean`, `gradient` and `curvature` order heads. `zero_rise` and `mean_rise` are what the ablations do on the
    tokens of the text.
    """

    heads: Sequence[Head]
    by_criterion: Mapping[str, Float[Tensor, "windows heads"]]
    rises: Mapping[str, Float[Tensor, "windows heads"]]

    def order(self, criterion: str) -> list[int]:
        """The heads by number, the least important first."""
        return torch.argsort(self.by_criterion[criterion].mean(0), stable=True).tolist()

    def estimates(self, name: str) -> list[Estimate]:
        """The mean over windows of each head, with its interval; that of what cannot be negative ends at 0."""
        values = self.by_criterion[name] if name in self.by_criterion else self.rises[name]
        ones = torch.ones(len(values), dtype=torch.float64)
        estimates = [clustered_mean(column, ones) for column in values.T]
        if name in self.rises:
            return estimates
        return [replace(estimate, low=max(estimate.low, min(estimate.mean, 0.0))) for estimate in estimates]

    def correlations(self) -> dict[tuple[str, str], Estimate]:
        """The rank correlation over heads of every two criteria; intervals leave out one window each."""
        return {(a, b): self._correlation(a, b) for a, b in combinations(self.by_criterion, 2)}

    def _correlation(self, first: str, second: str) -> Estimate:
        pair = [_left_out_means(self.by_criterion[name]) for name in (first, second)]
        value, half = jackknife(rank_correlation(*pair))
        return Estimate(float(value), max(float(value - half), -1.0), min(float(value + half), 1.0))


def importance(sites: Sequence[Site], scores: Scores, predicted: Mapping[str, Tensor]) -> Importance:
    """The importance of all heads, in the order of the sites."""
    heads = [(site, head) for site in sites for head in range(site.n_heads)]
    divergence = {off.value: scores.divergence[:, number] for number, off in enumerate(Off)}
    rises = {f"{off.value}_rise": scores.rise[:, number] for number, off in enumerate(Off)}
    return Importance(heads, {**divergence, **predicted}, rises)


def rank_correlation(a: Float[Tensor, "*batch heads"], b: Float[Tensor, "*batch heads"]) -> Float[Tensor, "*batch"]:
    """Spearman's correlation over heads; NaN where all heads tie.

    Properties:
        - scipy's  (tested: test_rank_correlations)
    """
    everything = torch.ones(a.shape[-1], dtype=torch.bool)
    ranks = [row_ranks(values[..., None, :], everything) for values in (a, b)]
    return RankSums.of(ranks[0], ranks[1], torch.zeros(1, a.shape[-1])).correlation


def _left_out_means(values: Float[Tensor, "windows heads"]) -> Float[Tensor, "sets heads"]:
    """The mean over all windows, then without each of them."""
    total = values.sum(0)
    return torch.cat([total[None] / len(values), (total - values) / (len(values) - 1)])
