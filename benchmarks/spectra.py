"""Compare our singular values with `torch.linalg.svdvals` in time and error.

    python -m benchmarks.spectra [--threads 1] [--largest 4096]

Each round runs both methods one after the other, so that a busy machine slows both alike; medians over rounds of
the CPU time of this process. With `--largest 2048` it takes a minute, with 4096 a few minutes.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from headscope.maths.linear_algebra.spectrum import form_singular_values, singular_values

# rows, columns, rounds
MATRICES = ((1024, 1024, 7), (4096, 1024, 5), (1024, 4096, 5), (2048, 2048, 3), (4096, 4096, 2))
# d_model, d_head, rounds of the dense SVD (ours takes the median of five runs in each)
FORMS = ((2048, 64, 3), (2048, 128, 3), (4096, 128, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--largest", type=int, default=4096, help="leave out squares larger than this")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, threads: {options.threads}, float32 input\n")
    print("| spectrum | ours | svdvals float32 | ratio | svdvals float64 | ratio | error of ours | of float32 |")
    print("|---|---|---|---|---|---|---|---|")
    for rows, columns, rounds in MATRICES:
        if min(rows, columns) <= options.largest:
            print(_matrix_row(rows, columns, rounds), flush=True)
    for d_model, d_head, rounds in FORMS:
        if d_model <= options.largest:
            print(_form_row(d_model, d_head, rounds), flush=True)
    print("\nError: the largest relative error of a singular value against float64.")


def _matrix_row(rows: int, columns: int, rounds: int) -> str:
    w = _normal(rows, columns)
    ours, theirs = _interleaved(lambda: singular_values(w), lambda: torch.linalg.svdvals(w), rounds)
    exactly = _seconds(lambda: torch.linalg.svdvals(w.double()))
    exact = torch.linalg.svdvals(w.double())
    errors = (_error(singular_values(w), exact), _error(torch.linalg.svdvals(w), exact))
    return _row(f"W, {rows} × {columns}", ours, (theirs, exactly), errors)


def _form_row(d_model: int, d_head: int, rounds: int) -> str:
    w_q, w_k = _normal(d_model, d_head), _normal(d_model, d_head, seed=1)
    ours, theirs = _interleaved(
        lambda: form_singular_values(w_q, w_k), lambda: torch.linalg.svdvals(w_q @ w_k.mT), rounds, repeat=5
    )
    # The exact values, by another method than ours: eigenvalues of the product of the Gram matrices.
    gram_q, gram_k = (w.double().mT @ w.double() for w in (w_q, w_k))
    exact = torch.linalg.eigvals(gram_q @ gram_k).real.sort(descending=True).values.sqrt()
    dense = torch.linalg.svdvals(w_q @ w_k.mT)[:d_head]
    errors = (_error(form_singular_values(w_q, w_k), exact), _error(dense, exact))
    exactly = _seconds(lambda: torch.linalg.svdvals(w_q.double() @ w_k.double().mT))
    return _row(f"W_QK of a head, {d_model} × {d_model}, d_head {d_head}", ours, (theirs, exactly), errors)


def _interleaved(
    ours: Callable[[], Tensor], theirs: Callable[[], Tensor], rounds: int, repeat: int = 1
) -> tuple[float, float]:
    ours()
    times: list[tuple[float, float]] = []
    for _ in range(rounds):
        times.append((statistics.median(_seconds(ours) for _ in range(repeat)), _seconds(theirs)))
    mine, other = zip(*times, strict=True)
    return statistics.median(mine), statistics.median(other)


def _seconds(f: Callable[[], Tensor]) -> float:
    """CPU seconds of this process; other processes on the same core do not count."""
    start = time.process_time()
    f()
    return time.process_time() - start


def _normal(rows: int, columns: int, seed: int = 0) -> Tensor:
    w: Tensor = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) / rows**0.5
    return w


def _error(values: Tensor, exact: Tensor) -> float:
    return float(((values.double() - exact) / exact).abs().max())


def _row(name: str, ours: float, theirs: tuple[float, float], errors: tuple[float, float]) -> str:
    compared = " | ".join(f"{seconds:.3g} s | {seconds / ours:.1f} ×" for seconds in theirs)
    return f"| {name} | {ours:.3g} s | {compared} | {errors[0]:.1e} | {errors[1]:.1e} |"


if __name__ == "__main__":
    main()
