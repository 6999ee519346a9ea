"""The sums of a call by the compiled kernel.

It takes plain float32 calls over positions without gaps.
"""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.attention import compiled
from headscope.attention.call import Call
from headscope.attention.compiled.row_kernel import BANDS, MOST_BANDS
from headscope.attention.statistics.sums import Side, Sums
from headscope.attention.statistics.visibility import first_key


def applies(call: Call, widths: tuple[int, ...]) -> bool:
    """Whether the kernel is on and supports everything in this call.

    A sink changes none of its sums.
    """
    plain = replace(call, sinks=None).plain and call.offset is not None
    fits = {x.dtype for x in (call.q, call.k, call.v)} == {torch.float32} and call.q.device.type == "cpu"
    return plain and fits and call.k.shape[2] > 0 and compiled.is_used()


def sums(call: Call, widths: tuple[int, ...], centre: Float[Tensor, "batch kv_heads d_head"], *, values: bool) -> Sums:
    """The sums of every row, relative to scores of centred keys."""
    if call.offset is None:
        raise ValueError("the kernel needs positions without gaps")
    # The kernel takes this number of bands at once; for more it runs again, since bands are independent.
    runs = [_row_sums(call, widths[at : at + MOST_BANDS], centre) for at in range(0, len(widths), MOST_BANDS)]
    row_sums, out = runs[0]
    near = torch.cat([run[..., BANDS:] for run, _ in runs], dim=-1)
    start = call.key_positions[:, None, :1].double()

    def side(at: int) -> Side:
        mass = row_sums[..., at]
        return Side(mass, row_sums[..., at + 1] + start, row_sums[..., at + 2] / torch.where(mass > 0, mass, 1.0))

    mass = row_sums[..., 1]
    return Sums(
        top=row_sums[..., 0],
        mass=mass,
        first=row_sums[..., 10],
        spread=row_sums[..., 2],
        square=row_sums[..., 3],
        near={width: near[..., i] for i, width in enumerate(widths)},
        before=side(4),
        after=None if call.causal else side(7),
        mixed=out.double() * mass[..., None] if values else None,
    )


def _row_sums(call: Call, widths: tuple[int, ...], centre: Tensor) -> tuple[Tensor, Tensor]:
    """The kernel's numbers of every row, and its output, for all sequences."""
    first = first_key(call).tolist()
    sequences = [
        compiled.row_sums(
            call.q[b], call.k[b], call.v[b], scale=call.scale, left=call.left, right=call.right,
            offset=call.offset or 0, centre=centre[b], first=first[b], bands=widths,
        )
        for b in range(call.q.shape[0])
    ]  # fmt: skip
    row_sums = torch.stack([rows.sums for rows in sequences if rows.sums is not None])
    return row_sums, torch.stack([rows.out for rows in sequences])
