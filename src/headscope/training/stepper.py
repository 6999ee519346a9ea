"""The steps of a training, on one process or several.

A step adds up the gradients of its batches and changes the weights once.
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch import Tensor, nn

from headscope.errors import NumericsError, UsageError
from headscope.training.batches.batch_source import BatchSource, Place
from headscope.training.batches.seeds import seed_of
from headscope.training.objectives.objective import Loss
from headscope.training.optimiser import optimiser_tensors, restore_optimisers
from headscope.training.recipe import Recipe
from headscope.training.schedule import rate_factor
from headscope.training.tally import Tally
from headscope.training.task import Task
from headscope.training.weights import load_weights, weights_of

_TRAINING, _HELD_OUT = 0, 1  # streams of random numbers
_WEIGHTS, _OPTIMISERS = "weights/", "optimisers/"


class Stepper:
    """A network with its optimisers.

    Each batch has random numbers of its own. They follow from the seed, the step and the number of the batch in the
    step, so that no state of a generator has to be saved.
    """

    def __init__(self, task: Task, recipe: Recipe, accelerator: Accelerator) -> None:
        batches, processes = recipe.optimisation.batches, accelerator.num_processes
        if batches % processes:
            raise UsageError(
                f"{processes} processes cannot share the {batches} batches of a step",
                hint=f"set batches to a multiple of {processes}, and the tokens of a batch accordingly",
            )
        self._task, self._recipe, self._accelerator = task, recipe, accelerator
        self._network = accelerator.prepare_model(task.model)
        self._optimisers = task.optimisers(task.model, recipe.optimisation)
        self._peaks = [[group["lr"] for group in optimiser.param_groups] for optimiser in self._optimisers]
        self._parameters = [parameter for parameter in task.model.parameters() if parameter.requires_grad]

    def step(self, step: int, places: Sequence[Place]) -> tuple[Tally, float]:
        """Change the weights once; the sums over all batches and the norm of the gradient.

        Properties:
            - several batches give the gradient of one batch that holds them all  (tested: test_batches_add_up)

        Raises:
            NumericsError: The gradient is not finite.
        """
        self._network.train()
        tally = self._accumulate(step, places)
        if not tally.n_predicted:
            raise UsageError(f"step {step} predicts no token: its batches have no labels")
        norm = self._finish_gradient(tally.n_predicted)
        if not math.isfinite(norm):
            raise NumericsError(
                f"the gradient of step {step} is not finite",
                hint="lower the learning rate or warm up longer; the last checkpoint is kept",
            )
        self._update(rate_factor(self._recipe.optimisation.rate, step, places[0].share))
        return tally, norm

    @torch.no_grad()
    def held_out(self, source: BatchSource) -> Tally:
        """The sums over the first epoch of a source, without dropout."""
        self._task.model.eval()
        tally = Tally()
        accelerator = self._accelerator
        for position in range(accelerator.process_index, source.batches_in(0), accelerator.num_processes):
            tally += _tally(self._loss(self._task.model, source, Place(0, position), (_HELD_OUT, position)))
        return self.summed(tally)

    def summed(self, tally: Tally) -> Tally:
        """The sum over all processes."""
        if self._accelerator.num_processes == 1:
            return tally
        numbers = torch.tensor(tally.numbers, dtype=torch.float64, device=self._accelerator.device)
        return Tally(*self._accelerator.reduce(numbers, "sum").tolist())

    def tensors(self) -> dict[str, Tensor]:
        """The weights and the state of the optimisers."""
        weights = {_WEIGHTS + name: tensor for name, tensor in weights_of(self._task.model).items()}
        states = {_OPTIMISERS + name: tensor for name, tensor in optimiser_tensors(self._optimisers).items()}
        return weights | states

    def restore(self, tensors: dict[str, Tensor], source: str) -> None:
        """Put back what `tensors` gave."""
        load_weights(self._task.model, _part(tensors, _WEIGHTS), source)
        restore_optimisers(self._optimisers, _part(tensors, _OPTIMISERS))

    def _accumulate(self, step: int, places: Sequence[Place]) -> Tally:
        """Add up the gradients of the batches of this process.

        The sums are those of all processes.
        """
        tally, accelerator = Tally(), self._accelerator
        turns = range(accelerator.process_index, len(places), accelerator.num_processes)
        for turn in turns:
            # Processes exchange their gradients once, in the last backward.
            with nullcontext() if turn == turns[-1] else accelerator.no_sync(self._network):
                with self._training_precision():
                    loss = self._loss(self._network, self._task.batches, places[turn], (_TRAINING, step, turn))
                accelerator.backward(loss.total)
            tally += _tally(loss)
        return self.summed(tally)

    def _training_precision(self) -> torch.autocast:
        is_low = self._recipe.optimisation.precision == "bfloat16"
        return torch.autocast(self._accelerator.device.type, torch.bfloat16, enabled=is_low)

    def _loss(self, network: nn.Module, source: BatchSource, place: Place, stream: tuple[int, ...]) -> Loss:
        batch = send_to_device(source.batch(place), self._accelerator.device)
        torch.manual_seed(seed_of(self._recipe.seed, *stream))
        return self._task.objective.loss(network, batch)

    def _finish_gradient(self, n_predicted: float) -> float:
        """Take the mean over all predicted tokens and clip it; the norm before."""
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        # Several processes leave the mean of their gradients, so that it counts once for each.
        torch._foreach_mul_(gradients, self._accelerator.num_processes / n_predicted)
        clip = self._recipe.optimisation.clip
        return float(nn.utils.clip_grad_norm_(self._parameters, math.inf if clip is None else clip))

    def _update(self, factor: float) -> None:
        for optimiser, peaks in zip(self._optimisers, self._peaks, strict=True):
            for group, peak in zip(optimiser.param_groups, peaks, strict=True):
                group["lr"] = factor * peak
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _tally(loss: Loss) -> Tally:
    return Tally(float(loss.total.detach()), float(loss.nats), float(loss.n_predicted), float(loss.n_read))
