"""The runs that are compared: read from their folders, or measured, all in the same way."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headscope.comparison.source_check import check_place, check_sources, run_folders
from headscope.core import Run
from headscope.errors import UsageError
from headscope.pipeline import Progress, measure
from headscope.pipeline.subject import is_source
from headscope.progress import Silent, Stage, announce
from headscope.store import load
from headscope.store.folder_check import is_run_folder


@dataclass(frozen=True)
class NamedProgress:
    """Progress of one model among several: every task begins with its name."""

    listener: Progress
    name: str

    def step(self, task: str, done: int, total: int) -> None:
        """Show that `done` of `total` parts of `task` are finished."""
        self.listener.step(f"{self.name}: {task}", done, total)

    def plan(self, stages: Sequence[Stage]) -> None:
        """Expect these stages next."""
        announce(self.listener, [replace(stage, task=f"{self.name}: {stage.task}") for stage in stages])


def measured_runs(
    sources: Sequence[Any],
    *,
    lenses: Sequence[Any] | None,
    out: Path | None,
    hub: bool,
    progress: Progress | None,
    options: Mapping[str, Any],
) -> list[Run]:
    """A run for each source, in their order: runs as they are, run folders read, everything else measured.

    Stored runs are read first, so that a damaged one is refused before anything is measured. Without `lenses`, models
    that are compared with stored runs are asked what all of these were asked.
    """
    _check(sources, hub, out)
    names = [source if is_source(source) else f"model {index}" for index, source in enumerate(sources)]
    folders = {} if out is None else run_folders(names, out)
    stored = {index: run for index, source in enumerate(sources) if (run := _stored(source)) is not None}
    lenses_asked = _lenses(lenses, list(stored.values()))
    listener = progress or Silent()
    runs = []
    for index, source in enumerate(sources):
        if index in stored:
            runs.append(_restricted(stored[index], lenses))
            continue
        reporter = NamedProgress(listener, Path(source).name if is_source(source) else f"model {index + 1}")
        runs.append(
            measure(source, lenses=lenses_asked, hub=hub, out=folders.get(index), progress=reporter, **options)
        )  # fmt: skip
    return runs


def _check(sources: Sequence[Any], hub: bool, out: Path | None) -> None:
    if all(map(is_source, sources)):
        check_sources(sources, hub=hub, out=out)
        return
    if len(sources) < 2:
        raise UsageError("compare needs at least two models or runs, 1 was given", hint="hs.compare(first, second)")
    if len({id(source) for source in sources}) < len(sources):
        raise UsageError("the same object was given twice, and a model equals itself", hint="give another model or run")
    if out is not None:
        check_place(out)


def _stored(source: Any) -> Run | None:
    if isinstance(source, Run):
        return source
    return load(source) if is_source(source) and is_run_folder(Path(source)) else None


def _lenses(lenses: Sequence[Any] | None, stored: Sequence[Run]) -> Sequence[Any] | None:
    if lenses is not None or not stored:
        return lenses
    return [lens for lens in stored[0].findings if all(lens in run.findings for run in stored)] or None


def _restricted(run: Run, lenses: Sequence[Any] | None) -> Run:
    """A stored run with the chosen lenses alone."""
    if lenses is None:
        return run
    names = [lens if isinstance(lens, str) else lens.name for lens in lenses]
    restricted = replace(run, findings={name: run.findings[name] for name in run.findings if name in names})
    if run.folder is not None:
        restricted.note_folder(run.folder)
    return restricted
