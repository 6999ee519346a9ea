"""The folder of a training.

    training.json          the circumstances: what a training must share to go on here
    metrics.parquet        a row for every few steps and for every validation
    checkpoint.safetensors weights, optimisers and state, from which it goes on
    steps/00000128/        the weights after so many steps, with what opens them as a model
    best/                  the weights of the best validation, likewise

Every file is written in one step, so that a killed process or a full disk leaves the one before it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from headscope.errors import CheckpointError
from headscope.files import Destination, disk_errors, sweep, write_file
from headscope.training.saved_steps import CIRCUMSTANCES, WEIGHTS, saved_steps

METRICS = "metrics.parquet"
CHECKPOINT = "checkpoint.safetensors"
BEST = "best"

WRITING = Destination(
    failure="the training cannot write {path}: {reason}",
    full="the disk is full: the training cannot write {path}",
    hint="make room and run the same command again: the training goes on from its last checkpoint",
    refusal="the training cannot write {path}: {reason}",
    refusal_hint="choose another folder",
)
READING = Destination(failure="the training cannot read {path}: {reason}", hint="check the folder and its permissions")

_DAMAGED = "restore the file from a backup, or train in another folder"


@dataclass(frozen=True)
class TrainingFolder:
    """The files of a training.

    `companions` are written beside all saved weights: config.json, the tokenizer.
    """

    path: Path
    companions: Mapping[str, bytes] = field(default_factory=dict)

    def sweep(self) -> None:
        """Remove what a killed process may have left of files that it was writing."""
        if self.path.is_dir():
            with disk_errors(self.path, WRITING):
                sweep(self.path)

    def write_circumstances(self, circumstances: Mapping[str, Any]) -> None:
        """Write what a training must share to go on here."""
        self._write(CIRCUMSTANCES, json.dumps(circumstances, indent=2, sort_keys=True).encode() + b"\n")

    def circumstances(self) -> dict[str, Any] | None:
        """The circumstances of the training here; None where none was begun."""
        path = self.path / CIRCUMSTANCES
        with disk_errors(path, READING):
            if not path.exists():
                return None
            content = path.read_bytes()
        try:
            circumstances = json.loads(content)
        except ValueError as error:
            raise CheckpointError(f"{path} is damaged: it is not JSON", hint=_DAMAGED) from error
        if not isinstance(circumstances, dict):
            raise CheckpointError(f"{path} is damaged: it holds no object", hint=_DAMAGED)
        return circumstances

    def write_metrics(self, parquet: bytes) -> None:
        """Write the table of the metrics."""
        self._write(METRICS, parquet)

    def metrics(self) -> Path:
        """Where the table of the metrics is."""
        return self.path / METRICS

    def write_checkpoint(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Write weights, optimisers and state as one file."""
        self._write(CHECKPOINT, safetensors.torch.save(dict(tensors), {"state": json.dumps(state)}))

    def checkpoint(self) -> tuple[dict[str, Tensor], Any] | None:
        """The tensors and the state of the last checkpoint; None before the first.

        Raises:
            CheckpointError: It is damaged.
        """
        path = self.path / CHECKPOINT
        if not path.exists():
            return None
        try:
            with disk_errors(path, READING), safe_open(path, framework="pt") as file:
                state = json.loads((file.metadata() or {})["state"])
                return {name: file.get_tensor(name) for name in file.keys()}, state  # noqa: SIM118  no mapping
        except (SafetensorError, KeyError, ValueError) as error:
            raise CheckpointError(f"{path} is damaged: {error}", hint=_DAMAGED) from error

    def write_weights(self, name: str, weights: Mapping[str, Tensor]) -> Path:
        """Write weights into a folder, as its last file: with them it is complete.

        There is one note in the file, since several come in no fixed order: the same weights are the same bytes.
        """
        for companion, content in self.companions.items():
            self._write(f"{name}/{companion}", content)
        self._write(f"{name}/{WEIGHTS}", safetensors.torch.save(dict(weights), {"format": "pt"}))
        return self.path / name

    def weights(self, name: str) -> dict[str, Tensor]:
        """The weights that were written into a folder.

        Raises:
            CheckpointError: They are missing or damaged.
        """
        path = self.path / name / WEIGHTS
        try:
            with disk_errors(path, READING):
                tensors: dict[str, Tensor] = safetensors.torch.load(path.read_bytes())
                return tensors
        except SafetensorError as error:
            raise CheckpointError(f"{path} is damaged: {error}", hint=_DAMAGED) from error

    def trajectory(self) -> dict[int, Path]:
        """The folders of all saved steps, in order."""
        return saved_steps(self.path)

    def _write(self, name: str, content: bytes) -> None:
        write_file(self.path / name, content, WRITING)
