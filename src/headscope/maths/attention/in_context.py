r"""Attention that learns in its context: gradient descent and least squares.

The context holds examples $(x_i, y_i)$ and a query x, whose y is to be predicted. Linear attention with the right
weights predicts what a linear model would after one step of gradient descent on the squared error of the examples;
`least_squares_attention` (Intention) predicts what the fitted model would.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.errors import NumericsError, UsageError


def linear_attention(
    q: Float[Tensor, "*batch queries d"], k: Float[Tensor, "*batch keys d"], v: Float[Tensor, "*batch keys e"]
) -> Float[Tensor, "*batch queries e"]:
    r"""Attention without softmax, $Q (K^\top V)$, in O(n·d·e).

    The map of all pairs is never formed.

    Properties:
        - equals $(Q K^\top) V$  (tested: test_linear_attention_is_associative)
    """
    return q @ (k.mT @ v)


@dataclass(frozen=True)
class DescentLayer:
    r"""One linear-attention layer whose output is one step of gradient descent.

    Definition:
        Tokens are $e = (x, y)$. $W_Q = W_K$ keep x, $W_V$ maps $(x, y)$ to $(0, x W_0 - y)$, the result is multiplied
        by −η/N and added: $y \leftarrow y - \frac{\eta}{N} \sum_i \langle x, x_i \rangle (x_i W_0 - y_i)$. That is
        $y - \eta\,x\,\nabla L(W_0)$ with $L(W) = \frac{1}{2 N} \sum_i |x_i W - y_i|^2$: the y-part changes as the
        prediction does. A query enters with its present prediction, $y = x W_0$.
    Properties:
        - equals a step computed by automatic differentiation  (tested: test_the_layer_is_a_gradient_step)
    Reference:
        von Oswald et al. (2023), Transformers learn in-context by gradient descent, proposition 1.
    """

    start: Float[Tensor, "d e"]
    rate: float

    def __call__(
        self, tokens: Float[Tensor, "*batch n width"], examples: Float[Tensor, "*batch examples width"]
    ) -> Float[Tensor, "*batch n width"]:
        """The tokens after the layer; keys and values are the examples."""
        d, e = self.start.shape
        if tokens.shape[-1] != d + e:
            raise UsageError(f"a token holds x and y: width {d + e}, got {tokens.shape[-1]}")
        keep = torch.zeros(d + e, d + e, dtype=torch.float64)
        keep[:d, :d] = torch.eye(d, dtype=torch.float64)
        value = torch.zeros(d + e, d + e, dtype=torch.float64)
        value[:d, d:] = self.start
        value[d:, d:] = -torch.eye(e, dtype=torch.float64)
        step = linear_attention(tokens @ keep, examples @ keep, examples @ value)
        return tokens - self.rate / examples.shape[-2] * step


def least_squares_attention(
    q: Float[Tensor, "*batch queries d"],
    k: Float[Tensor, "*batch keys d"],
    v: Float[Tensor, "*batch keys e"],
    alpha: float,
) -> Float[Tensor, "*batch queries e"]:
    r"""Intention: a ridge regression of values on keys, evaluated at the queries.

    Definition:
        $Q\,(K^\top K + \alpha 1)^{-1} K^\top V = Q K^\top (K K^\top + \alpha 1)^{-1} V$, keys in rows. The Gram matrix
        inside is d × d in the first form and keys × keys in the second; mixing the two, $Q (K K^\top + \alpha 1)^{-1}
        K^\top V$, does not even fit unless there are as many keys as dimensions.
    Properties:
        - minimises $|K W - V|^2 + \alpha |W|^2$  (tested: test_intention_solves_ridge_regression)
        - both forms agree  (tested: test_both_forms_of_intention_agree)
        - α·Intention → linear attention as α → ∞  (tested: test_intention_becomes_linear_attention)
    Numerics:
        Cholesky of the smaller Gram matrix, O(n·d² + d³) for n keys: linear in n, while attention is quadratic.
    Reference:
        Garnelo and Czarnecki (2023), Exploring the space of key-value-query models with intention.
    """
    if not alpha > 0:
        raise UsageError(f"alpha must be positive for the system to be solvable; got {alpha}")
    q, k, v = (t.to(torch.float64) for t in (q, k, v))
    for t in (q, k, v):
        if not bool(torch.isfinite(t).all()):
            raise NumericsError("queries, keys or values hold NaN or Inf")
    n, d = k.shape[-2:]
    gram = k.mT @ k if d <= n else k @ k.mT
    system = gram + alpha * torch.eye(min(n, d), dtype=torch.float64)
    factor, info = torch.linalg.cholesky_ex(system)
    if bool((info != 0).any()):
        raise NumericsError(f"the system is singular to rounding at alpha = {alpha}", hint="enlarge alpha")
    if d <= n:
        return q @ torch.cholesky_solve(k.mT @ v, factor)
    return q @ (k.mT @ torch.cholesky_solve(v, factor))


def descent_loss(dimension: int, examples: int) -> float:
    r"""Expected squared error of the best single step of gradient descent from 0.

    The inputs and weights are x, w ~ N(0, 1), and y = ⟨x, w⟩ has no noise.

    Definition:
        $\frac{d (d + 1)}{N + d + 1}$ at the rate $\eta = \frac{N}{N + d + 1}$ (with the mean gradient); without a
        context it is d. From $E[(\sum_i x_i x_i^\top)^2] = N (N + d + 1)\,1$.
    Properties:
        - agrees with sampling  (tested: test_descent_loss_agrees_with_sampling)
    """
    if dimension < 1 or examples < 0:
        raise UsageError(f"dimension must be at least 1 and examples at least 0; got {dimension}, {examples}")
    return dimension * (dimension + 1) / (examples + dimension + 1)
