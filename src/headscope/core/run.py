"""Run: everything that one run produced, as plain data.

The store keeps times, dates and the machine separately.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headscope.core.finding import Finding
from headscope.core.model_spec import ModelSpec
from headscope.core.ports import render_html, save_run
from headscope.core.site import Site
from headscope.errors import UsageError


@dataclass(frozen=True)
class TextSpec:
    """The text that was run: its source, how much of it was used, and how it was cut.

    `n_tokens` and `n_windows` count what was run, special tokens included; `n_windows_in_text` is how many windows the
    whole text has, 0 where reading ended before the text did, and `n_documents` how many documents. `n_dropped` is the
    tail too short for a window.
    """

    name: str
    sha256: str
    n_characters: int
    n_tokens: int
    n_windows: int
    window: int
    n_dropped: int = 0
    n_windows_in_text: int = 0
    n_documents: int = 0


@dataclass(frozen=True)
class Run:
    """Findings by lens name, with their model, text, versions and seed."""

    model: ModelSpec
    sites: tuple[Site, ...]
    findings: Mapping[str, Finding]
    text: TextSpec | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0

    def __getitem__(self, lens: str) -> Finding:
        if lens not in self.findings:
            raise UsageError(f"this run has no finding {lens!r}; it has {', '.join(self.findings) or 'none'}")
        return self.findings[lens]

    def save(self, folder: str | Path) -> Path:
        """Write the run folder: `manifest.json`, tables as parquet, arrays as safetensors."""
        return save_run(self, Path(folder))

    def _repr_html_(self) -> str:
        return render_html(self)
