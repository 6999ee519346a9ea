"""Compare mechanisms with dense SDPA, with peers and with their promised cost.

The last part compares row statistics with a plain call.

    python -m benchmarks.attention              # about half an hour on one thread
    python -m benchmarks.attention --small      # without the longest sequences
    python -m benchmarks.attention window growth  # only these parts

Each round runs all contenders one after the other, so that a busy machine slows all alike; a ratio is the median over
rounds of the ratios within a round. CPU seconds of one thread, float32, 8 heads, d_head 64, unless a table says
otherwise. For the peers: `pip install local-attention linear-attention-transformer` into an environment of its own.
"""

import itertools
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import polars as pl
import torch
import torch.nn.functional as F
from torch import Tensor

from headscope.attention.bench.mechanism_bench import Setting, bench, gaussian_call
from headscope.attention.bench.timing import interleaved, peak_bytes, ratio
from headscope.attention.call import Call
from headscope.attention.mechanism import Mechanism, mechanisms
from headscope.attention.mechanism_spelling import spelled
from headscope.attention.statistics import Request, observe, row_statistics, uniform_statistics

WINDOW = "window(left=128, right=128)"
GLOBALS = f"longformer(left=128, right=128, global_positions={tuple(range(0, 4096, 64))})"
BIGBIRD = "bigbird(block=64)"
CHOICES = ("vertical_slash()", "top_blocks()")
LINEAR_IN_N = (
    WINDOW,
    "longformer(left=128, right=128, global_positions=(0, 1, 2, 3))",
    BIGBIRD,
    "band_sparse(left=128, right=128, columns=(0, 1, 2, 3))",
    "linear()",
    "linformer(rank=256)",
    "low_rank(segment=n / 64)",
    "intention()",
)
REQUEST = Request(bands=(16, 128))


def main() -> None:
    torch.set_num_threads(1)
    small = "--small" in sys.argv
    parts = [name for name in sys.argv[1:] if not name.startswith("-")] or list(PARTS)
    print(f"torch {torch.__version__}, one thread, float32, 8 heads, d_head 64")
    for name in parts:
        PARTS[name](small)


def exactness(small: bool) -> None:
    """Compare every mechanism with its float64 definition at an odd size."""
    _head("Exactness", "mechanism", "output", "gradients", "condition number")
    n = 211 if small else 531
    for cls in mechanisms().values():
        for mechanism in cls.examples(n)[:2]:
            call = gaussian_call(n, Setting(heads=2, kv_heads=1, causal=True, backward=True))
            if mechanism.supports(call) is not None:
                call = replace(call, right=None)
            out, grads = _errors(mechanism, call)
            condition = mechanism.conditioning(call)
            _row(f"`{mechanism!r}`"[:90], f"{out:.1e}", f"{grads:.1e}", f"{condition:.3g}" if condition > 1 else "")
    print(f"\nLargest difference relative to the largest value, n = {n}, 2 heads on 1.")


def window(small: bool) -> None:
    """Compare the window with dense attention and with peers."""
    _bench("Window", [WINDOW], [4096] if small else [4096, 16384], Setting(rounds=5))
    _bench("Window, forward and backward", [WINDOW], [4096], Setting(backward=True, rounds=3))


def patterns(small: bool) -> None:
    """Measure global tokens and BigBird."""
    del small
    _bench("Window and 64 global tokens", [GLOBALS], [4096], Setting(rounds=5))
    _bench("BigBird, 8 blocks of 64", [BIGBIRD], [4096], Setting(rounds=5))
    _bench("BigBird, forward and backward", [BIGBIRD], [4096], Setting(backward=True, rounds=3))


def choices(small: bool) -> None:
    """Measure patterns that queries and keys choose, with the time of choosing."""
    lengths = [4096] if small else [4096, 8192, 16384]
    _bench("Chosen patterns, causal, 9 heads", CHOICES, lengths, Setting(heads=9, kv_heads=9, causal=True, rounds=3))


def linear(small: bool) -> None:
    """Compare causal linear attention with its peer and with the naive running sum."""
    del small
    _bench("Causal linear attention", ["linear()"], [1024, 4096], Setting(causal=True, rounds=5))
    call = gaussian_call(1024, Setting(causal=True))
    mechanism = spelled("linear()")
    ours, naive = interleaved([lambda: mechanism(call), lambda: _running_sums(call)], 3)
    print(f"\nAgainst a cumulative sum of outer products, n = 1024: {ratio(naive, ours):.0f} × faster.")


