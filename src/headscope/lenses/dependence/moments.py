"""The table of pairs: mean and variance that dependence adds to scores, and their formulas."""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscope.lenses.dependence.windows import SiteSample
from headscope.lenses.shared.plots import place
from headscope.lenses.shared.table import Row, number
from headscope.maths.gaussians.crossed_scores import crossed_means, crossed_moments
from headscope.maths.resampling.jackknife import jackknife, jackknife_p

# The largest distance of the pairs called dependent.
NEAR = 8


def pair_rows(sampled: SiteSample) -> Iterator[Row]:
    """Each head's scores of tokens with themselves, with their neighbours, and with those of another window."""
    w, site = sampled.windows, sampled.site
    if w < 2:
        return
    same = torch.eye(len(sampled.positions), dtype=torch.bool) & sampled.visible
    close = sampled.visible & ~same & (sampled.distance <= NEAR)
    uniform = 1 / _visible(sampled).to(torch.float64)
    for head in range(site.n_heads):
        for name, mask in (("self", same), ("dependent", close), ("independent", close)):
            i, j = mask.nonzero().unbind(1)
            if not len(i):
                continue
            scores = torch.einsum("aid,bid->iab", sampled.q[:, head, i], sampled.k[:, head, j])
            numbers = _moments(scores) if name != "independent" else _independent(scores, sampled.shifts)
            if name != "independent":
                numbers["attention"] = float(sampled.pattern[:, head, i, j].to(torch.float64).mean())
                numbers["uniform"] = float(uniform[i].mean())
            counts = {"samples": len(i) * w, "windows": w}
            named = {key: number(value) for key, value in numbers.items()}
            yield {**place(site, head), "quantity": name, **named, **counts}


def _visible(sampled: SiteSample) -> Int[Tensor, "kept"]:
    """The number of keys that a query sees in its window; a two-sided limit counts as the window."""
    site = sampled.site
    keys = sampled.positions + 1 if site.causal else torch.full_like(sampled.positions, sampled.length)
    return keys if site.window is None else keys.clamp_max(site.window if site.causal else sampled.length)


def _moments(scores: Float[Tensor, "pairs windows windows"]) -> dict[str, float]:
    """Mean, shift by dependence and variance of scores within one text, and their predictions."""
    w = scores.shape[-1]
    mean = scores.mean(0)
    crossed, together = crossed_means(mean)
    left = [[v for v in range(w) if v != out] for out in range(w)] if w > 2 else []
    means_without = [crossed_means(mean[index][:, index]) for index in left]
    means = torch.stack([together, *(crossed_pair[1] for crossed_pair in means_without)])
    shifts = torch.stack([together - crossed, *(crossed_pair[1] - crossed_pair[0] for crossed_pair in means_without)])
    (value, half), (shift, wide) = jackknife(means), jackknife(shifts)
    numbers = {
        "value": value,
        "low": value - half,
        "high": value + half,
        "predicted": crossed + _trace(mean),
        "shift": shift,
        "shift_low": shift - wide,
        "shift_high": shift + wide,
        "p": jackknife_p(shifts),
        "variance": scores.diagonal(dim1=-2, dim2=-1).var(-1).mean(),
    }
    if w >= 4:
        moments = crossed_moments(scores)
        numbers["predicted_variance"] = (moments.variance + moments.added).mean()
    return {key: float(x) for key, x in numbers.items()}


def _trace(mean: Float[Tensor, "windows windows"]) -> Tensor:
    """Tr Cov(q, k), from scores whose rows and columns are centred."""
    centred = mean - mean.mean(0) - mean.mean(1, keepdim=True) + mean.mean()
    return centred.diagonal().sum() / (len(mean) - 1)


def _independent(scores: Float[Tensor, "pairs windows windows"], shifts: range) -> dict[str, float]:
    """Mean and variance of scores between a query of one text and a key of another."""
    w = scores.shape[-1]
    key = torch.arange(w)
    shifted_scores = torch.stack([scores[:, (key + shift) % w, key] for shift in shifts])
    numbers = {
        "value": float(shifted_scores.mean()),
        "predicted": float(crossed_means(scores.mean(0))[0]),
        "variance": float(shifted_scores.var(-1).mean()),
    }
    if w >= 4:
        numbers["predicted_variance"] = float(crossed_moments(scores).variance.mean())
    return numbers
