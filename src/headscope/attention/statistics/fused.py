"""The sums of a call by the compiled kernel, for plain float32 calls over positions without gaps."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.attention import compiled
from headscope.attention.call import Call
from headscope.attention.compiled.rows import MOST_BANDS
from headscope.attention.statistics.sums import Side, Sums
from headscope.attention.statistics.visibility import first_key


def applies(call: Call, widths: tuple[int, ...]) -> bool:
    """Whether the kernel is used and knows everything that this call carries; a sink changes none of its sums."""
    plain = replace(call, sinks=None).plain and call.offset is not None
    fits = {x.dtype for x in (call.q, call.k, call.v)} == {torch.float32} and call.q.device.type == "cpu"
    return plain and fits and len(widths) <= MOST_BANDS and call.k.shape[2] > 0 and compiled.is_used()


def sums(call: Call, widths: tuple[int, ...], centre: Float[Tensor, "batch kv_heads d_head"], *, values: bool) -> Sums:
    """The sums of every row, relative to scores of centred keys."""
    if call.offset is None:
        raise ValueError("the kernel needs positions without gaps")
    first = first_key(call).tolist()
    found = [
        compiled.row_sums(
            call.q[b], call.k[b], call.v[b], scale=call.scale, left=call.left, right=call.right, offset=call.offset,
            centre=centre[b], first=first[b], bands=widths,
        )
        for b in range(call.q.shape[0])
    ]  # fmt: skip
    kept = torch.stack([one.kept for one in found if one.kept is not None])
    start = call.key_positions[:, None, :1].double()

    def side(at: int) -> Side:
        mass = kept[..., at]
        return Side(mass, kept[..., at + 1] + start, kept[..., at + 2] / torch.where(mass > 0, mass, 1.0))

    mass = kept[..., 1]
    return Sums(
        top=kept[..., 0],
        mass=mass,
        first=kept[..., 10],
        spread=kept[..., 2],
        square=kept[..., 3],
        near={width: kept[..., 12 + i] for i, width in enumerate(widths)},
        before=side(4),
        after=None if call.causal else side(7),
        mixed=torch.stack([one.out for one in found]).double() * mass[..., None] if values else None,
    )
