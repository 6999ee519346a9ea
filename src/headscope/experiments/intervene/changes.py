r"""The changes of a matrix, and the control of each.

A matrix is W_Q, W_K, W_V or W_O of the chosen heads of one layer, heads side by side; $W = U D V^\top$, written as the
documents do with outputs × inputs, so that V is the side of the input.

scale α          every singular value times α: W becomes α W
randomise init   drawn anew from the model's own initialisation
randomise v      V replaced by a Haar-random one; U and D stay
randomise u      U replaced by a Haar-random one; V and D stay
randomise permute  all entries of W in a random order
rank R           the R largest singular values stay, the others become 0
remove spikes    the singular values above the edge of the Marchenko–Pastur law fitted to the bulk become 0
remove bulk      only those above that edge stay
keep diagonal    the entries (i, i) of the layer's whole W stay, the others become 0 (`kept_parts`)
keep 25%         the quarter of the entries of W with the largest absolute value stay, the others become 0
tie qk           W_Q becomes W_K: each head takes the matrix of the key head that it reads (`kept_parts`)

The control. For `scale`, `randomise` and `tie`: W plus a matrix that has exactly the singular values of the change
$\Delta = W' - W$, along Haar-random directions on both sides; so it has the Frobenius and the operator norm of the
change, and says what any change of that size does. For `rank` and `remove`: as many singular values become 0 as in the
change, but the directions are drawn at random among those of W; so it says what the choice of the directions does. For
`keep`: as many entries stay, at random places; so it says what the choice of the entries does at the same cost
(`matrix_cost`).
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.core import Site
from headscope.errors import UsageError
from headscope.experiments.intervene.change_spelling import DIAGONAL, Change, Place
from headscope.experiments.intervene.kept_parts import (
    Tied,
    largest_entries,
    main_diagonal,
    random_entries,
    tied_matrices,
)
from headscope.experiments.intervene.matrix_cost import MatrixCost, dense_cost, entries_cost, factored_cost, tied_cost
from headscope.maths.linear_algebra.spectrum import singular_values
from headscope.maths.random_matrices.haar import haar_frames
from headscope.maths.random_matrices.null_spectrum import Comparison
from headscope.model.edit import HeadMatrix
from headscope.model.model import Model

Matrix = Float[Tensor, "rows columns"]


@dataclass(frozen=True)
class Result:
    """The new matrix, how many singular directions of the old one it keeps, and its cost where it is not dense."""

    matrix: Matrix
    n_kept: int
    cost: MatrixCost | None = None


@dataclass(frozen=True)
class Touched:
    """What happened to one matrix. `n_kept` counts the singular directions that stayed; `sigma` are those of Δ.

    `cost` is that of the matrix as it is now.
    """

    site: Site
    letter: str
    heads: tuple[int, ...]
    shape: tuple[int, int]
    norm: float
    change_norm: float
    n_kept: int
    sigma: Float[Tensor, " rank"]
    cost: MatrixCost


def check_matrices(model: Model, changes: Sequence[Change], place: Place) -> None:
    """Refuse, before anything is measured, matrices that are not known and ranks that they do not have."""
    ranks = [change.rank for change in changes if change.kind == "rank"]

    def rule(named: HeadMatrix, w: Matrix) -> Matrix:
        if ranks and max(ranks) > min(w.shape):
            raise UsageError(
                f"rank {max(ranks)} is larger than W_{named.letter.upper()} of {named.site.label}, which has "
                f"{min(w.shape)} singular values ({w.shape[0]} × {w.shape[1]})",
                hint=f"use at most {min(w.shape)}, or other matrices",
            )
        return w

    place.heads(model.sites)
    with model.edit() as edit:
        edit.map_matrix(place.at, place.matrices, rule)
    for change in changes:
        change.check_matrices(place.matrices)
        tied_matrices(model, change, place)


def seeded(seed: int, *purpose: str) -> torch.Generator:
    """A generator of its own for every purpose: no two changes or controls share their directions.

    Properties:
        - another purpose, another stream  (tested: test_controls_do_not_share_their_directions)
    """
    digest = hashlib.sha256("\n".join((str(seed), *purpose)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


@contextmanager
def changed(model: Model, change: Change, place: Place, seed: int) -> Iterator[list[Touched]]:
    """The model with the change, for as long as the context lasts."""
    generator = seeded(seed, change.label, "change")
    touched: list[Touched] = []
    tied = tied_matrices(model, change, place)
    with model.edit() as edit:
        initial = edit.initial_matrices(seed) if change == Change("randomise", "init") else None

        def rule(named: HeadMatrix, w: Matrix) -> Matrix:
            if initial is not None:
                result = Result(initial(named).double(), 0)
            elif change.kind == "tie":
                result = _tied(tied, named, w)
            else:
                result = _RULES[change.kind](change, named, w, generator)
            touched.append(_touched(named, w, result))
            return result.matrix

        edit.map_matrix(place.at, place.matrices, rule)
        yield touched


@contextmanager
def controlled(
    model: Model, change: Change, place: Place, touched: Sequence[Touched], seed: int, draw: int = 0
) -> Iterator[list[Touched]]:
    """The model with a control of a change, which is known by what it touched; every draw is another control."""
    generator = seeded(seed, change.label, f"control {draw}")
    before, done = iter(touched), []

    def rule(named: HeadMatrix, w: Matrix) -> Matrix:
        model_of = next(before)
        if change.picks_directions:
            result = _with_some_directions(w, model_of.n_kept, generator)
        elif change.kind == "keep":
            result = _with_entries(w, random_entries(w, model_of.cost.numbers, generator))
        else:
            # A random matrix is added: no singular direction of W stays, unless nothing is added.
            after = w + along_random_directions(model_of.sigma, w.shape[0], w.shape[1], generator)
            result = Result(after, 0 if bool(model_of.sigma.any()) else model_of.n_kept)
        done.append(_touched(named, w, result))
        return result.matrix

    with model.edit() as edit:
        edit.map_matrix(place.at, place.matrices, rule)
        yield done


def along_random_directions(
    sigma: Float[Tensor, " rank"], rows: int, columns: int, generator: torch.Generator
) -> Matrix:
    """A matrix with these singular values whose singular vectors are Haar-random on both sides.

    Properties:
        - has these singular values  (tested: test_the_control_has_the_singular_values_of_the_change)
    """
    left = haar_frames(1, rows, len(sigma), generator)[0]
    right = haar_frames(1, columns, len(sigma), generator)[0]
    return (left * sigma) @ right.T


def _touched(named: HeadMatrix, before: Matrix, result: Result) -> Touched:
    delta = result.matrix - before
    # Rounding of the rule is no change: a matrix that keeps everything is returned as it was.
    sigma = singular_values(delta)
    rows, columns = before.shape
    norms = float(before.norm()), float(delta.norm())
    cost = result.cost or dense_cost(rows, columns)
    return Touched(named.site, named.letter, named.heads, (rows, columns), *norms, result.n_kept, sigma, cost)


def _scale(change: Change, named: HeadMatrix, w: Matrix, generator: torch.Generator) -> Result:
    return Result(w * change.alpha, min(w.shape))


def _rank(change: Change, named: HeadMatrix, w: Matrix, generator: torch.Generator) -> Result:
    return _with_directions(w, torch.arange(min(w.shape)) < change.rank)


def _remove(change: Change, named: HeadMatrix, w: Matrix, generator: torch.Generator) -> Result:
    rows, columns = w.shape
    spikes = Comparison((rows, columns), singular_values(w)).bulk.spikes
    is_spike = torch.arange(min(w.shape)) < spikes
    return _with_directions(w, ~is_spike if change.value == "spikes" else is_spike)


def _keep(change: Change, named: HeadMatrix, w: Matrix, generator: torch.Generator) -> Result:
    return _with_entries(w, main_diagonal(named, w) if change.value == DIAGONAL else largest_entries(w, change.share))


def _tied(tied: dict[Site, Tied], named: HeadMatrix, w: Matrix) -> Result:
    other = tied[named.site]
    if named.letter != other.letter:
        return Result(w, min(w.shape))
    return Result(other.matrix(named.heads), 0, tied_cost(w.shape[1], other.terms))


def _randomise(change: Change, named: HeadMatrix, w: Matrix, generator: torch.Generator) -> Result:
    if change.value == "permute":
        return Result(w.flatten()[torch.randperm(w.numel(), generator=generator)].reshape(w.shape), 0)
    u, s, vh = torch.linalg.svd(w, full_matrices=False)
    # Rows act on the right here, so the side of the input (V of the documents) is the left one.
    if change.value == "v":
        return Result((haar_frames(1, w.shape[0], len(s), generator)[0] * s) @ vh, 0)
    return Result((u * s) @ haar_frames(1, w.shape[1], len(s), generator)[0].T, 0)


_RULES: dict[str, Callable[[Change, HeadMatrix, Matrix, torch.Generator], Result]] = {
    "scale": _scale,
    "rank": _rank,
    "remove": _remove,
    "randomise": _randomise,
    "keep": _keep,
}


def _with_some_directions(w: Matrix, count: int, generator: torch.Generator) -> Result:
    stays = torch.zeros(min(w.shape), dtype=torch.bool)
    stays[torch.randperm(len(stays), generator=generator)[:count]] = True
    return _with_directions(w, stays)


def _with_directions(w: Matrix, stays: Tensor) -> Result:
    """Only these singular directions; all of them is the matrix itself, to the last bit."""
    n_kept = int(stays.sum())
    rows, columns = w.shape
    cost = factored_cost(rows, columns, n_kept)
    if bool(stays.all()):
        return Result(w, n_kept, cost)
    u, s, vh = torch.linalg.svd(w, full_matrices=False)
    return Result((u[:, stays] * s[stays]) @ vh[stays], n_kept, cost)


def _with_entries(w: Matrix, stays: Tensor) -> Result:
    """Only these entries, the others 0; where all stay, all singular directions do."""
    return Result(torch.where(stays, w, 0.0), min(w.shape) if bool(stays.all()) else 0, entries_cost(stays))
