"""Saves findings as they are made, and decides which earlier ones are still valid."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from headscope.core import Finding, ModelSpec, Run, TextSpec
from headscope.pipeline.questions import LensPlan
from headscope.pipeline.versions import code_digest, versions
from headscope.store import RunFolder


@dataclass(frozen=True)
class Circumstances:
    """Everything that the numbers of a run depend on, besides the question."""

    model: ModelSpec
    text: TextSpec | None
    seed: int

    def key(self, plan: LensPlan) -> str:
        """A key that is equal where an earlier answer is still valid.

        Empty where nothing identifies the weights.
        """
        if not self.model.sha256:
            return ""
        parts = {
            "circumstances": asdict(self),
            "lens": plan.question.name,
            "params": plan.question.stated_params(),
            # A lens of another package may change them without a change of parameters or of this package's code.
            "made": [(windows.name, windows.count, windows.length, windows.variants) for windows in plan.needs.made],
            "versions": versions(),
            "code": code_digest(),
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Keeper:
    """A run folder, and the circumstances under which its findings can be reused.

    Without a folder nothing is saved; without circumstances nothing is reused.
    """

    folder: RunFolder | None
    circumstances: Circumstances | None

    @classmethod
    def begin(cls, out: str | Path | None, circumstances: Circumstances | None) -> "Keeper":
        """Open the folder for writing, if there is one."""
        return cls(None if out is None else RunFolder.begin(Path(out)), circumstances)

    def earlier_finding(self, plan: LensPlan) -> Finding | None:
        """An earlier finding for the same question."""
        return None if self.folder is None else self.folder.earlier_finding(plan.question.name, self._key(plan))

    def keep(self, plan: LensPlan, finding: Finding) -> Finding:
        """Save a finding; a failed one is for the report only and is measured again."""
        if self.folder is not None:
            self.folder.keep(finding, "" if finding.status == "failed" else self._key(plan))
        return finding

    def close(self, run: Run) -> Run:
        """Complete the run."""
        if self.folder is not None:
            for finding in run.findings.values():
                if finding.lens not in self.folder.hashes:
                    self.folder.keep(finding)
            self.folder.close(run)
        return run

    def release(self) -> None:
        """Let other processes write into the folder, whether or not the run is complete."""
        if self.folder is not None:
            self.folder.release()

    def _key(self, plan: LensPlan) -> str:
        return "" if self.circumstances is None else self.circumstances.key(plan)
