"""Compare sessions with a plain forward in time and peak memory.

    python -m benchmarks.session [--model smollm2] [--tokens 2048] [--repeats 3] [--transformer-lens PYTHON]
    python -m benchmarks.session --heads [--model smollm2] [--repeats 3] [--transformer-lens PYTHON]
    python -m benchmarks.session --ablations [--model smollm2] [--tokens 128]
    python -m benchmarks.session --nothing [--model smollm2] [--tokens 512] [--sessions 40]

Streaming statistics, a session that captures nothing, one that captures every place, stored maps and TransformerLens.
Each way of running the model has its own process, so that its peak memory is its own; the ways take turns, and the
table holds medians of ratios to the plain forward of the same turn. In each process the model runs once on a short text
before it is timed. Times are CPU seconds. TransformerLens needs other versions than headscope: pass the Python of an
environment that has it.

`--heads` scores all heads as previous-token, duplicate-token and induction heads on 24 windows of random tokens that
come twice: by the capture `repeats:40` of a session, by stored maps of TransformerLens, and by its head detector, which
reads one window after the other.
`--ablations` ablates every head in turn, `--nothing` opens sessions that capture nothing; each round has two of them
and two plain forwards, in random order. For both the allocator of the C library never gives memory back: otherwise the
ratio is that of page faults, which differ from process to process.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

PLAIN, STREAM, STORED = "plain sdpa forward", "headscope stream", "output_attentions"
EMPTY, EVERYTHING = "headscope, nothing captured", "headscope, every place captured"
LENS = "run_with_cache (TransformerLens)"
WAYS = (PLAIN, STREAM, EMPTY, EVERYTHING, STORED, LENS)

PERIOD, WINDOWS = 40, 24
SCORED = "headscope, repeats:40"
LENS_MAPS, LENS_DETECTOR = "cached patterns (TransformerLens)", "detect_head (TransformerLens)"
HEAD_WAYS = (PLAIN, SCORED, LENS_MAPS, LENS_DETECTOR)

TRANSFORMER_LENS = """
import json, sys, time, torch
from pathlib import Path

def peak_kib():
    # Not ru_maxrss: that is inherited from the parent process across exec.
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

torch.set_num_threads(int(sys.argv[3]))
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformer_lens.model_bridge import TransformerBridge
bridge = TransformerBridge.boot_transformers(sys.argv[1], dtype=torch.float32)
tokens, period = torch.tensor(json.loads(Path(sys.argv[2]).read_text())), int(sys.argv[5])

def every_place(ids):
    return bridge.run_with_cache(ids)

def cached_patterns(ids):
    _, cache = bridge.run_with_cache(ids, names_filter=lambda name: name.endswith("hook_pattern"))
    later = torch.arange(period + 1, ids.shape[1])
    maps = torch.stack([cache["pattern", layer] for layer in range(bridge.cfg.n_layers)])
    return [maps[..., later, later - back].mean((1, 3)).flatten().tolist() for back in (1, period, period - 1)]

def detector(ids):
    from transformer_lens.head_detector import detect_head
    names = ("previous_token_head", "duplicate_token_head", "induction_head")
    kinds = {"exclude_bos": True, "error_measure": "mul"}
    texts = [bridge.to_string(row) for row in ids[:, 1:]]
    scores = [torch.stack([detect_head(bridge, text, name, **kinds) for text in texts]).mean(0) for name in names]
    return [each.flatten().tolist() for each in scores]

run = {"every": every_place, "patterns": cached_patterns, "detector": detector}[sys.argv[4]]
loaded = peak_kib()
with torch.no_grad():
    run(tokens[:1, : 2 * period + 1] if sys.argv[4] != "every" else tokens[:, :64])
    start = time.process_time()
    kept = run(tokens)
    seconds = time.process_time() - start
