"""The tables of the study: bands, losses, heads, the course of each training, sizes."""

from collections.abc import Mapping, Sequence

import polars as pl

from headscope.experiments.tiny.bands import Band
from headscope.experiments.tiny.head_roles import MEASURE, RoleMass
from headscope.experiments.tiny.shipped_record import ShippedRecord
from headscope.experiments.tiny.text_losses import ALL, NO_WINDOW, SHIPPED, TRAINED, TextLoss
from headscope.experiments.tiny.text_material import Material
from headscope.experiments.tiny.training_phases import TrainedNetwork

Tables = Mapping[str, pl.DataFrame]
_FLOAT, _WORD, _COUNT = pl.Float64, pl.String, pl.Int64
BANDS = {
    "figure": _WORD,
    "unit": _WORD,
    "value": _FLOAT,
    "low": _FLOAT,
    "high": _FLOAT,
    "is_inside": pl.Boolean,
    "published": _FLOAT,
    "shipped": _FLOAT,
    "null": _FLOAT,
    "reason": _WORD,
}
LOSSES = {
    "system": _WORD,
    "text": _WORD,
    "window": _COUNT,
    "tokens": _COUNT,
    "nats_per_token": _FLOAT,
    "perplexity": _FLOAT,
    "bits_per_byte": _FLOAT,
}
HEADS = {
    "stack": _WORD,
    "kind": _WORD,
    "layer": _COUNT,
    "head": _COUNT,
    "role": _WORD,
    "windows": _WORD,
    "value": _FLOAT,
    "null": _FLOAT,
}
COURSE = ("step", "tokens", "seconds", "rate", "nats", "validation_nats", MEASURE, "tokens_per_second")


def bands_table(bands: Sequence[Band]) -> pl.DataFrame:
    """A row for each figure, with its band."""
    return pl.DataFrame([{name: getattr(band, name) for name in BANDS} for band in bands], schema=BANDS)


def losses_table(losses: Sequence[TextLoss]) -> pl.DataFrame:
    """The losses of the trained and the shipped weights and of the n-gram models, by text and window."""
    rows = [
        {
            "system": loss.system,
            "text": loss.text,
            "window": loss.window or None,
            "tokens": loss.n_tokens,
            "nats_per_token": loss.nats_per_token,
            "perplexity": loss.perplexity,
            "bits_per_byte": loss.bits_per_byte,
        }
        for loss in losses
    ]
    return pl.DataFrame(rows, schema=LOSSES)


def heads_table(masses: Sequence[RoleMass]) -> pl.DataFrame:
    """The masses of all heads of the trained weights."""
    rows = [
        {
            "stack": mass.site.stack,
            "kind": mass.site.kind,
            "layer": mass.site.layer,
            "head": mass.head,
            "role": mass.role,
            "windows": mass.windows,
            "value": mass.value,
            "null": mass.null,
        }
        for mass in masses
    ]
    return pl.DataFrame(rows, schema=HEADS)


def course_table(trained: TrainedNetwork) -> pl.DataFrame:
    """The course of each training."""
    frames = []
    for phase in trained.phases:
        metrics = phase.outcome.metrics
        absent = [pl.lit(None, _FLOAT).alias(name) for name in COURSE if name not in metrics.columns]
        frames.append(metrics.with_columns(absent).select(pl.lit(phase.name).alias("phase"), *COURSE))
    return pl.concat(frames)


def sizes_table(trained: TrainedNetwork, material: Material, record: ShippedRecord) -> pl.DataFrame:
    """How much was read and done, next to the shipped training."""
    states = {phase.name: phase.outcome.state for phase in trained.phases}
    sizes: dict[str, tuple[float, float | None]] = {
        "minutes": (round(trained.minutes, 2), record.minutes),
        "steps": (sum(state.step for state in states.values()), record.steps),
        "steps of cycles": (sum(phase.outcome.state.step for phase in trained.cycles), record.cycle_steps),
        "tokens read": (sum(state.tokens for state in states.values()), record.tokens),
        "tokens to learn from": (len(material.train), None),
        "judged documents": (sum(map(len, material.judged.values())), None),
        "vocabulary": (material.tokenizer.get_vocab_size(), None),
    }
    return pl.DataFrame(
        [{"size": name, TRAINED: value, SHIPPED: shipped} for name, (value, shipped) in sizes.items()],
        schema={"size": _WORD, TRAINED: _FLOAT, SHIPPED: _FLOAT},
    )


def of_windows(losses: pl.DataFrame, system: str) -> pl.DataFrame:
    """The losses of a network on all texts, by the length of the window."""
    return losses.filter(pl.col("system") == system, pl.col("text") == ALL, pl.col("window") > NO_WINDOW)
