"""Trainings learn, count what they read, keep the best weights, and save models that open."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import headscope
from headscope.errors import CheckpointError, NumericsError, UsageError
from headscope.training import (
    Budget,
    MaskedTokens,
    NextToken,
    Optimisation,
    Place,
    Rate,
    SequenceBatches,
    Target,
    Task,
    TextWindows,
    Validation,
    train,
)
from headscope.training.stepper import Stepper
from headscope.training.training_folder import BEST
from headscope.training.weights import digest, load_weights, weights_of
from tests.training.tiny_tasks import (
    PADDING,
    VOCABULARY,
    Toy,
    low_precision_recipe,
    marian_task,
    rows,
    same_weights,
    toy_recipe,
    toy_task,
)


class Listener:
    def __init__(self):
        self.steps, self.remarks = [], []

    def step(self, task, done, total):
        self.steps.append((task, done, total))

    def remark(self, words):
        self.remarks.append(words)


def test_a_training_learns_and_reports(tmp_path: Path):
    listener = Listener()
    outcome = train(toy_task(dropout=0.0), toy_recipe(150), tmp_path, listener)
    nats = outcome.metrics["validation_nats"].drop_nulls()
    assert nats[0] > 8
    # The rule of the data costs 0.75 ln(1/0.76) + 0.25 ln(21/0.25) = 1.33 nats at best.
    assert 1.2 < nats[-1] < 2.9
    assert listener.steps[0] == ("training", 0, 150)
    assert listener.steps[-1] == ("training", 150, 150)
    assert listener.remarks[-1].startswith("loss 2.")
    assert listener.remarks[-1].endswith(" tokens/s")


def test_a_training_in_low_precision_learns(tmp_path: Path):
    task, exact_task = toy_task(dropout=0.0), toy_task(dropout=0.0)
    outcome = train(task, low_precision_recipe(150), tmp_path / "low")
    exact = train(exact_task, toy_recipe(150), tmp_path / "exact")
    assert {tensor.dtype for tensor in task.model.state_dict().values()} == {torch.float32}
    assert not same_weights(task.model.state_dict(), exact_task.model.state_dict())
    before, *_, after = outcome.metrics["validation_nats"].drop_nulls()
    assert before == exact.metrics["validation_nats"].drop_nulls()[0]  # a validation rounds nothing
    assert 1.2 < after < 2.9


def test_what_is_read_is_counted(tmp_path: Path):
    task = toy_task()
    outcome = train(task, replace(toy_recipe(), budget=Budget(epochs=2)), tmp_path)
    n_tokens = sum(map(len, rows(60)))
    assert outcome.state.place.epoch == 2
    assert outcome.state.tokens == 2 * n_tokens
    assert outcome.metrics["tokens"][-1] == 2 * n_tokens
    assert outcome.state.ending == "budget"


def test_minutes_end_a_training(tmp_path: Path):
    outcome = train(toy_task(), replace(toy_recipe(), budget=Budget(minutes=0.001)), tmp_path)
    assert outcome.state.seconds >= 0.06
    assert outcome.state.seconds - outcome.metrics["seconds"][0] >= 0.06
    assert outcome.state.step >= 1


def test_batches_add_up(tmp_path: Path):
    """Two batches of a step give the gradient of one that holds both, whatever their numbers of tokens."""
    from accelerate import Accelerator

    sequences = rows(7)
    weights = []
    for tokens, batches in ((1000, 1), (20, 0)):
        source = SequenceBatches(sequences, tokens=tokens, padding=PADDING)
        n_batches = batches or source.batches_in(0)
        torch.manual_seed(0)
        task = Task(Toy(dropout=0.0), NextToken(), source)
        recipe = replace(toy_recipe(), optimisation=Optimisation(rate=Rate(0.02, warmup_steps=0), batches=n_batches))
        tally, norm = Stepper(task, recipe, Accelerator()).step(0, [Place(0, at) for at in range(n_batches)])
        weights.append((n_batches, tally.n_predicted, norm, weights_of(task.model)))
    (_, n_predicted, norm, together), (n_batches, n_again, norm_again, apart) = weights
    assert n_batches > 2
    assert n_predicted == n_again == sum(len(row) - 1 for row in sequences)
    assert norm == pytest.approx(norm_again, rel=1e-5)
    # Adam's first step is the sign of the gradient, wherever it is not as small as its rounding.
    assert max(float((together[name] - apart[name]).abs().max()) for name in together) < 1e-4


def test_the_gradient_is_clipped(tmp_path: Path):
    """With plain gradient descent a step is as long as the clipped gradient."""

    def descent(model: nn.Module, optimisation: Optimisation):
        return [torch.optim.SGD(model.parameters(), lr=1.0)]

    task = replace(toy_task(), optimisers=descent)
    before = {name: tensor.clone() for name, tensor in weights_of(task.model).items()}
    recipe = toy_recipe(1, optimisation=Optimisation(rate=Rate(1.0, warmup_steps=0, decay="constant"), clip=0.25))
    outcome = train(task, recipe, tmp_path)
    after = weights_of(task.model)
    length = sum(float((after[name] - before[name]).square().sum()) for name in before) ** 0.5
    assert outcome.metrics["gradient_norm"].drop_nulls()[0] > 0.5
    assert length == pytest.approx(0.25, rel=1e-4)


def test_the_best_weights_are_saved(tmp_path: Path):
    """Trained on other rows than it is judged by, the network gets worse in the end."""
    task = toy_task(dropout=0.0)
    task = replace(task, batches=SequenceBatches([[3, 3, 3, 3]], tokens=64, padding=PADDING))
    recipe = toy_recipe(60, validation=Validation(every_steps=5, patience=3))
    outcome = train(task, recipe, tmp_path)
    assert outcome.state.ending == "patience"
    assert outcome.state.step == outcome.state.best_step + 15
    best = outcome.folder.weights(BEST)
    assert not same_weights(best, weights_of(task.model))
    load_weights(task.model, best, "best")
    again = Stepper(task, recipe, __import__("accelerate").Accelerator()).held_out(task.held_out)
    assert again.nats_per_token == pytest.approx(outcome.state.best_nats, rel=1e-6)


def test_a_measure_ends_a_training(tmp_path: Path):
    task = toy_task()
    start = task.model.embedding.weight.detach().clone()

    def drift(model: nn.Module) -> dict[str, float]:
        assert not model.training
        return {"drift": float((model.embedding.weight.detach() - start).norm())}

    task = replace(task, measures=drift, held_out=None)
    recipe = toy_recipe(400, validation=Validation(every_steps=5, target=Target("drift", 2.0)))
    outcome = train(task, recipe, tmp_path)
    assert outcome.state.ending == "target"
    drifts = outcome.metrics["drift"].drop_nulls()
    assert drifts[-1] >= 2.0 > drifts[-2]


def test_a_loss_that_is_not_finite_stops(tmp_path: Path):
    task = toy_task()
    with torch.no_grad():
        task.model.norm.weight[0] = float("nan")
    with pytest.raises(NumericsError, match="the gradient of step 0 is not finite"):
        train(task, toy_recipe(), tmp_path)


def test_a_step_without_labels_is_refused(tmp_path: Path):
    task = replace(toy_task(), batches=SequenceBatches([[3]], tokens=64, padding=PADDING))
    with pytest.raises(UsageError, match="step 0 predicts no token"):
        train(task, toy_recipe(), tmp_path)


def test_saved_steps_open_as_models(tmp_path: Path):
    task = marian_task()
    outcome = train(task, toy_recipe(6), tmp_path)
    assert list(outcome.folder.trajectory()) == [0, 1, 2, 3, 4, 6]
    opened = headscope.open(outcome.folder.trajectory()[6])
    ids = torch.tensor([[5, 6, 7]])
    inputs = {"input_ids": ids, "decoder_input_ids": ids}
    with torch.no_grad():
        assert torch.equal(opened.hf(**inputs).logits, task.model(**inputs).logits)


def llama_task() -> Task:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, tie_word_embeddings=True, **sizes))
    text = torch.tensor([token for row in rows(60) for token in row])
    return Task(model, NextToken(), TextWindows(text, length=8, rows=3))


def bert_task() -> Task:
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = BertForMaskedLM(BertConfig(vocab_size=VOCABULARY, **sizes))
    objective = MaskedTokens(mask=1, vocabulary=VOCABULARY, first_ordinary=3)
    return Task(model, objective, SequenceBatches(rows(60), tokens=64, padding=PADDING))


@pytest.mark.parametrize("make", [llama_task, bert_task])
def test_other_kinds_of_networks_train(make, tmp_path: Path):
    task = make()
    outcome = train(task, toy_recipe(40), tmp_path)
    losses = outcome.metrics["loss"].drop_nulls()
    assert losses[-3:].mean() < losses[:3].mean() - 0.1
    opened = headscope.open(outcome.folder.trajectory()[40])
    assert same_weights(weights_of(opened.hf), weights_of(task.model))


def test_weights_of_another_network_are_refused():
    with pytest.raises(CheckpointError, match=r"file belongs to another network: the network lacks 'more'"):
        load_weights(Toy(), {**weights_of(Toy()), "more": torch.zeros(1)}, "file")
    with pytest.raises(CheckpointError, match=r"'norm.bias' is float32\[3\], expected float32\[8\]"):
        load_weights(Toy(), {**weights_of(Toy()), "norm.bias": torch.zeros(3)}, "file")


def test_tied_weights_are_saved_once():
    assert sorted(weights_of(Toy())) == ["embedding.weight", "norm.bias", "norm.weight"]


def test_the_digest_depends_on_every_number():
    weights = weights_of(Toy())
    before = digest(weights)
    assert digest(weights_of(Toy())) != before
    weights["norm.bias"][7] += 1e-7
    assert digest(weights) != before
