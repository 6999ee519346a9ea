"""Compare a prefill through a plan with the original's, in one process and in turns.

    python -m benchmarks.swap [--model smollm2] [--plan plan.json] [--text moby-dick:test] [--lengths 1024,2048,8192]
                              [--repeats 3] [--compiled]

For each length: how many times as fast the whole prefill is, and attention alone; and what the machinery costs where
nothing is replaced (a plan without heads against the model as it is). Times are wall-clock seconds of the threads that
torch has, medians over turns with the least and the most of a turn. Without `--plan` every head attends through a
window of 256 tokens and the first token, which shows the ceiling. The texts decide nothing but the tokens; `headscope
swap` measures the quality of a plan.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

CEILING = "band_sparse(left=256, right=0, columns=(0,))"


def main() -> None:
    """Measure every length and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--plan", default=None)
    parser.add_argument("--text", default="moby-dick:test")
    parser.add_argument("--lengths", default="1024,2048,4096,8192")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--compiled", action="store_true", help="with the compiled kernel")
    arguments = parser.parse_args()
    import torch

    import headscope as hs
    from headscope.api import use_compiled
    from headscope.experiments.text_sample import windows_of

    if arguments.compiled:
        use_compiled()
    model = hs.open(arguments.model)
    plan = hs.Plan({CEILING: "all"}) if arguments.plan is None else hs.Plan.read(arguments.plan)
    text = hs.text(arguments.text)
    print(f"{arguments.model}, {arguments.text}, {torch.get_num_threads()} thread(s), {arguments.repeats} turns\n")
    print(
        "| tokens | prefill, s | through the plan, s | speed-up | attention alone | nothing replaced |\n"
        + "|---" * 6
        + "|"
    )
    for length in map(int, arguments.lengths.split(",")):
        tokens = windows_of(model, text, length).full[:1]

        def prefill(tokens: Any = tokens) -> None:
            with torch.no_grad():
                model.hf(input_ids=tokens, use_cache=True, logits_to_keep=1)

        ways = {"original": prefill, "plan": within(model, plan, prefill), "empty": within(model, hs.Plan({}), prefill)}
        print(row(length, turns(ways, arguments.repeats)), flush=True)


def within(model: Any, plan: Any, run: Callable[[], None]) -> Callable[[], float]:
    """Run something through a plan; gives the seconds that its attention calls took."""
    import headscope as hs
    from headscope.model.session.attention_calls import AttentionCalls

    def timed() -> float:
        answer, seconds = AttentionCalls.answer, 0.0

        def counted(calls: Any, *call: Any) -> Any:
            nonlocal seconds
            start = time.perf_counter()
            try:
                return answer(calls, *call)
            finally:
                seconds += time.perf_counter() - start

        with patch.object(AttentionCalls, "answer", counted), hs.apply(plan, model):
            run()
        return seconds

    return timed


def turns(ways: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds of each way, whole and in attention, turn by turn, after one turn that warms up."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for turn in range(repeats + 1):
        names = list(ways) if turn % 2 else list(reversed(ways))
        for name in names:
            start = time.perf_counter()
            attention = ways[name]() or 0.0
            if turn:
                times[name].append((time.perf_counter() - start, attention))
    return times


def row(length: int, times: dict[str, list[tuple[float, float]]]) -> str:
    """A line of the table."""
    original, plan, empty = (times[name] for name in ("original", "plan", "empty"))

    def ratio(slow: list[float], fast: list[float]) -> str:
        ratios = [a / b for a, b in zip(slow, fast, strict=True)]
        return f"{statistics.median(ratios):.2f} × ({min(ratios):.2f}–{max(ratios):.2f})"

    whole = [[seconds for seconds, _ in way] for way in (original, plan, empty)]
    attention = [[seconds for _, seconds in way] for way in (empty, plan)]
    medians = [f"{statistics.median(seconds):.2f}" for seconds in whole[:2]]
    cells = [str(length), *medians, ratio(whole[0], whole[1]), ratio(*attention), ratio(whole[2], whole[0])]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
