"""What is particular to attention pooling: its scores, its normalisers, its parameters."""

from dataclasses import replace

import pytest
import torch

import headscope.attention as attention
from headscope.attention.sparse import recompute
from headscope.attention.sparse.normalisers import sparsemax
from headscope.errors import UsageError
from tests.attention.calls import make


def noise(*shape: int, seed: int = 0, size: float = 1.0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * size


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3, 1e8])
def test_sparsemax_rows_are_sparse_distributions(size: float) -> None:
    weights = sparsemax(noise(50, 40, size=size))
    assert torch.allclose(weights.sum(dim=-1), torch.ones(50, dtype=torch.float64), atol=1e-7)
    assert bool((weights >= 0).all())
    if size >= 1.0:
        assert bool((weights == 0).any(dim=-1).all())


def test_sparsemax_is_the_nearest_point() -> None:
    scores = noise(20, 6, seed=1)
    nearest = (sparsemax(scores) - scores).norm(dim=-1)
    others = torch.softmax(noise(500, 20, 6, seed=2, size=4.0), dim=-1)
    assert bool((nearest <= (others - scores).norm(dim=-1) + 1e-12).all())


def test_sparsemax_of_equal_and_of_masked_scores() -> None:
    assert torch.allclose(sparsemax(torch.zeros(1, 4)), torch.full((1, 4), 0.25))
    masked = torch.tensor([[-torch.inf, 2.0, -torch.inf], [-torch.inf] * 3])
    assert torch.equal(sparsemax(masked), torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]))


@pytest.mark.parametrize("normaliser", ["softmax", "sparsemax", "relu", "none"])
def test_the_identity_makes_a_general_score_a_dot_product(normaliser: str) -> None:
    call = make(23)
    general = attention.pooling("general", normaliser, weight=torch.eye(16))(call).out
    assert torch.allclose(general, attention.pooling("dot", normaliser)(call).out, atol=1e-5)


def test_gaussian_of_unit_vectors() -> None:
    """|q − k|² = 2 − 2 q·k, and what does not depend on the key goes away."""
    call = make(23, dtype=torch.float64)
    q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (call.q, call.k))
    unit = replace(call, q=q, k=k)
    exact = attention.dense()(replace(unit, scale=0.25)).out
    assert torch.allclose(attention.pooling("gaussian", sigma=2.0)(unit).out, exact, atol=1e-12)


def test_additive_score_of_one_unit() -> None:
    """With one hidden unit that reads the first component, by hand."""
    call = make(5, batch=1, heads=1, kv_heads=1, d_head=4, dtype=torch.float64, right=None)
    first = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    pooled = attention.pooling("additive", query_weight=first, key_weight=-first, readout=torch.tensor([3.0]))
    scores = 3 * torch.tanh(call.q[..., :1] - call.k[..., :1].transpose(-1, -2))
    assert torch.allclose(pooled(call).out, torch.softmax(scores, dim=-1) @ call.v, atol=1e-12)


@pytest.mark.parametrize("heads", [0, 4])
def test_gradients_reach_the_weights(heads: int) -> None:
    call = make(19, d_head=8)
    shapes = {"query_weight": (6, 8), "key_weight": (6, 8), "readout": (6,)}
    found = []
    for run in ("attend", "definition"):
        weights = {
            name: noise(*((heads,) if heads else ()), *shape, seed=4).float().requires_grad_()
            for name, shape in shapes.items()
        }
        pooling = attention.pooling("additive", hidden=6, **weights)
        out = pooling(call).out if run == "attend" else pooling.definition(call).out
        found.append(torch.autograd.grad((out * torch.arange(8)).sum(), list(weights.values())))
    for got, exact in zip(*found, strict=True):
        assert torch.allclose(got, exact, rtol=1e-4, atol=1e-4 * float(exact.abs().max()))


def test_no_block_is_larger_than_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of one row give the same result, and no block exceeds its limit of pairs."""
    call = make(67)
    pooling = attention.pooling("additive", "softmax", hidden=8)
    whole = pooling(call).out
    sizes = []
    monkeypatch.setattr(recompute, "BLOCK_ENTRIES", 2 * 4 * 67 * 16 * 3)
    plain = type(pooling)._block

    def watched(self: object, given: attention.Call) -> tuple[torch.Tensor, ...]:
        sizes.append(given.q.shape[2])
        return plain(self, given)

    monkeypatch.setattr(type(pooling), "_block", watched)
    assert torch.allclose(pooling(call).out, whole, atol=1e-6)
    assert max(sizes) == 3


def test_large_scores_stay_finite() -> None:
    call = make(17, size=1e4)
    for score in ("dot", "general", "gaussian", "additive"):
        for normaliser in ("softmax", "sparsemax", "relu"):
            leaf = call.q.clone().requires_grad_()
            out = attention.pooling(score, normaliser)(replace(call, q=leaf)).out
            (grad,) = torch.autograd.grad(out.sum(), leaf)
            assert bool(out.isfinite().all())
            assert bool(grad.isfinite().all())


def test_weights_of_another_width_are_refused() -> None:
    pooling = attention.pooling("general", weight=torch.eye(7))
    with pytest.raises(UsageError, match="width 7"):
        pooling(make(5))
    with pytest.raises(UsageError, match="3 heads"):
        attention.pooling("general", weight=torch.eye(16).expand(3, -1, -1))(make(5))
    with pytest.raises(UsageError, match="sink"):
        attention.pooling(normaliser="relu")(replace(make(5), sinks=torch.zeros(4)))


@pytest.mark.parametrize(
    "given",
    [
        {"score": "cosine"},
        {"normaliser": "entmax"},
        {"sigma": 0.0},
        {"hidden": 0},
        {"weight": torch.eye(4)},
        {"score": "additive", "readout": torch.ones(4)},
        {"readout": torch.ones(4), "query_weight": torch.eye(4), "key_weight": torch.eye(4)},
    ],
    ids=lambda given: ",".join(given),
)
def test_wrong_parameters(given: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="pooling"):
        attention.pooling(**given)


@pytest.mark.parametrize("score", ["additive", "gaussian", "general"])
def test_queries_before_all_keys_get_nothing(score: str) -> None:
    """The mix of no values is 0, and the logarithm of an empty sum is −∞."""
    call = replace(make(5, 9), query_positions=torch.arange(5)[None], key_positions=torch.arange(10, 19)[None])
    mechanism = attention.pooling(score=score)
    for output in (mechanism(call, lse=True), mechanism.definition(call)):
        assert output.lse is not None
        assert not bool(output.out.any())
        assert bool((output.lse == -torch.inf).all())


def test_a_drawn_readout_has_numbers_of_variance_1() -> None:
    """However many hidden units there are, so that their scores spread as √hidden."""
    for hidden in (4096, 65536):
        readout = attention.pooling("additive", hidden=hidden)._weight("readout", make(3))
        assert float(readout.square().mean()) == pytest.approx(1.0, abs=0.1)
