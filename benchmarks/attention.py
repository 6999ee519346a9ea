"""Attention: the window against dense SDPA, and streaming statistics against a plain call, in time and memory.

    python -m benchmarks.attention            # some minutes on one thread
    python -m benchmarks.attention --small    # without 16,384 positions

Each round runs both sides one after the other, so that a busy machine slows both alike; the ratio is the median over
rounds of the ratios within a round. Times are CPU seconds of one thread, float32, d_head 64.
"""

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from headscope.attention.call import Call
from headscope.attention.mechanisms.dense import Dense
from headscope.attention.mechanisms.window import Window
from headscope.attention.statistics import Request, observe, row_statistics, uniform_statistics

D_HEAD = 64
WINDOW = Window(left=128, right=128)
REQUEST = Request(bands=(16, 128))


def main() -> None:
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread, float32, d_head {D_HEAD}\n")
    print("| window \\|i−j\\| ≤ 128, 8 heads | dense SDPA | window | faster by | largest error |")
    print("|---|---|---|---|---|")
    sizes = (
        ((4096, False, 7), (4096, True, 5))
        if "--small" in sys.argv
        else ((4096, False, 7), (4096, True, 5), (16384, False, 3))
    )
    for n, backward, rounds in sizes:
        print(_window_row(n, backward, rounds), flush=True)
    print("\nError: against the float64 definition at 2,048 positions of the same kind, relative to the largest value;")
    print("with gradients, the largest of output and gradients.\n")
    print("| causal, n = 2048, 9 heads on 3 | time | against a plain SDPA call | peak memory beyond the inputs |")
    print("|---|---|---|---|")
    for row in _statistics_rows(2048, rounds=7):
        print(row, flush=True)


def _window_row(n: int, backward: bool, rounds: int) -> str:
    call = _call(n, heads=8, kv_heads=8, right=None, learns=backward)
    dense, window = _interleaved(
        [
            lambda: _run(call, F.scaled_dot_product_attention(call.q, call.k, call.v), backward),
            lambda: _run(call, WINDOW(call).out, backward),
        ],
        rounds,
    )
    what = "forward and backward" if backward else "forward"
    return _row(f"{what}, n = {n}", dense, window, f"{_ratio(dense, window):.1f} ×", f"{_window_error(backward):.1e}")


def _run(call: Call, out: Tensor, backward: bool) -> None:
    if backward:
        torch.autograd.grad(out.sum(), (call.q, call.k, call.v))


def _window_error(backward: bool) -> float:
    call = _call(2048, heads=2, kv_heads=2, right=None, learns=True)
    weights = torch.randn(call.q.shape, generator=torch.Generator().manual_seed(1))
    errors = []
    pairs: list[tuple[Tensor, ...]] = []
    for out in (WINDOW(call).out, WINDOW.definition(call).out):
        grads = torch.autograd.grad((out * weights).sum(), (call.q, call.k, call.v), retain_graph=True)
        pairs.append((out.detach(), *(grads if backward else ())))
    for got, exact in zip(*pairs, strict=True):
        errors.append(float((got.double() - exact).abs().max() / exact.abs().max()))
    return max(errors)


def _statistics_rows(n: int, rounds: int) -> list[str]:
    call = _call(n, heads=9, kv_heads=3, right=0)
    strong = Call(call.q * 10, call.k, call.v, call.scale, call.query_positions, call.key_positions, right=0)
    runs: dict[str, Callable[[], Any]] = {
        "plain SDPA": lambda: F.scaled_dot_product_attention(call.q, call.k, call.v, is_causal=True, enable_gqa=True),
        "dense": lambda: Dense()(call),
        "dense, with log-sum-exp": lambda: Dense()(call, lse=True),
        "all row statistics, two bands": lambda: row_statistics(call, REQUEST),
        "the same and the output": lambda: observe(call, REQUEST),
        "the same, scores beyond float32": lambda: observe(strong, REQUEST),
        "statistics of uniform attention": lambda: uniform_statistics(call, REQUEST),
        "one stored map, for comparison": lambda: (call.q @ call.k.repeat_interleave(3, 1).mT).softmax(-1),
    }
    times = _interleaved(list(runs.values()), rounds)
    return [
        _row(name, taken, f"{_ratio(taken, times[0]):.2f} ×", f"{_peak_bytes(run) / 2**20:.0f} MiB")
        for (name, run), taken in zip(runs.items(), times, strict=True)
    ]


def _call(n: int, heads: int, kv_heads: int, right: int | None, learns: bool = False) -> Call:
    """Gaussian tensors in the layout that transformers passes: heads and positions swapped in memory."""
    generator = torch.Generator().manual_seed(0)

    def normal(some_heads: int) -> Tensor:
        x = torch.randn(1, n, some_heads, D_HEAD, generator=generator).transpose(1, 2)
        return x.requires_grad_(learns)

    positions = torch.arange(n)[None]
    return Call(normal(heads), normal(kv_heads), normal(kv_heads), D_HEAD**-0.5, positions, positions, right=right)


def _interleaved(runs: list[Callable[[], Any]], rounds: int) -> list[list[float]]:
    """The times of each, round by round, after one round that does not count."""
    taken: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds + 1):
        for times, run in zip(taken, runs, strict=True):
            start = time.thread_time()
            run()
            times.append(time.thread_time() - start)
    return [times[1:] for times in taken]


def _ratio(a: list[float], b: list[float]) -> float:
    return statistics.median(x / y for x, y in zip(a, b, strict=True))


def _peak_bytes(run: Callable[[], Any]) -> int:
    """The most that was allocated at any moment, by torch's own record of allocations and releases."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        run()
    held = peak = 0
    for event in record.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def _row(name: str, *cells: list[float] | str) -> str:
    texts = [cell if isinstance(cell, str) else f"{statistics.median(cell) * 1e3:.1f} ms" for cell in cells]
    return f"| {name} | {' | '.join(texts)} |"


if __name__ == "__main__":
    main()
