"""The manifest of a finished run: the run, the order, and all sha256 hashes."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headscope.core import Run
from headscope.errors import UsageError
from headscope.store.files import read_json
from headscope.store.journal import SCHEMA
from headscope.store.names import MANIFEST, arrays_path, check_files, check_lens, finding_path
from headscope.store.plain_json import DAMAGED, from_json


@dataclass(frozen=True)
class Manifest:
    """A run without findings, the names of its lenses, and the sha256 of each file."""

    schema: str
    run: Run
    lenses: tuple[str, ...]
    files: Mapping[str, str]

    def files_of(self, lens: str) -> dict[str, str]:
        """The files of one finding."""
        fixed = (finding_path(lens), arrays_path(lens))
        tables = (name for name in self.files if name.startswith(f"tables/{lens}."))
        return {name: self.files[name] for name in (*fixed, *tables) if name in self.files}


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of the run in a folder; None where the folder has none.

    Raises:
        UsageError: The manifest is damaged.
    """
    data = read_json(folder / MANIFEST)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        return None
    source = str(folder / MANIFEST)
    run = data.get("run")
    without_findings = {**run, "findings": {}} if isinstance(run, dict) else run
    manifest: Manifest = from_json({**data, "run": without_findings}, Manifest, {}, source)
    if len(set(manifest.lenses)) < len(manifest.lenses):
        raise UsageError(f"{source} is damaged: it names a lens twice", hint=DAMAGED)
    unclaimed = set(manifest.files)
    for lens in manifest.lenses:
        check_lens(lens, source)
        unclaimed -= manifest.files_of(lens).keys()
        if finding_path(lens) not in manifest.files:
            raise UsageError(f"{source} is damaged: it lists no file of the finding {lens!r}", hint=DAMAGED)
        check_files(manifest.files_of(lens), lens, source)
    if unclaimed:
        raise UsageError(f"{source} is damaged: {min(unclaimed)[:80]!r} is a file of no finding", hint=DAMAGED)
    return manifest
