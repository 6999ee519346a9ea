"""The trainings of the study, each in a folder of its own: cycles in longer and longer rows, then text.

In the cycles the first layer keeps where it looks: a model first learns to copy any token of the row, and would forget
its previous-token head meanwhile. Each length ends when a head does induction on it, or when the minutes of all cycles
are spent; AdamW alone, since with Muon at its rate for text no induction came.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import LlamaForCausalLM

from headscope.core.numbers import counted
from headscope.corpora.byte_pair_tokenizer import BOS_ID
from headscope.errors import UsageError
from headscope.experiments.tiny.head_roles import MEASURE, TEXT_LENGTH, InductionMeasure
from headscope.experiments.tiny.held_out_windows import HeldOutWindows
from headscope.experiments.tiny.network_seed import first_query_and_key, fresh_network
from headscope.experiments.tiny.settings import Params
from headscope.experiments.tiny.text_material import Material
from headscope.experiments.tiny.text_mixture import TextMixture
from headscope.experiments.tiny.token_cycles import CycleBatches
from headscope.progress import Progress, remark
from headscope.training import (
    Budget,
    NextToken,
    Optimisation,
    Outcome,
    Rate,
    Recipe,
    Saving,
    Target,
    Task,
    Validation,
    train,
)
from headscope.training.muon import Muon

CYCLE_LENGTHS = (32, 64, 128)
CYCLE_TOKENS = 1024  # of a step
CYCLE_RATE = 3e-3
CYCLE_MINUTES = 4.0  # at most, and never more than half of all
CYCLE_TARGET = 0.6  # mass of the strongest induction head
CYCLE_VALIDATION = 25  # steps
MATRIX_RATE, OTHER_RATE = 1e-2, 6e-3
MATRIX_DECAY = 0.1
WARMUP = 50
TEXT_VALIDATION = 100
WATCHED_WINDOWS = 80  # at least, where the text has as many
WATCHED_REPEAT = 48  # tokens before they repeat
CHECKPOINT_SECONDS = 30.0
TEXT = "text"

_BETAS, _EPSILON = (0.9, 0.95), 1e-8


@dataclass(frozen=True)
class Phase:
    """A training that has ended."""

    name: str
    outcome: Outcome

    @property
    def minutes(self) -> float:
        """The minutes of its steps."""
        return self.outcome.state.seconds / 60

    @property
    def end(self) -> str:
        """Its name, its steps, and what ended it."""
        return f"{self.name} {counted(self.outcome.state.step, 'step')} ({self.outcome.state.ending})"


@dataclass(frozen=True)
class TrainedNetwork:
    """The network after the last phase, and all phases in order."""

    network: LlamaForCausalLM
    phases: Sequence[Phase]

    @property
    def text(self) -> Phase:
        """The training on text."""
        return self.phases[-1]

    @property
    def cycles(self) -> Sequence[Phase]:
        """The trainings on cycles."""
        return self.phases[:-1]

    @property
    def minutes(self) -> float:
        """The minutes of all steps."""
        return sum(phase.minutes for phase in self.phases)


def phase_names() -> tuple[str, ...]:
    """The names of all phases, which are those of their folders."""
    return (*map(_cycle_name, CYCLE_LENGTHS), TEXT)


def train_phases(params: Params, material: Material, folder: Path, progress: Progress) -> TrainedNetwork:
    """Train all phases, or go on with the one that was stopped.

    Properties:
        - killed and resumed, it ends with the same weights  (tested: test_a_killed_study_ends_the_same)
        - a phase that reaches its target ends early  (tested: test_a_length_ends_at_its_target)
        - what the cycles leave of the minutes is for text  (tested: test_minutes_of_cycles_are_limited)

    Raises:
        UsageError: The texts are too short, the cycles left no minutes, or the folder holds another training.
    """
    network = fresh_network(params.vocabulary, params.seed)
    text_task = _text_task(params, network, material)  # before the cycles: it refuses texts that are too short
    phases = _cycle_phases(params, network, material, folder, progress)
    minutes = params.minutes - sum(phase.minutes for phase in phases)
    if minutes <= 0:
        raise UsageError(f"the cycles took all of {params.minutes:g} minutes", hint="give more minutes")
    text = train(text_task, _text_recipe(params, minutes), folder / TEXT, PhaseProgress(TEXT, progress))
    return TrainedNetwork(network.eval(), (*phases, Phase(TEXT, text)))


def text_optimisers(network: nn.Module, optimisation: Optimisation) -> tuple[torch.optim.Optimizer, ...]:
    """Muon for the matrices of layers, AdamW without decay for the embedding and the norms."""
    names = dict(network.named_parameters())
    is_matrix = {name: parameter.ndim == 2 and "embed" not in name for name, parameter in names.items()}
    peak = optimisation.rate.peak
    return (
        Muon([names[name] for name in names if is_matrix[name]], lr=peak, weight_decay=optimisation.weight_decay),
        torch.optim.AdamW(
            [names[name] for name in names if not is_matrix[name]],
            lr=peak * OTHER_RATE / MATRIX_RATE,
            betas=optimisation.betas,
            eps=optimisation.epsilon,
            weight_decay=0.0,
            fused=True,
        ),
    )


@dataclass(frozen=True)
class PhaseProgress:
    """Reports the steps of a training under the name of its phase."""

    phase: str
    progress: Progress

    def step(self, task: str, done: int, total: int) -> None:
        """Report a step."""
        self.progress.step(phase_task(self.phase), done, total)

    def remark(self, words: str) -> None:
        """Hand the words on."""
        remark(self.progress, words)


def phase_task(phase: str) -> str:
    """The task that a phase is reported as."""
    return f"training, {phase}"


def _cycle_name(length: int) -> str:
    return f"cycles-{length}"


def _cycle_phases(
    params: Params, network: LlamaForCausalLM, material: Material, folder: Path, progress: Progress
) -> list[Phase]:
    phases = list[Phase]()
    fixed = first_query_and_key(network)
    for weight in fixed:
        weight.requires_grad_(False)
    for length in CYCLE_LENGTHS:
        minutes = min(CYCLE_MINUTES, params.minutes / 2) - sum(phase.minutes for phase in phases)
        if minutes > 0:
            name = _cycle_name(length)
            task = _cycle_task(params, network, material, length)
            recipe = _cycle_recipe(params, minutes, is_first=not phases)
            phases.append(Phase(name, train(task, recipe, folder / name, PhaseProgress(name, progress))))
    for weight in fixed:
        weight.requires_grad_(True)
    return phases


def _cycle_task(params: Params, network: LlamaForCausalLM, material: Material, length: int) -> Task:
    return Task(
        network,
        NextToken(),
        CycleBatches(CYCLE_TOKENS // length, length, params.vocabulary, params.seed),
        measures=InductionMeasure(network, BOS_ID, min(WATCHED_REPEAT, length // 2)),
        companions=material.companions,
    )


def _cycle_recipe(params: Params, minutes: float, *, is_first: bool) -> Recipe:
    rate = Rate(CYCLE_RATE, WARMUP if is_first else 0, decay="constant")
    return Recipe(
        Budget(minutes=minutes, steps=params.steps, clock=params.clock.value),
        seed=params.seed,
        optimisation=Optimisation(rate=rate, betas=_BETAS, epsilon=_EPSILON),
        validation=Validation(every_steps=CYCLE_VALIDATION, target=Target(MEASURE, CYCLE_TARGET)),
        saving=Saving(checkpoint_seconds=CHECKPOINT_SECONDS),
    )


def _text_task(params: Params, network: LlamaForCausalLM, material: Material) -> Task:
    return Task(
        network,
        NextToken(),
        TextMixture(material.train, vocabulary=params.vocabulary, seed=params.seed),
        held_out=HeldOutWindows(material.watched, length=TEXT_LENGTH, start=BOS_ID, least=WATCHED_WINDOWS),
        measures=InductionMeasure(network, BOS_ID, WATCHED_REPEAT),
        optimisers=text_optimisers,
        companions=material.companions,
    )


def _text_recipe(params: Params, minutes: float) -> Recipe:
    rate = Rate(MATRIX_RATE, WARMUP, decay="linear")
    return Recipe(
        Budget(minutes=minutes, steps=params.steps, clock=params.clock.value),
        seed=params.seed,
        optimisation=Optimisation(rate=rate, betas=_BETAS, epsilon=_EPSILON, weight_decay=MATRIX_DECAY),
        validation=Validation(every_steps=TEXT_VALIDATION),
        saving=Saving(checkpoint_seconds=CHECKPOINT_SECONDS),
    )
