"""measure: a model, a text and some lenses in, a Run out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from headscope.core import Finding, Run
from headscope.corpora import Amount, Text, Windows, text_of
from headscope.errors import LensError, UsageError
from headscope.lenses.lens import AnyLens, Needs
from headscope.model.devices import device_named
from headscope.model.sources.names import check_name
from headscope.pipeline.fold import Fold
from headscope.pipeline.lens_threads import LensThreads, lens_threads
from headscope.pipeline.made_windows import check_request
from headscope.pipeline.outcome import answer, failed_finding, not_applicable
from headscope.pipeline.questions import LensPlan, Question, questions
from headscope.pipeline.resume import Circumstances, Keeper
from headscope.pipeline.stages import lens_task, plan_stages
from headscope.pipeline.subject import Subject, is_source, open_subject, windows_of
from headscope.pipeline.text_pass import VARIANTS, observe
from headscope.pipeline.threads import fitting_threads
from headscope.pipeline.versions import versions
from headscope.progress import Progress, Silent
from headscope.store import check_folder


def measure(
    what: Any,
    *,
    text: Text | str | Path | None = None,
    lenses: Sequence[str | AnyLens] | None = None,
    quick: bool = False,
    params: Mapping[str, Any] | None = None,
    seed: int = 0,
    window: int = 512,
    first_tokens: int | None = None,
    all_windows: bool = False,
    hub: bool = False,
    device: str | None = None,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Run:
    """Ask lenses about a model and return their findings.

    Args:
        what: A model from `open`, or whatever `open` accepts: a name, a folder, a file.
        text: A text from `text`, the name of one (`moby-dick:fit`), a string that is itself the text, a `Path` of a
            UTF-8 file, or None for the shipped one.
        lenses: Names of lenses; None is all of them.
        quick: Of all lenses only those that need no changed form of the model.
        params: Parameters by lens name, e.g. `{"focus": {"bands": (4, 16)}}`.
        seed: For the freshly initialised variant of the model and everything that is sampled.
        window: Tokens per window; the model's context where that is shorter.
        first_tokens: Read the first tokens of the text, so many of them. Without it and `all_windows`, 32 windows
            that are evenly spread over the text are read, or all where it has no more.
        all_windows: Read the whole text.
        hub: Whether a name may be fetched from the model hub.
        device: Where the model runs, e.g. "cuda"; None is the CPU, or where a loaded model is. Lenses compute on the
            CPU, and weights alone are read there.
        out: A run folder to keep findings in as they are made and to resume from.
        progress: Told about every step.

    Raises:
        UsageError: An unknown lens, a layer that the model does not have, a text without words, a folder that holds
            other things.
        CheckpointError: The model cannot be opened or its weights are not finite.
    """
    questions_asked, amount = questions(lenses, params, quick=quick), Amount(first_tokens, all_windows)
    listener = progress or Silent()
    # What may be wrong with the arguments is looked at before anything is fetched or opened, which can take minutes.
    if out is not None:
        check_folder(Path(out))
    if device is not None:
        device_named(device)
    if is_source(what):
        check_name(what, hub=hub)
    source_text = text_of(text, listener.step)
    subject = _open(what, questions_asked, device, hub=hub, seed=seed, progress=listener)
    plans, findings = _plans(questions_asked, subject)
    windows, text_spec = None, None
    if any(plan.needs.text and plan.needs.reads_text for plan in plans):
        windows, text_spec = windows_of(subject, source_text, window, amount, listener)
    # A model handed over in Python may have been changed since it was opened: only a named one is resumed.
    circumstances = Circumstances(subject.spec, text_spec, seed) if is_source(what) else None
    keeper = Keeper.begin(out, circumstances)
    try:
        findings |= _earlier_findings(plans, keeper, listener)
        folds = [Fold(plan, seed) for plan in plans if plan.question.name not in findings]
        with (
            torch.random.fork_rng(devices=[]),
            torch.no_grad(),
            fitting_threads(subject.spec) as n_threads,
            lens_threads(n_threads) as threads,
        ):
            findings |= _answers(folds, subject, windows, keeper, threads, listener)
        ordered = {question.name: findings[question.name] for question in questions_asked}
        return keeper.close(Run(subject.spec, subject.sites, ordered, text_spec, versions(), seed))
    finally:
        keeper.release()


def _open(
    model: Any, questions_asked: Sequence[Question], device: str | None, *, hub: bool, seed: int, progress: Progress
) -> Subject:
    """The model, or its weights alone where no lens wants to see it run."""
    needs = (_needs(question) for question in questions_asked)
    has_to_run = any(need.text or need.built for need in needs if isinstance(need, Needs))
    if is_source(model):
        progress.step(f"opening {model}", 0, 1)
    if is_source(model) and not has_to_run:
        return open_subject(model, run=False, hub=hub, seed=seed, progress=progress)
    return open_subject(model, run=True, hub=hub, seed=seed, progress=progress, device=device)


def _earlier_findings(plans: Sequence[LensPlan], keeper: Keeper, progress: Progress) -> dict[str, Finding]:
    """What an earlier run in the folder has found already."""
    stored = {plan.question.name: keeper.earlier_finding(plan) for plan in plans}
    findings = {name: finding for name, finding in stored.items() if finding is not None}
    for name in findings:
        progress.step(f"kept from an earlier run: {name}", 1, 1)
    return findings


def _answers(
    folds: Sequence[Fold],
    subject: Subject,
    windows: Windows | None,
    keeper: Keeper,
    threads: LensThreads,
    progress: Progress,
) -> dict[str, Finding]:
    """Lenses that read weights alone answer first: an interrupted run has kept them."""
    findings: dict[str, Finding] = {}
    reading = [fold for fold in folds if not fold.plan.needs.text]
    # Senseless parameters are refused before any of the work.
    watching = [fold.started(subject, windows) for fold in folds if fold.plan.needs.text]
    plan_stages(progress, folds, subject, windows)
    names = [fold.name for fold in (*reading, *watching)]

    def keep_answers(finished: Sequence[Fold]) -> None:
        for fold, wait_for_answer in threads.answers(lambda fold: answer(fold, subject), finished):
            progress.step(lens_task(fold.name, names), 0, 1)
            findings[fold.name] = keeper.keep(fold.plan, wait_for_answer())
            progress.step(lens_task(fold.name, names), 1, 1)

    keep_answers(reading)
    if watching:
        observe(subject, windows, watching, threads, progress)
    keep_answers(watching)
    return findings


def _plans(questions_asked: Sequence[Question], subject: Subject) -> tuple[list[LensPlan], dict[str, Finding]]:
    """The questions that can be put to this model, and at once the findings of those that cannot."""
    plans: list[LensPlan] = []
    findings: dict[str, Finding] = {}
    for question in questions_asked:
        needs = _needs(question)
        if isinstance(needs, Exception):
            findings[question.name] = failed_finding(question, needs)
        elif reason := subject.obstacle(needs):
            findings[question.name] = not_applicable(question, reason)
        else:
            plans.append(LensPlan(question, needs))
    return plans, findings


def _needs(question: Question) -> Needs | Exception:
    """What a lens needs, or the error it answers with; senseless parameters are the caller's error."""
    try:
        needs = question.lens.needs(question.params)
        check_request(needs)
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001  a lens is foreign code: its failure is a finding
        return error
    strange = set(needs.variants) - set(VARIANTS)
    if strange:
        return LensError(f"there is no model variant {', '.join(strange)}; there are {', '.join(VARIANTS)}")
    return needs
