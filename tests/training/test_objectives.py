"""What a loss is: its definition, its gradient, and what is predicted from what."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from headscope.errors import UsageError
from headscope.training import MaskedTokens, NextToken, SequenceToSequence
from headscope.training.objectives import agreement
from headscope.training.objectives.cross_entropy import cross_entropy, definition
from headscope.training.objectives.next_token import next_tokens
from headscope.training.objectives.objective import IGNORED
from headscope.training.objectives.sequence_to_sequence import shifted

# A float32 log-sum-exp of logits up to 30 times a few positions.
LOSS_AGREEMENT = 2e-6


def example(positions: int, vocabulary: int, scale: float, seed: int):
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(positions, vocabulary, generator=generator)
    labels = torch.randint(vocabulary, (positions,), generator=generator)
    return logits, labels.where(torch.rand(positions, generator=generator) < 0.7, IGNORED)


@given(
    st.integers(1, 9),
    st.integers(1, 17),
    st.sampled_from([0.01, 1.0, 30.0]),
    st.sampled_from([0.0, 0.1, 0.6]),
    st.integers(0, 99),
)
def test_the_loss_is_that_of_the_definition(positions, vocabulary, scale, smoothing, seed):
    logits, labels = example(positions, vocabulary, scale, seed)
    fast, slow = logits.clone().requires_grad_(), logits.double().requires_grad_()
    (total, nats), expected = cross_entropy(fast, labels, smoothing), definition(slow, labels, smoothing)
    size = max(1.0, scale) * positions
    assert abs(total.item() - expected.item()) < LOSS_AGREEMENT * size
    assert abs(nats.item() - definition(logits, labels, 0.0).item()) < LOSS_AGREEMENT * size
    (3.0 * total).backward()
    (3.0 * expected).backward()
    assert float((fast.grad - slow.grad).abs().max()) < 3 * LOSS_AGREEMENT


def test_the_gradient_in_float64_is_that_of_the_definition():
    logits, labels = example(7, 5, 1.0, 0)
    fast, slow = logits.double().requires_grad_(), logits.double().requires_grad_()
    cross_entropy(fast, labels, 0.3)[0].backward()
    definition(slow, labels, 0.3).backward()
    assert torch.allclose(fast.grad, slow.grad, rtol=0, atol=1e-15)


def test_ignored_positions_have_no_gradient():
    logits, labels = example(8, 5, 1.0, 3)
    logits.requires_grad_()
    cross_entropy(logits, labels, 0.1)[0].backward()
    assert (labels == IGNORED).any()
    assert not logits.grad[labels == IGNORED].any()
    assert logits.grad[labels != IGNORED].abs().sum() > 0


def test_the_loss_of_low_precision_logits():
    logits, labels = example(8, 50, 3.0, 2)
    rounded = logits.bfloat16().requires_grad_()
    total, _ = cross_entropy(rounded, labels, 0.1)
    assert total.dtype == torch.float32
    assert total.item() == pytest.approx(definition(rounded.detach().float(), labels, 0.1).item(), rel=1e-6)
    total.backward()
    assert rounded.grad.dtype == torch.bfloat16


@given(st.integers(1, 9), st.integers(1, 17), st.sampled_from([0.01, 1.0, 20.0]), st.integers(0, 99))
def test_the_disagreement_is_that_of_the_definition(positions, vocabulary, scale, seed):
    first, labels = example(positions, vocabulary, scale, seed)
    second, _ = example(positions, vocabulary, scale, seed + 100)
    fast = [logits.clone().requires_grad_() for logits in (first, second)]
    slow = [logits.double().requires_grad_() for logits in (first, second)]
    value, expected = agreement.disagreement(*fast, labels), agreement.definition(*slow, labels)
    size = max(1.0, scale) * positions
    assert abs(value.item() - expected.item()) < LOSS_AGREEMENT * size
    value.backward()
    expected.backward()
    for computed, true in zip(fast, slow, strict=True):
        assert float((computed.grad - true.grad).abs().max()) < LOSS_AGREEMENT * max(1.0, scale)


def test_equal_readings_agree():
    logits, labels = example(8, 5, 2.0, 0)
    assert float(agreement.disagreement(logits, logits.clone(), labels)) == 0.0


def test_it_agrees_with_torch():
    logits, labels = example(40, 11, 2.0, 1)
    expected = nn.functional.cross_entropy(logits, labels, label_smoothing=0.2, reduction="sum")
    assert float(cross_entropy(logits, labels, 0.2)[0]) == pytest.approx(float(expected), rel=1e-6)


def test_the_next_token_of_padded_rows():
    batch = {
        "input_ids": torch.tensor([[5, 6, 7], [8, 9, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]]),
    }
    assert next_tokens(batch).tolist() == [[6, 7, IGNORED], [9, IGNORED, IGNORED]]
    batch = {"input_ids": torch.tensor([[0, 8, 9]]), "attention_mask": torch.tensor([[0, 1, 1]])}
    assert next_tokens(batch).tolist() == [[IGNORED, 9, IGNORED]]


def test_what_the_decoder_reads():
    labels = torch.tensor([[5, 6, 2], [7, 2, IGNORED], [2, IGNORED, IGNORED]])
    assert shifted(labels, 1, 0).tolist() == [[1, 5, 6], [1, 7, 2], [1, 2, 0]]
    assert labels[1, 2] == IGNORED  # the labels are left as they are


class Echo(nn.Module):
    """A network that is sure of the token that it reads, and remembers what it read."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.vocabulary, self.inputs = vocabulary, {}

    def forward(self, **inputs):
        self.inputs = inputs
        ids = inputs.get("decoder_input_ids", inputs["input_ids"])
        return SimpleNamespace(logits=20.0 * nn.functional.one_hot(ids, self.vocabulary).float())


