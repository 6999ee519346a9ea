r"""The energy of the modern Hopfield network: attention is a step downhill."""

from math import log

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.errors import UsageError


def hopfield_energy(
    state: Float[Tensor, "*batch d"], patterns: Float[Tensor, "n d"], beta: float
) -> Float[Tensor, "*batch"]:
    r"""Energy of a state (a query) among stored patterns (the keys).

    Definition:
        $E(\xi) = -\frac{1}{\beta} \ln \sum_i e^{\beta \langle x_i, \xi \rangle} + \frac{1}{2} |\xi|^2 + \frac{1}{\beta}
        \ln n + \frac{1}{2} \max_i |x_i|^2$; never negative.
    Properties:
        - its gradient step of length 1 is attention  (tested: test_attention_is_a_gradient_step)
        - it never rises along `hopfield_step`  (tested: test_attention_lowers_the_energy)
    Reference:
        Ramsauer et al. (2021), Hopfield networks is all you need, equation 2 and theorem 1.
    """
    _positive(beta)
    x, xi = patterns.to(torch.float64), state.to(torch.float64)
    constant = log(len(x)) / beta + 0.5 * x.square().sum(-1).amax()
    return -torch.logsumexp(beta * xi @ x.mT, -1) / beta + 0.5 * xi.square().sum(-1) + constant


def hopfield_step(
    state: Float[Tensor, "*batch d"], patterns: Float[Tensor, "n d"], beta: float
) -> Float[Tensor, "*batch d"]:
    r"""One update: softmax attention with the patterns as keys and as values.

    Definition:
        $\xi' = \mathrm{softmax}(\beta\,\xi X^\top)\,X = \xi - \nabla E(\xi)$.
    """
    _positive(beta)
    x = patterns.to(torch.float64)
    return torch.softmax(beta * state.to(torch.float64) @ x.mT, -1) @ x


def curl(state: Float[Tensor, " d"], keys: Float[Tensor, "n d"], values: Float[Tensor, "n d"], beta: float) -> float:
    r"""How far attention is from a gradient of an energy: 0 for a gradient, up to 1.

    Definition:
        $|J - J^\top|_F / (|J|_F + |J^\top|_F)$ with $J = \beta\,V^\top (\mathrm{diag}(p) - p p^\top) K$ the
        derivative of the output by the query. A field is a gradient exactly where this matrix is
        symmetric; it is for V = K.
    Properties:
        - 0 where the values are the keys  (tested: test_curl_of_known_cases)
    """
    _positive(beta)
    k, v = keys.to(torch.float64), values.to(torch.float64)
    p = torch.softmax(beta * k @ state.to(torch.float64), 0)
    jacobian = beta * v.mT @ (torch.diag(p) - torch.outer(p, p)) @ k
    size = float(jacobian.norm())
    return float((jacobian - jacobian.mT).norm()) / (2 * size) if size > 0 else 0.0


def _positive(beta: float) -> None:
    if not beta > 0:
        raise UsageError(f"beta must be positive, got {beta}")
