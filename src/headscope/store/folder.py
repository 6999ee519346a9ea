"""The run folder: opened, filled with findings, closed by its manifest."""

import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headscope.core import Finding, Run
from headscope.core.run import REPORT
from headscope.errors import UsageError
from headscope.files import sweep
from headscope.folder_lock import Lock
from headscope.store.files import disk_errors, read_json, write_json
from headscope.store.findings import finding_in, read_contents, write_finding
from headscope.store.folder_check import check_folder, no_finished_run
from headscope.store.journal import NAME as JOURNAL
from headscope.store.journal import SCHEMA, Entry, read_journal
from headscope.store.manifest import read_manifest
from headscope.store.names import MANIFEST
from headscope.store.plain_json import to_json


def save(run: Run, folder: str | Path) -> Path:
    """Write a complete run; it replaces an earlier run in the folder.

    Properties:
        - the same run gives the same bytes  (tested: test_same_run_same_bytes)
        - `load` gives the run back  (tested: test_round_trip)
    """
    target = RunFolder.begin(Path(folder), fresh=True)
    try:
        for finding in run.findings.values():
            target.keep(finding)
        return target.close(run)
    finally:
        target.release()


def load(folder: str | Path) -> Run:
    """Read a run folder, checking every file against the manifest.

    Raises:
        UsageError: There is no finished run in the folder, or its files differ from the manifest.
    """
    path = Path(folder)
    manifest = read_manifest(path)
    if manifest is None:
        raise no_finished_run(path)
    findings = {lens: _read_finding(path, lens, manifest.files_of(lens)) for lens in manifest.lenses}
    run = replace(manifest.run, findings=findings)
    run.note_folder(path)
    return run


def _read_finding(path: Path, lens: str, files: Mapping[str, str]) -> Finding:
    contents = dict[str, bytes]()
    for name, content in read_contents(path, files).items():
        if content is None:
            raise UsageError(
                f"{path / name} is missing or was changed after the run: its sha256 is not the manifest's",
                hint="run it again; findings that are intact are kept",
            )
        contents[name] = content
    return finding_in(contents, lens, path)


@dataclass
class RunFolder:
    """A run folder that one process at a time fills, until `release`.

    `earlier_finding` returns what an earlier run finished under the same key. The manifest of an earlier run is removed
    when the first file changes, its report when the new run is complete: until then an interruption costs neither.
    """

    path: Path
    earlier: Mapping[str, Entry]
    journal: dict[str, Any]
    lock: Lock
    hashes: dict[str, dict[str, str]] = field(default_factory=dict)
    outdated: set[str] = field(default_factory=set)  # files of findings that were measured again

    @classmethod
    def begin(cls, path: Path, *, fresh: bool = False) -> "RunFolder":
        """Take over a folder that is new, empty, or holds a run.

        Anything else stays untouched.

        Raises:
            UsageError: The folder holds other things, or another process is writing into it.
        """
        with disk_errors(path):
            check_folder(path)
            path.mkdir(parents=True, exist_ok=True)
            lock = Lock(path)
        try:
            return cls._open_locked(path, lock, fresh)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def _open_locked(cls, path: Path, lock: Lock, fresh: bool) -> "RunFolder":
        earlier = read_journal(path)
        with disk_errors(path):
            sweep(path)
        findings = {lens: asdict(entry) for lens, entry in earlier.items()}
        journal = {"schema": SCHEMA, "machine": _machine(), "started": _now(), "findings": findings}
        folder = cls(path, {} if fresh else earlier, journal, lock)
        folder._write_journal()
        return folder

    def earlier_finding(self, lens: str, key: str) -> Finding | None:
        """The finding of `lens` if it is complete, intact and has the same key."""
        entry = self.earlier.get(lens)
        if not key or entry is None or entry.key != key:
            return None
        contents = dict[str, bytes]()
        for name, content in read_contents(self.path, entry.files).items():
            if content is None:
                return None
            contents[name] = content
        self.hashes[lens] = dict(entry.files)
        return finding_in(contents, lens, self.path)

    def keep(self, finding: Finding, key: str = "") -> None:
        """Write one finding and record that it is complete.

        A finding without a key is never reused.
        """
        with disk_errors(self.path):
            # From here to `close` the folder has no manifest, so that no reader gets a mixture of two runs.
            (self.path / MANIFEST).unlink(missing_ok=True)
        self.hashes[finding.lens] = write_finding(self.path, finding)
        entry = {"key": key, "files": self.hashes[finding.lens], "written": _now()}
        self.outdated.update(self.journal["findings"].get(finding.lens, {}).get("files", ()))
        self.journal["findings"][finding.lens] = entry
        self._write_journal()

    def close(self, run: Run) -> Path:
        """Remove files of earlier runs and write the manifest, which completes the run."""
        files = {name: digest for lens in run.findings for name, digest in sorted(self.hashes[lens].items())}
        run_json = to_json(replace(run, findings={}), {}, "run")
        manifest = {"schema": SCHEMA, "run": run_json, "lenses": list(run.findings), "files": files}
        if read_json(self.path / MANIFEST) != manifest:
            self._withdraw(files)
        self.journal["finished"] = _now()
        self.journal["findings"] = {lens: self.journal["findings"][lens] for lens in run.findings}
        self._write_journal()
        write_json(self.path / MANIFEST, manifest)
        run.note_folder(self.path)
        self.release()
        return self.path

    def release(self) -> None:
        """Let other processes write into the folder; harmless when done twice."""
        self.lock.release()

    def _withdraw(self, files: Mapping[str, str]) -> None:
        """Remove manifest and report of an earlier run, and its files that are outdated."""
        earlier = {name for entry in self.journal["findings"].values() for name in entry["files"]}
        with disk_errors(self.path):
            for name in (MANIFEST, REPORT, *sorted((earlier | self.outdated) - files.keys())):
                (self.path / name).unlink(missing_ok=True)

    def _write_journal(self) -> None:
        write_json(self.path / JOURNAL, self.journal)


def _machine() -> dict[str, Any]:
    return {"system": platform.platform(), "processor": platform.machine(), "cores": os.cpu_count()}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