def test_tokens_are_counted():
    batch = {
        "input_ids": torch.tensor([[3, 3, 3], [4, 4, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]]),
    }
    loss = NextToken().loss(Echo(6), batch)
    assert (loss.n_predicted, loss.n_read) == (3, 5)
    assert float(loss.nats) < 1e-6  # the next token is the one that is read
    labels = torch.tensor([[5, 2], [2, IGNORED]])
    loss = SequenceToSequence(start=1, padding=0).loss(Echo(6), {**batch, "labels": labels})
    assert (loss.n_predicted, loss.n_read) == (3, 5 + 3)
    assert float(loss.nats) > 10


class Noisy(nn.Module):
    """A network whose logits are random while it is trained, and its number of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = torch.randn(4, 2, 6, generator=torch.Generator().manual_seed(0))
        self.n_rows = 0

    def forward(self, input_ids, decoder_input_ids, **inputs):
        self.n_rows = len(input_ids)
        assert len(decoder_input_ids) == len(inputs["attention_mask"]) == self.n_rows
        return SimpleNamespace(logits=self.logits[: self.n_rows])


def test_two_readings_cost_their_mean_and_their_disagreement():
    labels = torch.tensor([[5, 2], [2, IGNORED]])
    batch = {"input_ids": torch.ones(2, 3, dtype=torch.long), "attention_mask": torch.ones(2, 3), "labels": labels}
    model, plain = Noisy(), SequenceToSequence(start=1, padding=0)
    loss = SequenceToSequence(start=1, padding=0, agreement=2.0).loss(model, batch)
    assert model.n_rows == 4
    first, second = (model.logits[rows].flatten(0, 1) for rows in (slice(0, 2), slice(2, 4)))
    costs = [definition(logits, labels.flatten(), plain.smoothing) for logits in (first, second)]
    expected = sum(costs) / 2 + 2.0 * agreement.definition(first, second, labels.flatten())
    assert float(loss.total) == pytest.approx(float(expected), rel=1e-6)
    assert (loss.n_predicted, loss.n_read) == (3, 6 + 3)  # each token is counted once
    nats = SequenceToSequence(start=1, padding=0, agreement=2.0).loss(model.eval(), batch).nats
    assert model.n_rows == 2
    assert torch.equal(nats, plain.loss(model, batch).nats)


def test_stated_labels_come_first():
    model = Echo(6)
    ids = torch.tensor([[3, 4, 5]])
    loss = NextToken().loss(model, {"input_ids": ids, "labels": torch.tensor([[3, IGNORED, 5]])})
    assert loss.n_predicted == 2
    assert float(loss.nats) < 1e-6
    assert "labels" not in model.inputs


def test_tokens_are_masked_as_stated():
    torch.manual_seed(0)
    ids = torch.randint(4, 30, (200, 50))
    ids[:, 0] = 1
    mask = torch.ones_like(ids)
    mask[:, 40:] = 0
    model, objective = Echo(30), MaskedTokens(mask=2, vocabulary=30, first_ordinary=4, share=0.3)
    loss = objective.loss(model, {"input_ids": ids, "attention_mask": mask})
    read = model.inputs["input_ids"]
    n_ordinary = 200 * 39
    assert loss.n_predicted / n_ordinary == pytest.approx(0.3, abs=0.02)
    assert torch.equal(read[:, 40:], ids[:, 40:])
    assert torch.equal(read[:, 0], ids[:, 0])
    n_masked, n_random = int((read == 2).sum()), int(((read != 2) & (read != ids)).sum())
    assert n_masked / loss.n_predicted == pytest.approx(0.8, abs=0.03)
    assert n_random / loss.n_predicted == pytest.approx(0.1 * 25 / 26, abs=0.02)
    assert int(read.min()) >= 1


def test_the_same_seed_masks_the_same_tokens():
    ids, objective = torch.randint(4, 30, (4, 20)), MaskedTokens(mask=2, vocabulary=30)
    losses = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        losses.append(float(objective.loss(Echo(30), {"input_ids": ids}).nats))
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize(
    "make",
    [
        lambda: NextToken(smoothing=1.0),
        lambda: NextToken(smoothing=float("nan")),
        lambda: SequenceToSequence(start=1, padding=0, smoothing=-0.1),
        lambda: SequenceToSequence(start=1, padding=0, agreement=-1),
        lambda: MaskedTokens(mask=2, vocabulary=30, share=0.0),
        lambda: MaskedTokens(mask=2, vocabulary=30, first_ordinary=30),
    ],
)
def test_wrong_parameters_are_refused(make):
    with pytest.raises(UsageError, match="must be"):
        make()
