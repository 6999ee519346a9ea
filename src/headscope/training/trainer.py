"""The trainer: trains any task in a folder, from wherever it was stopped."""

import time
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
import torch
from accelerate import Accelerator

from headscope.files import disk_errors
from headscope.folder_lock import Lock
from headscope.progress import Progress, Silent, remark
from headscope.training.batches.batch_source import Place, place_after
from headscope.training.budget import parts_done, used_share
from headscope.training.circumstances import check_same, circumstances
from headscope.training.early_stopping import judged
from headscope.training.metrics import Row, metrics_table, parquet_bytes, rows_until
from headscope.training.model_files import model_files
from headscope.training.recipe import Recipe
from headscope.training.saved_steps import step_folder
from headscope.training.schedule import is_trajectory_step, rate_factor
from headscope.training.state import State
from headscope.training.stepper import Stepper
from headscope.training.tally import Tally
from headscope.training.task import Task
from headscope.training.training_folder import BEST, WRITING, TrainingFolder
from headscope.training.weights import digest, weights_of

TRAINING = "training"
_CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


@dataclass(frozen=True)
class Outcome:
    """A training that has ended; its network has the weights of the last step."""

    folder: TrainingFolder
    state: State
    metrics: pl.DataFrame


def train(task: Task, recipe: Recipe, folder: Path, progress: Progress | None = None) -> Outcome:
    """Train a network in a folder, from its last checkpoint if there is one.

    Properties:
        - killed and resumed, it ends with the same weights bit by bit  (tested: test_a_killed_training_ends_the_same)
        - two processes give the weights of one up to rounding  (tested: test_two_processes_train_as_one)
        - torch's random generator is left as it was  (tested: test_the_global_generator_is_left_alone)

    Raises:
        UsageError: The folder holds another training, or another process writes into it.
        CheckpointError: The checkpoint is damaged.
        NumericsError: The gradient is not finite.
        ResourceError: The disk is full; the last checkpoint is still good.
    """
    accelerator = Accelerator()
    devices = [accelerator.device] if accelerator.device.type == "cuda" else []
    with _sole_writer(accelerator, folder), torch.random.fork_rng(devices):
        return Trainer(task, recipe, folder, accelerator, progress or Silent()).run()


def _sole_writer(accelerator: Accelerator, folder: Path) -> AbstractContextManager[Any]:
    """The right to write into the folder, for the first process."""
    if not accelerator.is_main_process:
        return nullcontext()
    with disk_errors(folder, WRITING):
        folder.mkdir(parents=True, exist_ok=True)
        stack = ExitStack()
        stack.callback(Lock(folder).release)
        return stack


