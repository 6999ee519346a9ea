"""What differs between runs besides their models, and whether they can be compared at all."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from headscope.comparison.head_differences import shape
from headscope.core import Run
from headscope.core.numbers import count, counted
from headscope.errors import UsageError
from headscope.report.head_grid import head_grid
from headscope.report.overview import grid_size


def common_lenses(runs: Sequence[Run]) -> tuple[str, ...]:
    """The lenses that every run asked, in the order of the first run.

    Raises:
        UsageError: There is none.
    """
    lenses = tuple(lens for lens in runs[0].findings if all(lens in run.findings for run in runs[1:]))
    if not lenses:
        lens_lists = "; ".join(f"{run.model.name}: {', '.join(run.findings) or 'none'}" for run in runs)
        raise UsageError(
            f"the runs have no lens in common ({lens_lists})", hint="measure them with the same lenses: --lens NAME"
        )
    return lenses


def labels(runs: Sequence[Run], places: Sequence[Path | None]) -> tuple[str, ...]:
    """A name for each run that no other has: its model's, with its folder where models share a name."""
    names = [_short(run.model.name) for run in runs]
    if len(set(names)) < len(names):
        names = [_short(run.model.name, levels=2) for run in runs]
    folders = [name if place is None else f"{name} ({place.name})" for name, place in zip(names, places, strict=True)]
    names = [
        folder if names.count(name) > 1 else name for name, folder in zip(names, folders, strict=True)
    ]  # fmt: skip
    return tuple(
        f"{name} ({letter(index)})" if names.count(name) > 1 else name for index, name in enumerate(names)
    )  # fmt: skip


def _short(name: str, levels: int = 1) -> str:
    """The last parts of a path; other names as they are."""
    path = Path(name)
    return "/".join(path.parts[-levels:]) if path.is_absolute() or name.startswith((".", "~")) else name


def letter(index: int) -> str:
    """A, B, C … of the runs."""
    return chr(ord("A") + index) if index < 26 else f"A{index}"


def shape_obstacle(base: Run, other: Run) -> str:
    """Why the heads of two runs do not correspond; empty where they do."""
    if shape(base) == shape(other):
        return ""
    sizes = (grid_size(head_grid(run)) or "no heads" for run in (base, other))
    return f"their shapes differ, so that heads do not correspond: {' against '.join(sizes)}"


def notes(base: Run, other: Run, lenses: Sequence[str]) -> tuple[str, ...]:
    """What was measured differently in two runs; no note where nothing was."""
    return tuple(
        (*_weights(base, other), *_texts(base, other), *_settings(base, other, lenses), *_lenses(base, other, lenses))
    )


def _weights(base: Run, other: Run) -> Iterator[str]:
    if base.model.sha256 and base.model.sha256 == other.model.sha256:
        yield "both runs have the same weights: their sha256 is equal"
    if base.model.dtype != other.model.dtype:
        yield f"their weights are in {base.model.dtype} and {other.model.dtype}"


def _texts(base: Run, other: Run) -> Iterator[str]:
    first, second = base.text, other.text
    if first is None or second is None:
        if first is not second:
            yield "only one of them read a text"
        return
    if first.sha256 != second.sha256:
        yield f"they read different texts: {first.name} and {second.name}"
    if (first.n_tokens, first.n_windows, first.window) != (second.n_tokens, second.n_windows, second.window):
        sizes = (
            f"{count(text.n_tokens)} tokens in {counted(text.n_windows, 'window')} of up to {count(text.window)}"
            for text in (first, second)
        )
        yield f"the text was cut differently: {' and '.join(sizes)}"


def _settings(base: Run, other: Run, lenses: Sequence[str]) -> Iterator[str]:
    if base.seed != other.seed:
        yield f"their seeds are {base.seed} and {other.seed}"
    changed = sorted(
        name for name in {*base.versions, *other.versions} if base.versions.get(name) != other.versions.get(name)
    )
    if changed:
        pairs = (f"{name} {base.versions.get(name, 'none')} and {other.versions.get(name, 'none')}" for name in changed)
        yield f"they were made with different versions: {', '.join(pairs)}"
    for lens in lenses:
        first, second = base.findings[lens].params, other.findings[lens].params
        for name in sorted({*first, *second}):
            if first.get(name) != second.get(name):
                yield f"the lens {lens} had another setting: {name} {first.get(name)} and {second.get(name)}"


def _lenses(base: Run, other: Run, lenses: Sequence[str]) -> Iterator[str]:
    alone = [lens for run in (base, other) for lens in run.findings if lens not in lenses]
    if alone:
        yield f"not in every run, so left out: {', '.join(dict.fromkeys(alone))}"


def is_paired(base: Run, other: Run) -> bool:
    """Whether both runs read the same windows of the same text, token for token."""
    return base.text is not None and base.text == other.text
