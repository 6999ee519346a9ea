"""A lens in progress: its state while windows are run, or the error that ended it."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from headscope.corpora import Windows
from headscope.errors import CaptureError, CheckpointError, ResourceError, UsageError, WeightsRefused
from headscope.lenses.lens import Batch, Needs, NotApplicable, TextLens, TextSize
from headscope.pipeline.questions import LensPlan
from headscope.pipeline.subject import Subject

# Where a failure's traceback goes, for whoever listens (`--debug` does); its message goes into the finding.
log = logging.getLogger("headscope")


@dataclass
class Fold:
    """A lens in progress: its state, or the error that ended it."""

    plan: LensPlan
    seed: int = 0
    state: Any = None
    error: Exception | None = None

    @property
    def name(self) -> str:
        """The lens's name."""
        return self.plan.question.name

    def started(self, subject: Subject, windows: Windows | None) -> "Fold":
        """This fold with a fresh state, for a text of these windows.

        Raises:
            UsageError: Parameters that ask for what this model does not have, such as a layer.
        """
        question, self.error = self.plan.question, None
        # A lens that reads no text cannot tell whether others do.
        text = windows if self.plan.needs.reads_text else None
        size = TextSize(0, 0) if text is None else TextSize(text.count, text.length)
        with caught(self), seeded(self.seed):
            if isinstance(question.lens, TextLens):
                self.state = question.lens.start(question.params, subject.spec, subject.sites, size)
        if isinstance(self.error, UsageError):
            raise self.error
        return self

    def update(self, batch: Batch) -> None:
        """Hand a batch over; a lens that raises is left out from then on."""
        lens = self.plan.question.lens
        if self.error is None and is_shown(batch, self.plan.needs) and isinstance(lens, TextLens):
            with caught(self), seeded(self.seed):
                self.state = lens.update(self.state, batch)


def is_shown(batch: Batch, needs: Needs) -> bool:
    """Whether a lens asks for the variant, and for the text or made windows of a batch."""
    made_names = {made_windows.name for made_windows in needs.made if made_windows.is_read_by(batch.variant)}
    is_asked_for = batch.made in made_names if batch.made else needs.reads_text or bool(batch.refused)
    return batch.variant in needs.variants and is_asked_for


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's global generator: a lens draws the same numbers alone and in company."""
    # Lenses compute on the CPU; `torch.manual_seed` would also note the seed for devices that are not there, at 6 ms.
    torch.default_generator.manual_seed(seed)
    yield


@contextmanager
def caught(*folds: Fold) -> Iterator[None]:
    """Keep in the folds what their lens raises.

    A bad checkpoint or a full machine is not its failure.
    """
    try:
        yield
    except (CaptureError, NotApplicable, WeightsRefused) as error:
        _end(folds, error)
    except (CheckpointError, ResourceError, MemoryError):
        raise
    except Exception as error:
        log.info("lens %s failed", ", ".join(fold.name for fold in folds), exc_info=error)
        _end(folds, error)


def _end(folds: Sequence[Fold], error: Exception) -> None:
    for fold in folds:
        fold.error = fold.error or error
