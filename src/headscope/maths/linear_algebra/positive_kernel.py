r"""A map as a kernel of positive features: what linear attention can be at best."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headscope.errors import UsageError

ROUNDS = 20
# Below this a denominator counts as 0, and so does its quotient.
TINY = 1e-30


def positive_kernel(
    pattern: Float[Tensor, "*batch rows keys"],
    visible: Bool[Tensor, "rows keys"],
    features: int,
    rounds: int = ROUNDS,
) -> Float[Tensor, "*batch rows keys"]:
    r"""The map of linear attention with positive features fitted to a map.

    Definition:
        $K_{ij} = \varphi_i \cdot \psi_j$ on the visible pairs and 0 elsewhere, each row scaled to its sum in A. The m
        features $\varphi_i, \psi_j \ge 0$ of each query and key are fitted freely: no function of query and key vectors
        is demanded. Start: $\psi$ holds the rows $\lfloor (f + 1/2) R / m \rfloor$ of A, plus 1/n, and $\varphi = 1$.
        Each round multiplies $\varphi$ by $(A / K) \psi \,/\, 1_{visible} \psi$, then $\psi$ likewise.
    Properties:
        - no round raises the divergence $\sum A \ln (A / K) - A + K$  (tested: test_rounds_lower_the_divergence)
        - rows keep their sums, nothing lies where nothing is visible  (tested: test_a_kernel_keeps_sums_and_mask)
        - exact for equal rows  (tested: test_a_kernel_of_equal_rows_is_exact)
        - a local optimum: another start may end nearer
    Numerics:
        In the precision of the map; a denominator of at most 10⁻³⁰ gives 0.
    Reference:
        Lee and Seung (2001), Algorithms for non-negative matrix factorization. Katharopoulos et al. (2020),
        Transformers are RNNs (attention by feature maps).
    """
    if features < 1 or rounds < 1:
        raise UsageError(f"a kernel needs at least one feature and one round, got {features} and {rounds}")
    phi, psi = positive_features(pattern, visible, features, rounds)
    kernel = torch.matmul(phi, psi.mT) * visible
    return _over(kernel * pattern.sum(-1, keepdim=True), kernel.sum(-1, keepdim=True))


def positive_features(
    pattern: Float[Tensor, "*batch rows keys"], visible: Bool[Tensor, "rows keys"], features: int, rounds: int
) -> tuple[Float[Tensor, "*batch rows features"], Float[Tensor, "*batch keys features"]]:
    """The features of queries and keys of `positive_kernel`, before rows are scaled."""
    rows, keys = pattern.shape[-2:]
    starts = ((torch.arange(features) + 0.5) * rows / features).long()
    psi = pattern[..., starts, :].mT + 1 / keys
    phi = pattern.new_ones(*pattern.shape[:-1], features)
    is_visible = visible.to(pattern.dtype)
    for _ in range(rounds):
        # Where nothing is visible the pattern is 0, and so is the ratio.
        ratio = pattern / torch.matmul(phi, psi.mT).clamp_min(TINY)
        phi = phi * _over(torch.matmul(ratio, psi), torch.matmul(is_visible, psi))
        ratio = pattern / torch.matmul(phi, psi.mT).clamp_min(TINY)
        psi = psi * _over(torch.matmul(ratio.mT, phi), torch.matmul(is_visible.T, phi))
    return phi, psi


def _over(x: Tensor, y: Tensor) -> Tensor:
    """x / y, and 0 where y is 0."""
    return torch.where(y > TINY, x / y.clamp_min(TINY), 0.0)
