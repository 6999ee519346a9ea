"""How far a download is: a callback, so that the front decides how it looks."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable


@runtime_checkable
class Progress(Protocol):
    """Called now and then with what is being done and how far it is, in bytes; total 0 means unknown."""

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show that `done` of `total` bytes of `what` are there."""
        ...


def silent(what: str, done: int, total: int) -> None:
    """Show nothing: what a library does unless it is asked."""


@contextmanager
def bar() -> Iterator[Progress]:
    """A progress bar on stderr, drawn only while there is something to show; stdout stays free for data."""
    from rich import progress as rich_progress
    from rich.console import Console

    columns = (
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.DownloadColumn(),
        rich_progress.TransferSpeedColumn(),
    )
    with rich_progress.Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        tasks: dict[str, rich_progress.TaskID] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = shown.add_task(what, total=total or None)
            shown.update(tasks[what], completed=done, total=total or None)

        yield show
