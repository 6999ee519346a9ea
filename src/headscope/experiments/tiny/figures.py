"""Figures of the study: losses by window, the course of the training, the masses of the heads."""

import numpy as np
import polars as pl

from headscope.core import Curves, Figure, HeatMap, Series
from headscope.experiments.tiny.head_roles import FIRST, INDUCTION, MEASURE, PREVIOUS, REPEATS, window_name
from headscope.experiments.tiny.shipped_record import ShippedRecord
from headscope.experiments.tiny.tables import Tables, of_windows
from headscope.experiments.tiny.text_losses import ALL, N_GRAMS, SHIPPED, TRAINED
from headscope.experiments.tiny.training_phases import TEXT

Numbers = np.ndarray[tuple[int], np.dtype[np.float64]]
_ROLES = (
    (INDUCTION, window_name(*REPEATS[0]), "From the second copy of random tokens to the token after the first copy."),
    (PREVIOUS, "text", "From each token of held-out text to the one before it."),
    (FIRST, "text", "From each token of held-out text to the token that begins the window."),
)


def figures(tables: Tables, record: ShippedRecord) -> tuple[Figure, ...]:
    """Losses by window, the course of loss and induction, and a map of the heads for each role."""
    return (
        _by_window(tables["losses"]),
        _loss_course(tables["course"], record),
        _induction_course(tables["course"], record),
        *(_masses(tables["heads"], *role) for role in _ROLES),
    )


def _by_window(losses: pl.DataFrame) -> Curves:
    networks = {system: of_windows(losses, system) for system in (TRAINED, SHIPPED)}
    windows = _numbers(networks[TRAINED], "window")
    n_grams = losses.filter(pl.col("text") == ALL, pl.col("window").is_null())
    return Curves(
        "loss_by_window",
        "Held-out loss by the length of the window",
        "All judged documents. The n-gram models are fitted to the same tokens, and see the true preceding tokens.",
        "tokens of a window",
        "bits per byte",
        (
            *(
                Series(f"{system} weights", _numbers(rows, "window"), _numbers(rows, "bits_per_byte"))
                for system, rows in networks.items()
            ),
            *(
                Series(
                    name, windows, np.full(len(windows), n_grams.filter(system=name)["bits_per_byte"][0]), role="null"
                )
                for name in N_GRAMS
            ),
        ),
        log_x=True,
    )


def _loss_course(course: pl.DataFrame, record: ShippedRecord) -> Curves:
    rows = course.filter(pl.col("phase") == TEXT, pl.col("validation_nats").is_not_null())
    return Curves(
        "loss_course",
        "Held-out loss during the training on text",
        "Windows of 128 tokens that are not judged. The shipped training read other documents with another tokenizer.",
        "minutes",
        "nats per token",
        (
            Series("this training", _numbers(rows, "seconds") / 60, _numbers(rows, "validation_nats")),
            _published_course("held_out_nats_128", record),
        ),
    )


def _induction_course(course: pl.DataFrame, record: ShippedRecord) -> Curves:
    rows = course.filter(pl.col("phase") == TEXT, pl.col(MEASURE).is_not_null())
    return Curves(
        "induction_course",
        "The strongest induction head during the training on text",
        "Mass from the second copy of 48 random tokens to the token after the first copy.",
        "minutes",
        "mass",
        (
            Series("this training", _numbers(rows, "seconds") / 60, _numbers(rows, MEASURE)),
            _published_course("induction_2x48", record),
        ),
    )


def _published_course(name: str, record: ShippedRecord) -> Series:
    minutes, values = (np.array([point[key] for point in record.course]) for key in ("cpu_minutes", name))
    return Series("shipped training", minutes, values, role="theory")


def _masses(heads: pl.DataFrame, role: str, windows: str, caption: str) -> HeatMap:
    rows = heads.filter(role=role, windows=windows)
    values = rows.pivot(on="head", index="layer", values="value").sort("layer").drop("layer").to_numpy()
    return HeatMap(
        role.replace(" ", "_"),
        f"Mass of each head: {role}",
        caption,
        values.astype(np.float64),
        tuple(f"L{layer}" for layer in range(len(values))),
        tuple(f"H{head}" for head in range(values.shape[1])),
        unit="mass",
        reference=float(rows["null"].cast(pl.Float64).to_numpy().mean()),
        limits=(0.0, 1.0),
    )


def _numbers(frame: pl.DataFrame, column: str) -> Numbers:
    return frame[column].cast(pl.Float64).to_numpy()
