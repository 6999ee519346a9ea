"""Folds made into findings: an answer, a reason why there is none, or an error."""

import traceback
from dataclasses import replace
from typing import Any

from headscope.core import Finding, WeightSource
from headscope.errors import CaptureError, HeadscopeError, LensError, WeightsRefused
from headscope.lenses.lens import Measurement, NotApplicable, TextLens
from headscope.pipeline.fold import Fold, caught, seeded
from headscope.pipeline.questions import Question
from headscope.pipeline.subject import Subject


def answer(fold: Fold, subject: Subject) -> Finding:
    """What the lens says, with its headlines, its parameters and the warning that its weights deserve."""
    question, finding = fold.plan.question, None
    with caught(fold), seeded(fold.seed):
        if fold.error is None:
            measurement = measured(question, fold.state, subject.weights if fold.plan.needs.weights else None)
            finding = finding_of(question, measurement)
    if finding is None:
        finding = _unanswered(question, fold.error)
    warning = subject.spec.weight_warning
    heard = (warning,) if warning and fold.plan.needs.weights and warning not in finding.warnings else ()
    return finding if finding.status == "failed" else replace(finding, warnings=(*heard, *finding.warnings))


def measured(question: Question, state: Any, weights: WeightSource | None) -> Measurement:
    """What the lens measures, from the state of its fold or from the weights alone."""
    lens = question.lens
    if isinstance(lens, TextLens):
        return lens.finish(state, weights)
    if weights is None:
        raise LensError(f"the lens {lens.name} reads the model's weights, and was given none")
    return lens.measure(question.params, weights)


def finding_of(question: Question, measurement: Measurement) -> Finding:
    """A measurement with its sentences, its prose and its parameters."""
    return Finding(
        question.name,
        question.lens.about,
        tables=measurement.tables,
        arrays=measurement.arrays,
        figures=measurement.figures,
        headlines=question.lens.sentences(measurement.tables),
        quantities=measurement.quantities,
        method=measurement.method,
        warnings=measurement.warnings,
        params=question.stated_params(),
    )


def not_applicable(question: Question, reason: str, warnings: tuple[str, ...] = ()) -> Finding:
    """The lens has nothing to say about this model, and that is not an error."""
    return Finding(
        question.name,
        question.lens.about,
        "not applicable",
        reason,
        warnings=warnings,
        params=question.stated_params(),
    )


def failed(question: Question, error: BaseException) -> Finding:
    """The lens raised; the reason says what and, where it was not on purpose, in which line."""
    reason = error.message if isinstance(error, HeadscopeError) else f"{_named(error)} {_place(error)}"
    return Finding(question.name, question.lens.about, "failed", reason.strip(), params=question.stated_params())


def _unanswered(question: Question, error: BaseException | None) -> Finding:
    if isinstance(error, NotApplicable):
        return not_applicable(question, error.message, error.warnings)
    if isinstance(error, (CaptureError, WeightsRefused)):
        return not_applicable(question, error.message)
    return failed(question, error or RuntimeError("the lens returned nothing"))


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"(in {frames[-1].name}, {frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno})" if frames else ""