peak = peak_kib()
scores = kept if sys.argv[4] != "every" else None
print(json.dumps({"seconds": seconds, "peak": peak * 1024, "loaded": loaded * 1024, "scores": scores}))
"""
JOBS = {LENS: "every", LENS_MAPS: "patterns", LENS_DETECTOR: "detector"}


def peak_kib() -> int:
    """Peak memory of this process in KiB.

    `ru_maxrss` would not do: a process inherits it from its parent across exec.
    """
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


def window_tokens(n: int | None) -> list[list[int]]:
    """One window of n random tokens; without n, windows of a first token and tokens that come twice."""
    import torch

    generator = torch.Generator().manual_seed(0)
    if n is not None:
        return torch.randint(3, 1000, (1, n), generator=generator).tolist()
    rows = [(100 + torch.randperm(48_000, generator=generator)[:PERIOD]).tolist() for _ in range(WINDOWS)]
    return [[1, *row, *row] for row in rows]


def measure_here(way: str, folder: str, tokens_file: str, threads: int) -> dict[str, Any]:
    """Measure CPU seconds of one forward and the peak memory of this process."""
    import time

    import torch

    torch.set_num_threads(threads)
    from headscope.attention.statistics import Request
    from headscope.model.model import open_model

    model = open_model(folder)
    body = model.hf.base_model
    model.run(torch.randint(3, 1000, (1, 8)))  # where places are is looked up once in a model's life
    tokens = torch.tensor(json.loads(Path(tokens_file).read_text()))
    loaded = peak_kib()

    def plain(ids: Any) -> None:
        with torch.no_grad():
            model.hf(input_ids=ids, use_cache=False)

    def empty(ids: Any) -> None:
        with model.session() as session:
            session.run(ids)

    def everything(ids: Any) -> None:
        kept.append(model.run(ids))

    def stored(ids: Any) -> None:
        from headscope.model.transformers.attention_hook import implementation

        with torch.no_grad(), implementation(model.hf, "eager"):
            body(input_ids=ids, use_cache=False, output_attentions=True)

    def streamed(ids: Any) -> None:
        with model.session() as session:
            rows = session.stream(Request(bands=(1, 8, 64)))
            session.run(ids, head=False)
            rows.take()

    def scored(ids: Any) -> None:
        with model.session() as session:
            captured = session.capture(f"repeats:{PERIOD}")
            session.run(ids, head=False)
            masses = torch.stack(list(captured.take()[f"repeats:{PERIOD}"].values()))
        later = masses[..., PERIOD + 1 :, :].mean((1, 3)).flatten(0, 1)
        kept.append(later[:, [0, 5, 4]].T.tolist())  # 1, N and N − 1 back

    kept: list[Any] = []  # what was captured stays in memory, as it does with a user
    ways = {PLAIN: plain, STREAM: streamed, EMPTY: empty, EVERYTHING: everything, STORED: stored, SCORED: scored}
    run: Callable[[Any], None] = ways[way]
    run(tokens[:1, :64])
    kept.clear()
    start = time.process_time()
    run(tokens)
    seconds = time.process_time() - start
    peak = peak_kib()
    scores = kept[0] if way == SCORED else None
    return {"seconds": seconds, "peak": peak * 1024, "loaded": loaded * 1024, "scores": scores}


def in_its_own_process(
    way: str, folder: str, tokens_file: str, threads: int, lens_python: str | None
) -> dict[str, Any] | None:
    """Measure one way in a fresh process; None where it cannot run."""
    if way in JOBS:
        if lens_python is None:
            return None
        command = [lens_python, "-c", TRANSFORMER_LENS, folder, tokens_file, str(threads), JOBS[way], str(PERIOD)]
    else:
        command = [sys.executable, "-m", "benchmarks.session", "--way", way, "--model", folder]
        command += ["--tokens-file", tokens_file, "--threads", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(done.stderr[-2000:], file=sys.stderr)
        return None
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    """Measure every way and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--transformer-lens", default=None, metavar="PYTHON")
    parser.add_argument("--ablations", action="store_true", help="ablate every head in turn")
    parser.add_argument("--nothing", action="store_true", help="sessions that capture nothing")
    parser.add_argument("--sessions", type=int, default=40, help="how many sessions --nothing opens; an even number")
    parser.add_argument("--heads", action="store_true", help="scores of all heads on repeated tokens")
    parser.add_argument("--way", choices=(*WAYS, SCORED), default=None, help=argparse.SUPPRESS)
    parser.add_argument("--tokens-file", default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.sessions % 2:
        parser.error(f"--sessions is {arguments.sessions}; it must be even: a round has two of them")
    if arguments.way is not None:
        print(json.dumps(measure_here(arguments.way, arguments.model, arguments.tokens_file, arguments.threads)))
        return
    if arguments.ablations or arguments.nothing:
        with_fixed_allocator()
        changes = ablations if arguments.ablations else partial(nothing, count=arguments.sessions)
        rounds(arguments.model, arguments.tokens, arguments.threads, changes)
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = save_plain(arguments.model, Path(scratch) / "model")
        tokens = Path(scratch) / "tokens.json"
        tokens.write_text(json.dumps(window_tokens(None if arguments.heads else arguments.tokens)))
        options = (folder, str(tokens), arguments.threads, arguments.transformer_lens)
        ways = HEAD_WAYS if arguments.heads else WAYS
        turns = [{way: in_its_own_process(way, *options) for way in ways} for _ in range(arguments.repeats)]
    size = f"{WINDOWS} windows of {2 * PERIOD + 1} tokens" if arguments.heads else f"n = {arguments.tokens}"
    setting = f"{arguments.model}, {size}, {arguments.threads} thread(s)"
    print(f"{setting}, medians of {arguments.repeats} turns\n")
    print("| way | CPU time | peak memory | time ratio | memory ratio |\n|---|---|---|---|---|")
    for way in ways:
        rows = [(turn[way], turn[PLAIN]) for turn in turns if turn[way] and turn[PLAIN]]
        if not rows:
            print(f"| {way} | not run | | | |")
            continue
        seconds = statistics.median(row["seconds"] for row, _ in rows)
        peak = statistics.median(row["peak"] for row, _ in rows)
        slower = statistics.median(row["seconds"] / plain["seconds"] for row, plain in rows)
        larger = statistics.median(row["peak"] / plain["peak"] for row, plain in rows)
        print(f"| {way} | {seconds:.2f} s | {peak / 2**20:.0f} MiB | {slower:.2f} × | {larger:.2f} × |")
    if arguments.heads:
        print_agreement(turns[0])


def print_agreement(turn: dict[str, dict[str, Any] | None]) -> None:
    """How far the scores of each way lie from those of headscope."""
    ours = turn[SCORED]
    for way in (LENS_MAPS, LENS_DETECTOR):
        theirs = turn[way]
        if ours is None or theirs is None:
            continue
        for name, a, b in zip(("previous", "duplicate", "induction"), ours["scores"], theirs["scores"], strict=True):
            largest = max(abs(x - y) for x, y in zip(a, b, strict=True))
            print(f"{way}, {name}: largest difference of a head's score {largest:.2g}")


def with_fixed_allocator() -> None:
    """Start this benchmark anew with an allocator that keeps all memory, unless it runs with it."""
    fixed = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 34)}
    if any(os.environ.get(name) != size for name, size in fixed.items()):
        command = [sys.executable, "-m", "benchmarks.session", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, **fixed})


