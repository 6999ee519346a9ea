"""One finding ↔ its files."""

import io
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from headscope.core import Finding
from headscope.errors import LensError
from headscope.store.files import read_json, write, write_json
from headscope.store.plain import Arrays, from_json, to_json

_FILE_NAME = re.compile(r"[A-Za-z0-9_-]+")


def write_finding(folder: Path, finding: Finding) -> dict[str, str]:
    """Write the files of one finding; the sha256 of each by its path in the folder."""
    arrays: Arrays = {}
    data = to_json(replace(finding, tables={}, arrays={}), arrays, "finding")
    written = {_table_path(finding.lens, name): _parquet(table) for name, table in finding.tables.items()}
    data["tables"] = {name: _table_path(finding.lens, name) for name in finding.tables}
    data["arrays"] = {name: to_json(array, arrays, f"arrays.{name}") for name, array in finding.arrays.items()}
    if arrays:
        written[f"arrays/{finding.lens}.safetensors"] = save_arrays(dict(sorted(arrays.items())))
    hashes = {path: write(folder / path, content) for path, content in written.items()}
    # The JSON comes last: where it stands, the files it names are complete.
    path = f"findings/{finding.lens}.json"
    return {**hashes, path: write_json(folder / path, data)}


def read_finding(folder: Path, lens: str) -> Finding:
    """The finding that `write_finding` wrote."""
    data: dict[str, Any] = read_json(folder / f"findings/{lens}.json")
    file = folder / f"arrays/{lens}.safetensors"
    arrays: Mapping[str, Any] = load_arrays(file.read_bytes()) if file.is_file() else {}
    tables = {name: pl.read_parquet(io.BytesIO((folder / path).read_bytes())) for name, path in data["tables"].items()}
    finding: Finding = from_json({**data, "tables": {}}, Finding, arrays)
    return replace(finding, tables=tables)


def _parquet(table: pl.DataFrame) -> bytes:
    """Bytes that depend on nothing but the table: one row group, fixed compression, no clock."""
    buffer = io.BytesIO()
    table.rechunk().write_parquet(buffer, compression="zstd", compression_level=3, row_group_size=max(table.height, 1))
    return buffer.getvalue()


def _table_path(lens: str, table: str) -> str:
    if not _FILE_NAME.fullmatch(table):
        raise LensError(
            f"lens {lens!r}: the table name {table!r} is not a file name", hint="use letters, digits, _ and -"
        )
    return f"tables/{lens}.{table}.parquet"
