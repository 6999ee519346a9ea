"""Compare the lens `spectra` with the edges of a random model and with a peer.

    python -m benchmarks.weights [random] [weightwatcher] [--rounds 5] [--model minilm] [--peers DIR]

The random model has one layer of Mistral 7B's shapes, initialised by transformers with the configuration's standard
deviation of 0.02. By chance its extreme values lie some distance inside the edges; that distance has the Tracy–Widom
law. The peer is WeightWatcher, compared in time. It is not a dependency: `pip install --target DIR weightwatcher`
installs it in a folder, and `--peers DIR` names the folder; without it that part is skipped. Both run in this process
on one thread, one after the other in each round; medians of CPU seconds. Ours reads the file and includes W_QK and W_OV
of every head; WeightWatcher has the model in memory.
"""

import argparse
import json
import logging
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import headscope as hs
from headscope.lenses import lenses
from headscope.maths.random_matrices.marchenko_pastur import TRACY_WIDOM_MEAN, TRACY_WIDOM_SD
from headscope.model.model import open_weights

MISTRAL = {
    "model_type": "mistral",
    "architectures": ["MistralForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 1,
    "vocab_size": 1000,
    "initializer_range": 0.02,
}
EDGES = (0.4096, 3.6864)  # σ²(√4096 ∓ √1024)² with σ = 0.02


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["random", "weightwatcher"], help="which of the two")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--peers", type=Path, default=None, help="a folder that WeightWatcher was installed into")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if "random" in arguments.parts:
        _random_edges()
    if "weightwatcher" in arguments.parts:
        if arguments.peers is None:
            print("\nWeightWatcher left out: no --peers given")
            return
        sys.path.append(str(arguments.peers))
        _weight_watcher(arguments.model, arguments.rounds)


def _random_edges() -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MISTRAL))
        finding = hs.measure(f"random:{folder}", lenses=["spectra"])["spectra"]
    print("One layer of Mistral 7B's shapes, freshly initialised\n")
    print("| matrix | value | measured | expected by chance | edge | off the edge |\n|---|---|---|---|---|---|")
    for name in ("K", "V"):
        sigma = finding.arrays[f"L0.{name}"]
        for label, square, edge, width in zip(
            ("smallest σ²", "largest σ²"), (sigma[-1] ** 2, sigma[0] ** 2), EDGES, _widths(), strict=True
        ):
            chance = f"{edge + TRACY_WIDOM_MEAN * width:.4f} ± {TRACY_WIDOM_SD * abs(width):.4f}"
            off = f"{100 * (square / edge - 1):+.2f} %"
            print(f"| W_{name}, 4096 × 1024 | {label} | {square:.4f} | {chance} | {edge} | {off} |", flush=True)


def _widths() -> tuple[float, float]:
    """The scales of the Tracy–Widom laws at both edges.

    A value inside the edges is a negative multiple of its scale.
    """
    n, p = 4096**0.5, 1024**0.5
    lower, upper = (n - p) * (1 / p - 1 / n) ** (1 / 3), (n + p) * (1 / p + 1 / n) ** (1 / 3)
    return -(0.02**2) * lower, 0.02**2 * upper


def _weight_watcher(name: str, rounds: int) -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    from weightwatcher import WeightWatcher  # type: ignore[import-not-found]

    weights, lens = open_weights(name), lenses()["spectra"]
    watcher = WeightWatcher(model=hs.open(name).hf)
    every = watcher.analyze()
    dense = every[every["layer_type"].astype(str).str.contains("dense")]
    # Our lens skips embeddings and the pooler: compare the same matrices, by name.
    read = {matrix.module for matrix in weights.feed_forward}
    same = [
        int(row.layer_id) for row in dense.itertuples() if row.longname in read or "attention" in row.longname.lower()
    ]
    measurements: list[Any] = []

    def ours() -> None:
        measurements.append(lens.measure(lens.params(), weights))

    contenders: dict[str, Callable[[], object]] = {
        "headscope": ours,
        "WeightWatcher, every matrix of the model": watcher.analyze,
        "WeightWatcher, the same matrices": lambda: watcher.analyze(layers=same),
    }
    times: dict[str, list[float]] = {key: [] for key in contenders}
    for _ in range(rounds):
        for key, run in contenders.items():
            start = time.process_time()
            run()
            times[key].append(time.process_time() - start)
    numbers = {
        "headscope": sum(table.height for table in measurements[-1].tables.values()),
        "WeightWatcher, every matrix of the model": every.select_dtypes("number").size,
        "WeightWatcher, the same matrices": len(same) * every.select_dtypes("number").shape[1],
    }
    print(f"\n{name}, one thread, median of {rounds} rounds\n")
    print("| way | CPU time | ratio | numbers |\n|---|---|---|---|")
    base = statistics.median(times["headscope"])
    for key, seconds in times.items():
        median = statistics.median(seconds)
        print(f"| {key} | {median:.2f} s | {median / base:.1f} × | {numbers[key]} |", flush=True)


if __name__ == "__main__":
    main()
