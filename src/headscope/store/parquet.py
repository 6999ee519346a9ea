"""Tables as parquet: the same bytes for the same table, and limited memory."""

import io

import polars as pl
from polars.exceptions import PanicException

from headscope.errors import UsageError
from headscope.store.plain_json import DAMAGED

# A few bytes of parquet can hold any number of rows: these limit the cost of reading.
MOST_CELLS = 20_000_000
MOST_BYTES = 2**28
MOST_TEXT = 2**26  # bytes: a text that occurs in every row is stored once but read many times
_MOST_GROUPS = 1000


def parquet_bytes(table: pl.DataFrame) -> bytes:
    """The bytes of a table, which depend on nothing else.

    One row group, fixed compression, no clock.
    """
    buffer = io.BytesIO()
    table.rechunk().write_parquet(buffer, compression="zstd", compression_level=3, row_group_size=max(table.height, 1))
    return buffer.getvalue()


def table_in(content: bytes, source: str) -> pl.DataFrame:
    """The table that `parquet_bytes` wrote.

    Its stated size is checked before it is read.

    Raises:
        UsageError: The bytes are not parquet, need too much memory, or hold more than numbers and texts.
    """
    try:
        _check_size(content, source)
        table = pl.read_parquet(io.BytesIO(content))
    except UsageError:
        raise
    except (Exception, PanicException) as error:  # the reader may raise anything on unknown bytes
        raise _damage_error(source, f"it cannot be read ({type(error).__name__})") from error
    for name, dtype in table.schema.items():
        if not (dtype.is_numeric() or dtype in (pl.Boolean, pl.String, pl.Null)):
            raise _damage_error(source, f"its column {name[:80]!r} holds {dtype}, expected numbers or texts")
    texts = sum(int(column.str.len_bytes().sum()) for column in table.get_columns() if column.dtype == pl.String)
    if texts > MOST_TEXT:
        raise _damage_error(source, f"its texts have {texts} bytes, expected at most {MOST_TEXT}")
    return table


def _check_size(content: bytes, source: str) -> None:
    from pyarrow.parquet import (
        read_metadata,
    )  # imported here: it takes a fifth of a second, and only loading a run needs it

    metadata = read_metadata(io.BytesIO(content))
    groups = metadata.num_row_groups
    if groups > _MOST_GROUPS:
        raise _damage_error(source, f"it has {groups} row groups, expected at most {_MOST_GROUPS}")
    cells = metadata.num_rows * metadata.num_columns
    if not 0 <= cells <= MOST_CELLS:
        raise _damage_error(source, f"it claims {cells} cells, expected at most {MOST_CELLS}")
    parts = [metadata.row_group(group).column(i) for group in range(groups) for i in range(metadata.num_columns)]
    size = sum(max(part.total_uncompressed_size, 0) for part in parts)
    if size > MOST_BYTES:
        raise _damage_error(source, f"it would take {size} bytes, expected at most {MOST_BYTES}")


def _damage_error(source: str, reason: str) -> UsageError:
    return UsageError(f"{source} is damaged: {reason}", hint=DAMAGED)
