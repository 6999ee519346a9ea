"""Every network against its formulas in float64."""

import pytest
import torch

from headscope.networks.definition import defined_logits
from tests.networks.small_networks import CELLS_AND_SCORES, SINGLE_STACKS, TRANSLATORS, built, inputs, logits, recurrent
from tests.tolerances import NETWORK_AGREEMENT


def check(config):
    network = built(config)
    read = inputs(network)
    ours = logits(network, **read)
    weights = network.state_dict()
    for row in range(2):
        exact = defined_logits(config, weights, *(text[row] for text in read.values()))
        assert float((ours[row] - exact).abs().max() / exact.abs().max()) < NETWORK_AGREEMENT


@pytest.mark.parametrize("name", TRANSLATORS)
def test_translators_equal_the_definition(name):
    check(TRANSLATORS[name])


@pytest.mark.parametrize("name", SINGLE_STACKS)
def test_single_stacks_equal_the_definition(name):
    check(SINGLE_STACKS[name])


@pytest.mark.parametrize(("cell", "score"), CELLS_AND_SCORES)
def test_recurrent_networks_equal_the_definition(cell, score):
    check(recurrent(cell, score))


@pytest.mark.parametrize("config", [TRANSLATORS["mechanisms"], SINGLE_STACKS["windows"], recurrent("gru", "bahdanau")])
def test_gradients_equal_those_of_the_definition(config):
    """One number of the logits, differentiated by all weights through the network and through the formulas."""
    network = built(config).double()
    read = {name: text[:1] for name, text in inputs(network).items()}
    weights = dict(network.named_parameters())
    chosen = torch.randn(config.vocab_size, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    ours = torch.autograd.grad((network(**read).logits @ chosen).sum(), list(weights.values()))
    names = {name: weights.get(name) for name in network.state_dict()}
    shared = network.get_input_embeddings().weight
    copies = {name: shared if weight is None else weight for name, weight in names.items()}
    exact = defined_logits(config, copies, *(text[0] for text in read.values()))
    theirs = torch.autograd.grad((exact @ chosen).sum(), list(weights.values()))
    for name, a, b in zip(weights, ours, theirs, strict=True):
        assert torch.allclose(a, b, atol=1e-9 * float(b.abs().max()) + 1e-12, rtol=1e-7), name


def test_the_definition_would_show_a_changed_weight():
    """A weight that is off by one in a hundred is seen: the comparison can fail."""
    config = TRANSLATORS["pre"]
    network = built(config)
    read = inputs(network, batch=1)
    weights = {name: weight.clone() for name, weight in network.state_dict().items()}
    weights["model.decoder.layers.1.cross_attention.kv.weight"] *= 1.01
    exact = defined_logits(config, weights, *(text[0] for text in read.values()))
    assert float((logits(network, **read)[0] - exact).abs().max() / exact.abs().max()) > 10 * NETWORK_AGREEMENT
