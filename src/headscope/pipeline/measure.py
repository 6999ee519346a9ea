"""measure: a model, a text and some lenses in, a Run out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from headscope import model as models
from headscope.core import Finding, ModelSpec, Run
from headscope.corpora import Text, text_of
from headscope.errors import UsageError
from headscope.lenses.lens import Lens, Needs
from headscope.pipeline.forwards import Fold, observe
from headscope.pipeline.keeper import Keeper
from headscope.pipeline.outcome import answer, failed, not_applicable
from headscope.pipeline.progress import Progress, Silent
from headscope.pipeline.questions import Asked, Question, questions
from headscope.pipeline.subject import Subject, is_source, open_subject, windows_of
from headscope.pipeline.versions import versions


def measure(
    what: Any,
    *,
    text: Text | str | Path | None = None,
    lenses: Sequence[str | Lens] | None = None,
    params: Mapping[str, Any] | None = None,
    seed: int = 0,
    window: int = 512,
    hub: bool = False,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Run:
    """Ask lenses about a model and return their findings.

    Args:
        what: A model from `open`, or whatever `open` accepts: a name, a folder, a file.
        text: A string that is the text, a `Path` of a UTF-8 file, or None for the shipped one.
        lenses: Names of lenses; None is all of them.
        params: Parameters by lens name, e.g. `{"focus": {"bands": (4, 16)}}`.
        seed: For the freshly initialised variant of the model and everything that is sampled.
        window: Tokens per window; the model's context where that is shorter.
        hub: Whether a name may be fetched from the model hub.
        out: A run folder to keep findings in as they are made and to resume from.
        progress: Told about every step.

    Raises:
        UsageError: An unknown lens, a text without words, a folder that holds other things.
        CheckpointError: The model cannot be opened or its weights are not finite.
    """
    chosen = questions(lenses, params)
    given = text_of(text)  # read before the model is opened: a wrong path should not cost a minute
    hear = progress or Silent()
    subject = open_subject(what, run=_must_run(what, chosen, hub), hub=hub, seed=seed, progress=hear)
    asked, findings = _asked(chosen, subject)
    windows, text_spec = None, None
    if any(one.needs.text for one in asked):
        windows, text_spec = windows_of(subject, given, window)
    keeper = Keeper.begin(out, subject.spec, text_spec, seed)
    findings |= {one.question.name: kept for one in asked if (kept := keeper.kept(one.question)) is not None}
    for name in findings.keys() & {one.question.name for one in asked}:
        hear.step(f"kept from an earlier run: {name}", 1, 1)
    folds = [Fold(one, seed) for one in asked if one.question.name not in findings]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        # Lenses that read weights alone come first: an interrupted run has kept them.
        for done, fold in enumerate(only := [fold for fold in folds if not fold.asked.needs.text]):
            hear.step(f"reading weights: {fold.name}", done, len(only))
            findings[fold.name] = keeper.keep(fold.asked.question, answer(fold.started(subject), subject))
        watching = [fold.started(subject) for fold in folds if fold.asked.needs.text]
        if watching and windows is not None:
            observe(subject, windows, watching, hear)
        for fold in watching:
            findings[fold.name] = keeper.keep(fold.asked.question, answer(fold, subject))
    ordered = {question.name: findings[question.name] for question in chosen}
    return keeper.close(Run(subject.spec, subject.sites, ordered, text_spec, versions(), seed))


def _must_run(what: Any, chosen: Sequence[Question], hub: bool) -> bool:
    """Whether a lens wants to see text; a model that is already built is used as it is."""
    if not is_source(what):
        return True
    spec = models.look(what, hub=hub).spec
    return any(wants.text for question in chosen if isinstance(wants := _needs(question, spec), Needs))


def _asked(chosen: Sequence[Question], subject: Subject) -> tuple[list[Asked], dict[str, Finding]]:
    """The questions that can be put to this model, and at once the findings of those that cannot."""
    asked: list[Asked] = []
    findings: dict[str, Finding] = {}
    for question in chosen:
        needs = _needs(question, subject.spec)
        if isinstance(needs, Exception):
            findings[question.name] = failed(question, needs)
        elif needs.text and subject.mute:
            findings[question.name] = not_applicable(question, subject.mute)
        else:
            asked.append(Asked(question, needs))
    return asked, findings


def _needs(question: Question, spec: ModelSpec) -> Needs | Exception:
    """What a lens needs, or the error it answers with; senseless parameters are the caller's error."""
    try:
        return question.lens.needs(question.params, spec)
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001  a lens is foreign code: its failure is a finding
        return error
