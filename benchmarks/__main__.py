"""Run every benchmark in turn: `python -m benchmarks`.

Each prints a table of ratios that were measured side by side.
"""

import runpy

NAMES = (
    *("attention", "session", "swap", "pair_bound", "decoding", "text_decoding", "spectra", "weights", "gaussian"),
    *("large_checkpoint", "training"),
)

if __name__ == "__main__":
    for name in NAMES:
        print(f"\n## {name}\n", flush=True)
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
