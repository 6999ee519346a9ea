"""Small networks and data for tests of the trainer, and a training that a subprocess runs."""

import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from headscope.training import (
    Budget,
    NextToken,
    Optimisation,
    Rate,
    Recipe,
    Saving,
    SequenceBatches,
    SequenceToSequence,
    Task,
    Validation,
)

VOCABULARY = 24
PADDING, START, END = 0, 1, 2


class Toy(nn.Module):
    """A network that sees one token, with dropout."""

    def __init__(self, dropout: float = 0.2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(8)
        self.output = nn.Linear(8, VOCABULARY, bias=False)
        self.output.weight = self.embedding.weight  # tied, as in most language models

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, use_cache: bool = False) -> Any:
        return SimpleNamespace(logits=self.output(self.norm(self.dropout(self.embedding(input_ids)))))


def rows(count: int, seed: int = 0) -> list[list[int]]:
    """Rows of 2 to 9 tokens, each of which tells the next one three times in four."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for length in torch.randint(2, 10, (count,), generator=generator).tolist():
        row = [int(torch.randint(3, VOCABULARY, (), generator=generator))]
        while len(row) < length:
            is_ruled = torch.rand((), generator=generator) < 0.75
            random_token = int(torch.randint(3, VOCABULARY, (), generator=generator))
            row.append(3 + (2 * row[-1]) % (VOCABULARY - 3) if is_ruled else random_token)
        made.append(row)
    return made


def toy_task(*, dropout: float = 0.2, seed: int = 0) -> Task:
    torch.manual_seed(seed)
    return Task(
        Toy(dropout),
        NextToken(smoothing=0.1),
        SequenceBatches(rows(60), tokens=64, padding=PADDING),
        held_out=SequenceBatches(rows(20, seed=1), tokens=64, padding=PADDING),
    )


def toy_recipe(steps: int = 24, **changes: Any) -> Recipe:
    recipe = Recipe(
        Budget(steps=steps),
        optimisation=Optimisation(rate=Rate(0.02, warmup_steps=4, decay="cosine"), batches=2),
        validation=Validation(every_steps=5),
        saving=Saving(checkpoint_seconds=0.0, metrics_every=3),
    )
    return replace(recipe, **changes)


def marian_task(*, dropout: float = 0.1) -> Task:
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(0)
    config = MarianConfig(
        **dict.fromkeys(("vocab_size", "decoder_vocab_size"), VOCABULARY),
        **dict.fromkeys(("encoder_layers", "decoder_layers"), 1),
        **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2),
        **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 16),
        d_model=8,
        max_position_embeddings=16,
        dropout=dropout,
        pad_token_id=PADDING,
        eos_token_id=END,
        decoder_start_token_id=START,
    )
    sources = rows(40)
    targets = [[*reversed(row), END] for row in sources]
    return Task(
        MarianMTModel(config),
        SequenceToSequence(start=START, padding=PADDING),
        SequenceBatches(sources, targets=targets, tokens=80, padding=PADDING),
    )


def agreeing_task() -> Task:
    """The task of `marian`, whose batches are read twice."""
    task = marian_task()
    return replace(task, objective=replace(task.objective, agreement=2.0))  # type: ignore[type-var]


def low_precision_recipe(steps: int) -> Recipe:
    recipe = toy_recipe(steps)
    return replace(recipe, optimisation=replace(recipe.optimisation, precision="bfloat16"))


TASKS = {"toy": toy_task, "marian": marian_task, "agreeing": agreeing_task}
RECIPES = {"toy": toy_recipe, "marian": toy_recipe, "agreeing": low_precision_recipe}


def same_weights(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def train_and_die(name: str, folder: Path, steps: int, kills: str) -> None:
    """Train until the process kills itself: at a step, or in the middle of writing a file."""
    from headscope.training import train

    kind, _, number = kills.partition(":")
    writes = iter(range(10**6))

    def die_in_a_write(descriptor: int) -> None:
        if next(writes) == int(number):
            os.kill(os.getpid(), signal.SIGKILL)

    class Listener:
        def step(self, task: str, done: int, total: int) -> None:
            if kind == "step" and done == int(number):
                os.kill(os.getpid(), signal.SIGKILL)

    if kind == "write":
        os.fsync = die_in_a_write  # type: ignore[assignment]
    train(TASKS[name](), RECIPES[name](steps), folder, Listener())


if __name__ == "__main__":
    torch.set_num_threads(1)
    train_and_die(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
