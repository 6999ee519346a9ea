"""The table of a training: a row for every few steps and for every validation."""

import io
from typing import Any

import polars as pl
from polars.exceptions import PolarsError

from headscope.errors import CheckpointError
from headscope.training.training_folder import TrainingFolder

SCHEMA: dict[str, type[pl.DataType]] = {
    "step": pl.Int64,
    "epoch": pl.Int64,
    "tokens": pl.Int64,
    "seconds": pl.Float64,
    "rate": pl.Float64,
    "loss": pl.Float64,
    "nats": pl.Float64,
    "gradient_norm": pl.Float64,
    "tokens_per_second": pl.Float64,
    "validation_nats": pl.Float64,
}

Row = dict[str, Any]


def metrics_table(rows: list[Row]) -> pl.DataFrame:
    """The rows as a table; measures of the model have columns of their own."""
    measures: dict[str, type[pl.DataType]] = {name: pl.Float64 for row in rows for name in row if name not in SCHEMA}
    return pl.DataFrame(rows, schema=SCHEMA | measures)


def parquet_bytes(table: pl.DataFrame) -> bytes:
    """The bytes of a table."""
    buffer = io.BytesIO()
    table.write_parquet(buffer, compression="zstd")
    return buffer.getvalue()


def rows_until(folder: TrainingFolder, step: int) -> list[Row]:
    """The rows of a folder up to a step.

    Rows after the last checkpoint are made again.

    Raises:
        CheckpointError: The table is missing or damaged.
    """
    path = folder.metrics()
    try:
        table = pl.read_parquet(path.read_bytes())
        return table.filter(pl.col("step") <= step).to_dicts()
    except (OSError, PolarsError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}", hint="train in another folder") from error
