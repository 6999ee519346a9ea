"""What is particular to projected keys."""

from dataclasses import replace

import pytest
import torch

import headscope.attention as attention
from headscope.attention.sparse.key_projections import sign_projection
from headscope.errors import UsageError
from tests.attention.calls import make


def test_random_projections_keep_lengths() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 50, generator=generator, dtype=torch.float64)
    rank = 128
    ratio = (sign_projection(rank, 300, 1) @ x).square().sum(dim=0) / x.square().sum(dim=0)
    assert abs(float(ratio.mean()) - 1) < 0.1
    assert float((ratio - 1).square().mean().sqrt()) < 1.5 * (2 / rank) ** 0.5


def test_a_column_does_not_depend_on_the_length() -> None:
    long = sign_projection(8, 1000, 3)
    for n in (1, 15, 16, 17, 500):
        assert torch.equal(sign_projection(8, n, 3), long[:, :n])
    assert not torch.equal(long, sign_projection(8, 1000, 4))


def test_the_identity_projects_nothing() -> None:
    call = make(23, right=None)
    exact = attention.dense()(call).out
    for keys in (torch.eye(23), torch.eye(23).expand(2, -1, -1)):
        got = attention.linformer(rank=23, keys=keys)(call).out
        assert torch.allclose(got, exact, atol=1e-6)
    # Of a shorter call the first columns are taken; the rows without a key then count as keys of zeros.
    assert attention.linformer(rank=23, keys=torch.eye(23)).supports(make(9, right=None)) is None


@pytest.mark.parametrize("heads", [0, 2])
@pytest.mark.parametrize("segment", [None, 6])
def test_gradients_reach_the_projections(segment: int | None, heads: int) -> None:
    call = make(23, right=None if segment is None else 0)
    columns = segment or 23
    generator = torch.Generator().manual_seed(1)
    found = []
    shape = (heads, 3, columns) if heads else (3, columns)
    start = [torch.randn(shape, generator=generator) for _ in range(2)]
    for run in ("attend", "definition"):
        keys, values = (x.clone().requires_grad_() for x in start)
        linformer = attention.linformer(rank=3, segment=segment, keys=keys, values=values)
        out = linformer(call).out if run == "attend" else linformer.definition(call).out
        found.append(torch.autograd.grad((out * torch.arange(16)).sum(), (keys, values)))
    for got, exact in zip(*found, strict=True):
        assert torch.allclose(got, exact, rtol=0, atol=1e-4 * float(exact.abs().max()))


def test_a_projection_of_means_over_equal_keys_is_exact_for_far_segments() -> None:
    """Keys that are alike in each run, seen through their mean with the weight of one key, miss only their number."""
    call = make(24, heads=2, kv_heads=2, dtype=torch.float64)
    k, v = (x[:, :, ::6].repeat_interleave(6, dim=2) for x in (call.k, call.v))
    mean = torch.full((1, 6), 1 / 6, dtype=torch.float64)
    six = mean.repeat(6, 1)
    got = attention.linformer(rank=6, segment=6, keys=six)(replace(call, k=k, v=v)).out
    assert torch.allclose(got, attention.dense()(replace(call, k=k, v=v)).out, atol=1e-10)


def test_a_padded_key_adds_nothing() -> None:
    call = make(20, right=None)
    real = torch.ones(2, 20, dtype=torch.bool)
    real[:, 4:7] = False
    k = call.k.clone()
    k[:, :, 4:7] = 100.0
    for linformer in (attention.linformer(rank=4), attention.linformer(rank=2, segment=5)):
        a, b = (linformer(replace(call, k=x, key_padding=real)).out for x in (call.k, k))
        assert torch.equal(a, b)


def test_what_it_refuses() -> None:
    with pytest.raises(UsageError, match="segment=…"):
        attention.linformer()(make(9))
    with pytest.raises(UsageError, match="at most 5 keys"):
        attention.linformer(rank=2, keys=torch.ones(2, 5))(make(9, right=None))
    with pytest.raises(UsageError, match="3 key/value heads"):
        attention.linformer(rank=2, keys=torch.ones(3, 2, 9))(make(9, right=None))
    with pytest.raises(UsageError, match="window"):
        attention.linformer(segment=4)(make(9, left=3))


@pytest.mark.parametrize(
    "given",
    [
        {"rank": 0},
        {"segment": 0},
        {"values": torch.ones(32, 4)},
        {"rank": 3, "keys": torch.ones(2, 4)},
        {"rank": 2, "segment": 9, "keys": torch.ones(2, 4)},
    ],
    ids=lambda given: ",".join(given),
)
def test_wrong_parameters(given: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="linformer"):
        attention.linformer(**given)


@pytest.mark.parametrize(("n", "segment", "rank"), [(20, 5, 3), (23, 5, 2), (4, 9, 2)])
def test_the_cost_counts_every_pair_of_query_and_key_or_projected_key(n: int, segment: int, rank: int) -> None:
    """Keys of the own run, projected keys of the others, and two projections of every key."""
    runs = {i // segment for i in range(n)}
    own = sum(i // segment == j // segment for i in range(n) for j in range(n))
    far = sum(rank for i in range(n) for run in runs if run != i // segment)
    d = 8
    projections = 2 * 2 * d * rank * n  # a product and a sum for each number of K and V and each row of E
    assert attention.linformer(rank=rank, segment=segment).cost(n, d).flops == 4 * d * (own + far) + projections


@pytest.mark.parametrize("first_key", [3, 5, 7])
def test_queries_before_the_first_key_see_nothing(first_key: int) -> None:
    """Their runs are empty, whether the keys begin with a run or inside one."""
    whole, mechanism = make(10), attention.linformer(rank=2, segment=5)
    call = whole.take(slice(0, 10), slice(first_key, 10))
    got, exact = mechanism(call, lse=True), mechanism.definition(call)
    torch.testing.assert_close(got.out.double(), exact.out, rtol=0, atol=1e-5)
    assert got.lse is not None
    assert bool((got.lse[:, :, :first_key] == -torch.inf).all())


def test_rounding_grows_only_where_keys_are_projected() -> None:
    call, mechanism = make(12), attention.linformer(rank=2, segment=12, shared=False)
    assert mechanism.conditioning(call) == 1.0  # one run holds all positions
    assert attention.linformer(rank=2, segment=6).conditioning(call) > 1.0
