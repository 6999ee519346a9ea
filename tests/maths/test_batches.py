"""Functions of a batch: whatever its axes, each member is computed as it would be alone."""

import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass

import pytest
import torch
from torch import Tensor

from headscope.maths.attention import softmax as rows
from headscope.maths.attention import token_collapse as collapse
from headscope.maths.attention.shuffled_map import falling_order
from headscope.maths.gaussians import crossed_scores, gaussian, information, linear_mixing
from headscope.maths.gaussians.gaussian import Gaussian
from headscope.maths.linear_algebra import alignment, projections, spectrum
from headscope.maths.linear_algebra.factored import Factored, composition
from headscope.maths.linear_algebra.structured_maps import normalised
from headscope.maths.random_matrices import singular_gaps
from headscope.maths.resampling.clustered_mean import total_variation
from headscope.maths.resampling.growth_laws import growth
from headscope.maths.resampling.jackknife import jackknife_error, jackknife_p
from headscope.maths.resampling.rank_correlation import row_centred, row_ranks

BATCH = (2, 3)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*BATCH, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def shares(*shape: int, seed: int = 0) -> Tensor:
    return torch.softmax(normal(*shape, seed=seed), dim=-1)


def covariances(d: int, seed: int = 0) -> Tensor:
    factor = normal(d, d, seed=seed)
    return factor @ factor.mT + torch.eye(d, dtype=torch.float64)


def of_tokens(n: int, d: int) -> Tensor:
    return covariances(n * d).reshape(*BATCH, n, d, n, d)


def sigma() -> Tensor:
    return normal(5).abs().sort(dim=-1, descending=True).values + 0.1


def joint(a: Tensor, b: Tensor) -> Gaussian:
    return Gaussian(a, b)


