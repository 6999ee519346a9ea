"""What a repair gained: tables and the sentence."""

from collections.abc import Mapping

import polars as pl

from headscope.core import Headline
from headscope.experiments.swap.quality import Quality, quality_ratio
from headscope.experiments.swap.repair import Repair
from headscope.experiments.swap.tables import interval_columns
from headscope.lenses.shared.effects import ratio_effect
from headscope.lenses.shared.plots import place


def gain_table(before: Mapping[int, Quality], after: Mapping[int, Quality], repair: Repair) -> pl.DataFrame:
    """A row per length: perplexity of the repaired plan over that of the plan."""
    rows = [
        {
            "tokens": length,
            **interval_columns("gain", quality_ratio(after[length], before[length])),
            "windows": len(after[length].tokens),
            "trained_tokens": repair.tokens,
        }
        for length in before
    ]
    schema = {"tokens": pl.Int64, "gain": pl.Float64, "gain_low": pl.Float64, "gain_high": pl.Float64}
    return pl.DataFrame(rows, schema={**schema, "windows": pl.Int64, "trained_tokens": pl.Int64})


def layer_table(repair: Repair) -> pl.DataFrame:
    """A row per layer with swapped heads: its error before and after the repair."""
    rows = [
        {
            **place(layer.site, None),
            "swapped_heads": layer.n_heads,
            "error": layer.error,
            "repaired_error": layer.repaired_error,
            "trained": layer.trained,
        }
        for layer in repair.layers
    ]
    schema = {"stack": pl.String, "kind": pl.String, "layer": pl.Int64, "head": pl.Int64, "swapped_heads": pl.Int64}
    return pl.DataFrame(
        rows, schema={**schema, "error": pl.Float64, "repaired_error": pl.Float64, "trained": pl.String}
    )


def repair_headline(gains: pl.DataFrame, layers: pl.DataFrame, text_name: str) -> Headline:
    """What the repair gained at the longest length, or that it gained nothing."""
    row = gains.to_dicts()[-1]
    low, high = row["gain_low"], row["gain_high"]
    interval = "one window gives no interval" if low is None else f"95 % interval {low:.4f} to {high:.4f}"
    if low is None or low <= 1 <= high:
        outcome = "so no gain is shown" if low is None else "it holds 1, so no gain is shown"
    else:
        outcome = "a gain" if row["gain"] < 1 else "a loss: use the plan without the repair"
    n_layers = len(layers.filter(pl.col("trained") != ""))
    return Headline(
        full=f"At {row['tokens']} tokens, perplexity on {text_name} with the repaired plan is {row['gain']:.4f} times "
        f"that with the plan ({interval}, over {row['windows']} windows: {outcome}). {n_layers} of {len(layers)} "
        f"layers were changed, after {row['trained_tokens']} tokens of the split fit.",
        short=f"The repair changes the plan's perplexity by {100 * (row['gain'] - 1):+.2f} %.",
        effect=ratio_effect(row["gain"], 1.0),
        answer="repaired plan's perplexity over the plan's",
        value=f"{row['gain']:.4f}",
        null="1",
    )
