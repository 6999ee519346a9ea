r"""Linear attention: similarity through a feature map, in time O(n).

Keys and values meet only once.

Definition:
    $\text{out}_i = \sum_j \varphi(q_i) \cdot \varphi(k_j)\, v_j \,/ \sum_j \varphi(q_i) \cdot \varphi(k_j)$
    over the visible keys; with `normalise=False` the numerator alone. The maps are those of
    `attention.sparse.feature_maps`; only `random` reads the call's scale. Where the denominator is 0, out is 0.
How:
    $\sum_j (\varphi(q_i) \cdot \varphi(k_j)) v_j = \varphi(q_i) \sum_j \varphi(k_j)^\top v_j$: one state of
    features × d_value, or the running one of `attention.sparse.running_sum` where the call is causal. A padded
    key has no features. Windows, stray masks and gaps in the positions are exact, through the weights of a
    block of rows at a time.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from headscope.attention import compiled
from headscope.attention.call import Call, Output
from headscope.attention.fitting import SEEDS, nearest_to_dense
from headscope.attention.mechanism import Cost, Mechanism
from headscope.attention.sparse.blocks import allowed_mask
from headscope.attention.sparse.feature_maps import FEATURES, features, random_directions, random_features
from headscope.attention.sparse.grouped_heads import grouped_mix, grouped_products
from headscope.attention.sparse.recompute import by_rows
from headscope.attention.sparse.running_sum import CHUNK, ROWS, Running, running_sum
from headscope.attention.sparse.visibility_shape import is_causal_tail, sees_all
from headscope.attention.sparse.working_memory import FLOAT
from headscope.errors import UsageError

State = Float[Tensor, "batch kv_heads features columns"]


@dataclass(frozen=True)
class Linear(Mechanism):
    """Attention with features φ(q)·φ(k) instead of the exponential of a score.

    Properties:
        - equals its float64 definition, with gradients  (tested: test_fast_equals_definition)
        - `identity` is Q(KᵀV)  (tested: test_identity_features_are_a_product_of_three_matrices)
        - many random features come near to the softmax  (tested: test_random_features_converge_to_the_softmax)
        - step by step it is the same  (tested: test_steps_equal_the_parallel_form)
        - a row without weight is 0, and so is its gradient  (tested: test_rows_without_weight_are_zero)
    """

    feature: str = "elu"
    normalise: bool = True
    count: int = 128  # of random features
    seed: int = 0  # of the random features
    name: ClassVar[str] = "linear"
    uses_float64: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.feature not in FEATURES:
            raise UsageError(f"linear: feature must be one of {', '.join(FEATURES)}, got {self.feature!r}")
        if self.feature == "identity" and self.normalise:
            raise UsageError(
                "linear: identity features may add up to 0 or less, so they cannot be normalised",
                hint="pass normalise=False",
            )
        if self.feature == "random" and not self.normalise:
            raise UsageError("linear: random features have a free factor per query, so they must be normalised")
        if self.count < 1:
            raise UsageError(f"linear: count must be at least 1, got {self.count}")

    @classmethod
    def examples(cls, n: int) -> tuple["Linear", ...]:
        """One example for each feature map."""
        del n
        return (cls(), cls("relu"), cls("taylor"), cls("random"), cls("identity", normalise=False))

    def fit(self, calls: Sequence[Call]) -> "Linear":
        """The feature map, or the seed of random features, whose output is nearest to that of dense attention.

        Without a normaliser there is nothing to choose.
        """
        if not self.normalise:
            return self
        if self.feature == "random":
            return nearest_to_dense([replace(self, seed=self.seed + step) for step in range(SEEDS)], calls)
        return nearest_to_dense([replace(self, feature=name) for name in ("elu", "relu", "taylor")], calls)

    def supports(self, call: Call) -> str | None:
        """Refuses what belongs to the exponential of a score."""
        for part in ("bias", "softcap", "sinks"):
            if getattr(call, part) is not None:
                return f"linear attention has no scores inside an exponential, so a {part.rstrip('s')} means nothing"
        return None

    def attend(self, call: Call, *, lse: bool) -> Output:
        """Features, then one state, a running state, or weights in blocks of rows."""
        del lse  # no softmax, no log-sum-exp
        if call.mask is None and self._is_long(call):
            if is_causal_tail(call) and call.offset == 0:
                return self._streamed(call)
            if sees_all(call):
                return self._summed_once(call)
        dtype, call = call.v.dtype, self._featured(call)
        if call.mask is None and sees_all(call):
            return self._output(grouped_mix(call.q, call.k.transpose(-1, -2) @ call.v), dtype)
        if call.mask is None and is_causal_tail(call):
            return self._output(_running(call), dtype)
        (mixed,) = by_rows(call, _masked)
        return self._output(mixed, dtype)

    def step(self, state: State | None, call: Call) -> tuple[State, Output]:
        """The next tokens after `state` (None: the first), in time that does not grow.

        The call holds the new tokens alone: as many queries as keys, causal, without windows.
        """
        refusal = self.supports(call)
        if refusal is None and not (call.mask is None and is_causal_tail(call) and call.offset == 0):
            refusal = "a step takes new tokens only: a causal call with one query for each key and no other limits"
        if refusal is not None:
            raise UsageError(f"{self!r} cannot take this step: {refusal}")
        dtype, call = call.v.dtype, self._featured(call)
        mixed = _running(call)
        if state is not None:
            mixed = mixed + grouped_mix(call.q, state.to(call.q.dtype))
        # In float64, since a sum of very many tokens is what a state is.
        new = call.k.double().transpose(-1, -2) @ call.v.double()
        return (new if state is None else state + new), self._output(mixed, dtype)

    def definition(self, call: Call) -> Output:
        """The whole matrix of φ(q)·φ(k), in float64."""
        q, k, v = (x.double() for x in (call.q, call.k, call.v))
        if self.feature == "elu":
            q, k = (torch.where(x > 0, x + 1, torch.exp(x.clamp_max(0))) for x in (q, k))
        elif self.feature == "relu":
            q, k = q.clamp_min(0), k.clamp_min(0)
        elif self.feature == "taylor":
            q, k = (x / x.norm(dim=-1, keepdim=True).clamp_min(1e-12) for x in (q, k))
        elif self.feature == "random":
            w = random_directions(self.count, q.shape[-1], self.seed) * call.scale**0.5
            q, k = torch.exp(q @ w.T), torch.exp(k @ w.T - call.scale * k.square().sum(-1, keepdim=True) / 2)
        k, v = (x.repeat_interleave(call.groups, dim=1) for x in (k, v))
        weights = torch.einsum("bhqd,bhkd->bhqk", q, k) + (1.0 if self.feature == "taylor" else 0.0)
        weights = weights * call.visible()
        out = torch.einsum("bhqk,bhkd->bhqd", weights, v)
        if not self.normalise:
            return Output(out)
        total = weights.sum(dim=-1, keepdim=True)
        return Output(torch.where(total > 0, out / torch.where(total > 0, total, 1.0), 0.0))

    def cost(self, n: int, d: int) -> Cost:
        """One state of all keys that every query reads.

        Random features are two more products.
        """
        width = {"random": self.count, "taylor": d + 1}.get(self.feature, d)
        states = 4.0 * n * width * (d + self.normalise)
        feature_flops = 4.0 * n * d * width if self.feature == "random" else 0.0
        rows = min(n, ROWS)
        # Features and their parts, the values with a column of ones, and the mixed values.
        copies = {"random": 8.0 * width, "identity": 2.0 * d if n > 4 * CHUNK else 0.0}.get(self.feature, 4.0 * width)
        return Cost(flops=states + feature_flops, bytes=FLOAT * (rows * copies + 1.0 * width * d))

    def _featured(self, call: Call) -> Call:
        """The call with features for queries and keys, and the values that they mix.

        A padded key has no features.
        """
        q, k, v = self._mapped(call.q, call.k, call.v, call.scale)
        if call.key_padding is not None:
            k = k.masked_fill(~call.key_padding[:, None, :, None], 0.0)
        return replace(call, q=q, k=k, v=v, key_padding=None)

    def _features(self, q: Tensor, k: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        if self.feature == "random":
            return random_features(q, k, random_directions(self.count, q.shape[-1], self.seed), scale)
        wide = torch.promote_types(q.dtype, torch.float32)
        return features(self.feature, q.to(wide)), features(self.feature, k.to(wide))

    def _mapped(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
        q, k = self._features(q, k, scale)
        # A column of ones next to the values adds up to the denominator.
        return q, k, F.pad(v.to(q.dtype), (0, 1), value=1.0) if self.normalise else v.to(q.dtype)

    def _is_long(self, call: Call) -> bool:
        """Whether no gradient is needed and the call is long enough to go block by block."""
        needs_gradient = torch.is_grad_enabled() and any(x.requires_grad for x in (call.q, call.k, call.v))
        return not needs_gradient and min(call.q.shape[2], call.k.shape[2]) > 4 * CHUNK

    def _is_compiled(self, call: Call) -> bool:
        has_kernel = self.feature in compiled.FEATURES and max(call.q.shape[-1], call.v.shape[-1]) <= compiled.WIDEST
        return has_kernel and call.key_padding is None and compiled.takes(call.q)

    def _streamed(self, call: Call) -> Output:
        """Block after block with one running state.

        Features and sums then never leave the cache.
        """
        if self._is_compiled(call):
            outputs = [
                compiled.causal_linear(*qkv, feature=self.feature, normalise=self.normalise)
                for qkv in zip(call.q, call.k, call.v, strict=True)
            ]
            return Output(torch.stack(outputs))
        out = call.v.new_empty(*call.q.shape[:3], call.v.shape[-1])
        for row, head in itertools.product(range(call.q.shape[0]), range(call.k.shape[1])):
            heads = slice(head * call.groups, (head + 1) * call.groups)
            running = None
            total = torch.zeros(1, 1)
            for start in range(0, call.q.shape[2], ROWS):
                positions = slice(start, start + ROWS)
                query_rows, key_rows = (
                    (slice(row, row + 1), heads, positions),
                    (slice(row, row + 1), slice(head, head + 1), positions),
                )
                q, k = self._features(call.q[query_rows], call.k[key_rows], call.scale)
                v = call.v[key_rows].to(q.dtype)
                if call.key_padding is not None:
                    k = k.masked_fill(~call.key_padding[row, positions, None], 0.0)
                if running is None:
                    running = Running(q.new_zeros(1, q.shape[-1], v.shape[-1], dtype=torch.float64))
                    total = q.new_zeros(1, q.shape[-1], dtype=torch.float64)
                if self.normalise:
                    mixed, weight = running.advance_with_totals(q, k, v, total)
                    out[query_rows] = mixed.div_(torch.where(weight > 0, weight, 1.0)[..., None])
                else:
                    out[query_rows] = running.advance(q, k, v)
        return Output(out)

    def _summed_once(self, call: Call) -> Output:
        """Blocks of keys into one state, then blocks of queries through it."""
        out = call.v.new_empty(*call.q.shape[:3], call.v.shape[-1])
        for row, head in itertools.product(range(call.q.shape[0]), range(call.k.shape[1])):
            q = call.q[row, None, head * call.groups : (head + 1) * call.groups]
            k, v = call.k[row, None, head, None], call.v[row, None, head, None]
            real = None if call.key_padding is None else call.key_padding[row]
            state = self._state(q, k, v, call.scale, real)
            for start in range(0, q.shape[2], ROWS):
                rows = slice(start, start + ROWS)
                query_features, _ = self._features(q[:, :, rows], k[:, :, :0], call.scale)
                mixed = query_features @ state.to(query_features.dtype)
                out[row, head * call.groups : (head + 1) * call.groups, rows] = self._output(mixed, out.dtype).out[0]
        return Output(out)

    def _state(self, q: Tensor, k: Tensor, v: Tensor, scale: float, real: Tensor | None) -> Tensor:
        r"""$\sum_j \varphi(k_j)^\top v_j$ of one head, in float64.

        The last column belongs to the denominator.
        """
        total = torch.zeros((), dtype=torch.float64)
        for start in range(0, k.shape[2], ROWS):
            rows = slice(start, start + ROWS)
            _, key_features, values = self._mapped(q[:, :, :0], k[:, :, rows], v[:, :, rows], scale)
            key_features = key_features if real is None else key_features.masked_fill(~real[rows, None], 0.0)
            total = total + (key_features.transpose(-1, -2) @ values).double()
        return total

    def _output(self, mixed: Tensor, dtype: torch.dtype) -> Output:
        if not self.normalise:
            return Output(mixed.to(dtype))
        out, total = mixed[..., :-1], mixed[..., -1:]
        is_positive = total > 0
        # Where the weights add up to 0 each of them is 0, and so is what they mix.
        return Output((out / torch.where(is_positive, total, 1.0)).to(dtype))


MECHANISM = Linear


def _running(call: Call) -> Tensor:
    """The running sum of the queries' own positions plus the sum of the cache."""
    batch, heads, queries, width = call.q.shape
    kv_heads, before = call.k.shape[1], call.k.shape[2] - queries
    grouped = call.q.reshape(batch * kv_heads, heads // kv_heads, queries, width)
    k, v = (x[:, :, before:].reshape(batch * kv_heads, 1, queries, x.shape[-1]) for x in (call.k, call.v))
    mixed = running_sum(grouped, k, v).reshape(batch, heads, queries, v.shape[-1])
    if before == 0:
        return mixed
    return mixed + grouped_mix(call.q, call.k[:, :, :before].transpose(-1, -2) @ call.v[:, :, :before])


def _masked(call: Call) -> tuple[Tensor]:
    """The masked weights of a block of rows, in memory."""
    weights = grouped_products(call.q, call.k)
    allowed = allowed_mask(call)
    return (grouped_mix(weights if allowed is None else weights * allowed, call.v),)
