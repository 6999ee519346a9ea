"""A planted language: letters, translated to capitals in reverse order. And a study of it that kills itself."""

import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

LETTERS = "abcdefghijkl"
SETTINGS: dict[str, Any] = {
    "steps": 150,
    "width": 64,
    "layers": 1,
    "vocabulary": 283,
    "longest": 16,
    "batch": 700,
    "warmup": 20,
    "rate": 0.01,
    "dropout": 0.0,
}
OPTIONS = [word for name, value in SETTINGS.items() for word in (f"--{name}", str(value))]


def planted_pairs(path: Path, count: int = 400) -> Path:
    """Write pairs of the planted language, the same ones always."""
    generator, pairs = random.Random(0), dict[str, str]()
    while len(pairs) < count:
        letters = generator.sample(LETTERS, generator.randint(2, 4))
        pairs[" ".join(letters)] = " ".join(letter.upper() for letter in reversed(letters))
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs.items()), encoding="utf-8")
    return path


def study_and_die(pairs: str, out: str, threads: int, step: int) -> None:
    """Run the command of the study until the process kills itself after a step of the training."""
    import torch

    from headscope.cli import main
    from headscope.experiments.translation import training_job
    from headscope.training.trainer import Trainer

    torch.set_num_threads(threads)
    training_job.CHECKPOINT_SECONDS = 0.0  # a checkpoint after every step
    save = Trainer._save_in_time

    def save_or_die(self: Trainer) -> None:
        save(self)
        if self._state.step == step:
            os.kill(os.getpid(), signal.SIGKILL)

    Trainer._save_in_time = save_or_die  # type: ignore[method-assign]
    main(["study", "translation", "--pair", pairs, "--out", out, *OPTIONS])


if __name__ == "__main__":
    study_and_die(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