def factored(compute: Callable[[Factored, Factored], object]) -> Callable[..., object]:
    """A function of two forms, as one of their factors; a form counts as the matrix that it is."""

    def of_factors(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> object:
        result = compute(Factored(a, b), Factored(c, d))
        return result.left @ result.right if isinstance(result, Factored) else result

    return of_factors


FACTORS = normal(4, 2), normal(2, 4, seed=1), normal(4, 3, seed=2), normal(3, 4, seed=3)

# Function of tensors with a batch in front, and the tensors.
CASES: dict[str, tuple[Callable[..., object], tuple[Tensor, ...]]] = {
    "softmax": (rows.softmax, (normal(5),)),
    "log_sum_exp": (rows.log_sum_exp, (normal(5),)),
    "entropy of shares": (rows.entropy, (shares(5),)),
    "entropy_expansion": (lambda s: rows.entropy_expansion(0.1 * s, 4), (normal(5),)),
    "jacobian": (rows.jacobian, (shares(5),)),
    "jacobian_operator_norm": (rows.jacobian_operator_norm, (shares(5),)),
    "residual": (collapse.residual, (normal(4, 3),)),
    "residual_norm": (collapse.residual_norm, (normal(4, 3),)),
    "relative_residual": (collapse.relative_residual, (normal(4, 3),)),
    "difference_ratio": (collapse.difference_ratio, (normal(4, 3),)),
    "diameter": (collapse.diameter, (normal(4, 3),)),
    "layer_norm": (collapse.layer_norm, (normal(4, 3),)),
    "falling_order": (falling_order, (normal(5),)),
    "cholesky": (gaussian.cholesky, (covariances(3),)),
    "log_determinant": (gaussian.log_determinant, (covariances(3),)),
    "eigenvalues": (lambda c: gaussian.eigen(c)[0], (covariances(3),)),
    "rank": (gaussian.rank, (covariances(3),)),
    "joined": (gaussian.joined, (normal(6, 2, 3),)),
    "unblocked": (gaussian.unblocked, (normal(2, 2, 3, 3),)),
    "token_entropies": (linear_mixing.token_entropies, (of_tokens(3, 2),)),
    "mutual_informations": (linear_mixing.mutual_informations, (of_tokens(3, 2),)),
    "layer_normed_covariance": (linear_mixing.layer_normed_covariance, (covariances(3),)),
    "mixture_covariance": (
        linear_mixing.mixture_covariance,
        (shares(2, 4), normal(4, 3), covariances(3)[:, :, None].repeat(1, 1, 4, 1, 1)),
    ),
    "crossed_means": (crossed_scores.crossed_means, (normal(4, 4),)),
    "crossed_moments": (crossed_scores.crossed_moments, (normal(4, 4),)),
    "entropy of Gaussians": (lambda m, c: information.entropy(joint(m, c)), (normal(3), covariances(3))),
    "kl of Gaussians": (
        lambda m, c, n, e: information.kl(joint(m, c), joint(n, e)),
        (normal(3), covariances(3), normal(3, seed=1), covariances(3, seed=2)),
    ),
    "mutual information of Gaussians": (
        lambda m, c: information.mutual_information(joint(m, c), [0, 2], [1, 3]), (normal(4), covariances(4))
    ),
    "canonical correlations": (
        lambda m, c: information.canonical_correlations(joint(m, c), [0, 2], [1, 3]), (normal(4), covariances(4))
    ),
    "discrete_entropy": (information.discrete_entropy, (shares(5),)),
    "discrete_kl": (information.discrete_kl, (shares(5), shares(5, seed=1))),
    "discrete_cross_entropy": (information.discrete_cross_entropy, (shares(5), shares(5, seed=1))),
    "discrete_mutual_information": (
        information.discrete_mutual_information, (torch.softmax(normal(12), -1).reshape(*BATCH, 3, 4),)
    ),
    "growth": (lambda r: growth(torch.tensor([2.0, 4.0, 8.0, 16.0]), r), (normal(4).abs() + 1,)),
    "total_variation": (total_variation, (shares(5), shares(5, seed=1))),
    "jackknife_error": (lambda x: jackknife_error(x.movedim(-1, 0)), (normal(6),)),
    "jackknife_p": (lambda x: jackknife_p(x.movedim(-1, 0)), (normal(6),)),
    "row_ranks": (lambda x: row_ranks(x, torch.ones_like(x, dtype=torch.bool)), (normal(5),)),
    "row_centred": (lambda x: row_centred(x, x > -0.5), (normal(5),)),
    "normalised": (normalised, (shares(4, 4),)),
    "distance l1": (projections.distance, (normal(4, 4), normal(4, 4, seed=1))),
    "nearest_low_rank": (lambda a: projections.nearest_low_rank(a, 2), (normal(4, 3),)),
    "singular_values": (spectrum.singular_values, (normal(4, 3),)),
    "stable_rank": (spectrum.stable_rank, (sigma(),)),
    "participation_ratio": (spectrum.participation_ratio, (sigma(),)),
    "effective_rank": (spectrum.effective_rank, (sigma(),)),
    "components_for": (lambda s: spectrum.components_for(s, 0.9), (sigma(),)),
    "energy_beyond": (lambda s: spectrum.energy_beyond(s, 2), (sigma(),)),
    "gram of a triangular factor": (
        lambda a: spectrum.triangular_factor(a).mT @ spectrum.triangular_factor(a), (normal(6, 3),)
    ),
    "form_moments": (alignment.form_moments, (normal(4, 3), normal(4, 3, seed=1))),
    "sum of forms": (factored(lambda a, b: a + b), FACTORS),
    "product of forms": (factored(lambda a, b: a @ b), FACTORS),
    "trace of a form": (factored(lambda a, b: a.trace()), FACTORS),
    "inner product of forms": (factored(lambda a, b: a.inner(b)), FACTORS),
    "composition": (factored(composition), FACTORS),
    "gaps": (singular_gaps.gaps, (sigma(),)),
    "smallest_gap": (singular_gaps.smallest_gap, (sigma(),)),
}  # fmt: skip


def tensors(result: object) -> list[Tensor]:
    """The tensors of a result, in order."""
    if isinstance(result, Tensor):
        return [result]
    if is_dataclass(result):
        return [part for field in fields(result) for part in tensors(getattr(result, field.name))]
    return [part for entry in result for part in tensors(entry)] if isinstance(result, tuple) else []


@pytest.mark.parametrize("name", CASES)
def test_a_member_of_a_batch_is_computed_as_if_alone(name: str) -> None:
    compute, arguments = CASES[name]
    whole = tensors(compute(*arguments))
    assert whole
    for place in ((0, 1), (1, 0), (1, 2)):
        alone = tensors(compute(*(argument[place] for argument in arguments)))
        assert len(alone) == len(whole)
        for batched, single in zip(whole, alone, strict=True):
            member = batched[place] if batched.ndim >= 2 else batched
            torch.testing.assert_close(member.double(), single.double(), rtol=1e-9, atol=1e-12)


def test_tokens_of_very_different_size_have_their_own_density() -> None:
    """Whether a covariance is singular is judged by its own size, in a batch as well."""
    covariance = torch.zeros(3, 2, 2, 2, 2, dtype=torch.float64)
    for token, size in enumerate((1e20, 1.0)):
        covariance[:, token, :, token] = size * torch.eye(2)
    entropies = linear_mixing.token_entropies(covariance)
    wanted = torch.full((3,), 20 * math.log(10), dtype=torch.float64)
    torch.testing.assert_close(entropies[:, 0] - entropies[:, 1], wanted)
