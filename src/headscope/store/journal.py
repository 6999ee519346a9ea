"""The journal of a run folder, `run.json`: its complete findings and their keys."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headscope.errors import UsageError
from headscope.store.files import read_json
from headscope.store.names import MANIFEST, check_files, check_lens
from headscope.store.plain_json import from_json

NAME = "run.json"
SCHEMA = "headscope-run/1"

_ELSEWHERE = "choose another folder with --out"
_AGAIN = "delete this file, and the findings are made again; the finished report stays until then"


@dataclass(frozen=True)
class Entry:
    """One complete finding: the sha256 of each file, and the key for its reuse."""

    key: str
    files: Mapping[str, str]
    written: str = ""


@dataclass(frozen=True)
class Journal:
    """The findings of all runs in a folder, by lens name."""

    schema: str
    findings: Mapping[str, Entry] = field(default_factory=dict)


def read_journal(folder: Path) -> Mapping[str, Entry]:
    """The findings that earlier runs in the folder have finished.

    Empty where there is no journal.

    Raises:
        UsageError: The journal is damaged. Nothing was changed.
    """
    path = folder / NAME
    data = read_json(path)
    if data is None and not path.is_symlink() and not path.exists():
        return {}
    try:
        return _checked_entries(data, str(path))
    except UsageError as error:
        # Without a manifest only the journal shows that this is a run folder.
        hint = _AGAIN if (folder / MANIFEST).is_file() else _ELSEWHERE
        raise UsageError(f"{error.message}; nothing was changed", hint=hint) from error


def _checked_entries(data: Any, source: str) -> Mapping[str, Entry]:
    journal: Journal = from_json(data, Journal, {}, source)
    if journal.schema != SCHEMA:
        raise UsageError(f"{source} is damaged: its schema is {journal.schema[:80]!r}, expected {SCHEMA!r}")
    for lens, entry in journal.findings.items():
        check_lens(lens, source)
        check_files(entry.files, lens, source)
    return journal.findings
