r"""Copying scores of heads, and of the same heads turned at random.

The eigenvalues of a d × d map of rank d_head are those of a d_head × d_head matrix: $w_v w_o$ has those of $w_o w_v$,
and the map from source tokens to logits, $E N w_v w_o N_f U^\top$, those of $w_o N_f (U^\top E) N w_v$.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.core import HeadWeights
from headscope.lenses.circuits.tables import WIDTH
from headscope.maths.random_matrices.haar import haar_frames

Row = dict[str, float | None]


@dataclass(frozen=True)
class ReadWrite:
    """The value and output matrices of the heads of a site, in float64; gains of values are folded."""

    w_v: Float[Tensor, "heads d d_value"]
    w_o: Float[Tensor, "heads d_value d"]

    @classmethod
    def of(cls, w: HeadWeights) -> "ReadWrite":
        """The matrices of each head; heads of a group share theirs of values."""
        kv = [w.kv_of_head(head) for head in range(w.site.n_heads)]
        return cls(w.w_v.double()[kv] * w.gain_v.double()[kv][:, None], w.w_o.double())

    def turned_outputs(self) -> Float[Tensor, "heads d_value d"]:
        """S Vᵀ of W_OV = U S Vᵀ: what is left where U is replaced by random directions.

        Signs are fixed by the sums of rows, so that the inner basis of a head does not matter.
        """
        read, written = torch.linalg.qr(self.w_v), torch.linalg.qr(self.w_o.mT)
        _, sizes, right = torch.linalg.svd(read.R @ written.R.mT)
        rows = sizes[..., None] * right @ written.Q.mT
        outputs: Tensor = rows * torch.where(rows.sum(-1, keepdim=True) < 0, -1.0, 1.0)
        return outputs


def copying(matrices: Float[Tensor, "*batch d_value d_value"]) -> tuple[Tensor, Tensor]:
    """The sum of real parts of eigenvalues over the sum of moduli, and that sum; 0 where all are 0."""
    values = torch.linalg.eigvals(matrices)
    size = values.abs().sum(-1)
    return torch.where(size > 0, values.real.sum(-1) / torch.where(size > 0, size, 1.0), 0.0), size


def site_rows(
    heads: ReadWrite,
    turned: Float[Tensor, "heads d_value d"],
    between: Float[Tensor, "d d"] | None,
    frames: Float[Tensor, "draws d v"],
) -> list[Row]:
    """One row per head: its copying score, and that of the site's heads turned by every frame.

    `turned` are the `turned_outputs` of the heads; `between` is what lies between w_o and w_v, None within the stream.
    """
    outputs = heads.w_o
    if between is not None:
        outputs, turned = outputs @ between, turned @ between
    scores, sizes = copying(outputs @ heads.w_v)
    draws = torch.cat([copying(turned @ frame)[0] for frame in frames])
    mean, sd = float(draws.mean()), float(draws.std())
    ends = {"null_low": max(mean - WIDTH * sd, -1.0), "null_high": min(mean + WIDTH * sd, 1.0)}
    rows: list[Row] = []
    for score, size in zip(scores.tolist(), sizes.tolist(), strict=True):
        is_nothing = size == 0
        z = (score - mean) / sd if sd > 0 and not is_nothing else None
        value = None if is_nothing else score
        rows.append({"value": value, "null": mean, **ends, "null_sd": sd, "z": z, "size": size})
    return rows


def frames_for(rotations: int, heads: ReadWrite) -> Float[Tensor, "draws d v"]:
    """Random orthonormal directions, enough of them that the heads of a site give `rotations` turned ones."""
    n_heads, d, width = heads.w_v.shape
    return _frames(max(-(-rotations // n_heads), 2), d, min(width, d))


@lru_cache(maxsize=4)
def _frames(count: int, d: int, width: int) -> Float[Tensor, "draws d v"]:
    return haar_frames(count, d, width, torch.Generator().manual_seed(0))
