"""The names inside a run folder.

A folder may come from a stranger: no name may lead out of it.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headscope.errors import LensError, UsageError
from headscope.store.plain_json import DAMAGED

if TYPE_CHECKING:
    from headscope.core import Finding

MANIFEST = "manifest.json"
PARTS = ("findings", "tables", "arrays")

_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")  # of a lens or a table
_FIGURE = re.compile(r"[^\x00-\x1f/\\.][^\x00-\x1f/\\]{0,99}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def finding_path(lens: str) -> str:
    """The path of a lens's finding."""
    return f"findings/{lens}.json"


def arrays_path(lens: str) -> str:
    """The path of a finding's arrays."""
    return f"arrays/{lens}.safetensors"


def table_path(lens: str, table: str) -> str:
    """The path of a table; raises where its name cannot be a file name."""
    if not _NAME.fullmatch(table):
        raise LensError(
            f"lens {lens!r}: the table name {table!r} is not a file name", hint="use letters, digits, _ and -"
        )
    return f"tables/{lens}.{table}.parquet"


def check_lens(lens: str, source: str) -> None:
    """Refuse a lens whose name could lead out of the folder."""
    if not _NAME.fullmatch(lens):
        raise UsageError(f"{source} is damaged: {_brief(lens)} is not the name of a lens", hint=DAMAGED)


def check_files(files: Mapping[str, str], lens: str, source: str) -> None:
    """Refuse files that do not belong to the finding of a lens, and invalid hashes."""
    fixed = (finding_path(lens), arrays_path(lens))
    for name, sha256 in files.items():
        table = name.removeprefix(f"tables/{lens}.").removesuffix(".parquet")
        if name not in fixed and not (_NAME.fullmatch(table) and name == table_path(lens, table)):
            raise UsageError(f"{source} is damaged: {_brief(name)} is not a file of the finding {lens!r}", hint=DAMAGED)
        if not _SHA256.fullmatch(sha256):
            raise UsageError(
                f"{source} is damaged: the sha256 of {name} is {_brief(sha256)}, expected 64 digits", hint=DAMAGED
            )


def check_figures(finding: "Finding", source: str) -> None:
    """Refuse figures whose names cannot be file names, for `headscope figures`."""
    for figure in finding.figures:
        if not _FIGURE.fullmatch(figure.name):
            raise UsageError(
                f"{source} is damaged: the figure name {_brief(figure.name)} is not a file name", hint=DAMAGED
            )


def _brief(text: str) -> str:
    return ascii(text) if len(text) <= 80 else f"{text[:80]!a} …"
