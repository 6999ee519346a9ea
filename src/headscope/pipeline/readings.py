"""What a model is run on, text and made windows, and which lenses are shown it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headscope.corpora import Windows
from headscope.lenses.lens import MadeWindows
from headscope.pipeline.fold import Fold, caught, seeded
from headscope.pipeline.made_windows import make_windows
from headscope.pipeline.subject import Subject

# Tokens of the text that are enough to tell whether a lens gets what it needs.
_GLIMPSE = 8


@dataclass(frozen=True)
class Reading:
    """Windows, and the folds that are shown them.

    `made_name` names the windows that a lens made, and is empty for the text. `variants` are the forms of the model
    that read them, None for all.
    """

    windows: Windows
    folds: tuple[Fold, ...]
    made_name: str = ""
    variants: tuple[str, ...] | None = None

    def in_variant(self, variant: str) -> "Reading":
        """This reading for the folds that ask for a variant and have not failed."""
        is_read = self.variants is None or variant in self.variants
        folds = (fold for fold in self.folds if variant in fold.plan.needs.variants and fold.error is None)
        return replace(self, folds=tuple(folds) if is_read else ())

    def glimpse(self, fold: Fold) -> "Reading":
        """One window, short where it is of the text, for a fold that starts afresh."""
        window = self.windows.batches(1)[0]
        part = window if self.made_name else window[:, :_GLIMPSE]
        return Reading(Windows(part, None, 0), (replace(fold, error=None),), self.made_name, self.variants)


def readings_of(subject: Subject, windows: Windows | None, folds: Sequence[Fold]) -> list[Reading]:
    """The text, if there is any, and each kind of made windows once.

    A lens whose windows are wrong has failed.
    """
    text_folds = tuple(fold for fold in folds if fold.plan.needs.reads_text)
    readings = [Reading(windows, text_folds)] if windows is not None and text_folds else []
    for request in dict.fromkeys(request for fold in folds for request in fold.plan.needs.made):
        readings += _made_reading(subject, request, folds)
    return readings


def _made_reading(subject: Subject, request: MadeWindows, folds: Sequence[Fold]) -> list[Reading]:
    makers = tuple(fold for fold in folds if request in fold.plan.needs.made)
    readings: list[Reading] = []
    with caught(*makers), seeded(makers[0].seed):
        windows = make_windows(request, subject, makers[0].seed)
        readings.append(Reading(windows, makers, request.name, request.variants))
    return readings
