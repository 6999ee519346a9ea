r"""The score of two *fixed* vectors under random weights, as in an untrained head.

The randomness is that of the weights here, not of the tokens. The result is short: with independent query and key
weights the law of a score does not depend on the angle between the two tokens. The angle between two *keys* is what
survives, in the covariance of their scores.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.errors import UsageError

Weights = Literal["one", "two", "tied"]


@dataclass(frozen=True)
class RandomForm:
    r"""A random bilinear form $x^\top C y$ whose factors have Gaussian entries.

    The entries are independent.

    Definition:
        - one: C itself has independent entries of mean 0 and variance v;
        - two: $C = A^\top B$, A and B: inner × n, independent, entries of variance v;
        - tied: $C = A^\top A$, the same matrix for queries and keys.
    Properties:
        - one and two: mean 0 over the weights  (tested: test_moments_of_random_scores)
        - one: covariance $v\,\langle x, x'\rangle\langle y, y'\rangle$; two: inner·v² times the same
          (tested: test_covariances_of_random_scores)
        - tied: mean inner·v·⟨x, y⟩ and variance inner·v²(‖x‖²‖y‖² + ⟨x, y⟩²)  (tested: test_moments_of_random_scores)
    Reference:
        Wertich, section 6.3.2, claims a dependence on the angle for *one*; there is none.
    """

    weights: Weights
    variance: float
    inner: int = 1

    def __post_init__(self) -> None:
        if not self.variance > 0 or self.inner < 1 or self.weights not in ("one", "two", "tied"):
            raise UsageError(
                "a random form is 'one', 'two' or 'tied' with a positive variance and an inner size of at least 1; "
                f"got {self.weights!r}, {self.variance}, {self.inner}"
            )

    def mean(self, x: Float[Tensor, "*batch n"], y: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
        """The mean score over the weights."""
        inner = _dot(x, y)
        return self.inner * self.variance * inner if self.weights == "tied" else torch.zeros_like(inner)

    def score_variance(self, x: Float[Tensor, "*batch n"], y: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
        """The variance of a score over the weights."""
        return self.covariance(x, y, x, y)

    def covariance(
        self,
        x: Float[Tensor, "*batch n"],
        y: Float[Tensor, "*batch n"],
        other_x: Float[Tensor, "*batch n"],
        other_y: Float[Tensor, "*batch n"],
    ) -> Float[Tensor, "*batch"]:
        """The covariance of the scores of (x, y) and (other_x, other_y) over the weights."""
        direct = _dot(x, other_x) * _dot(y, other_y)
        if self.weights == "one":
            return self.variance * direct
        crossed = _dot(x, other_y) * _dot(y, other_x) if self.weights == "tied" else 0.0
        return self.inner * self.variance**2 * (direct + crossed)


def _dot(x: Tensor, y: Tensor) -> Tensor:
    return (x.to(torch.float64) * y.to(torch.float64)).sum(-1)
