"""Measure the streaming Gaussian moments: any split, time, memory, long windows.

    python -m benchmarks.gaussian [--model smollm2] [--rounds 3] [--long 8192] [--only split,time,memory,long]

- split: the lens `gaussian` on one text, folded whole, batch by batch and merged in other orders; the largest relative
  difference of any number in mean, covariance or tables.
- time: batches of text through the model with the fold, and through the forward alone; CPU seconds of one
  thread, in turns; the median of the ratios within a turn.
- memory: what the fold keeps after a text and after one twice as long.
- long: one window of many tokens through the base model, plain and with the lenses that take a forward in pieces, alone
  and together in one pass of the pipeline; each in its own process, so that its peak memory is its own.
"""

import argparse
import json
import subprocess
import sys
import time as clock
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.session import peak_kib
from headscope.attention.bench.timing import interleaved, one_thread, ratio

PLAIN = "plain forward"


def ways() -> tuple[str, ...]:
    """The forward alone, each streaming lens, and all streaming lenses together."""
    from headscope.lenses import lenses
    from headscope.lenses.lens import AS_IS

    needs = {name: lens.needs(lens.params()) for name, lens in lenses().items()}
    streaming = [name for name, need in needs.items() if need.text and need.pieces and need.variants == (AS_IS,)]
    return (PLAIN, *streaming, " and ".join(streaming))


