"""What is trained: a network, an objective and data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import nn

from headscope.training.batches.batch_source import BatchSource
from headscope.training.objectives.objective import Objective
from headscope.training.optimiser import MakeOptimisers, adamw

# Measures of a model by name, taken at every validation.
Measures = Callable[[nn.Module], Mapping[str, float]]


@dataclass(frozen=True)
class Task:
    """A network, what it learns, from which data, and how it is judged.

    The trainer knows nothing else about a study. The network is freshly made, or opened: a training that was killed
    begins with the same one and goes on with the weights of its checkpoint. `companions` are files that are written
    next to all saved weights, so that they open as a model: the tokenizer, for instance. The configuration of the
    network is there without them.
    """

    model: nn.Module
    objective: Objective
    batches: BatchSource
    held_out: BatchSource | None = None
    measures: Measures | None = None
    optimisers: MakeOptimisers = adamw
    companions: Mapping[str, bytes] = field(default_factory=dict)