class Trainer:
    """A task in training."""

    def __init__(self, task: Task, recipe: Recipe, folder: Path, accelerator: Accelerator, progress: Progress) -> None:
        self._task, self._recipe, self._accelerator, self._progress = task, recipe, accelerator, progress
        self._folder = TrainingFolder(folder, {**model_files(task.model), **task.companions})
        self._initial_weights = digest(weights_of(task.model))
        self._stepper = Stepper(task, recipe, accelerator)
        self._state = State()
        self._rows: list[Row] = []
        self._clock = _CLOCKS[recipe.budget.clock]
        self._checkpoint_time = time.monotonic()

    def run(self) -> Outcome:
        """Train to the end."""
        self._begin()
        while not self._state.ending:
            self._report()
            self._step()
            self._validate_in_time()
            self._save_in_time()
        self._report()
        self._task.model.eval()
        return Outcome(self._folder, self._state, metrics_table(self._rows))

    def _begin(self) -> None:
        """Begin, or go on from the last checkpoint."""
        present = self._circumstances()
        earlier = self._folder.circumstances()
        if earlier is not None:
            check_same(earlier, present, self._folder.path)
        checkpoint = self._folder.checkpoint() if earlier is not None else None
        self._accelerator.wait_for_everyone()  # all have read before the first one writes
        if self._accelerator.is_main_process:
            self._folder.sweep()
            self._folder.write_circumstances(present)
        if checkpoint is None:
            self._validate()
            self._save_in_time()
            return
        tensors, state = checkpoint
        self._stepper.restore(tensors, str(self._folder.path))
        self._state = State.from_json(state, str(self._folder.path))
        self._rows = rows_until(self._folder, self._state.step)

    def _circumstances(self) -> dict[str, Any]:
        held_out = self._task.held_out
        data = {"training": self._task.batches.identity(), "held out": held_out and held_out.identity()}
        network = {"class": type(self._task.model).__name__, "initial weights": self._initial_weights}
        return circumstances(self._recipe, data=data, objective=self._task.objective.identity(), network=network)

    def _step(self) -> None:
        """Read the batches of a step, change the weights, and count."""
        started = self._clock()
        places = self._next_places()
        tally, norm = self._stepper.step(self._state.step, places)
        tally += self._agreed_seconds(self._clock() - started)
        rate = self._recipe.optimisation.rate
        factor = rate_factor(rate, self._state.step, places[0].share)
        self._state = replace(
            self._state,
            step=self._state.step + 1,
            place=place_after(self._task.batches, places[-1]),
            seconds=self._state.seconds + tally.seconds,
            tokens=self._state.tokens + int(tally.n_read),
            tally=self._state.tally + tally,
        )
        if self._state.step % self._recipe.saving.metrics_every == 0 or self._is_spent():
            self._add_training_row(factor * rate.peak, norm)

    def _next_places(self) -> list[Place]:
        places = [replace(self._state.place, share=self._share())]
        while len(places) < self._recipe.optimisation.batches:
            places.append(place_after(self._task.batches, places[-1]))
        return places

    def _share(self) -> float:
        return used_share(self._recipe.budget, self._state, self._task.batches)

    def _is_spent(self) -> bool:
        return self._share() >= 1.0

    def _agreed_seconds(self, seconds: float) -> Tally:
        """The seconds of the first process: all must agree on when the budget is spent."""
        return self._stepper.summed(Tally(seconds=seconds if self._accelerator.is_main_process else 0.0))

    def _validate_in_time(self) -> None:
        is_due = self._state.step % self._recipe.validation.every_steps == 0
        if is_due or self._is_spent():
            self._validate()
        if not self._state.ending and self._is_spent():
            self._state = replace(self._state, ending="budget")

    def _validate(self) -> None:
        """Read the held-out batches, take the measures, and see what they mean."""
        task, best_step = self._task, self._state.best_step
        nats = None if task.held_out is None else self._stepper.held_out(task.held_out).nats_per_token
        task.model.eval()
        measures = dict(task.measures(task.model)) if task.measures is not None else {}
        self._state = judged(self._state, nats, measures, self._recipe.validation)
        if nats is not None or measures:
            self._add_to_row({"validation_nats": nats, **measures})
        if self._state.best_step != best_step:
            self._save_weights(BEST)

    def _add_training_row(self, rate: float, norm: float) -> None:
        tally = self._state.tally
        self._add_to_row(
            {
                "rate": rate,
                "loss": tally.loss,
                "nats": tally.nats_per_token,
                "gradient_norm": norm,
                "tokens_per_second": tally.tokens_per_second,
            }
        )
        remark(self._progress, f"loss {tally.loss:.3f}, {tally.tokens_per_second:,.0f} tokens/s")
        self._state = replace(self._state, tally=Tally())

    def _add_to_row(self, numbers: Row) -> None:
        """Add numbers to the row of this step."""
        state = self._state
        if not self._rows or self._rows[-1]["step"] != state.step:
            place = {"step": state.step, "epoch": state.place.epoch, "tokens": state.tokens, "seconds": state.seconds}
            self._rows.append(place)
        self._rows[-1].update(numbers)

    def _save_in_time(self) -> None:
        saving, is_over = self._recipe.saving, bool(self._state.ending)
        if is_trajectory_step(self._state.step, saving.steps_per_doubling) or (is_over and saving.steps_per_doubling):
            self._save_weights(step_folder(self._state.step))
        if is_over or time.monotonic() - self._checkpoint_time >= saving.checkpoint_seconds:
            self._save_checkpoint()

    def _save_weights(self, name: str) -> None:
        if self._accelerator.is_main_process:
            self._folder.write_weights(name, weights_of(self._task.model))

    def _save_checkpoint(self) -> None:
        """Write the metrics, then the checkpoint, which says how many of their rows count."""
        if self._accelerator.is_main_process:
            self._folder.write_metrics(parquet_bytes(metrics_table(self._rows)))
            self._folder.write_checkpoint(self._stepper.tensors(), self._state.as_json())
        self._checkpoint_time = time.monotonic()

    def _report(self) -> None:
        done, total = parts_done(self._recipe.budget, self._state, self._task.batches)
        self._progress.step(TRAINING, int(done), max(int(total), 1))
