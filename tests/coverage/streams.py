"""Residual streams of a known law, of which a sample holds 64 of 250 windows: what the lens `gaussian` is handed."""

from math import e, log, pi

import torch

from headscope.lenses.gaussian.component_curve import kurtosis_rows
from headscope.lenses.gaussian.divergence import next_row, position_rows
from headscope.lenses.gaussian.information import information_rows, joint_rows, paired
from headscope.lenses.gaussian.spread import spread_rows
from headscope.lenses.gaussian.stream import First, Kept, Layer
from headscope.lenses.shared.row_sample import Plan, Sample, Stream, Window
from headscope.maths.gaussians.moments import Moments
from tests.lenses.planted import site

DRAWN, SEEN, LENGTH, D, RHO, FIRST, FACTOR = 64, 250, 17, 3, 0.5, 5.0, 1.5
SCALES = torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64)
TOKENS = 3


def autoregressive(generator):
    """Windows of x_i = ρ x_(i−1) + √(1 − ρ²) ε_i in every coordinate, times `SCALES`, around 1."""
    x = torch.randn(SEEN, LENGTH, D, generator=generator, dtype=torch.float64)
    for i in range(1, LENGTH):
        x[:, i] = RHO * x[:, i - 1] + (1 - RHO**2) ** 0.5 * x[:, i]
    return x * SCALES + 1


def layer_of(x, number):
    """The layer of these windows: moments of all of them, rows of the first 64."""
    skipped = FIRST * x[:, :1]
    plan = Plan(DRAWN * LENGTH, DRAWN, (1, 2), 1)
    of = site(layer=number)

    def sample(rows, first):
        positions = torch.arange(first, first + rows.shape[1])
        streams = [Stream(positions, window, LENGTH) for window in rows[:DRAWN]]
        return Sample(plan, tuple(Window(index, {of: stream}) for index, stream in enumerate(streams)), SEEN)

    rows = x[:, 1:]
    fold = Kept(Moments.of(rows.reshape(-1, D)), First.of(skipped.reshape(-1, D)), sample(rows, 1), sample(skipped, 0))
    return Layer.of(fold, of, D)


def truths():
    """What each quantity is for this law; positions are pooled by octaves and all have the same entropy."""
    variance = SCALES.square()
    trace, rows = float(variance.sum()), LENGTH - 1
    entropy = 0.5 * float((2 * pi * e * variance).log().sum())
    pair = -D / 2 * log(1 - RHO**2)
    gap = float((1 / (FACTOR**2 * variance)).sum())
    distance = float(variance.square().sum()) - trace**2 / D
    first = FIRST**2 * trace + rows / (rows + 1) * (FIRST - 1) ** 2 * D
    return {
        "entropy_nats": entropy,
        "effective_dimension": trace**2 / float(variance.square().sum()),
        "mean_share": D / (D + trace),
        "shrinkage": (trace**2 + float(variance.square().sum())) / (SEEN * rows * distance),
        "first_share": 1 - rows * trace / (rows * trace + first),
        "kl_next_nats": 0.5 * (D / FACTOR**2 - D + D * log(FACTOR**2) + gap),
        "position_entropy": entropy,
        "information 1": pair,
        "information 2": -D / 2 * log(1 - RHO**4),
        "joint_entropy_nats": TOKENS * entropy - (TOKENS - 1) * pair,
        "total_correlation_nats": (TOKENS - 1) * pair,
        "last_token_nats": pair,
        "relative_kurtosis": 0.0,
    }


def rows_of(seed):
    """The rows of one text by the name of what they estimate."""
    generator = torch.Generator().manual_seed(seed)
    layer, follower = (layer_of(autoregressive(generator) * factor + shift, number) for number, factor, shift in
                       ((0, 1.0, 0.0), (1, FACTOR, 1 - FACTOR + 1)))  # fmt: skip
    rows_by_name = {row["quantity"]: row for row in spread_rows(layer)}
    rows_by_name["kl_next_nats"] = next_row(layer, follower)
    rows_by_name["position_entropy"] = next(row for row in position_rows(layer) if row["quantity"] == "entropy_nats")
    ((_, pairs),) = paired([layer], (1, 2), TOKENS)
    rows_by_name |= {f"information {row['distance']}": row for row in information_rows(layer, pairs)}
    rows_by_name |= {row["quantity"]: row for row in joint_rows(layer, pairs)}
    return rows_by_name | {"relative_kurtosis": list(kurtosis_rows(layer))[-1]}
