"""Turns folds into findings: an answer, a reason for having none, or an error."""

import traceback
from dataclasses import replace
from typing import Any

from headscope.core import Finding, WeightSource
from headscope.errors import CaptureError, HeadscopeError, LensError, UsageError, WeightsRefused
from headscope.lenses.lens import Measurement, NotApplicable, TextLens
from headscope.pipeline.fold import Fold, caught, seeded
from headscope.pipeline.questions import Question
from headscope.pipeline.subject import Subject


def answer(fold: Fold, subject: Subject) -> Finding:
    """The lens's answer with headlines, parameters and the warning about weights.

    Raises:
        UsageError: A lens of weights was asked for what this model does not have, such as a layer. A lens of text
            refuses that before the text is read (`Fold.started`).
    """
    question, finding = fold.plan.question, None
    with caught(fold), seeded(fold.seed):
        if fold.error is None:
            measurement = measurement_of(question, fold.state, subject.weights if fold.plan.needs.weights else None)
            finding = finding_of(question, measurement)
    if isinstance(fold.error, UsageError) and not isinstance(question.lens, TextLens):
        raise fold.error
    if finding is None:
        finding = _without_answer(question, fold.error)
    warning = subject.spec.weight_warning
    weight_warnings = (warning,) if warning and fold.plan.needs.weights and warning not in finding.warnings else ()
    return finding if finding.status == "failed" else replace(finding, warnings=(*weight_warnings, *finding.warnings))


def measurement_of(question: Question, state: Any, weights: WeightSource | None) -> Measurement:
    """The measurement of the lens, from its state or from the weights alone."""
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
        curves=measurement.curves,
        patterns=measurement.patterns,
    )


def not_applicable(question: Question, reason: str, warnings: tuple[str, ...] = ()) -> Finding:
    """The finding of a lens that does not apply to this model, which is not an error."""
    return Finding(
        question.name,
        question.lens.about,
        "not applicable",
        reason,
        warnings=warnings,
        params=question.stated_params(),
    )


def failed_finding(question: Question, error: BaseException) -> Finding:
    """The finding of a lens that raised an error.

    The reason names the error and, where it was unexpected, its line.
    """
    reason = error.message if isinstance(error, HeadscopeError) else f"{_error_text(error)} {_place(error)}"
    return Finding(question.name, question.lens.about, "failed", reason.strip(), params=question.stated_params())


def _without_answer(question: Question, error: BaseException | None) -> Finding:
    if isinstance(error, NotApplicable):
        return not_applicable(question, error.message, error.warnings)
    if isinstance(error, (CaptureError, WeightsRefused)):
        return not_applicable(question, error.message)
    return failed_finding(question, error or RuntimeError("the lens returned nothing"))


def _error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"(in {frames[-1].name}, {frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno})" if frames else ""
