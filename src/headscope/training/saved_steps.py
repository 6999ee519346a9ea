"""The saved steps of a training, found by their names; loads no torch."""

from pathlib import Path

from headscope.errors import UsageError

CIRCUMSTANCES = "training.json"
STEPS = "steps"
WEIGHTS = "model.safetensors"
FEWEST = 2  # steps of a trajectory


def step_folder(step: int) -> str:
    """The name of the folder of a step."""
    return f"{STEPS}/{step:08d}"


def saved_steps(training: Path) -> dict[int, Path]:
    """The folders of all saved steps, in order."""
    folders = [path.parent for path in (training / STEPS).glob(f"*/{WEIGHTS}") if path.parent.name.isdecimal()]
    return {int(folder.name): folder for folder in sorted(folders, key=lambda folder: int(folder.name))}


def check_trajectory(training: Path) -> None:
    """Refuse a folder without a training, or without saved steps to follow.

    Raises:
        UsageError: It is no folder of a training, or fewer than two of its steps were saved.
    """
    if not (training / CIRCUMSTANCES).is_file():
        reason = f"it holds no {CIRCUMSTANCES}" if training.is_dir() else "there is no such folder"
        raise UsageError(
            f"{training} is no folder of a training: {reason}",
            hint=f"name the folder that a training writes to; it holds {CIRCUMSTANCES} and {STEPS}/",
        )
    steps = saved_steps(training)
    if len(steps) < FEWEST:
        saved = f"only step {next(iter(steps))} was saved" if steps else "no step was saved"
        raise UsageError(
            f"the training in {training} has no trajectory: {saved}, expected at least {FEWEST} steps in {STEPS}/",
            hint="train with Saving(steps_per_doubling=2), or wait until it has saved more steps",
        )
