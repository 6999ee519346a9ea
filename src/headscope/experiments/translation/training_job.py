"""The training of one network in a folder: begun, or gone on with where it was stopped."""

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from headscope.corpora.byte_pair_tokenizer import BOS_ID, PAD_ID
from headscope.experiments.translation.network_choice import network_of
from headscope.experiments.translation.pair_material import Material
from headscope.experiments.translation.settings import Params
from headscope.progress import Progress
from headscope.training import (
    Budget,
    Optimisation,
    Outcome,
    Rate,
    Recipe,
    Saving,
    SequenceToSequence,
    Task,
    Validation,
    train,
)
from headscope.training.training_folder import BEST
from headscope.training.weights import load_weights

VALIDATED_EVERY = 500  # steps
CHECKPOINT_SECONDS = 30.0
SMOOTHING = 0.1


@dataclass(frozen=True)
class TrainedNetwork:
    """A network with the weights of its best validation, and the training that gave them.

    `folder` opens as a model, with its tokenizer.
    """

    network: nn.Module
    outcome: Outcome
    folder: Path


def trained(params: Params, material: Material, folder: Path, progress: Progress) -> TrainedNetwork:
    """Train the network of the settings, or go on with its training.

    Properties:
        - stopped and resumed, it ends with the same weights  (tested: test_a_killed_study_ends_the_same)
    """
    outcome = train(task_of(params, material), recipe_of(params), folder, progress)
    network = network_of(params)
    load_weights(network, outcome.folder.weights(BEST), str(folder / BEST))
    return TrainedNetwork(network.eval(), outcome, folder / BEST)


def task_of(params: Params, material: Material) -> Task:
    """The network, its objective and its data."""
    sizes = {"tokens": params.batch, "seed": params.seed}
    network = network_of(params)
    # Stored maps of sentences are small. In bfloat16 torch's fused attention takes longer, in float32 as long.
    network.set_attn_implementation("eager")
    return Task(
        network,
        SequenceToSequence(start=BOS_ID, padding=PAD_ID, smoothing=SMOOTHING, agreement=params.agreement),
        material.batches(material.train, **sizes),
        held_out=material.batches(material.valid, **sizes),
        companions=material.companions,
    )


def recipe_of(params: Params) -> Recipe:
    """The settings of the training."""
    return Recipe(
        Budget(minutes=params.minutes, steps=params.steps, clock=params.clock.value),
        seed=params.seed,
        optimisation=Optimisation(
            rate=Rate(params.rate, params.warmup, decay="cosine"), precision=params.precision.value
        ),
        validation=Validation(every_steps=VALIDATED_EVERY),
        saving=Saving(checkpoint_seconds=CHECKPOINT_SECONDS),
    )
