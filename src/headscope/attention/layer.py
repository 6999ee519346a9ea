r"""Attention as a layer that learns: projections, a mechanism, and the way back.

Definition:
    $q = x W_Q$, $k = y W_K$, $v = y W_V$ cut into heads of width d_head (y = x unless a memory is given),
    out = mechanism(q, k, v), joined again and times $W_O$. With `kv_heads` fewer than `heads` the heads of a group read
    one key/value head: as many as heads is multi-head attention, one is multi-query, between is grouped-query. The
    keys are never repeated in memory: a `Call` carries them as they are.

Longformer's global tokens can have projections of their own ($Q_g, K_g, V_g$): then the row of a global token is
dense attention of $x W_{Q_g}$ over $x W_{K_g}, x W_{V_g}$, and every other row is as before.
"""

from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from headscope.attention.call import Call
from headscope.attention.mechanism import Mechanism
from headscope.attention.mechanisms.dense import Dense
from headscope.errors import UsageError

States = Float[Tensor, "batch tokens d_model"]


class MultiHead(nn.Module):
    """Multi-head attention through any mechanism.

    Heads are grouped where `kv_heads` is less than `heads`.

    Properties:
        - with dense attention it is `torch.nn.MultiheadAttention`  (tested: test_layer_equals_torch)
        - a group of heads equals heads with equal keys and values  (tested: test_grouped_heads_equal_repeated_ones)
        - keys and values are views, never repeated  (tested: test_grouped_keys_are_views)
        - global tokens attend through their own projections  (tested: test_global_projections)
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        mechanism: Mechanism | None = None,
        *,
        kv_heads: int | None = None,
        d_head: int | None = None,
        causal: bool = False,
        bias: bool = False,
        global_projections: bool = False,
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        if d_head is None:
            if d_model % heads:
                raise UsageError(f"d_model {d_model} cannot be cut into {heads} heads evenly", hint="give d_head")
            d_head = d_model // heads
        if heads % kv_heads:
            raise UsageError(f"{heads} query heads cannot share {kv_heads} key/value heads evenly")
        self.mechanism = Dense() if mechanism is None else mechanism
        self.causal, self.d_head = causal, d_head
        widths = {"q": heads * d_head, "k": kv_heads * d_head, "v": kv_heads * d_head}
        self.projections = nn.ModuleDict({name: nn.Linear(d_model, width, bias) for name, width in widths.items()})
        self.out = nn.Linear(heads * d_head, d_model, bias)
        self._global = None
        if global_projections:
            positions: tuple[int, ...] | None = getattr(self.mechanism, "global_positions", None)
            if positions is None:
                raise UsageError(
                    f"{self.mechanism!r} has no global positions with projections of their own", hint="use longformer"
                )
            self._global = positions
            self.global_projections = nn.ModuleDict(
                {name: nn.Linear(d_model, width, bias) for name, width in widths.items()}
            )

    def call(
        self,
        x: States,
        memory: Float[Tensor, "batch others d_model"] | None = None,
        *,
        real: Bool[Tensor, "batch others"] | None = None,
        positions: Int[Tensor, "rows tokens"] | None = None,
    ) -> Call:
        """The attention call that this layer makes of its input."""
        source = x if memory is None else memory
        at = torch.arange(x.shape[1], device=x.device)[None] if positions is None else positions
        return Call(
            q=self._heads(self.projections["q"], x),
            k=self._heads(self.projections["k"], source),
            v=self._heads(self.projections["v"], source),
            scale=self.d_head**-0.5,
            query_positions=at,
            key_positions=at if memory is None else torch.arange(source.shape[1], device=x.device)[None],
            right=0 if self.causal and memory is None else None,
            key_padding=real,
        )

    def forward(
        self,
        x: States,
        memory: Float[Tensor, "batch others d_model"] | None = None,
        *,
        real: Bool[Tensor, "batch others"] | None = None,
        positions: Int[Tensor, "rows tokens"] | None = None,
    ) -> States:
        """Attend; `real` is False where a key is padding."""
        call = self.call(x, memory, real=real, positions=positions)
        mixed = self.mechanism(call).out
        if self._global is not None:
            mixed = self._with_global_rows(mixed, call, x if memory is None else memory, x)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out

    def _heads(self, projection: nn.Module, x: States) -> Float[Tensor, "batch some_heads tokens d_head"]:
        projected: Tensor = projection(x)
        return projected.view(*x.shape[:2], -1, self.d_head).transpose(1, 2)

    def _with_global_rows(self, mixed: Tensor, call: Call, source: Tensor, x: Tensor) -> Tensor:
        rows = [i for i in self._global or () if i < x.shape[1]]
        index = torch.tensor(rows, dtype=torch.long, device=x.device)
        global_call = replace(
            call,
            q=self._heads(self.global_projections["q"], x[:, index]),
            k=self._heads(self.global_projections["k"], source),
            v=self._heads(self.global_projections["v"], source),
            query_positions=call.query_positions[:, index],
        )
        return mixed.index_copy(2, index, Dense()(global_call).out) if rows else mixed
