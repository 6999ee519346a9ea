r"""Attention pooling: any score of a query and a key, and any normaliser.

Definition:
    $\text{out}_i = \sum_j \alpha(q_i, k_j)\, v_j$ over the visible keys, with $\alpha$ the normalised scores:
    `attention.sparse.pooling_scores` lists the scores, `attention.sparse.normalisers` the normalisers. The
    call's softcap and bias change the score before it is normalised; only `scaled_dot` reads the call's scale.
How:
    Blocks of rows, as many as fit into a fixed number of pairs, so that memory grows like n and no n × n ×
    hidden tensor exists; the backward computes each block again. Scaled dot products under a softmax are dense
    attention.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.attention.call import Call, Output
from headscope.attention.mechanism import Cost, Mechanism
from headscope.attention.mechanisms.dense import Dense, with_sinks
from headscope.attention.sparse import pooling_scores as score
from headscope.attention.sparse.blocks import allowed_mask
from headscope.attention.sparse.grouped_heads import grouped_mix
from headscope.attention.sparse.normalisers import NORMALISERS, normalised, softmax
from headscope.attention.sparse.pooling_scores import SCORES, random_weight
from headscope.attention.sparse.recompute import BLOCK_ENTRIES, by_rows
from headscope.attention.sparse.working_memory import FLOAT
from headscope.errors import UsageError

# Bytes that a block holds for each of its pairs: float64 scores, what the normaliser makes of them, float32 weights.
_PAIR_BYTES = {"none": 12.0, "softmax": 26.0, "relu": 26.0, "sparsemax": 52.0}


@dataclass(frozen=True, eq=False)
class Pooling(Mechanism):
    """Values weighed by any score of query and key under any normaliser.

    The scores are dot, general, additive and Gaussian.

    Weights that are not given are Gaussian by `seed` and the width of the call, which is what an untrained layer has.

    Properties:
        - equals its float64 definition, with gradients  (tested: test_fast_equals_definition)
        - scaled dot products under a softmax are dense attention  (tested: test_as_dense_is_dense)
        - a general score with W = 1 is the dot product  (tested: test_the_identity_makes_a_general_score_a_dot_product)
        - under a softmax a Gaussian of unit vectors is a dot product  (tested: test_gaussian_of_unit_vectors)
        - gradients reach the weights  (tested: test_gradients_reach_the_weights)
        - no tensor of n × n × hidden  (tested: test_no_block_is_larger_than_it_may_be)
    """

    score: str = "scaled_dot"
    normaliser: str = "softmax"
    sigma: float = 1.0  # of the Gaussian
    hidden: int = 16  # units of the additive score
    seed: int = 0  # of the weights that are not given
    weight: Float[Tensor, "*some_heads d_head d_head"] | None = field(default=None, repr=False)  # general: W
    query_weight: Float[Tensor, "*some_heads hidden d_head"] | None = field(default=None, repr=False)  # additive: W_q
    key_weight: Float[Tensor, "*some_heads hidden d_head"] | None = field(default=None, repr=False)  # additive: W_k
    readout: Float[Tensor, "*some_heads hidden"] | None = field(default=None, repr=False)  # additive: u
    name: ClassVar[str] = "pooling"
    uses_float64: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.score not in SCORES:
            raise UsageError(f"pooling: score must be one of {', '.join(SCORES)}, got {self.score!r}")
        if self.normaliser not in NORMALISERS:
            raise UsageError(f"pooling: normaliser must be one of {', '.join(NORMALISERS)}, got {self.normaliser!r}")
        if not self.sigma > 0:
            raise UsageError(f"pooling: sigma must be positive, got {self.sigma}")
        if self.hidden < 1:
            raise UsageError(f"pooling: hidden must be at least 1, got {self.hidden}")
        weights_present = [x is not None for x in (self.query_weight, self.key_weight, self.readout)]
        if any(weights_present) and not all(weights_present):
            raise UsageError("pooling: an additive score has query_weight, key_weight and readout; give all or none")
        if self.weight is not None and self.score != "general":
            raise UsageError(f"pooling: a weight belongs to the score general, not to {self.score}")
        if any(weights_present) and self.score != "additive":
            raise UsageError(f"pooling: query_weight, key_weight and readout belong to additive, not to {self.score}")

    @classmethod
    def examples(cls, n: int) -> tuple["Pooling", ...]:
        """Every score and every normaliser, once each."""
        del n
        return (
            cls("additive"),
            cls("scaled_dot", "sparsemax"),
            cls("gaussian", sigma=2.0),
            cls("general", "relu"),
            cls("dot", "none"),
        )

    @classmethod
    def as_dense(cls, n: int) -> "Pooling":
        """Scaled dot products under a softmax."""
        del n
        return cls()

    def supports(self, call: Call) -> str | None:
        """Refuses a sink without softmax, and weights for another width of heads.

        A sink is one more exponential.
        """
        if call.sinks is not None and self.normaliser != "softmax":
            return f"a sink takes its share of a softmax, and the normaliser is {self.normaliser}"
        for name in ("weight", "query_weight", "key_weight", "readout"):
            weight: Tensor | None = getattr(self, name)
            if weight is None:
                continue
            if name != "readout" and weight.shape[-1] != call.q.shape[-1]:
                return f"{name} is for heads of width {weight.shape[-1]}, and those of the call have {call.q.shape[-1]}"
            own_heads = weight.ndim == (2 if name == "readout" else 3)
            if own_heads and weight.shape[0] not in (1, call.q.shape[1]):
                return f"{name} is for {weight.shape[0]} heads, and the call has {call.q.shape[1]}"
        return None

    def attend(self, call: Call, *, lse: bool) -> Output:
        """Dense attention where it is equal to that, else blocks of rows."""
        if (self.score, self.normaliser) == ("scaled_dot", "softmax"):
            return Dense().attend(call, lse=lse)
        dtype = call.q.dtype
        wide = torch.promote_types(dtype, torch.float32)
        per_pair = 4
        prepared = replace(call, v=call.v.to(wide))
        if self.score == "general":
            prepared = replace(prepared, q=call.q.double() @ self._weight("weight", call))
        elif self.score == "additive":
            prepared = self._projected(prepared, wide)
            per_pair = 2 * prepared.q.shape[-1]
        if self.normaliser != "softmax":
            (out,) = by_rows(prepared, self._block, per_pair=per_pair)
            return Output(out.to(dtype))
        out, rows = by_rows(prepared, self._block, per_pair=per_pair)
        return Output(with_sinks(out, rows, call.sinks).to(dtype), rows if lse else None)

    def definition(self, call: Call) -> Output:
        """Every score of the n × n map, in float64."""
        q, k, v = (x.double() for x in (call.q, call.k, call.v))
        k, v = (x.repeat_interleave(call.groups, dim=1) for x in (k, v))
        if self.score == "additive":
            w_q, w_k, u = (self._weight(name, call) for name in ("query_weight", "key_weight", "readout"))
            projected_q = torch.einsum("bhqd,hed->bhqe", q, w_q.transpose(-1, -2).expand(q.shape[1], -1, -1))
            projected_k = torch.einsum("bhkd,hed->bhke", k, w_k.transpose(-1, -2).expand(q.shape[1], -1, -1))
            units = torch.tanh(projected_q[:, :, :, None] + projected_k[:, :, None])
            s = torch.einsum("bhqke,he->bhqk", units, u.expand(q.shape[1], -1))
        elif self.score == "gaussian":
            s = -(q[:, :, :, None] - k[:, :, None]).square().sum(dim=-1) / (2 * self.sigma**2)
        elif self.score == "general":
            s = torch.einsum("bhqd,hde,bhke->bhqk", q, self._weight("weight", call).expand(q.shape[1], -1, -1), k)
        else:
            s = torch.einsum("bhqd,bhkd->bhqk", q, k) * (call.scale if self.score == "scaled_dot" else 1.0)
        if call.softcap is not None:
            s = call.softcap * torch.tanh(s / call.softcap)
        if call.bias is not None:
            s = s + call.bias.double()
        return _explicit(self.normaliser, s, call, v)

    def cost(self, n: int, d: int) -> Cost:
        """All pairs: their scores, and the mix of the values.

        The additive score has hidden units between them.
        """
        if (self.score, self.normaliser) == ("scaled_dot", "softmax"):
            return Dense().cost(n, d)
        per_score = 2.0 * (self.hidden if self.score == "additive" else d)
        prepared = {"additive": 4.0 * n * d * self.hidden, "general": 2.0 * n * d * d}.get(self.score, 0.0)
        units = 2.0 * self.hidden * FLOAT if self.score == "additive" else 0.0
        per_pair = units + _PAIR_BYTES[self.normaliser]
        pairs = max(n, min(n * n, BLOCK_ENTRIES // (2 * self.hidden if self.score == "additive" else 4)))
        return Cost(flops=n * n * (per_score + 2.0 * d) + prepared, bytes=pairs * per_pair + FLOAT * 1.0 * n * d)

    def _weight(self, name: str, call: Call) -> Float[Tensor, "some_heads *width"]:
        """The weight of that name or one by the seed, in float64, for x @ W."""
        d = call.q.shape[-1]
        parameter: Tensor | None = getattr(self, name)
        if name == "readout":
            u = random_weight(self.hidden, seed=self.seed + 2) * self.hidden**0.5 if parameter is None else parameter
            return u.double().to(call.q.device).reshape(-1, u.shape[-1])
        if name == "weight":
            w = random_weight(d, d, seed=self.seed) if parameter is None else parameter
        else:
            shift = 0 if name == "query_weight" else 1
            w = (random_weight(self.hidden, d, seed=self.seed + shift) if parameter is None else parameter).transpose(
                -1, -2
            )
        return w.double().to(call.q.device).reshape(-1, *w.shape[-2:])

    def _projected(self, call: Call, dtype: torch.dtype) -> Call:
        """Queries and keys in the hidden units.

        Keys appear once per head where every head has its own weights.
        """
        w_q, w_k = (self._weight(name, call).to(dtype) for name in ("query_weight", "key_weight"))
        k = call.k.to(dtype)
        if len(w_k) > 1:
            k = k.repeat_interleave(call.groups, dim=1)
            return replace(call, q=call.q.to(dtype) @ w_q, k=k @ w_k, v=call.v.repeat_interleave(call.groups, dim=1))
        return replace(call, q=call.q.to(dtype) @ w_q, k=k @ w_k)

    def _block(self, call: Call) -> tuple[Tensor, ...]:
        s = self._scores(call)
        if call.softcap is not None:
            s = call.softcap * torch.tanh(s / call.softcap)
        if call.bias is not None:
            s = s + call.bias
        allowed = allowed_mask(call)
        if self.normaliser == "softmax":
            if s.shape[-1] == 0:
                return call.v.new_zeros(*s.shape[:3], call.v.shape[-1]), s.new_full(s.shape[:3], -torch.inf).to(call.v)
            weights, lse = softmax(s, allowed)
            return grouped_mix(weights.to(call.v.dtype), call.v), lse.to(call.v.dtype)
        if s.shape[-1] == 0:
            return (call.v.new_zeros(*s.shape[:3], call.v.shape[-1]),)
        return (grouped_mix(normalised(self.normaliser, s, allowed).to(call.v.dtype), call.v),)

    def _scores(self, call: Call) -> Tensor:
        if self.score == "additive":
            return score.additive(call.q, call.k, self._weight("readout", call).to(call.q.dtype))
        if self.score == "gaussian":
            return score.gaussian(call.q, call.k, self.sigma)
        return score.dot(call.q, call.k, call.scale if self.score == "scaled_dot" else 1.0)


MECHANISM = Pooling


def _explicit(normaliser: str, s: Tensor, call: Call, v: Tensor) -> Output:
    """The normalisers by their formulas."""
    visible = call.visible().expand_as(s)
    blind = ~visible.any(dim=-1, keepdim=True)
    lse = None
    if normaliser == "softmax":
        masked = torch.where(visible, s, -torch.inf)
        lse = torch.logsumexp(torch.where(blind, 0.0, masked), dim=-1).masked_fill(blind[..., 0], -torch.inf)
        total = lse if call.sinks is None else torch.logaddexp(lse, call.sinks.double()[:, None])
        weights = torch.exp(masked - torch.where(blind, 0.0, total[..., None]))
    elif normaliser == "sparsemax":
        # No run of the largest scores has a larger threshold than the support, which is therefore the largest.
        ordered = torch.where(visible, s, -1e30).sort(dim=-1, descending=True).values
        tau = ((ordered.cumsum(dim=-1) - 1) / torch.arange(1, s.shape[-1] + 1)).amax(dim=-1, keepdim=True)
        weights = torch.where(visible, (s - tau).clamp_min(0), 0.0)
    else:
        weights = torch.where(visible, s.clamp_min(0) if normaliser == "relu" else s, 0.0)
        if normaliser == "relu":
            total = weights.sum(dim=-1, keepdim=True)
            weights = weights / torch.where(total > 0, total, 1.0)
    return Output(torch.einsum("bhqk,bhkd->bhqd", weights, v), lse)
