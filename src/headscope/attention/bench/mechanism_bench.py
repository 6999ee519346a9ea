"""Speed of the mechanisms on this machine: time, memory, and ratios.

The ratios are to dense attention and to peers.

Everything is timed side by side on one thread (`headscope.attention.bench.timing`), on Gaussian tensors in the layout
that transformers passes. `matmul_share` is the useful work per second (`Mechanism.cost`) as a share of what a plain
product of two 1024 × 1024 matrices reaches in the same round: 1 would be a mechanism without overhead.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import polars as pl
import torch
import torch.nn.functional as F
from torch import Tensor

from headscope.attention.bench.peers import Attend, peers_of
from headscope.attention.bench.timing import Run, interleaved, one_thread, peak_bytes, ratio
from headscope.attention.call import Call
from headscope.attention.mechanism import Mechanism

_PRODUCT = 1024
Step = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Setting:
    """Settings of the timing."""

    heads: int = 8
    kv_heads: int = 8
    d_head: int = 64
    causal: bool = False
    backward: bool = False
    rounds: int = 5
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class _Contender:
    name: str
    kind: str
    mechanism: Mechanism | None
    attend: Attend
    note: str = ""


def bench(
    mechanisms: Sequence[Mechanism], lengths: Sequence[int], setting: Setting, step: Step | None = None
) -> pl.DataFrame:
    """One row per contender and length.

    Contenders are headscope's mechanisms, dense SDPA, and every installed peer.
    """
    rows: list[dict[str, object]] = []
    with one_thread():
        for n in lengths:
            for done, mechanism in enumerate(mechanisms):
                if step is not None:
                    step(f"timing at n = {n}, mechanism", done, len(mechanisms))
                rows += _measured(mechanism, gaussian_call(n, setting), setting)
    frame = pl.DataFrame(rows, infer_schema_length=None)
    # Dense SDPA was timed with every mechanism; one row per length is enough.
    return frame.unique(subset=["contender", "n"], keep="first", maintain_order=True)


def gaussian_call(n: int, setting: Setting, seed: int = 0) -> Call:
    """Gaussian tensors in the layout of transformers.

    Heads and positions are swapped in memory.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(heads: int) -> Tensor:
        x = torch.randn(1, n, heads, setting.d_head, generator=generator).to(setting.dtype).transpose(1, 2)
        return x.requires_grad_(setting.backward)

    positions = torch.arange(n)[None]
    q, k, v = normal(setting.heads), normal(setting.kv_heads), normal(setting.kv_heads)
    return Call(q, k, v, setting.d_head**-0.5, positions, positions, right=0 if setting.causal else None)


def _measured(mechanism: Mechanism, call: Call, setting: Setting) -> list[dict[str, object]]:
    n = call.q.shape[2]
    refusal = mechanism.supports(call)
    if refusal is not None:
        return [{"contender": repr(mechanism), "kind": "headscope", "n": n, **_EMPTY, "note": refusal}]
    contenders = _contenders(mechanism, call)
    runs = [_run(contender, call, setting.backward) for contender in contenders]
    square = torch.randn(_PRODUCT, _PRODUCT, dtype=setting.dtype)
    times = interleaved([lambda: square @ square, *runs], setting.rounds)
    product, dense, ours = times[0], times[1], times[2]
    flops_of_product = 2.0 * _PRODUCT**3
    rows = []
    for contender, run, seconds in zip(contenders, runs, times[1:], strict=True):
        work = _useful_flops(contender, n, setting)
        rows.append(
            {
                "contender": contender.name,
                "kind": contender.kind,
                "n": n,
                "milliseconds": sorted(seconds)[len(seconds) // 2] * 1e3,
                "faster_than_dense": ratio(dense, seconds),
                "ours_is_faster_by": ratio(seconds, ours) if contender.kind == "peer" else None,
                "extra_mib": peak_bytes(run) / 2**20,
                "matmul_share": None if work is None else work / flops_of_product * ratio(product, seconds),
                "note": contender.note,
            }
        )
    return rows


_EMPTY: dict[str, object] = dict.fromkeys(
    ("milliseconds", "faster_than_dense", "ours_is_faster_by", "extra_mib", "matmul_share")
)


def _contenders(mechanism: Mechanism, call: Call) -> list[_Contender]:
    grouped = call.groups != 1

    def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=call.causal, scale=call.scale, enable_gqa=grouped)

    contenders = [
        _Contender("dense SDPA of torch", "baseline", None, sdpa),
        _Contender(
            repr(mechanism), "headscope", mechanism, lambda q, k, v: mechanism(replace(call, q=q, k=k, v=v)).out
        ),
    ]
    for peer in peers_of(mechanism):
        attend = peer.prepare(mechanism, call)
        if attend is not None:
            contenders.append(_Contender(peer.name, "peer", None, attend, peer.note))
    return contenders


def _run(contender: _Contender, call: Call, backward: bool) -> Run:
    inputs = (call.q, call.k, call.v)

    def forward() -> None:
        with torch.no_grad():
            contender.attend(*inputs)

    def both() -> None:
        torch.autograd.grad(contender.attend(*inputs).sum(), inputs)

    return both if backward else forward


def _useful_flops(contender: _Contender, n: int, setting: Setting) -> float | None:
    """Operations of all heads.

    A backward pass counts two and a half forward passes: five products for two.
    """
    if contender.kind == "peer":
        return None
    flops = 4.0 * n * n * setting.d_head if contender.mechanism is None else 0.0
    if contender.mechanism is not None:
        flops = contender.mechanism.cost(n, setting.d_head).flops
    if setting.causal and contender.mechanism is None:
        flops /= 2
    return flops * setting.heads * (3.5 if setting.backward else 1.0)
