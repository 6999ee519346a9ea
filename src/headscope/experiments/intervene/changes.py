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

The control. For `scale` and `randomise`: W plus a matrix that has exactly the singular values of the change
$\Delta = W' - W$, along Haar-random directions on both sides; so it has the Frobenius and the operator norm of the
change, and says what any change of that size does. For `rank` and `remove`: as many singular values become 0 as in the
change, but the directions are drawn at random among those of W; so it says what the choice of the directions does.
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
from headscope.experiments.intervene.change_spelling import Change, Place
from headscope.maths.linear_algebra.spectrum import singular_values
from headscope.maths.random_matrices.haar import haar_frames
from headscope.maths.random_matrices.null_spectrum import Comparison
from headscope.model.edit import HeadMatrix
from headscope.model.model import Model

Matrix = Float[Tensor, "rows columns"]
Result = tuple[Matrix, int]  # the new matrix, and how many singular directions of the old one it keeps


@dataclass(frozen=True)
class Touched:
    """What happened to one matrix. `n_kept` counts the singular directions that stayed; `sigma` are those of Δ."""

    site: Site
    letter: str
    heads: tuple[int, ...]
    shape: tuple[int, int]
    norm: float
    change_norm: float
    n_kept: int
    sigma: Float[Tensor, " rank"]


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
    with model.edit() as edit:
        initial = edit.initial_matrices(seed) if change == Change("randomise", "init") else None

        def rule(named: HeadMatrix, w: Matrix) -> Matrix:
            if initial is not None:
                after, n_kept = initial(named).double(), 0
            else:
                after, n_kept = _RULES[change.kind](change, named, w, generator)
            touched.append(_touched(named, w, after, n_kept))
            return after

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
            after, stay = _with_some_directions(w, model_of.n_kept, generator), model_of.n_kept
        else:
            # A random matrix is added: no singular direction of W stays, unless nothing is added.
            after = w + along_random_directions(model_of.sigma, w.shape[0], w.shape[1], generator)
            stay = 0 if bool(model_of.sigma.any()) else model_of.n_kept
        done.append(_touched(named, w, after, stay))
        return after

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


def _touched(named: HeadMatrix, before: Matrix, after: Matrix, n_kept: int) -> Touched:
    delta = after - before
    # Rounding of the rule is no change: a matrix that keeps everything is returned as it was.
    sigma = singular_values(delta)
    rows, columns = before.shape
    norms = float(before.norm()), float(delta.norm())
    return Touched(named.site, named.letter, named.heads, (rows, columns), *norms, n_kept, sigma)


def _scale(change: Change, named: HeadMatrix, w: Matrix, generator: torch.Generator) -> Result:
    return w * change.alpha, min(w.shape)


def _rank(change: Change, named: HeadMatrix, w: Matrix, generator: torch.Generator) -> Result:
    return _with_directions(w, torch.arange(min(w.shape)) < change.rank), change.rank


def _remove(change: Change, named: HeadMatrix, w: Matrix, generator: torch.Generator) -> Result:
    rows, columns = w.shape
    spikes = Comparison((rows, columns), singular_values(w)).bulk.spikes
    is_spike = torch.arange(min(w.shape)) < spikes
    stays = ~is_spike if change.value == "spikes" else is_spike
    return _with_directions(w, stays), int(stays.sum())


def _randomise(change: Change, named: HeadMatrix, w: Matrix, generator: torch.Generator) -> Result:
    if change.value == "permute":
        return w.flatten()[torch.randperm(w.numel(), generator=generator)].reshape(w.shape), 0
    u, s, vh = torch.linalg.svd(w, full_matrices=False)
    # Rows act on the right here, so the side of the input (V of the documents) is the left one.
    if change.value == "v":
        return (haar_frames(1, w.shape[0], len(s), generator)[0] * s) @ vh, 0
    return (u * s) @ haar_frames(1, w.shape[1], len(s), generator)[0].T, 0


_RULES: dict[str, Callable[[Change, HeadMatrix, Matrix, torch.Generator], Result]] = {
    "scale": _scale,
    "rank": _rank,
    "remove": _remove,
    "randomise": _randomise,
}


def _with_some_directions(w: Matrix, count: int, generator: torch.Generator) -> Matrix:
    stays = torch.zeros(min(w.shape), dtype=torch.bool)
    stays[torch.randperm(len(stays), generator=generator)[:count]] = True
    return _with_directions(w, stays)


def _with_directions(w: Matrix, stays: Tensor) -> Matrix:
    """Only these singular directions; all of them is the matrix itself, to the last bit."""
    if bool(stays.all()):
        return w
    u, s, vh = torch.linalg.svd(w, full_matrices=False)
    only: Tensor = (u[:, stays] * s[stays]) @ vh[stays]
    return only
