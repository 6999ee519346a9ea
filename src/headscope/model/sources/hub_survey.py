"""A list of models, each fetched, opened and verified: how published checkpoints fare, for those with a network."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from headscope.errors import CheckpointError, HeadscopeError, NumericsError, ResourceError
from headscope.model.model import open_model
from headscope.model.sources.names import resolve
from headscope.model.transformers.library_messages import reason
from headscope.model.verify import Check, verify
from headscope.progress import Step

Result = Literal["agrees", "disagrees", "crashed", "refused", "not fetched"]


@dataclass(frozen=True)
class Outcome:
    """The outcome for one model: its largest deviation, its tolerance, and the check or reason that decided.

    `revision` is the commit that was fetched; empty for a model that did not come from a hub.
    """

    model: str
    result: Result
    deviation: float | None = None
    tolerance: float | None = None
    check: str = ""
    reason: str = ""
    revision: str = ""


# The error of each result but "agrees", the worst first.
_ERRORS: dict[Result, type[HeadscopeError]] = {
    "disagrees": NumericsError,
    "crashed": HeadscopeError,
    "not fetched": ResourceError,
    "refused": CheckpointError,
}


def survey(models: Sequence[str], text: str | None = None, progress: Step | None = None) -> Iterator[Outcome]:
    """Fetch, open and verify one model after the other; none of them stops the others."""
    for position, model in enumerate(models):
        if progress is not None:
            progress("verifying model", position, len(models))
        yield _outcome(model, text)


def check_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Raise by the worst result: a disagreement, a crash, a model that could not be fetched or one that was refused."""
    counts = {result: sum(outcome.result == result for outcome in outcomes) for result in _ERRORS}
    worst = next((result for result, count in counts.items() if count), None)
    if worst is not None:
        counts_text = ", ".join(f"{result}: {count}" for result, count in counts.items() if count)
        network = "a network is needed to fetch models; " if worst == "not fetched" else ""
        raise _ERRORS[worst](
            f"not all of the {len(outcomes)} models could be shown to agree ({counts_text})",
            hint=f"{network}the table has the reason of each",
        )


def _outcome(model: str, text: str | None) -> Outcome:
    try:
        source = resolve(model, hub=True)
    except ResourceError as error:
        return Outcome(model, "not fetched", reason=error.message)
    except HeadscopeError as error:
        return Outcome(model, "refused", reason=error.message)
    revision = source.folder.name if source.kind == "hub" else ""
    try:
        checks = verify(open_model(model, hub=True), text)
    except HeadscopeError as error:
        return Outcome(model, "refused", reason=error.message, revision=revision)
    except Exception as error:  # noqa: BLE001  a bug that one model shows must not hide how the others fare
        return Outcome(model, "crashed", reason=f"this is a bug: {reason(error)}", revision=revision)
    worst = max(checks, key=_excess)
    failures = [f"{check.check}: {check.note}" if check.note else check.check for check in checks if not check.ok]
    result: Result = "disagrees" if failures else "agrees"
    return Outcome(model, result, worst.error, worst.tolerance, worst.check, "; ".join(failures), revision)


def _excess(check: Check) -> float:
    """How far a check is from its tolerance, as a factor; one that failed without a number is the furthest."""
    if check.error is None:
        return -1.0 if check.ok else math.inf  # what could not be compared says nothing about the model
    return check.error / check.tolerance if check.tolerance else (math.inf if check.error else 0.0)
