"""How much two tokens tell of each other at each distance: the table of the profile."""

from collections.abc import Iterator

from headscope.lenses.dependent.jackknife import jackknife
from headscope.lenses.dependent.pooled import Pooled
from headscope.lenses.dependent.tables import Row, number
from headscope.lenses.dependent.windows import Sampled
from headscope.lenses.figures.layout import place


def profile_rows(sampled: Sampled, pooled: Pooled) -> Iterator[Row]:
    """One row per pool of distances: the information less its bias, its interval, and its null."""
    w, k = sampled.windows, pooled.components
    every = pooled.information.T.roll(1, 0)
    shuffled = pooled.shuffled[:, :, -1].mean(0)
    raw, half = jackknife(every)
    value = w * raw - (w - 1) * every[1:].mean(0)
    for pool, (low, high) in enumerate(pooled.spans):
        cross = pooled.fits.covariance[pool, -1, :k, k:].diagonal().sum()
        numbers = {
            "value": value[pool],
            "low": value[pool] - half[pool],
            "high": value[pool] + half[pool],
            "null": shuffled[pool],
            "raw": raw[pool],
            "covariance": cross,
        }
        counts = {"dimensions": k, "samples": int((pooled.pool == pool).sum()) * w, "windows": w}
        named = {key: number(x) for key, x in numbers.items()}
        yield {**place(sampled.site, None), "distance": low, "upto": high, **named, **counts}