def tokens_of(model: Any, windows: int, length: int) -> Tensor:
    """The shipped text, cut into windows; it starts again where it ends."""
    from headscope.corpora import text_of

    text = torch.cat([model.encode(document) for document in text_of(None).documents])
    n_tokens = windows * length
    return text.repeat(-(-n_tokens // len(text)))[:n_tokens].reshape(windows, length)


def folded(model: Any, batches: Sequence[Tensor]) -> Any:
    """The state of the lens after these batches, fed in pieces as the pipeline does."""
    from headscope.lenses import lens_named
    from headscope.lenses.lens import AS_IS, Batch, TextSize

    lens = lens_named("gaussian")
    params = lens.params()
    size = TextSize(sum(map(len, batches)), batches[0].shape[1])
    needs, state = lens.needs(params), lens.start(params, model.spec, model.sites, size)
    with model.session() as session:
        captured = session.capture(*sorted(needs.captures))
        for tokens in batches:
            real = torch.ones_like(tokens, dtype=torch.bool)

            def add(captures: Any, tokens: Tensor = tokens, real: Tensor = real) -> None:
                nonlocal state
                state = lens.update(state, Batch(AS_IS, tokens, real, {}, {}, captures))

            session.run(tokens, each=lambda: add(captured.drain()))
            add(captured.take())
    return state


def split(model: Any) -> None:
    """Any split of the corpus gives the same moments and tables."""
    from headscope.lenses import lens_named

    lens, text = lens_named("gaussian"), tokens_of(model, 12, 256)
    # Equal batches of windows: the model's float32 numbers depend on the number of windows in a batch.
    parts = [folded(model, [window[None]]) for window in text]
    state = folded(model, [window[None] for window in text])
    pairs = [lens.merge(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    tree = lens.merge(
        lens.merge(pairs[0], pairs[1]), lens.merge(pairs[2], lens.merge(pairs[3], lens.merge(*pairs[4:])))
    )
    right = parts[-1]
    for part in reversed(parts[:-1]):
        right = lens.merge(part, right)
    print("| split of 12 windows | mean | covariance | tables |\n|---|---|---|---|")
    expected = lens.finish(state, None).tables
    for name, other in (("pairs, merged as a tree", tree), ("each alone, merged from the right", right)):
        worst = {"mean": 0.0, "covariance": 0.0}
        for site, sums in state.kept.items():
            a, b = sums.moments, other.kept[site].moments
            for quantity, x, y in (("mean", a.mean, b.mean), ("covariance", a.covariance(), b.covariance())):
                worst[quantity] = max(worst[quantity], float((x - y).abs().max() / x.abs().max()))
        tables = lens.finish(other, None).tables
        difference = _largest_difference(expected, tables)
        print(f"| {name} | {worst['mean']:.1e} | {worst['covariance']:.1e} | {difference:.1e} |", flush=True)


def _largest_difference(ours: Any, theirs: Any) -> float:
    """The largest difference of a number, relative to the largest of its quantity."""
    worst = 0.0
    for name, table in ours.items():
        keys = ["quantity"] if "quantity" in table.columns else ["head"]
        numbers = [column for column, kind in table.schema.items() if kind.is_float()]
        pairs = table.with_columns(theirs[name][column].alias(f"{column} again") for column in numbers)
        for _, rows in pairs.group_by(keys):
            for column in numbers:
                x, y = (rows[title].drop_nulls().to_numpy() for title in (column, f"{column} again"))
                if len(x) and abs(x).max() > 0:
                    worst = max(worst, float(abs(x - y).max() / abs(x).max()))
    return worst


def time(model: Any, rounds: int) -> None:
    """Compare the forward with the fold and the forward alone."""
    from headscope.lenses import lens_named

    text, body = tokens_of(model, 16, 256).split(8), model.hf.base_model
    states = []

    def plain() -> None:
        with torch.no_grad():
            for tokens in text:
                body(input_ids=tokens, use_cache=False)

    def measured() -> None:
        states[:] = [folded(model, text)]

    with one_thread():
        alone, together = interleaved((plain, measured), rounds)
        start = clock.thread_time()
        lens_named("gaussian").finish(states[0], None)
        last = clock.thread_time() - start
    print(f"| {sum(map(torch.numel, text))} tokens, d = {model.spec.d_model} | CPU time | ratio |\n|---|---|---|")
    print(f"| forward alone | {min(alone):.1f} s | 1.00 × |")
    print(f"| with the moments and the sample of `gaussian` | {min(together):.1f} s | {ratio(together, alone):.2f} × |")
    print(f"| tables, once at the end | {last:.1f} s | |")


def memory(model: Any) -> None:
    """The size of the state after a text and after a text twice as long."""
    text = tokens_of(model, 160, 64)
    # New windows, so that the sample has something to choose from.
    text = (text + torch.arange(len(text))[:, None]) % model.spec.vocabulary
    once, twice = (sum(_bytes(folded(model, text[:windows].split(40)))) for windows in (80, 160))
    print(f"The fold holds {once / 2**20:.1f} MiB after 80 windows and {twice / 2**20:.1f} MiB after 160.")


def _bytes(state: Any) -> Iterator[int]:
    if isinstance(state, Tensor):
        yield state.numel() * state.element_size()
    elif is_dataclass(state) and not isinstance(state, type):
        for part in fields(state):
            yield from _bytes(getattr(state, part.name))
    elif isinstance(state, dict):
        for part in state.values():
            yield from _bytes(part)
    elif isinstance(state, (list, tuple)):
        for part in state:
            yield from _bytes(part)


def long(name: str, n: int) -> None:
    """Measure each way on one long window, each in its own process."""
    print(f"| one window of {n} tokens, base model | CPU time | peak memory | ratio |\n|---|---|---|---|")
    plain = 0.0
    for way in ways():
        command = [sys.executable, "-m", "benchmarks.gaussian", "--model", name, "--long", str(n), "--way", way]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stderr[-2000:], file=sys.stderr)
            print(f"| {way} | not run | | |")
            continue
        result = json.loads(done.stdout.strip().splitlines()[-1])
        plain = plain or result["peak"]
        share = result["peak"] / plain
        print(f"| {way} | {result['seconds']:.0f} s | {result['peak'] / 2**20:.0f} MiB | {share:.2f} × |", flush=True)


def one_way(name: str, n: int, way: str) -> None:
    """Run one way in this process, and print its time and peak memory."""
    from headscope.corpora import Text
    from headscope.model.model import open_model
    from headscope.pipeline import measure

    torch.set_num_threads(1)
    model = open_model(name)
    tokens = tokens_of(model, 1, n)
    with torch.no_grad():
        model.hf.base_model(input_ids=tokens[:, :64], use_cache=False)
    start = clock.process_time()
    if way == PLAIN:
        with torch.no_grad():
            model.hf.base_model(input_ids=tokens, use_cache=False)
    else:
        # A few extra tokens, dropped later: words at the seams may be cut differently.
        text = Text("long", (model.tokenizer.decode(tokens_of(model, 1, n + 16)[0]),))
        run = measure(model, text=text, lenses=way.split(" and "), window=n)
        is_complete = run.text is not None and (run.text.window, run.text.n_windows) == (n, 1)
        if not is_complete or any(finding.status == "failed" for finding in run.findings.values()):
            raise SystemExit(f"the lenses did not run on one window of {n} tokens")
    print(json.dumps({"seconds": clock.process_time() - start, "peak": peak_kib() * 1024}))


def main() -> None:
    """Measure the chosen parts and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--long", type=int, default=8192)
    parser.add_argument("--only", default="split,time,memory,long")
    parser.add_argument("--way", default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way is not None:
        one_way(arguments.model, arguments.long, arguments.way)
        return
    from headscope.model.model import open_model

    parts = arguments.only.split(",")
    model = None if parts == ["long"] else open_model(arguments.model)
    for name in parts:
        print(f"\n{name}\n", flush=True)
        if name == "long":
            long(arguments.model, arguments.long)
        elif name == "time":
            time(model, arguments.rounds)
        else:
            {"split": split, "memory": memory}[name](model)


if __name__ == "__main__":
    main()
