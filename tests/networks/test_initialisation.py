"""First values of the projections have the form that the configuration asks for."""

import math

import pytest
import torch

from headscope.networks import DecoderConfig, DecoderNetwork, Translator, TranslatorConfig
from headscope.networks.initialisation import DENSITY, MATRICES
from tests.networks.small_networks import SIZES

WIDTH = 200


def fresh(form: str, **settings: object) -> Translator:
    torch.manual_seed(0)
    return Translator(TranslatorConfig(**{**SIZES, **settings}, initialisation=form))


def projections(network: Translator) -> list[torch.Tensor]:
    """Every matrix of queries, keys or values, outputs × inputs."""
    matrices = []
    for name, weight in network.named_parameters():
        if name.endswith(("qkv.weight", "kv.weight", ".q.weight")):
            matrices += weight.detach().split(24)
    assert len(matrices) == 3 * 9
    return matrices


def test_xavier_entries_are_uniform_with_its_variance():
    matrix = MATRICES["xavier"](WIDTH, WIDTH)
    bound = math.sqrt(6 / (2 * WIDTH))
    assert float(matrix.abs().max()) <= bound
    assert float(matrix.abs().max()) > 0.999 * bound
    assert abs(float(matrix.var()) / (2 / (2 * WIDTH)) - 1) < 0.03  # 40,000 entries: standard error 0.0045


def test_identity_heads_read_their_own_channels():
    assert all(torch.equal(matrix, torch.eye(24)) for matrix in projections(fresh("identity")))


def test_diagonal_matrices_are_diagonal():
    for matrix in projections(fresh("diagonal")):
        assert torch.equal(matrix, torch.diag(matrix.diagonal()))
        assert bool(matrix.diagonal().all())


def test_sparse_rows_have_the_same_few_entries():
    for matrix in projections(fresh("sparse")):
        assert bool((matrix.count_nonzero(dim=1) == round(DENSITY * 24)).all())


@pytest.mark.parametrize("form", ["xavier", "diagonal", "sparse"])
def test_forms_give_outputs_of_one_variance(form):
    """With unit inputs an output has variance d · 2/(d + m), whatever the form."""
    torch.manual_seed(0)
    inputs, outputs = 300, 100
    x = torch.randn(4000, inputs)
    variance = float(torch.stack([(x @ MATRICES[form](outputs, inputs).T).var() for _ in range(20)]).mean())
    assert abs(variance / (inputs * 2 / (inputs + outputs)) - 1) < 0.1  # 2,000 diagonal entries: 0.03


def test_shared_queries_and_keys_are_one_matrix():
    network = fresh("xavier", shared_queries_and_keys=True)
    layer = network.model.decoder.layers[0]
    assert not hasattr(layer.self_attention, "qkv")
    assert {name for name, _ in layer.cross_attention.named_children()} == {"q", "kv", "out"}
    x = torch.randn(1, 5, 24)
    q, k, _ = layer.self_attention._itself(x)
    assert torch.equal(q, k)
    # W_QK = W_Q W_Qᵀ: the scores of self-attention are symmetric.
    scores = q @ k.transpose(-1, -2)
    assert torch.allclose(scores, scores.transpose(-1, -2))


def test_the_output_projection_and_the_embedding_have_their_own_laws():
    network = fresh("identity", vocab_size=2000)
    out = network.model.encoder.layers[0].self_attention.out.weight.detach()
    assert out.unique().numel() > 500
    table = network.model.encoder.embed_tokens.weight.detach()
    assert abs(float(table.var()) * 24 - 1) < 0.05  # times √d, a vector has entries of variance 1
    assert not any(bias.any() for name, bias in network.named_parameters() if name.endswith("bias"))


def test_loading_does_not_initialise_again(tmp_path):
    torch.manual_seed(0)
    network = DecoderNetwork(DecoderConfig.llama(**SIZES, num_hidden_layers=1, initialisation="identity"))
    with torch.no_grad():
        network.model.layers[0].self_attention.qkv.weight.fill_(0.5)
    network.save_pretrained(tmp_path)
    opened = DecoderNetwork.from_pretrained(tmp_path)
    assert bool((opened.model.layers[0].self_attention.qkv.weight == 0.5).all())
