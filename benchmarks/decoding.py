"""Compare generation through plans with the original's, each with its own cache, in one process and in turns.

    python -m benchmarks.decoding [--model smollm2] [--text moby-dick:test] [--lengths 2048,8192] [--repeats 3]
                                  [--plan plan.json]

For each length and plan: the bytes of keys and values when the text is read, and how many tokens a second come at its
end. Without `--plan` three plans show the range: a window of 256 tokens with the first token in all heads, the same in
about half of the kv groups, and a plan without heads, which is what the machinery costs.
"""

import argparse
import statistics
from typing import Any

NEAR = "band_sparse(left=256, right=0, columns=(0,))"


def main() -> None:
    """Measure every length and plan and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--text", default="moby-dick:test")
    parser.add_argument("--lengths", default="2048,8192")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--plan", default=None)
    arguments = parser.parse_args()
    import torch

    import headscope as hs
    from headscope.experiments.swap.decoding import decoding_speed
    from headscope.experiments.text_sample import windows_of
    from headscope.progress import silent

    model = hs.open(arguments.model)
    plans = {"all heads": hs.Plan({NEAR: "all"}), "half of the groups": half(model), "no head": hs.Plan({})}
    if arguments.plan is not None:
        plans = {arguments.plan: hs.Plan.read(arguments.plan), "no head": hs.Plan({})}
    print(f"{arguments.model}, {arguments.text}, {torch.get_num_threads()} thread(s), {arguments.repeats} turns\n")
    print("| tokens | plan | cache, MB | original's, MB | tokens/s | original's | faster |\n" + "|---" * 7 + "|")
    for length in map(int, arguments.lengths.split(",")):
        tokens = windows_of(model, hs.text(arguments.text), length).full[0]
        for name, plan in plans.items():
            decoding = decoding_speed(model, plan, tokens, arguments.repeats, silent)
            if decoding is not None:
                print(row(name, decoding), flush=True)


def half(model: Any) -> Any:
    """A window in every second kv group, counted through all layers."""
    import headscope as hs
    from headscope.core.selection import selection_text

    groups = [(site, kv_head) for site in model.sites for kv_head in range(site.n_kv_heads)]
    heads: dict[Any, list[int]] = {}
    for site, kv_head in groups[::2]:
        heads.setdefault(site, []).extend(head for head in range(site.n_heads) if site.kv_head(head) == kv_head)
    return hs.Plan({NEAR: selection_text(heads)})


def row(name: str, decoding: Any) -> str:
    """A line of the table."""
    least, most = decoding.range
    cells = [
        str(decoding.n),
        name,
        f"{decoding.bytes / 1e6:.1f}",
        f"{decoding.original_bytes / 1e6:.1f}",
        f"{statistics.median(decoding.speeds):.1f}",
        f"{statistics.median(decoding.original_speeds):.1f}",
        f"{decoding.ratio:.2f} × ({least:.2f}–{most:.2f})",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
