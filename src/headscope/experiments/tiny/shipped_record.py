"""The record of a training by this recipe, as the folder of the shipped weights has it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headscope.errors import CheckpointError
from headscope.model.sources.names import resolve

NAME = "tiny"
RECORD = "training.json"


@dataclass(frozen=True)
class ShippedRecord:
    """The published figures, and the course of the training."""

    bits_per_byte: Mapping[int, float]
    induction: Mapping[str, float]
    positional: Mapping[str, float]
    n_grams: Mapping[str, float]
    course: tuple[Mapping[str, float], ...]
    steps: int
    tokens: int
    minutes: float
    cycle_steps: int

    @property
    def late_induction(self) -> tuple[float, float]:
        """The least and the largest mass of the strongest induction head in the second half of the training."""
        late = [point["induction_2x48"] for point in self.course if point["cpu_minutes"] >= self.minutes / 2]
        return min(late), max(late)


def shipped_record() -> ShippedRecord:
    """The record of the shipped weights.

    Raises:
        CheckpointError: It lacks a figure.
    """
    return read_record(resolve(NAME).folder)


def read_record(folder: Path) -> ShippedRecord:
    """The record in the folder of weights.

    Raises:
        CheckpointError: It lacks a figure.
    """
    path = folder / RECORD
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    try:
        results = content["results"]
        return ShippedRecord(
            {int(window): bits for window, bits in results["held_out_bits_per_byte"].items()},
            {windows: best["score"] for windows, best in results["induction_best"].items()},
            {role.replace("_", " "): best["score"] for role, best in results["positional_best"].items()},
            {order: float(nats) for order, nats in content["baseline_nats_per_token"].items()},
            tuple({name: float(value) for name, value in point.items()} for point in content["curve"]),
            int(content["steps"]),
            int(content["tokens_seen"]),
            float(content["cpu_minutes"]),
            int(content["cycle_steps"]),
        )
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{path} lacks {error}", hint="reinstall headscope") from error
