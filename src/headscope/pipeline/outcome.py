"""Folds made into findings: an answer, a reason why there is none, or an error."""

import traceback
from dataclasses import replace

from headscope.core import Finding
from headscope.errors import CaptureError, HeadscopeError, WeightsRefused
from headscope.pipeline.questions import Question
from headscope.pipeline.subject import Subject
from headscope.pipeline.text_pass import Fold, caught, seeded


def answer(fold: Fold, subject: Subject) -> Finding:
    """What the lens says, with its headlines, its parameters and the warning that its weights deserve."""
    question, lens = fold.asked.question, fold.asked.question.lens
    finding = None
    with caught(fold), seeded(fold.seed):
        if fold.error is None:
            finding = lens.finish(fold.state, subject.weights if fold.asked.needs.weights else None)
            finding = replace(finding, headlines=finding.headlines or _headlines(fold, finding))
    if fold.error is not None or finding is None:
        return _unanswered(question, fold.error)
    warning = subject.spec.weight_warning
    heard = (warning,) if warning and fold.asked.needs.weights and warning not in finding.warnings else ()
    return replace(finding, params=question.stated_params(), warnings=(*heard, *finding.warnings))


def not_applicable(question: Question, reason: str) -> Finding:
    """The lens has nothing to say about this model, and that is not an error."""
    return Finding(question.name, question.lens.about, "not applicable", reason, params=question.stated_params())


def failed(question: Question, error: BaseException) -> Finding:
    """The lens raised; the reason says what and, where it was not on purpose, in which line."""
    reason = error.message if isinstance(error, HeadscopeError) else f"{_named(error)} {_place(error)}"
    return Finding(question.name, question.lens.about, "failed", reason.strip(), params=question.stated_params())


def _headlines(fold: Fold, finding: Finding) -> tuple[str, ...]:
    return fold.asked.question.lens.headline(finding) if finding.status == "ok" else ()


def _unanswered(question: Question, error: BaseException | None) -> Finding:
    if isinstance(error, (CaptureError, WeightsRefused)):
        return not_applicable(question, error.message)
    return failed(question, error or RuntimeError("the lens returned nothing"))


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"(in {frames[-1].name}, {frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno})" if frames else ""
