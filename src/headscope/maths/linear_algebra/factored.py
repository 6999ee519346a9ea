r"""Circuit algebra: heads as factored linear maps of the residual stream.

With its pattern A fixed, a head sends the stream X (tokens × d_model) to $A X W_{OV}$, and its scores are
$X W_{QK} X^\top$; both matrices are d_model × d_model of rank at most d_head, and `Factored` computes with them without
ever forming one. Rows act on the right, so the heads of two layers compose as $A_2 (A_1 X W_1) W_2 = (A_2 A_1)\,X\,(W_1
W_2)$: patterns multiply from the left, maps from the right.
"""

from dataclasses import dataclass
from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.errors import NumericsError, UsageError
from headscope.maths.linear_algebra.spectrum import form_singular_values


@dataclass(frozen=True)
class Factored:
    r"""A matrix in two factors, e.g. $W_{OV} = w_v w_o$ or $W_{QK} = w_q w_k^\top$.

    Definition:
        left: rows × inner, right: inner × columns, with equal leading axes.
    Properties:
        - sums, products, traces and norms are those of the dense matrix  (tested: test_factored_equals_dense)
        - eigenvalues are the dense ones but for zeros  (tested: test_factored_eigenvalues)
        - unchanged by left → left·G, right → G⁻¹·right  (tested: test_factored_ignores_the_inner_basis)
    Numerics:
        float64, O((rows + columns)·inner²).
    Reference:
        Elhage et al. (2021), A Mathematical Framework for Transformer Circuits.
    """

    left: Float[Tensor, "*batch rows inner"]
    right: Float[Tensor, "*batch inner columns"]

    def __post_init__(self) -> None:
        for part in (self.left, self.right):
            if not bool(torch.isfinite(part).all()):
                raise NumericsError(f"a factor of shape {tuple(part.shape)} holds NaN or Inf")
        object.__setattr__(self, "left", self.left.to(torch.float64))
        object.__setattr__(self, "right", self.right.to(torch.float64))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix."""
        return self.left.shape[-2], self.right.shape[-1]

    @property
    def mT(self) -> "Factored":
        """The transpose."""
        return Factored(self.right.mT, self.left.mT)

    def dense(self) -> Float[Tensor, "*batch rows columns"]:
        """The matrix itself: rows × columns numbers."""
        return self.left @ self.right

    def __matmul__(self, other: "Factored") -> "Factored":
        """The product, again factored, through the smaller of the two inner sizes."""
        self._fits(self.shape[1], other.shape[0])
        core = self.right @ other.left
        if core.shape[-2] <= core.shape[-1]:
            return Factored(self.left, core @ other.right)
        return Factored(self.left @ core, other.right)

    def __add__(self, other: "Factored") -> "Factored":
        """The sum; its inner size is the sum of both."""
        self._fits(self.shape[0], other.shape[0])
        self._fits(self.shape[1], other.shape[1])
        return Factored(torch.cat((self.left, other.left), -1), torch.cat((self.right, other.right), -2))

    def trace(self) -> Float[Tensor, "*batch"]:
        r"""Tr(left · right) = Tr(right · left): a trace of inner × inner numbers."""
        self._fits(*self.shape)
        return torch.einsum("...ri,...ir->...", self.left, self.right)

    def inner(self, other: "Factored") -> Float[Tensor, "*batch"]:
        r"""Frobenius inner product $\mathrm{Tr}(A^\top B)$."""
        self._fits(self.shape[0], other.shape[0])
        self._fits(self.shape[1], other.shape[1])
        return ((self.left.mT @ other.left) * (self.right @ other.right.mT)).sum((-2, -1))

    def norm(self) -> Float[Tensor, "*batch"]:
        """Frobenius norm."""
        return self.singular_values().square().sum(-1).sqrt()

    def singular_values(self) -> Float[Tensor, "*batch rank"]:
        """Singular values, largest first; their number is at most the inner size."""
        return form_singular_values(self.left, self.right.mT)

    def eigenvalues(self) -> Tensor:
        """The eigenvalues of right · left: complex, largest modulus first.

        All other eigenvalues of the matrix are 0.
        """
        self._fits(*self.shape)
        values: Tensor = torch.linalg.eigvals(self.right @ self.left)
        return torch.gather(values, -1, values.abs().argsort(-1, descending=True))

    def copying(self) -> Float[Tensor, "*batch"]:
        r"""How far a map copies: $\sum_i \lambda_i / \sum_i |\lambda_i|$, from −1 to 1.

        0 where all eigenvalues are 0, 1 where every one is positive (what is read is written with the same sign),
        near 0 for a random map.
        """
        values = self.eigenvalues()
        total = values.abs().sum(-1)
        return torch.where(total > 0, values.real.sum(-1) / torch.where(total > 0, total, 1.0), 0.0)

    def _fits(self, first: int, second: int) -> None:
        if first != second:
            raise UsageError(f"sizes {first} and {second} of factored matrices do not fit each other")


def moved(
    pattern: Float[Tensor, "*batch queries keys"],
    x: Float[Tensor, "*batch keys d_model"],
    w_ov: Factored,
) -> Float[Tensor, "*batch queries d_out"]:
    r"""What a head writes: $A X W_{OV}$.

    Properties:
        - summed over heads it is concat(heads)·W_O  (tested: test_heads_add_up)
        - equals the Kronecker form  (tested: test_kronecker_form_of_a_head)
    """
    return pattern.to(torch.float64) @ (x.to(torch.float64) @ w_ov.left) @ w_ov.right


def kronecker(pattern: Float[Tensor, "queries keys"], w: Float[Tensor, "d e"]) -> Float[Tensor, "rows columns"]:
    r"""The matrix of $X \mapsto A X W$ on the rows of X, one after another.

    Definition:
        $\mathrm{vec}(A X W) = (A \otimes W^\top)\,\mathrm{vec}(X)$ where vec lists the rows one after another (as
        `reshape(-1)` does). With columns one after another it is $(W^\top \otimes A)$. Where maps act from the left on
        columns, $h = W x$, the same head is written $A \otimes W$ without the transpose.
    Properties:
        - equals A X W  (tested: test_kronecker_form_of_a_head)
        - a product of heads is the head of the products  (tested: test_virtual_heads)
    Numerics:
        (queries·d_out) × (keys·d_in) numbers: for small cases and for proofs.
    """
    (q, n), (d, e) = pattern.shape, w.shape
    return torch.einsum("qn,de->qend", pattern.to(torch.float64), w.to(torch.float64)).reshape(q * e, n * d)


def composition(first: Factored, second: Factored) -> Float[Tensor, "*batch"]:
    r"""Share of the first map's output that the second map reads.

    Definition:
        $\frac{|M_1 M_2|_F}{|M_1|_F\,|M_2|_F}$, from 0 to 1. With $M_1 = W_{OV}$ of an earlier head:
        V-composition $M_2 = W_{OV}$, Q-composition $M_2 = W_{QK}$, K-composition $M_2 = W_{QK}^\top$ of the later one.
    Properties:
        - unchanged by a factor and by the inner basis  (tested: test_composition_of_known_maps)
        - its mean square is `composition_null` squared for random maps  (tested: test_composition_of_random_maps)
        - 0 where the second map reads nothing that is written  (tested: test_composition_of_known_maps)
    Reference:
        Elhage et al. (2021), section "Three kinds of composition".
    """
    size = first.norm() * second.norm()
    if bool((size == 0).any()):
        raise NumericsError("a map is 0: it composes with nothing")
    return (first @ second).norm() / size


def composition_null(d_model: int) -> float:
    r"""Root mean square of `composition` for two maps with unrelated directions.

    Definition:
        $E\,|M_1 O M_2|_F^2 = |M_1|_F^2 |M_2|_F^2 / d_{model}$ exactly, for O uniform on the orthogonal matrices and any
        spectra: so $1/\sqrt{d_{model}}$.
    """
    if d_model < 1:
        raise UsageError(f"d_model must be at least 1, got {d_model}")
    return 1 / sqrt(d_model)
