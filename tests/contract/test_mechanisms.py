"""What every mechanism promises, found by the scan: add a file, inherit these."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from headscope.attention.call import Call, Output
from headscope.attention.maps import scores
from headscope.attention.mechanism import Mechanism, mechanisms
from tests.attention.calls import KINDS, make, non_contiguous
from tests.tolerances import BFLOAT16_ROUNDING, MECHANISM_AGREEMENT

# Parameters under which a mechanism differs from its neighbours; a new one is tested with its defaults until it
# is named here.
PARAMETERS: dict[str, list[dict[str, int | None]]] = {
    "window": [
        {},
        {"left": 3},
        {"left": 2, "right": 4},
        {"left": 0, "right": 0},
        {"left": 9, "dilation": 3},
        {"dilation": 2},
    ],
}
MECHANISMS = [cls(**given) for name, cls in mechanisms().items() for given in PARAMETERS.get(name, [{}])]


def error(got: Tensor, exact: Tensor) -> float:
    """The largest difference relative to the largest exact value; infinities must be in the same places."""
    finite = exact.isfinite()
    assert torch.equal(got.isfinite(), finite)
    if not bool(finite.any()):
        return 0.0
    return float((got.double() - exact)[finite].abs().max() / exact[finite].abs().max().clamp_min(1e-30))


def gradients(call: Call, run: Callable[[Call], Output]) -> list[Tensor]:
    """Of a sum with fixed weights over out and lse, with respect to q, k and v."""
    leaves = [x.detach().clone().requires_grad_() for x in (call.q, call.k, call.v)]
    output = run(replace(call, q=leaves[0], k=leaves[1], v=leaves[2]))
    generator = torch.Generator().manual_seed(3)
    weights = torch.randn(output.out.shape, generator=generator, dtype=torch.float64)
    loss = (output.out.double() * weights).sum()
    if output.lse is not None:
        loss = loss + output.lse.double().masked_fill(output.lse == -torch.inf, 0.0).sum() * 0.3
    return list(torch.autograd.grad(loss, leaves))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
def test_fast_equals_definition(mechanism: Mechanism, kind: str) -> None:
    call = KINDS[kind]()
    if mechanism.supports(call) is not None:
        pytest.skip(f"{mechanism!r} says it cannot honour this: {mechanism.supports(call)}")
    for given in (call, non_contiguous(call)):
        got, exact = mechanism(given, lse=True), mechanism.definition(given)
        assert got.out.dtype == call.q.dtype
        assert exact.out.dtype == torch.float64
        assert error(got.out, exact.out) <= MECHANISM_AGREEMENT
        if exact.lse is not None:
            assert got.lse is not None
            assert error(got.lse, exact.lse) <= MECHANISM_AGREEMENT
    assert torch.allclose(mechanism(call).out, got.out, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
def test_gradients_equal_those_of_the_definition(mechanism: Mechanism, kind: str) -> None:
    call = KINDS[kind]()
    fast = gradients(call, lambda given: mechanism(given, lse=True))
    wide = replace(call, q=call.q.double(), k=call.k.double(), v=call.v.double())
    slow = gradients(wide, mechanism.definition)
    # Relative to the largest of the three: a row that sees one key has no gradient in q and k but rounding.
    largest = max(float(exact.abs().max()) for exact in slow)
    # A float32 score of size s is off by a rounding of s, and its probability by as much: 1e-5 at scores of 100.
    tolerance = max(MECHANISM_AGREEMENT, torch.finfo(torch.float32).eps * float(scores(call).abs().max()))
    for got, exact in zip(fast, slow, strict=True):
        assert bool(got.isfinite().all())
        assert float((got.double() - exact).abs().max()) <= tolerance * largest


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
def test_a_perturbed_fast_path_is_noticed(mechanism: Mechanism) -> None:
    """One per cent is far outside the tolerance that the tests above allow."""
    call = make()
    assert error(mechanism(call).out * 1.01, mechanism.definition(call).out) > 100 * MECHANISM_AGREEMENT


@pytest.mark.parametrize("kind", ["causal", "causal window", "sinks", "long window", "padding on the right"])
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
def test_dtypes(mechanism: Mechanism, kind: str) -> None:
    call = KINDS[kind]()
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.bfloat16, BFLOAT16_ROUNDING)):
        given = replace(call, q=call.q.to(dtype), k=call.k.to(dtype), v=call.v.to(dtype))
        got = mechanism(given)
        assert got.out.dtype == dtype
        assert error(got.out, mechanism.definition(given).out) <= tolerance


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
def test_masked_rows(mechanism: Mechanism) -> None:
    for kind in ("padding on the left", "stray mask"):
        call = KINDS[kind]()
        output = mechanism(call, lse=True)
        exact = mechanism.definition(call)
        assert exact.lse is not None
        assert output.lse is not None
        blind = exact.lse == -torch.inf
        assert bool(blind.any())
        assert not bool(output.out[blind].any())
        assert bool((output.lse[blind] == -torch.inf).all())
        assert not bool(output.out.isnan().any())


@pytest.mark.parametrize("n", [5, 37, 300])
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
def test_decode_step_equals_prefill_row(mechanism: Mechanism, n: int) -> None:
    whole = make(n, d_head=8)
    prefill = mechanism(whole, lse=True)
    for row in (0, n // 2, n - 1):
        # What a cache holds when token `row` is decoded: every key up to it.
        step = whole.take(slice(row, row + 1), slice(0, row + 1))
        got = mechanism(step, lse=True)
        assert torch.allclose(got.out[:, :, 0], prefill.out[:, :, row], atol=2e-6)
        if got.lse is not None and prefill.lse is not None:
            assert torch.allclose(got.lse[:, :, 0], prefill.lse[:, :, row], atol=2e-6)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
def test_deterministic_and_inputs_untouched(mechanism: Mechanism) -> None:
    for kind in ("everything", "long window", "padding on the left"):
        call = KINDS[kind]()
        before = [x.clone() for x in (call.q, call.k, call.v)]
        first, second = mechanism(call).out, mechanism(call).out
        assert torch.equal(first, second)
        assert all(torch.equal(a, b) for a, b in zip(before, (call.q, call.k, call.v), strict=True))


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
def test_autocast_does_not_break_it(mechanism: Mechanism) -> None:
    call = make(64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = mechanism(call)
    assert error(got.out.double(), mechanism.definition(call).out) <= BFLOAT16_ROUNDING


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
def test_cost_grows_and_is_positive(mechanism: Mechanism) -> None:
    costs = [mechanism.cost(n, 64) for n in (1, 16, 256, 4096)]
    assert all(cost.flops > 0 and cost.bytes > 0 for cost in costs)
    assert [cost.flops for cost in costs] == sorted(cost.flops for cost in costs)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
def test_what_it_has_seen_is_the_map_it_computes(mechanism: Mechanism) -> None:
    for kind in ("causal", "padding on the right", "sinks", "bias", "softcap"):
        call = KINDS[kind]()
        seen = mechanism.seen(call)
        if seen is None:
            continue
        dense = mechanisms()["dense"]()
        assert error(dense.definition(seen).out, mechanism.definition(call).out) <= 1e-12
