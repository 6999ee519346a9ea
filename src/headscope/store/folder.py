"""The run folder: started, filled finding by finding, closed by its manifest."""

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headscope.core import Finding, Run
from headscope.errors import UsageError
from headscope.store.files import disk_errors, read_json, sha256_of, sweep, write_json
from headscope.store.findings import read_finding, write_finding
from headscope.store.lock import NAME as LOCK
from headscope.store.lock import Lock, check_free
from headscope.store.plain import from_json, to_json

SCHEMA = "headscope-run/1"

# A run folder may come from a stranger: no name in it reaches outside of it.
_NAME = re.compile(r"(findings|tables|arrays)/[A-Za-z0-9_-][A-Za-z0-9_.-]*")


def save(run: Run, folder: str | Path) -> Path:
    """Write a whole run; what another run left in the folder is replaced.

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
        UsageError: There is no finished run in the folder, or its files are not those of the manifest.
    """
    path = Path(folder)
    manifest = _own(read_json(path / "manifest.json"))
    if manifest is None:
        raise UsageError(
            f"{path} holds no finished run: {_state(path)}",
            hint="make one with `headscope report --out FOLDER`",
        )
    for name, expected in manifest["files"].items():
        if not _NAME.fullmatch(name) or sha256_of(path / name) != expected:
            raise UsageError(
                f"{path / name} is missing or was changed after the run: its sha256 is not the manifest's",
                hint="run it again; findings that are intact are kept",
            )
    bare: Run = from_json({**manifest["run"], "findings": {}}, Run, {})
    return replace(bare, findings={lens: read_finding(path, lens) for lens in manifest["lenses"]})


def check_folder(path: Path) -> None:
    """Refuse to write into a folder that holds anything but a run, or that another process is writing into."""
    if path.exists() and not _is_ours(path):
        what = "is not empty and holds no headscope run" if path.is_dir() else "is a file, expected a folder"
        raise UsageError(f"{path} {what}; nothing was written", hint="choose another folder with --out")
    with disk_errors(path):
        check_free(path)


@dataclass
class RunFolder:
    """A folder being filled, by one process at a time, until `release`.

    `kept` answers with what an earlier run finished under the same key.
    """

    path: Path
    earlier: Mapping[str, Any]
    journal: dict[str, Any]
    lock: Lock
    hashes: dict[str, dict[str, str]] = field(default_factory=dict)

    @classmethod
    def begin(cls, path: Path, *, fresh: bool = False) -> "RunFolder":
        """Take the folder over: new, empty, or one that holds a run. Anything else is not touched.

        Raises:
            UsageError: The folder holds other things, or another process is writing into it.
        """
        with disk_errors(path):
            check_folder(path)
            path.mkdir(parents=True, exist_ok=True)
            lock = Lock(path)
        try:
            return cls._taken(path, lock, fresh)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def _taken(cls, path: Path, lock: Lock, fresh: bool) -> "RunFolder":
        journal = _own(read_json(path / "run.json")) or {}
        with disk_errors(path):
            sweep(path)
            # From here to `close` the folder makes no claim: a reader finds no manifest, never a mixed one.
            for claim in ("manifest.json", "report.html"):
                (path / claim).unlink(missing_ok=True)
        earlier = journal.get("findings", {})
        started = {"schema": SCHEMA, "machine": _machine(), "started": _now(), "findings": dict(earlier)}
        folder = cls(path, {} if fresh else earlier, started, lock)
        folder._write_journal()
        return folder

    def kept(self, lens: str, key: str) -> Finding | None:
        """The finding of `lens` if it is complete, intact and was made under the same key."""
        entry = self.earlier.get(lens)
        if not key or entry is None or entry["key"] != key:
            return None
        if any(sha256_of(self.path / name) != expected for name, expected in entry["files"].items()):
            return None
        self.hashes[lens] = entry["files"]
        return read_finding(self.path, lens)

    def keep(self, finding: Finding, key: str = "") -> None:
        """Write one finding and note that it is complete; without a key it is never resumed from."""
        self.hashes[finding.lens] = write_finding(self.path, finding)
        entry = {"key": key, "files": self.hashes[finding.lens], "written": _now()}
        self.journal["findings"][finding.lens] = entry
        self._write_journal()

    def close(self, run: Run) -> Path:
        """Drop files of earlier runs and write the manifest: from now on the folder is a run."""
        files = {name: digest for lens in run.findings for name, digest in sorted(self.hashes[lens].items())}
        self._drop_strangers(files)
        bare = to_json(replace(run, findings={}), {}, "run")
        manifest = {"schema": SCHEMA, "run": bare, "lenses": list(run.findings), "files": files}
        self.journal["finished"] = _now()
        self.journal["findings"] = {lens: self.journal["findings"][lens] for lens in run.findings}
        self._write_journal()
        write_json(self.path / "manifest.json", manifest)
        self.release()
        return self.path

    def release(self) -> None:
        """Let other processes write here; harmless when done twice."""
        self.lock.release()

    def _drop_strangers(self, files: Mapping[str, str]) -> None:
        for entry in self.journal["findings"].values():
            for name in filter(_NAME.fullmatch, entry["files"].keys() - files.keys()):
                (self.path / name).unlink(missing_ok=True)

    def _write_journal(self) -> None:
        write_json(self.path / "run.json", self.journal)


def _is_ours(path: Path) -> bool:
    if not path.is_dir():
        return False
    marked = any(_own(read_json(path / name)) is not None for name in ("manifest.json", "run.json"))
    return marked or all(each.name == LOCK for each in path.iterdir())


def _own(data: Any) -> dict[str, Any] | None:
    return data if isinstance(data, dict) and data.get("schema") == SCHEMA else None


def _state(path: Path) -> str:
    if not path.exists():
        return "it does not exist"
    if not path.is_dir():
        return "it is a file"
    return "a run was started there and not finished" if _own(read_json(path / "run.json")) else "no manifest.json"


def _machine() -> dict[str, Any]:
    return {"system": platform.platform(), "processor": platform.machine(), "cores": os.cpu_count()}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
