"""Folders of trainings whose saved steps are written by hand: at a known step a head becomes a previous-token head."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from headscope.training.model_files import model_files
from headscope.training.saved_steps import step_folder
from headscope.training.training_folder import TrainingFolder
from headscope.training.weights import weights_of
from tests.planted_induction import layers, planted_model, planted_tokenizer, random_head, shift_head

STEPS = (0, 1, 2, 4, 8, 16, 32, 64)
SHIFT = "L0.H0"


def model_of(strength: float) -> Any:
    """The planted model, whose head L0.H0 is random at strength 0 and attends to the previous token at strength 1."""
    heads = layers()
    start, end = random_head(torch.Generator().manual_seed(7)), shift_head()
    mixed = {name: torch.lerp(getattr(start, name), getattr(end, name), strength) for name in ("w_q", "w_k", "b_q")}
    heads[0][0] = replace(end, **mixed)
    return planted_model(heads)


@cache
def tokenizer_files(folder: Path) -> Mapping[str, bytes]:
    """The tokenizer as it lies beside weights."""
    planted_tokenizer().save_pretrained(folder)
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def write_training(folder: Path, strength: Callable[[int], float], scratch: Path) -> Path:
    """A folder of a training whose step s has the strength `strength(s)`."""
    TrainingFolder(folder).write_circumstances({"made": "by a test"})
    for step in STEPS:
        model = model_of(strength(step))
        companions = {**model_files(model), **tokenizer_files(scratch)}
        training = TrainingFolder(folder, companions)
        training.write_weights(step_folder(step), weights_of(model))
    return folder


def damage_step(training: Path, step: int) -> None:
    """Cut the weights of a step in half."""
    path = training / step_folder(step) / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def config_of(training: Path, step: int) -> dict[str, Any]:
    """The configuration of a step."""
    content: dict[str, Any] = json.loads((training / step_folder(step) / "config.json").read_text())
    return content
