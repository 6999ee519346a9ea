"""What the lens `gaussian` says in words: its method, its warnings and its headlines."""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from scipy import stats

from headscope.lenses.residual.information import SHUFFLES
from headscope.lenses.residual.normality import APART
from headscope.lenses.residual.stream import PER_DIMENSION, Layer
from headscope.maths import normality


def method(layers: Sequence[Layer], skipped: int, step: int) -> str:
    """How the numbers were obtained."""
    drawn, seen = max((one.n_windows, one.seen) for one in layers)
    rows = max(len(one.position) for one in layers)
    kept = rows == max(one.moments.count for one in layers)
    sampled = (
        f"every row of all {seen} windows"
        if kept
        else f"a sample of {rows} rows per layer from {drawn} of {seen} windows, drawn by a hash of their tokens"
    )
    left = f" The first {f'{skipped} tokens' if skipped > 1 else 'token'} of each window left out." if skipped else ""
    layered = f" Every {step}th layer only: covariances of all would not fit." if step > 1 else ""
    return (
        "Layers: every row, moments in float64, Ledoit–Wolf shrinkage for the entropy; intervals from the sample. "
        f"Divergence, positions, normality, information and joint Gaussian: {sampled}; for normality rows at least "
        f"{APART} tokens apart. "
        f"At least {PER_DIMENSION} samples per dimension everywhere. Null of the information: up to {SHUFFLES} "
        f"pairings of each window with another.{left}{layered}"
    )


def warnings(
    tables: Mapping[str, pl.DataFrame], unseen: Sequence[str], distances: Sequence[int], components: int
) -> tuple[str, ...]:
    """What could not be estimated, and why."""
    found = []
    if unseen:
        found.append(f"Too few rows of {', '.join(unseen)} were seen.")
    entropy = tables["layers"].filter(pl.col("quantity") == "entropy_nats")
    full = tables["layers"].filter(pl.col("quantity") == "effective_dimension")
    p, n, d = (min(column.to_list()) for column in (entropy["dimensions"], entropy["samples"], full["dimensions"]))
    if p < d:
        found.append(
            f"Entropy in the {p} largest of {d} principal components: {n} samples allow no more, or the others have "
            "no variance."
        )
    told = set(tables["information"]["distance"].to_list())
    if missing := [str(distance) for distance in distances if distance not in told]:
        found.append(
            f"No information of tokens at distance {', '.join(missing)}: too few pairs, or one determines the other."
        )
    if tables["normality"].is_empty():
        found.append(f"Normality was not tested: it needs {normality.FEWEST} rows {APART} tokens apart.")
    k = components
    used = min(tables["information"]["dimensions"].to_list(), default=k)
    if used < k:
        found.append(f"Information in {used} principal components, not {k}: there are too few pairs for more.")
    if tables["joint"].is_empty():
        found.append("No joint Gaussian of neighbouring tokens: too few of them, or one determines the others.")
    return tuple(found)


def sentences(tables: Mapping[str, pl.DataFrame]) -> tuple[str, ...]:
    """What stands out, in numbers."""
    found = (
        _normality_sentence(tables["normality"]),
        _dimension_sentence(tables["layers"]),
        _information_sentence(tables["information"], tables["joint"]),
    )
    return tuple(sentence for sentence in found if sentence)


LEVEL = 0.01
# Skewness and excess kurtosis beyond which a distribution looks different, not only tests so.
FAR = (0.5, 1.0)
# Information is told apart from the shuffled one beyond so many standard deviations.
CLEAR = 3.0