def rounds(name: str, n: int, threads: int, changes: Callable[[Any], list[Callable[[Any], object]]]) -> None:
    """Run two sessions and two plain forwards in each round, in random order.

    A machine that slows down, and what a forward leaves in the caches for the next, then favours neither. The ratio of
    the two plain forwards shows what the measurement cannot tell apart.
    """
    import random
    import time

    import torch

    torch.set_num_threads(threads)
    from headscope.maths.resampling.clustered_mean import clustered_mean
    from headscope.model.model import open_model

    model = open_model(name)
    tokens = torch.randint(3, 1000, (1, n), generator=torch.Generator().manual_seed(0))

    def plain() -> None:
        with torch.no_grad():
            model.hf(input_ids=tokens, use_cache=False)

    def changed(change: Callable[[Any], object]) -> None:
        with model.session() as session:
            change(session)
            session.run(tokens)

    def seconds(run: Callable[[], None]) -> float:
        start = time.process_time()
        run()
        return time.process_time() - start

    sessions = changes(model)
    seconds(plain), changed(sessions[0])  # warm up
    order = random.Random(0)
    plain_seconds, session_seconds = [], []
    for pair in zip(sessions[::2], sessions[1::2], strict=True):
        forwards = [(plain_seconds, plain)] * 2 + [(session_seconds, partial(changed, change)) for change in pair]
        order.shuffle(forwards)
        for timed, run in forwards:
            timed.append(seconds(run))
    plain_pairs, session_pairs = (
        torch.tensor(times).double().reshape(-1, 2) for times in (plain_seconds, session_seconds)
    )
    setting = f"{name}, n = {n}, {threads} thread(s), {len(sessions)} sessions and as many plain forwards"
    print_ratio(setting, clustered_mean(session_pairs.sum(1), plain_pairs.sum(1)))
    print_ratio("a plain forward against the other of its round", clustered_mean(plain_pairs[:, 1], plain_pairs[:, 0]))


def print_ratio(setting: str, ratio: Any) -> None:
    """A ratio of times with its interval over rounds."""
    print(f"{setting}: {ratio.mean:.4f} × (95 % interval over rounds {ratio.low:.4f} to {ratio.high:.4f})")


def ablations(model: Any) -> list[Callable[[Any], object]]:
    """Each head ablated alone."""
    labels = [site.head_label(head) for site in model.sites for head in range(site.n_heads)]
    return [lambda session, label=label: session.ablate(label) for label in labels]


def nothing(model: Any, count: int) -> list[Callable[[Any], object]]:
    """Sessions that neither capture nor change anything."""
    return [lambda session: None] * count


def save_plain(model: str, folder: Path) -> str:
    """Save the model as a plain folder, so that every way opens the same file."""
    from headscope.model.model import open_model

    opened = open_model(model)
    opened.hf.save_pretrained(folder)
    if opened.tokenizer is not None:
        opened.tokenizer.save_pretrained(folder)
    return str(folder)


if __name__ == "__main__":
    main()
