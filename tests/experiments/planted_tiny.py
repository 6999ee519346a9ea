"""A planted text of made-up words, and a study of it that kills itself."""

import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

SETTINGS: dict[str, Any] = {"vocabulary": 400, "steps": 3, "judged": 3000}
OPTIONS = [word for name, value in SETTINGS.items() for word in (f"--{name}", str(value))]
_SYLLABLES = [f"{first}{second}" for first in "bcdfglmnprst" for second in "aeiou"]


def planted_text(path: Path, documents: int = 24, words: int = 600) -> Path:
    """Write documents in which each word has four successors, the same ones always."""
    generator = random.Random(0)
    vocabulary = ["".join(generator.choices(_SYLLABLES, k=generator.randint(1, 3))) for _ in range(300)]
    successors = {word: generator.sample(vocabulary, 4) for word in vocabulary}
    texts = []
    for _ in range(documents):
        text = [generator.choice(vocabulary)]
        while len(text) < words:
            text.append(generator.choice(successors[text[-1]]))
        texts.append(" ".join(text))
    path.write_text("\n\n***\n\n".join(texts), encoding="utf-8")
    return path


def study_and_die(text: str, out: str, phase: str, step: int) -> None:
    """Run the command of the study until the process kills itself after a step of a phase."""
    from headscope.cli import main
    from headscope.experiments.tiny import training_phases
    from headscope.training.trainer import Trainer

    training_phases.CHECKPOINT_SECONDS = 0.0  # a checkpoint after every step
    save = Trainer._save_in_time

    def save_or_die(self: Trainer) -> None:
        save(self)
        if self._folder.path.name == phase and self._state.step == step:
            os.kill(os.getpid(), signal.SIGKILL)

    Trainer._save_in_time = save_or_die  # type: ignore[method-assign]
    main(["study", "tiny", "--texts", text, "--out", out, *OPTIONS])


if __name__ == "__main__":
    study_and_die(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