def _normality_sentence(table: pl.DataFrame) -> str:
    single = table.filter(pl.col("component").is_not_null(), pl.col("p").is_not_null())
    if single.is_empty():
        return ""
    keys = ["stack", "kind", "layer", "component"]
    # Two tests per component: half the level each.
    least = single.group_by(keys).agg(pl.col("p").min())
    many, rejected = least.height, least.filter(pl.col("p") < LEVEL / 2).height
    chance = float(stats.binom.sf(rejected - 1, many, LEVEL)) if rejected else 1.0
    skew, tails = (
        float(np.median(np.abs(single.filter(pl.col("quantity") == name)["value"].to_numpy())))
        for name in ("skewness", "excess_kurtosis")
    )
    verdict = (
        "are far from Gaussian"
        if rejected > many / 2 and (skew > FAR[0] or tails > FAR[1])
        else "are not Gaussian, but not far from it either"
        if rejected > many / 2
        else "are not quite Gaussian"
        if chance < LEVEL
        else "show no sign of not being Gaussian"
    )
    together = table.filter(pl.col("quantity") == "mardia_kurtosis").sort("z", maintain_order=True)
    middle = together.row(together.height // 2, named=True)
    return (
        f"Residual streams {verdict}: {rejected} of {many} principal components reject it at the 1 % level (chance: "
        f"{LEVEL * many:.2g}), the median one has |skewness| {skew:.2g} and |excess kurtosis| {tails:.2g}; Mardia's "
        f"kurtosis in the median layer, {_where(middle)}, is {middle['value']:.3g} where "
        f"Gaussian samples have {middle['null']:.3g} (z = {middle['z']:.1f})."
    )


def _where(row: Mapping[str, object]) -> str:
    stack = "" if row["stack"] == "only" else f"{row['stack']}."
    return f"{stack}L{row['layer']}"


def _dimension_sentence(table: pl.DataFrame) -> str:
    rows = table.filter(pl.col("quantity") == "effective_dimension", pl.col("value").is_not_null())
    if rows.is_empty():
        return ""
    rows = rows.sort("value", maintain_order=True)
    least, most = rows.row(0, named=True), rows.row(-1, named=True)
    entropy = table.filter(pl.col("quantity") == "entropy_nats", pl.col("value").is_not_null())
    span = f"The effective dimension is {least['value']:.3g} in {_where(least)}"
    if rows.height > 1:
        span = (
            f"The effective dimension goes from {least['value']:.3g} in {_where(least)} to {most['value']:.3g} in "
            f"{_where(most)}"
        )
    lack = ""
    if not entropy.is_empty():
        gaps = (entropy["null"] - entropy["value"]).to_numpy() / entropy["dimensions"].to_numpy()
        lack = (
            f"; the entropy of the median layer lies {float(np.median(gaps)):.2g} nats per dimension below that of the "
            "isotropic Gaussian with its variance"
        )
    return f"{span} (of {least['dimensions']}; isotropic samples: {least['null']:.3g}){lack}{_first_clause(table)}."


def _first_clause(table: pl.DataFrame) -> str:
    """Told where the tokens that are left out would have been more than a tenth of all variance."""
    rows = table.filter(pl.col("quantity") == "first_share", pl.col("value").is_not_null())
    top = rows.sort("value", descending=True, maintain_order=True).row(0, named=True) if rows.height else None
    if top is None or top["value"] < max(0.1, 2 * top["null"]):
        return ""
    return (
        f"; the first tokens, which are left out, would be {100 * top['value']:.0f} % of the variance in {_where(top)} "
        f"({100 * top['null']:.1g} % of the rows)"
    )


def _information_sentence(table: pl.DataFrame, joint: pl.DataFrame) -> str:
    rows = table.filter(pl.col("value").is_not_null())
    if rows.is_empty():
        return ""
    layers = rows.select("stack", "kind", "layer").unique(maintain_order=True)
    middle = layers.row(layers.height // 2, named=True)
    here = rows.filter(*(pl.col(key) == value for key, value in middle.items())).sort("distance")
    near, judged = here.row(0, named=True), here.filter(pl.col("z").is_not_null())
    told = f"tokens at distance {near['distance']} share {near['value']:.2g} nats"
    if near["z"] is None:
        chance = "; there are too few windows to shuffle"
    else:
        far = judged.row(-1, named=True)
        clear = judged.filter(pl.col("z") > CLEAR)["distance"].to_list()
        reach = f"up to distance {clear[-1]}" if clear else "at no distance"
        chance = (
            f" where those of shuffled windows share {near['null']:.2g} (z = {near['z']:.1f}); they share clearly more "
            f"than shuffled ones {reach}"
        )
        if judged.height > 1:
            chance += f" (at {far['distance']}: z = {far['z']:.1f})"
    return (
        f"In {near['dimensions']} principal components of {_where(middle)}, {told}{chance}{_fall_clause(rows)}"
        f"{_joint_clause(joint, middle)}."
    )


def _fall_clause(rows: pl.DataFrame) -> str:
    """Whether information falls with distance, as the theory assumes: rank correlations of the layers."""
    found = []
    for _, here in rows.group_by(["stack", "kind", "layer"], maintain_order=True):
        if here["distance"].n_unique() > 2:
            found.append(float(stats.spearmanr(here["distance"].to_numpy(), here["value"].to_numpy()).statistic))
    falling = [one for one in found if one < 0]
    if not found:
        return ""
    assumed = "as the theory assumes" if len(falling) == len(found) else "where the theory assumes it in all"
    return (
        f"; it falls with distance in {len(falling)} of {len(found)} layers, {assumed} (median rank correlation "
        f"{float(np.median(found)):.2f})"
    )


def _joint_clause(joint: pl.DataFrame, place: Mapping[str, object]) -> str:
    """What a run of neighbours shares, in as many components as there are samples for."""
    rows = joint.filter(
        pl.col("quantity") == "last_token_nats", *(pl.col(key) == value for key, value in place.items())
    )
    if rows.is_empty() or rows["value"].item() is None:
        return ""
    row = rows.row(0, named=True)
    null = "" if row["null"] is None else f" (shuffled: {row['null']:.2g})"
    before = f"the {row['tokens'] - 1} before it" if row["tokens"] > 2 else "the one before it"
    return f"; in {row['dimensions']} components a token shares {row['value']:.2g} nats with {before}{null}"
