"""A training that is killed goes on where it was, and ends with the same weights bit by bit."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import torch

from headscope.errors import CheckpointError, ResourceError, UsageError
from headscope.training import Budget, NextToken, Saving, SequenceBatches, train
from headscope.training.training_folder import CHECKPOINT, METRICS
from tests.training.tiny_tasks import PADDING, RECIPES, TASKS, marian_task, rows, same_weights, toy_recipe, toy_task

STEPS = 24
MARIAN_STEPS = 10
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def killed(name: str, folder: Path, steps: int, kill: str) -> int:
    command = [sys.executable, "-m", "tests.training.tiny_tasks", name, str(folder), str(steps), kill]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


@pytest.mark.parametrize(("name", "steps"), [("toy", STEPS), ("marian", MARIAN_STEPS), ("agreeing", MARIAN_STEPS)])
def test_a_killed_training_ends_the_same(tmp_path: Path, name: str, steps: int) -> None:
    lot = random.Random(steps)
    kills = [f"step:{lot.randrange(1, steps // 2)}", f"write:{lot.randrange(5, 20)}", f"step:{steps - 1}"]
    assert [killed(name, tmp_path / "killed", steps, kill) for kill in kills] == [-signal.SIGKILL] * 3
    task = TASKS[name]()
    resumed = train(task, RECIPES[name](steps), tmp_path / "killed")
    whole_task = TASKS[name]()
    whole = train(whole_task, RECIPES[name](steps), tmp_path / "whole")
    assert same_weights(task.model.state_dict(), whole_task.model.state_dict())
    assert same_weights(resumed.folder.checkpoint()[0], whole.folder.checkpoint()[0])  # the optimiser's state too
    assert resumed.folder.trajectory().keys() == whole.folder.trajectory().keys()
    for step in whole.folder.trajectory():
        place = f"steps/{step:08d}"
        assert same_weights(resumed.folder.weights(place), whole.folder.weights(place))
    times = ["seconds", "tokens_per_second"]
    assert resumed.metrics.drop(times).equals(whole.metrics.drop(times))
    assert not list(tmp_path.rglob("*partial*"))


def test_other_dropout_ends_elsewhere(tmp_path: Path) -> None:
    """The comparison of weights sees what a resume with other random numbers would do."""
    whole_task, task = toy_task(), toy_task()
    train(whole_task, toy_recipe(STEPS), tmp_path / "whole")
    train(task, toy_recipe(STEPS, seed=1), tmp_path / "other")  # dropout alone depends on it
    assert not same_weights(task.model.state_dict(), whole_task.model.state_dict())


def test_a_finished_training_is_only_read(tmp_path: Path) -> None:
    first_task, second_task = toy_task(), toy_task()
    first = train(first_task, toy_recipe(6), tmp_path)
    before = (tmp_path / CHECKPOINT).stat().st_mtime_ns
    second = train(second_task, toy_recipe(6), tmp_path)
    assert (tmp_path / CHECKPOINT).stat().st_mtime_ns == before
    assert second.metrics.equals(first.metrics)
    assert same_weights(first_task.model.state_dict(), second_task.model.state_dict())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda task, recipe: (task, replace(recipe, seed=7)), "its recipe.seed is 0, expected 7"),
        (lambda task, recipe: (task, replace(recipe, budget=Budget(steps=9))), "recipe.budget.steps is 6, expected 9"),
        (lambda task, recipe: (replace(task, objective=NextToken()), recipe), "objective.smoothing is 0.1"),
        (lambda task, recipe: (replace(task, held_out=None), recipe), "data.held out"),
        (
            lambda task, recipe: (replace(task, batches=SequenceBatches(rows(61), tokens=64, padding=PADDING)), recipe),
            "data.training.sequences is 60, expected 61",
        ),
        (lambda task, recipe: (toy_task(seed=5), recipe), "network.initial weights"),
        (lambda task, recipe: (replace(task, model=marian_task().model), recipe), "network.class is 'Toy'"),
    ],
)
def test_a_folder_of_another_training_is_refused(tmp_path: Path, change, words: str) -> None:
    train(toy_task(), toy_recipe(6), tmp_path)
    with pytest.raises(UsageError, match=words) as caught:
        train(*change(toy_task(), toy_recipe(6)), tmp_path)
    assert "another folder" in caught.value.hint


def test_another_way_of_saving_is_no_other_training(tmp_path: Path) -> None:
    train(toy_task(), toy_recipe(6), tmp_path)
    train(toy_task(), toy_recipe(6, saving=Saving(steps_per_doubling=0)), tmp_path)


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path: Path, monkeypatch) -> None:
    whole_task, task = toy_task(), toy_task()
    train(whole_task, toy_recipe(STEPS), tmp_path / "whole")
    real_fsync, calls = os.fsync, iter(range(10**6))

    def fill(descriptor: int) -> None:
        if next(calls) >= 30:
            raise OSError(errno.ENOSPC, "No space left on device")
        real_fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fill)
        with pytest.raises(ResourceError, match="the disk is full") as caught:
            train(toy_task(), toy_recipe(STEPS), tmp_path / "full")
    assert "goes on from its last checkpoint" in caught.value.hint
    _, state = train_state(tmp_path / "full")
    assert 0 < state["step"] < STEPS
    train(task, toy_recipe(STEPS), tmp_path / "full")
    assert same_weights(task.model.state_dict(), whole_task.model.state_dict())


def train_state(folder: Path):
    from headscope.training.training_folder import TrainingFolder

    return TrainingFolder(folder).checkpoint()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (CHECKPOINT, b"not safetensors"),
        (CHECKPOINT, b""),
        (METRICS, b"not parquet"),
        ("training.json", b"{"),
        ("training.json", b"[]"),
    ],
)
def test_a_damaged_folder_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    train(toy_task(), toy_recipe(6), tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=name):
        train(toy_task(), toy_recipe(6), tmp_path)


def test_a_truncated_checkpoint_is_refused(tmp_path: Path) -> None:
    train(toy_task(), toy_recipe(6), tmp_path)
    content = (tmp_path / CHECKPOINT).read_bytes()
    (tmp_path / CHECKPOINT).write_bytes(content[:-5])
    with pytest.raises(CheckpointError, match="is damaged"):
        train(toy_task(), toy_recipe(6), tmp_path)


def test_two_trainings_in_one_folder_are_refused(tmp_path: Path) -> None:
    from headscope.folder_lock import Lock

    lock = Lock(tmp_path)
    with pytest.raises(UsageError, match="is being written by process"):
        train(toy_task(), toy_recipe(6), tmp_path)
    lock.release()
    train(toy_task(), toy_recipe(6), tmp_path)


def test_metrics_are_a_parquet_table(tmp_path: Path) -> None:
    outcome = train(toy_task(), toy_recipe(STEPS), tmp_path)
    table = pl.read_parquet(tmp_path / METRICS)
    assert table.equals(outcome.metrics)
    validated = table.filter(pl.col("validation_nats").is_not_null())
    assert validated["step"].to_list() == [0, 5, 10, 15, 20, STEPS]
    assert table.filter(pl.col("loss").is_not_null())["step"].to_list() == list(range(3, STEPS + 1, 3))
    assert json.loads((tmp_path / "training.json").read_text())["versions"]["torch"]
