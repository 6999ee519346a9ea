"""The stages of a measurement and their expected seconds, for whoever waits.

`look` estimates what all lenses take on the default text; here that is shared out. Shares were measured on reports of
tiny: a lens that reads text spends more of its time while the text runs than on its answer, and one that reads weights
takes a fraction of that. They need not be right: the time left follows the observed speed (`progress.Course`).
"""

from collections.abc import Sequence

from headscope.corpora import SPREAD, Windows
from headscope.lenses import lens_members
from headscope.lenses.lens import AS_IS
from headscope.model.look import lens_seconds, measured_speed
from headscope.pipeline.fold import Fold
from headscope.pipeline.subject import Subject
from headscope.progress import Planner, Progress, Stage

# Shares of the seconds of one lens.
RUNNING, ANSWERING, READING_WEIGHTS, CHANGED_FORM = 0.6, 0.4, 0.2, 0.05
_SPEED_SECONDS = 0.02  # spent on measuring the speed of this machine


def plan_stages(progress: Progress, folds: Sequence[Fold], subject: Subject, windows: Windows | None) -> None:
    """Tell a listener that wants to know which stages come, and how long they take, about."""
    if isinstance(progress, Planner):
        speed = measured_speed(seconds=_SPEED_SECONDS)
        seconds = lens_seconds(subject.spec, subject.sites, speed) / len(lens_members())
        progress.plan(stages_of(folds, windows, seconds))


def stages_of(folds: Sequence[Fold], windows: Windows | None, seconds: float) -> list[Stage]:
    """Weights first, then the text once per form of the model, then the answers.

    Args:
        folds: The lenses, none of them begun.
        windows: The text; None where no lens reads it.
        seconds: What one lens takes on the default text.
    """
    reading = [fold for fold in folds if not fold.plan.needs.text]
    watching = [fold for fold in folds if fold.plan.needs.text]
    length = 1.0 if windows is None else windows.count / SPREAD
    names = [fold.name for fold in (*reading, *watching)]
    answers = [
        Stage(lens_task(name, names), seconds * (READING_WEIGHTS if index < len(reading) else ANSWERING))
        for index, name in enumerate(names)
    ]
    return [*answers[: len(reading)], *_runs(watching, seconds * length), *answers[len(reading) :]]


def _runs(folds: Sequence[Fold], seconds: float) -> list[Stage]:
    """The runs of the text and of made windows, form by form, in the order of `text_pass`."""
    variants = sorted(
        dict.fromkeys(variant for fold in folds for variant in fold.plan.needs.variants), key=lambda v: v != AS_IS
    )
    stages = []
    for variant in variants:
        share = RUNNING if variant == AS_IS else CHANGED_FORM
        asking = [fold for fold in folds if variant in fold.plan.needs.variants]
        text_folds = [fold for fold in asking if fold.plan.needs.reads_text]
        if text_folds:
            stages.append(Stage(run_task(variant), seconds * share * len(text_folds)))
        requests = (request for fold in asking for request in fold.plan.needs.made)
        made_names = dict.fromkeys(request.name for request in requests if request.is_read_by(variant))
        stages += [Stage(run_task(variant, name), seconds * share) for name in made_names]
    return stages


def lens_task(name: str, names: Sequence[str]) -> str:
    """The task of a lens that reads weights or makes its answer: `lens 7/13, focus`."""
    return f"lens {list(names).index(name) + 1}/{len(names)}, {name}"


def run_task(variant: str, made_name: str = "") -> str:
    """The task of running text or made windows; the number of the batch follows."""
    windows = f"the windows {made_name!r}" if made_name else "the text"
    form = "" if variant == AS_IS else f" (model {variant})"
    return f"running {windows}{form}, batch"
