"""Keeps findings as they are made, and knows under which circumstances an earlier one still holds."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from headscope.core import Finding, ModelSpec, Run, TextSpec
from headscope.pipeline.questions import Question
from headscope.pipeline.versions import code_digest, versions
from headscope.store import RunFolder


@dataclass(frozen=True)
class Keeper:
    """A run folder and what the numbers in it depend on; without a folder it keeps nothing."""

    folder: RunFolder | None
    model: ModelSpec
    text: TextSpec | None
    seed: int

    @classmethod
    def begin(cls, out: str | Path | None, model: ModelSpec, text: TextSpec | None, seed: int) -> "Keeper":
        """Take the folder over, if there is one."""
        return cls(None if out is None else RunFolder.begin(Path(out)), model, text, seed)

    def kept(self, question: Question) -> Finding | None:
        """An earlier finding of this very question."""
        return None if self.folder is None else self.folder.kept(question.name, self._key(question))

    def keep(self, question: Question, finding: Finding) -> Finding:
        """Keep a finding; a failed one is kept for the report but asked again next time."""
        if self.folder is not None:
            self.folder.keep(finding, "" if finding.status == "failed" else self._key(question))
        return finding

    def close(self, run: Run) -> Run:
        """The run is complete."""
        if self.folder is not None:
            for finding in run.findings.values():
                if finding.lens not in self.folder.hashes:
                    self.folder.keep(finding)
            self.folder.close(run)
        return run

    def _key(self, question: Question) -> str:
        """Empty when nothing identifies the weights (a model handed over in Python, a random one)."""
        if not self.model.sha256:
            return ""
        parts = {
            "model": asdict(self.model),
            "text": asdict(self.text) if self.text else None,
            "lens": question.name,
            "params": question.stated_params(),
            "seed": self.seed,
            "versions": versions(),
            "code": code_digest(),
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
