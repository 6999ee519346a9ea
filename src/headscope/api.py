"""The public face: open a model, measure it, report on it. `headscope` re-exports these names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headscope.attention.mechanism import mechanism_named, mechanisms
from headscope.attention.spelling import spelled
from headscope.core import Run
from headscope.core.ports import plug
from headscope.corpora import read_text
from headscope.experiments.attention_bench import SHOWN_AT, growth
from headscope.experiments.attention_bench import Setting as BenchSetting
from headscope.experiments.attention_bench import bench as bench_attention
from headscope.experiments.drawing import pictures
from headscope.lenses import lens_named, lenses
from headscope.model import look, open_model, verify
from headscope.model.source import sources as models
from headscope.pipeline import Progress, measure
from headscope.report import notebook_html, write
from headscope.report import save as save_figure
from headscope.store import load
from headscope.store import save as save_run

__all__ = [
    "SHOWN_AT",
    "BenchSetting",
    "Progress",
    "bench_attention",
    "growth",
    "lens_named",
    "lenses",
    "load",
    "look",
    "measure",
    "mechanism_named",
    "mechanisms",
    "models",
    "open",
    "pictures",
    "read_text",
    "report",
    "save_figure",
    "save_run",
    "spelled",
    "verify",
]

open = open_model


def report(what: Any, out: str | Path | None = None, **options: Any) -> Path:
    """Write `report.html`, one self-contained file, and return its path.

    Args:
        what: A run, a run folder, or a model (also by name), which is measured first.
        out: The folder to write to. A run folder is its own default; a run needs none but `headscope-report`.
        options: For a model: those of `measure`.
    """
    run, folder = _run_and_folder(what, out, options)
    target = folder / "report.html"
    write(run, target)
    return target


def _run_and_folder(what: Any, out: str | Path | None, options: Mapping[str, Any]) -> tuple[Run, Path]:
    if isinstance(what, Run):
        folder = Path(out or "headscope-report")
        return what, save_run(what, folder)
    if isinstance(what, (str, Path)) and (Path(what) / "manifest.json").is_file():
        return load(what), Path(out or what)
    folder = Path(out or "headscope-report")
    return measure(what, out=folder, **options), folder


plug(render=notebook_html, save=save_run)
