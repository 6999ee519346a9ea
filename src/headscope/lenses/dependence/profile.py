"""The table of the profile: mutual information of two tokens by distance."""

from collections.abc import Iterator

from headscope.lenses.dependence.pooled import PairPools
from headscope.lenses.dependence.windows import SiteSample
from headscope.lenses.shared.plots import place
from headscope.lenses.shared.table import Row, number
from headscope.maths.resampling.jackknife import jackknife


def profile_rows(sampled: SiteSample, pooled: PairPools) -> Iterator[Row]:
    """A row for each pool: its information less that of different windows, and the interval.

    The bias lies between that of independent pairs and that of shuffled ones, and the interval allows for both.
    """
    w, k = sampled.windows, pooled.components
    every = pooled.information.T.roll(1, 0)
    shuffled = pooled.shuffled[:, :, -1].mean(0)
    raw, half = jackknife(every)
    value = raw - shuffled
    for pool, (low, high) in enumerate(pooled.spans):
        samples = int((pooled.pool == pool).sum()) * w
        slack = (shuffled[pool] - k * k / (2 * samples)).clamp_min(0.0)
        cross = pooled.fits.covariance[pool, -1, :k, k:].diagonal().sum()
        numbers = {
            "value": value[pool],
            "low": value[pool] - half[pool],
            "high": value[pool] + half[pool] + slack,
            "null": shuffled[pool],
            "raw": raw[pool],
            "covariance": cross,
        }
        counts = {"dimensions": k, "samples": samples, "windows": w}
        named = {key: number(x) for key, x in numbers.items()}
        yield {**place(sampled.site, None), "distance": low, "upto": high, **named, **counts}
