"""Two processes of a training, joined by gloo, train as one with the same batches."""

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from headscope.errors import UsageError
from headscope.training import Optimisation, train
from headscope.training.training_folder import TrainingFolder
from tests.training.tiny_tasks import marian_task, toy_recipe

ROOT = Path(__file__).parents[2]
STEPS = 8

WORKER = """
import sys, torch
from pathlib import Path
from tests.training.tiny_tasks import marian_task, toy_recipe
from headscope.training import train
torch.set_num_threads(1)
train(marian_task(dropout=0.0), toy_recipe(int(sys.argv[2])), Path(sys.argv[1]))
torch.distributed.destroy_process_group()
"""

# Gradients are sums of the same float32 numbers in another order. Adam divides each by the root of its own mean square,
# so that where a gradient is nearly zero a rounding of it moves a weight by a share of the step: eight steps of at most
# 0.02 moved none by more than 1.2e-6.
SAME_TRAINING = 1e-5


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def start(rank: int, port: int, folder: Path, steps: int) -> "subprocess.Popen[bytes]":
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        **{"OMP_NUM_THREADS": "1", "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"},
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true"},
    }
    return subprocess.Popen([sys.executable, "-c", WORKER, str(folder), str(steps)], cwd=ROOT, env=environment)


def run_in_two_processes(folder: Path, steps: int) -> None:
    port = free_port()
    workers = [start(rank, port, folder, steps) for rank in range(2)]
    assert [worker.wait() for worker in workers] == [0, 0]


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    single = train(marian_task(dropout=0.0), toy_recipe(STEPS), tmp_path / "single")
    run_in_two_processes(tmp_path / "double", STEPS)
    expected, expected_state = single.folder.checkpoint()
    tensors, state = TrainingFolder(tmp_path / "double").checkpoint()
    assert state["tokens"] == expected_state["tokens"]
    assert state["place"] == expected_state["place"]
    assert tensors.keys() == expected.keys()
    weights = [name for name in tensors if name.startswith("weights/")]
    assert max(float((tensors[name] - expected[name]).abs().max()) for name in weights) < SAME_TRAINING
    # The network has learned meanwhile, so that the comparison says something.
    initial = marian_task().model.state_dict()
    assert max(float((initial[name.removeprefix("weights/")] - expected[name]).abs().max()) for name in weights) > 0.02


def test_a_number_of_batches_that_processes_cannot_share_is_refused(monkeypatch, tmp_path: Path) -> None:
    from accelerate import Accelerator

    from headscope.training.stepper import Stepper

    monkeypatch.setattr(Accelerator, "num_processes", 2)
    recipe = replace(toy_recipe(), optimisation=Optimisation(batches=3))
    with pytest.raises(UsageError, match="2 processes cannot share the 3 batches"):
        Stepper(marian_task(), recipe, Accelerator())


def test_the_global_generator_is_left_alone(tmp_path: Path) -> None:
    torch.manual_seed(5)
    task = marian_task()
    before = torch.get_rng_state()
    train(task, toy_recipe(3), tmp_path)
    assert torch.equal(torch.get_rng_state(), before)
