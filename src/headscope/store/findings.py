"""Writes a finding to its files, and reads it back."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
from numpy.typing import NDArray
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from headscope.core import Finding
from headscope.errors import UsageError
from headscope.store.files import json_in, read_intact, write, write_json
from headscope.store.names import arrays_path, check_figures, finding_path, table_path
from headscope.store.parquet import parquet_bytes, table_in
from headscope.store.plain_json import DAMAGED, Arrays, from_json, to_json


def write_finding(folder: Path, finding: Finding) -> dict[str, str]:
    """Write the files of one finding; returns the sha256 of each by its path."""
    arrays: Arrays = {}
    data = to_json(replace(finding, tables={}, arrays={}), arrays, "finding")
    written = {table_path(finding.lens, name): parquet_bytes(table) for name, table in finding.tables.items()}
    data["tables"] = {name: table_path(finding.lens, name) for name in finding.tables}
    data["arrays"] = {name: to_json(array, arrays, f"arrays.{name}") for name, array in finding.arrays.items()}
    if arrays:
        written[arrays_path(finding.lens)] = save_arrays(dict(sorted(arrays.items())))
    hashes = {path: write(folder / path, content) for path, content in written.items()}
    # The JSON comes last: where it exists, the files that it names are complete.
    path = finding_path(finding.lens)
    return {**hashes, path: write_json(folder / path, data)}


def read_contents(folder: Path, files: Mapping[str, str]) -> dict[str, bytes | None]:
    """The content of each file of a finding.

    None where a file is missing or has another sha256.
    """
    return {name: read_intact(folder / name, sha256) for name, sha256 in files.items()}


def finding_in(contents: Mapping[str, bytes], lens: str, folder: Path) -> Finding:
    """The finding that `write_finding` wrote, from the contents of its files alone.

    Raises:
        UsageError: A file is damaged, or the finding names a file that is not in `contents`.
    """
    path = finding_path(lens)
    source = str(folder / path)
    data = json_in(contents.get(path, b""))
    tables = data.get("tables") if isinstance(data, dict) else None
    if not isinstance(tables, dict):
        raise UsageError(f"{source} is damaged: it is not a finding", hint=DAMAGED)
    file = arrays_path(lens)
    arrays = _arrays_in(contents[file], str(folder / file)) if file in contents else {}
    finding: Finding = from_json({**data, "tables": {}}, Finding, arrays, source)
    if finding.lens != lens:
        raise UsageError(f"{source} is damaged: it is the finding of {finding.lens[:80]!r}", hint=DAMAGED)
    check_figures(finding, source)
    return replace(finding, tables={name: _table(contents, name, at, lens, folder) for name, at in tables.items()})


def _table(contents: Mapping[str, bytes], name: str, at: object, lens: str, folder: Path) -> pl.DataFrame:
    if not isinstance(at, str) or at not in contents or at != f"tables/{lens}.{name}.parquet":
        source = folder / finding_path(lens)
        raise UsageError(f"{source} is damaged: it names no stored file for the table {name[:80]!r}", hint=DAMAGED)
    return table_in(contents[at], str(folder / at))


def _arrays_in(content: bytes, source: str) -> Mapping[str, NDArray[Any]]:
    try:
        arrays: Mapping[str, NDArray[Any]] = load_arrays(content)
    except Exception as error:
        raise UsageError(f"{source} is damaged: {type(error).__name__}: {error}", hint=DAMAGED) from error
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub":
            raise UsageError(f"{source} is damaged: array {name[:80]!r} is of dtype {array.dtype}", hint=DAMAGED)
    return arrays
