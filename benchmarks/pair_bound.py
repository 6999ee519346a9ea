"""Bound what an encoder can keep when pairs of queries and keys are dropped: the largest weights of the map itself.

    python -m benchmarks.pair_bound [--model minilm] [--text moby-dick:test] [--tokens 480] [--texts 16] [--share 0.25]

No mechanism can know the map before it computes it, so what is best for the map is a bound for what a plan can do that
drops as many pairs of every head: the largest weights of each row, and the largest of each head, normalised again. The
other rows do not drop the rest. It gets the mean of its weights, which no plan of pairs does; or the runs of 16 or 8
keys with the most weight are read exactly, and of every other run the mean key. Printed: the cosine of the embeddings
with the original's, their mean and the least.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


RUNS = (16, 8)  # keys that are read as one; the first is a multiple of the others


def main() -> None:
    """Measure the bounds and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--text", default="moby-dick:test")
    parser.add_argument("--tokens", type=int, default=480)
    parser.add_argument("--texts", type=int, default=16)
    parser.add_argument("--share", type=float, default=0.25)
    arguments = parser.parse_args()
    if arguments.tokens % RUNS[0]:
        parser.error(f"--tokens must be a multiple of {RUNS[0]}, got {arguments.tokens}")
    import headscope as hs
    from headscope.experiments.swap.yardstick import Embeddings
    from headscope.experiments.text_sample import spread, windows_of

    model, yardstick = hs.open(arguments.model), Embeddings()
    windows = spread(windows_of(model, hs.text(arguments.text), arguments.tokens), arguments.texts)
    originals = [yardstick.reading(model, tokens) for tokens in windows]
    bounds: dict[str, Callable[[Tensor], Tensor]] = {
        "the largest weights of each row": partial(largest_of_rows, share=arguments.share),
        "the largest weights of each head": partial(largest_of_heads, share=arguments.share),
        "the largest of each row, the mean for the others": partial(with_mean, share=arguments.share),
        **{
            f"the largest runs of {run} keys, the mean key for the others": partial(
                with_runs, share=arguments.share, run=run
            )
            for run in RUNS
        },
    }
    print(
        f"{arguments.model}, {len(windows)} texts of {arguments.tokens} tokens of {arguments.text}, {arguments.share}"
    )
    print("\n| kept | mean cosine | least cosine |\n|---|---|---|")
    for name, changed in bounds.items():
        with model.session() as session:
            session.patch("all", "pattern", changed)
            readings = [yardstick.reading(model, tokens) for tokens in windows]
        loss = yardstick.loss(readings, originals, windows)
        print(f"| {name} | {1 - loss.mean:.4f} | {1 - loss.high:.4f} |", flush=True)


def largest_of_rows(pattern: Tensor, share: float) -> Tensor:
    """Each row with its largest weights alone, normalised."""
    kept = pattern.where(_is_large(pattern, share), 0.0)
    return kept / kept.sum(-1, keepdim=True)


def largest_of_heads(pattern: Tensor, share: float) -> Tensor:
    """Each head with its largest weights alone, rows normalised; a row without any is 0."""
    flat = pattern.flatten(2)
    kept = flat.where(_is_large(flat, share), 0.0).view_as(pattern)
    return kept / kept.sum(-1, keepdim=True).clamp_min(1e-9)


def with_mean(pattern: Tensor, share: float) -> Tensor:
    """Each row with its largest weights, and the mean of the others in their places."""
    is_large = _is_large(pattern, share)
    others = pattern.where(~is_large, 0.0).sum(-1, keepdim=True) / (~is_large).sum(-1, keepdim=True)
    return pattern.where(is_large, others)


def with_runs(pattern: Tensor, share: float, run: int) -> Tensor:
    """Each row with its largest runs of keys, and in place of every other run its mean key; normalised.

    The score of a mean key is the mean of the scores, and so its weight the geometric mean. A run that is read as one
    key counts as one pair.
    """
    runs = pattern.unflatten(-1, (-1, run))
    n_runs = runs.shape[-2]
    count = max(1, int((share * n_runs * run - n_runs) / (run - 1)))
    mass = runs.sum(-1)
    is_kept = mass >= mass.topk(count, -1).values[..., -1:]
    mean_keys = runs.clamp_min(1e-30).log().mean(-1, keepdim=True).exp()
    changed = runs.where(is_kept[..., None], mean_keys).flatten(-2)
    return changed / changed.sum(-1, keepdim=True)


def _is_large(weights: Tensor, share: float) -> Tensor:
    count = int(share * weights.shape[-1])
    return weights >= weights.topk(count, -1).values[..., -1:]


if __name__ == "__main__":
    main()
