r"""Parts of a projection that are kept, and matrices that are tied to others.

main diagonal   entry (i, j) of the layer's whole W, all its heads side by side, inputs × outputs, with i = j. So output
                j of the layer reads coordinate j of the stream alone, and head h the coordinates of its own block. A
                matrix with fewer outputs than inputs (grouped keys and values) reads only the first coordinates; of one
                with more outputs the last ones read nothing. It depends on the basis: another basis of the stream or
                of a head that leaves the model as it is has another diagonal.
largest         the entries with the largest absolute value of W, the earlier of equal ones first.
tied            W_K becomes W_Q, or W_Q becomes W_K (V and K likewise). Of heads that share a key head, each W_Q becomes
                the W_K that it reads; W_K becomes the mean of the W_Q that read it. Biases stay.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headscope.core import HeadWeights, Site
from headscope.errors import UsageError
from headscope.experiments.intervene.change_spelling import Change, Place
from headscope.model.edit import HeadMatrix
from headscope.model.model import Model

Matrix = Float[Tensor, "rows columns"]
Mask = Bool[Tensor, "rows columns"]


def main_diagonal(named: HeadMatrix, w: Matrix) -> Mask:
    """The entries on the main diagonal of the layer's whole matrix, of which w is the part of the chosen heads.

    Properties:
        - the chosen heads' part of the whole diagonal  (tested: test_the_diagonal_of_a_head_is_its_part_of_the_whole)
    """
    is_output = named.letter == "o"  # its rows are those of the heads
    width = w.shape[0 if is_output else 1] // len(named.heads)
    of_heads = torch.cat([torch.arange(head * width, (head + 1) * width) for head in named.heads])
    of_stream = torch.arange(w.shape[1 if is_output else 0])
    return of_heads[:, None] == of_stream if is_output else of_stream[:, None] == of_heads


def largest_entries(w: Matrix, share: float) -> Mask:
    """The given share of the entries, those with the largest absolute value.

    Properties:
        - no other choice of as many is nearer to w  (tested: test_the_largest_entries_are_the_nearest)
    """
    order = torch.argsort(w.abs().flatten(), descending=True, stable=True)
    return _at(order[: round(share * w.numel())], w)


def random_entries(w: Matrix, count: int, generator: torch.Generator) -> Mask:
    """The given number of entries, at random places."""
    return _at(torch.randperm(w.numel(), generator=generator)[:count], w)


def _at(places: Tensor, w: Matrix) -> Mask:
    stays = torch.zeros(w.numel(), dtype=torch.bool)
    stays[places] = True
    return stays.reshape(w.shape)


@dataclass(frozen=True)
class Tied:
    """What the matrix of a letter becomes, for each of its heads; `terms` matrices are averaged for it."""

    letter: str
    by_head: Float[Tensor, "heads d_model d_head"]
    terms: int

    def matrix(self, heads: Sequence[int]) -> Matrix:
        """The matrices of these heads side by side."""
        return self.by_head[list(heads)].permute(1, 0, 2).flatten(1).double()


def tied_matrices(model: Model, change: Change, place: Place) -> dict[Site, Tied]:
    """What the change `tie` puts at each site; nothing for other changes.

    Raises:
        UsageError: The two matrices of a site differ in shape.
    """
    if change.kind != "tie":
        return {}
    return {site: tied(model.weights(site), change) for site in place.heads(model.sites)}


def tied(weights: HeadWeights, change: Change) -> Tied:
    """The first matrix of the change as its second one.

    Properties:
        - tied queries and keys give equal scores in both directions  (tested: test_tied_scores_are_symmetric)
        - of grouped heads the mean, or the one that is shared  (tested: test_tied_groups)
    """
    first, second = (getattr(weights, f"w_{letter}") for letter in change.value)
    site = weights.site
    if first.shape[1:] != second.shape[1:]:
        raise UsageError(
            f"{change.label}: the matrices of {site.label} have {_size(first)} and {_size(second)} numbers for a head",
            hint="tie matrices of equal shape, or choose other layers (--at)",
        )
    if change.value[0] == "q":
        return Tied("q", second[[site.kv_head(head) for head in range(site.n_heads)]], 1)
    if change.value[1] != "q":
        return Tied(change.value[0], second, 1)
    readers = [[head for head in range(site.n_heads) if site.kv_head(head) == kv] for kv in range(len(first))]
    return Tied(change.value[0], torch.stack([second[heads].mean(0) for heads in readers]), len(readers[0]))


def _size(matrices: Tensor) -> str:
    return f"{matrices.shape[1]} × {matrices.shape[2]}"
