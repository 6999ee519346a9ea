"""What the study says: which figures are given again, the loss next to n-grams, and the induction head."""

from typing import Any

import polars as pl

from headscope.core import Headline
from headscope.experiments.tiny.settings import MINUTES
from headscope.experiments.tiny.tables import Tables
from headscope.experiments.tiny.text_losses import ALL, SHIPPED, TRAINED

_WINDOW = 512
_INDUCTION = "induction, 2x48"


def headlines(tables: Tables) -> tuple[Headline, ...]:
    """The bands, the loss, and induction."""
    return _bands(tables), _loss(tables["losses"]), _induction(tables["bands"])


def _bands(tables: Tables) -> Headline:
    bands, sizes = tables["bands"], tables["sizes"]
    outside = bands.filter(~pl.col("is_inside"))
    n_inside = bands.height - outside.height
    minutes = float(sizes.filter(size="minutes")[TRAINED].item())
    share = f"all {bands.height}" if outside.is_empty() else f"{n_inside} of {bands.height}"
    exceptions = "" if outside.is_empty() else f"; outside: {'; '.join(_outside(row) for row in _rows(outside))}"
    shortfall = "" if minutes >= 0.99 * MINUTES else f" The shipped weights had {MINUTES:g} minutes."
    return Headline(
        f"After {minutes:.1f} minutes, {share} figures lie in their bands{exceptions}.{shortfall}",
        f"{n_inside} of {bands.height} figures are given again.",
        n_inside / bands.height,
        answer="figures given again",
        value=f"{n_inside} of {bands.height}",
        null=f"all {bands.height}",
        figure="loss_by_window",
    )


def _outside(row: dict[str, Any]) -> str:
    return f"{row['figure']} {row['value']:.3f}, band {row['low']:.3f} to {row['high']:.3f}"


def _loss(losses: pl.DataFrame) -> Headline:
    rows = {
        row["system"]: row for row in _rows(losses.filter(pl.col("text") == ALL)) if row["window"] in (None, _WINDOW)
    }
    trained = rows[TRAINED]
    bits = {system: row["bits_per_byte"] for system, row in rows.items()}
    return Headline(
        f"On {trained['tokens']:,} held-out tokens in windows of {_WINDOW} the network has "
        f"{trained['nats_per_token']:.3f} nats per token, {bits[TRAINED]:.3f} bits per byte; the shipped weights "
        f"{bits[SHIPPED]:.3f}, Kneser–Ney bigrams {bits['bigram']:.3f}, trigrams {bits['trigram']:.3f}.",
        f"{bits[TRAINED]:.2f} bits per byte of held-out text; a bigram model has {bits['bigram']:.2f}.",
        min(max(1.0 - bits[TRAINED] / bits["bigram"], 0.0), 1.0),
        answer="loss in bits per byte",
        value=f"{bits[TRAINED]:.2f}",
        null=f"bigram {bits['bigram']:.2f}",
        figure="loss_by_window",
    )


def _induction(bands: pl.DataFrame) -> Headline:
    row = bands.filter(figure=_INDUCTION).row(0, named=True)
    value, null = row["value"], row["null"]
    return Headline(
        f"The strongest induction head puts {value:.3f} of its mass on the token after the first copy of random "
        f"tokens; where nothing repeats {null:.3f}; that of the shipped weights {row['shipped']:.3f}.",
        f"Mass {value:.2f} on the token after a copy; where nothing repeats {null:.2f}.",
        min(max((value - null) / (1.0 - null), 0.0), 1.0),
        answer="strongest induction",
        value=f"{value:.2f}",
        null=f"no repeat {null:.2f}",
        figure="induction_course",
    )


def _rows(frame: pl.DataFrame) -> list[dict[str, Any]]:
    return list(frame.iter_rows(named=True))