def growth(small: bool) -> None:
    """Measure time and memory of the mechanisms that claim to be linear in n."""
    lengths = (1024, 4096, 16384) if small else (4096, 16384, 65536)
    steps = [f"{a // 1024}k → {b // 1024}k" for a, b in itertools.pairwise(lengths)]
    _head(
        "Growth from one length to four times it",
        "mechanism",
        *(f"time {s}" for s in steps),
        *(f"memory {s}" for s in steps),
    )
    for text in LINEAR_IN_N:
        # A map of low rank is linear in n when the number of landmarks is fixed, not the length of a run.
        forms = [spelled(text.replace("n / 64", str(n // 64))) for n in lengths]
        calls = [gaussian_call(n, Setting()) for n in lengths]
        runs: list[Callable[[], Any]] = [lambda c=call, m=form: m(c) for call, form in zip(calls, forms, strict=True)]
        with torch.no_grad():
            times, peaks = interleaved(runs, 7), [peak_bytes(run) for run in runs]
        slower = [ratio(b, a) for a, b in itertools.pairwise(times)]
        larger = [b / a for a, b in itertools.pairwise(peaks)]
        _row(f"`{text}`", *(f"{x:.2f} ×" for x in (*slower, *larger)))


def intention(small: bool) -> None:
    """Compare least squares through d × d with the n × n solve."""
    n = 4096 if small else 16384
    call = gaussian_call(n, Setting(heads=1, kv_heads=1))
    mechanism = spelled("intention()")

    def dense() -> Tensor:
        q, k, v = call.q[0, 0], call.k[0, 0], call.v[0, 0]
        gram = k @ k.T
        gram.diagonal().add_(1.0)
        return q @ (k.T @ torch.linalg.solve(gram, v))

    with torch.no_grad():
        ours, solved = interleaved([lambda: mechanism(call), dense], 1)
    print(f"\n### Intention, one head, n = {n}\n\n{ratio(solved, ours):.0f} × faster than the dense n × n solve.")


def statistics(small: bool) -> None:
    """Compare row statistics of a dense causal head with a plain call."""
    for n, heads, kv_heads, rounds in ((2048, 9, 3, 5),) if small else ((2048, 9, 3, 5), (16384, 1, 1, 3)):
        call = gaussian_call(n, Setting(heads=heads, kv_heads=kv_heads, causal=True))
        strong = replace(call, q=call.q * 10)
        runs: dict[str, Callable[[], Any]] = {
            "plain SDPA": lambda c=call: F.scaled_dot_product_attention(c.q, c.k, c.v, is_causal=True, enable_gqa=True),
            "all row statistics, two bands": lambda c=call: row_statistics(c, REQUEST),
            "the same and the output": lambda c=call: observe(c, REQUEST),
            "the same, scores beyond float32": lambda c=strong: observe(c, REQUEST),
            "statistics of uniform attention": lambda c=call: uniform_statistics(c, REQUEST),
        }
        with torch.no_grad():
            times = interleaved(list(runs.values()), rounds)
            _head(
                f"Streaming statistics, causal, n = {n}, {heads} heads on {kv_heads}",
                "what",
                "time",
                "against plain",
                "memory",
            )
            for (name, run), seconds in zip(runs.items(), times, strict=True):
                mebibytes = peak_bytes(run) / 2**20
                _row(
                    name,
                    f"{sorted(seconds)[len(seconds) // 2] * 1e3:.0f} ms",
                    f"{ratio(seconds, times[0]):.2f} ×",
                    f"{mebibytes:.0f} MiB",
                )


PARTS: dict[str, Callable[[bool], None]] = {
    "exactness": exactness,
    "window": window,
    "patterns": patterns,
    "choices": choices,
    "linear": linear,
    "growth": growth,
    "intention": intention,
    "statistics": statistics,
}


def _bench(title: str, texts: Iterable[str], lengths: list[int], setting: Setting) -> None:
    frame = bench([spelled(text) for text in texts], lengths, setting)
    _head(title, "contender", "n", "time", "faster than dense", "ours is faster by", "extra memory", "share of matmul")
    for row in frame.iter_rows(named=True):
        name = row["contender"] if len(row["contender"]) < 70 else row["contender"][:67] + "…"
        _row(
            name, str(row["n"]), f"{row['milliseconds']:.1f} ms", f"{row['faster_than_dense']:.1f} ×",
            "" if row["ours_is_faster_by"] is None else f"{row['ours_is_faster_by']:.1f} ×",
            f"{row['extra_mib']:.0f} MiB", "" if row["matmul_share"] is None else f"{100 * row['matmul_share']:.0f} %",
        )  # fmt: skip
    notes = frame.filter(pl.col("note") != "").select("contender", "note").unique(maintain_order=True)
    for contender, note in notes.iter_rows():
        print(f"\n{contender}: {note}.")


def _errors(mechanism: Mechanism, call: Call) -> tuple[float, float]:
    """The relative errors of output and gradients against the definition."""
    weights = torch.randn(call.q.shape, generator=torch.Generator().manual_seed(1))
    results = []
    for run in (lambda: mechanism(call).out, lambda: mechanism.definition(call).out):
        out = run()
        grads = torch.autograd.grad((out * weights).sum(), (call.q, call.k, call.v), materialize_grads=True)
        results.append((out.detach().double(), torch.cat([grad.double().flatten() for grad in grads])))
    fast, exact = results
    return _relative(fast[0], exact[0]), _relative(fast[1], exact[1])


def _relative(got: Tensor, exact: Tensor) -> float:
    return float((got - exact).abs().max() / exact.abs().max())


def _running_sums(call: Call) -> Tensor:
    """Naive causal linear attention: it keeps the outer-product sum of every token."""
    q, k = F.elu(call.q) + 1, F.elu(call.k) + 1
    states = torch.einsum("bhnd,bhne->bhnde", k, call.v).cumsum(dim=2)
    return torch.einsum("bhnd,bhnde->bhne", q, states) / torch.einsum("bhnd,bhnd->bhn", q, k.cumsum(dim=2))[..., None]


def _head(title: str, *names: str) -> None:
    print(f"\n### {title}\n\n| {' | '.join(names)} |\n|{'---|' * len(names)}", flush=True)


def _row(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
