"""Run: everything that one run produced, as plain data.

The store keeps times, dates and the machine separately.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headscope.core.card import Card, Point, Shown
from headscope.core.finding import Finding, Headline
from headscope.core.model_spec import ModelSpec
from headscope.core.model_summary import model_line
from headscope.core.numbers import counted
from headscope.core.ports import save_run
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


REPORT = "report.html"  # in the folder of a run
_RANKS = {"ok": 0, "not applicable": 1, "failed": 2}


@dataclass(frozen=True, repr=False)
class Run(Shown):
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

    @property
    def folder(self) -> Path | None:
        """Where the run was last saved or loaded from, if anywhere.

        It is no field: it is no part of what was found, and a copy with other findings is not in that folder.
        """
        return vars(self).get("_folder")

    def note_folder(self, folder: Path) -> None:
        """Remember that the run is in `folder`."""
        object.__setattr__(self, "_folder", folder)

    def _card(self) -> Card:
        """The model, the conclusions of all lenses by their effect, and where the report is."""
        text = f" on {self.text.name} ({counted(self.text.n_tokens, 'token')})" if self.text else ""
        return Card(
            f"run on {model_line(self.model)}",
            lead=(f"{counted(len(self.findings), 'finding')}{text}",),
            points=self.ranked_points(),
            end=tuple(filter(None, (self.model.weight_warning, self._whereabouts()))),
        )

    def ranked_points(self) -> tuple[Point, ...]:
        """The largest effects first, then statements that compare nothing, then what gave no answer."""
        ranked = [
            (_RANKS[finding.status], -effect_size(point.effect), point)
            for finding in self.findings.values()
            for point in finding.points()
        ]
        return tuple(point for *_, point in sorted(ranked, key=lambda entry: entry[:2]))

    def largest_effects(self) -> list[tuple[Finding, Headline]]:
        """The headline with the largest effect of each finding, the largest first; those without one only alone."""
        pairs = [
            (finding, max(finding.headlines, key=lambda headline: effect_size(headline.effect)))
            for finding in self.findings.values()
            if finding.headlines
        ]
        ranked = sorted(pairs, key=lambda pair: -effect_size(pair[1].effect))
        return [pair for pair in ranked if effect_size(pair[1].effect) > 0] or ranked

    def _whereabouts(self) -> str:
        if self.folder is None:
            return "`headscope.report(run)` writes the report."
        report = self.folder / REPORT
        if report.is_file():
            return f"Report: {report}"
        return f"Stored in {self.folder}; `headscope.report(run, out=…)` writes the report."


def effect_size(effect: float | None) -> float:
    """An effect as a rank; one that is missing or no number is below all others."""
    return effect if effect is not None and math.isfinite(effect) else -1.0
