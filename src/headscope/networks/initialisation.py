r"""First values of the projections: Xavier, identity, diagonal and sparse matrices.

Conti (The Math behind transformers, 3.1) asks what happens when the matrices of queries, keys and values begin in a
special form. For a map from d inputs to m outputs, with $\sigma^2 = 2/(d + m)$:

    xavier      every entry uniform on $\pm\sqrt{3}\,\sigma$ (Glorot and Bengio, 2010)
    identity    1 on the diagonal, 0 elsewhere: head h reads channels $h d_{head}$ to $(h + 1) d_{head} - 1$
    diagonal    normal with variance $d \sigma^2$ on the diagonal, 0 elsewhere
    sparse      in each output row a tenth of the inputs, at least one, normal; 0 elsewhere

Entries of sparse and diagonal matrices are scaled so that an output has the variance that it has under Xavier.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

Matrix = Float[Tensor, "outputs inputs"]

DENSITY = 0.1


def xavier(outputs: int, inputs: int) -> Matrix:
    """A matrix of uniform entries with variance 2/(inputs + outputs)."""
    return (2 * torch.rand(outputs, inputs) - 1) * math.sqrt(3) * _deviation(outputs, inputs)


def identity(outputs: int, inputs: int) -> Matrix:
    """The matrix that copies channel i to output i."""
    return torch.eye(outputs, inputs)


def diagonal(outputs: int, inputs: int) -> Matrix:
    """A diagonal matrix of normal entries."""
    size = min(outputs, inputs)
    matrix = torch.zeros(outputs, inputs)
    matrix.diagonal().copy_(torch.randn(size) * math.sqrt(inputs) * _deviation(outputs, inputs))
    return matrix


def sparse(outputs: int, inputs: int) -> Matrix:
    """A matrix with the same small number of normal entries in each row, at random places."""
    count = max(1, round(DENSITY * inputs))
    places = torch.rand(outputs, inputs).topk(count, dim=1).indices
    values = torch.randn(outputs, count) * math.sqrt(inputs / count) * _deviation(outputs, inputs)
    return torch.zeros(outputs, inputs).scatter(1, places, values)


def _deviation(outputs: int, inputs: int) -> float:
    return math.sqrt(2 / (inputs + outputs))


MATRICES: dict[str, Callable[[int, int], Matrix]] = {
    "xavier": xavier,
    "identity": identity,
    "diagonal": diagonal,
    "sparse": sparse,
}


def product(form: str, inputs: int, outputs: tuple[int, ...], *, bias: bool) -> nn.Linear:
    """One product that computes several matrices of a form, one below the other."""
    linear = nn.Linear(inputs, sum(outputs), bias)
    linear.__dict__.update(form=form, outputs=outputs)  # transformers knows the module alone when it asks for values
    return linear


def first_values(linear: nn.Linear) -> Matrix:
    """What the weight of a product begins with: its form, or Xavier for any other layer."""
    form, outputs = getattr(linear, "form", "xavier"), getattr(linear, "outputs", (linear.out_features,))
    return torch.cat([MATRICES[form](rows, linear.in_features) for rows in outputs])
