"""What every mechanism promises, found by the scan: add a file, inherit these."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from headscope.attention.call import Call, Output
from headscope.attention.leak_check import leak_check
from headscope.attention.maps import scores
from headscope.attention.mechanism import Mechanism, mechanisms
from headscope.attention.mechanism_spelling import spelled
from headscope.errors import UsageError
from tests.attention.calls import KINDS, make, non_contiguous
from tests.tolerances import BFLOAT16_ROUNDING, MECHANISM_AGREEMENT, ROUNDINGS

LENGTH = 37  # of the calls that the tests make, unless they say otherwise
MECHANISMS = [mechanism for cls in mechanisms().values() for mechanism in cls.examples(LENGTH)]
# Kinds of calls that limit what comes after a query.
LIMITED = [kind for kind, made in KINDS.items() if made().right is not None and made().q.shape[2] > 1]
SMALLEST_PARAMETERS = [
    ("band_sparse", {"left": 0, "right": 0, "columns": (0,)}),
    ("bigbird", {"block": 1, "window": 1, "first": 0, "last": 0, "random": 0}),
    ("linear", {"feature": "random", "count": 1}),
    ("linformer", {"rank": 1, "segment": 1}),
    ("longformer", {"left": 0, "right": 0, "global_positions": (0,)}),
    ("low_rank", {"segment": 1}),
    ("low_rank", {"method": "svd", "rank": 1}),
    ("pooling", {"score": "additive", "hidden": 1}),
    ("top_blocks", {"block": 1, "blocks": 0, "near": 0}),
    ("vertical_slash", {"columns": 0, "diagonals": 0, "width": 1, "near": 1, "rows": 1}),
    ("window", {"left": 0, "right": 0, "dilation": 1}),
]
every_mechanism = pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)


def error(got: Tensor, exact: Tensor) -> float:
    """The largest difference relative to the largest exact value; infinities must be in the same places."""
    finite = exact.isfinite()
    assert torch.equal(got.isfinite(), finite)
    if not bool(finite.any()):
        return 0.0
    return float((got.double() - exact)[finite].abs().max() / exact[finite].abs().max().clamp_min(1e-30))


def tolerance(mechanism: Mechanism, call: Call) -> float:
    """Two millionths; where a system is solved, ten roundings times its condition number."""
    return max(MECHANISM_AGREEMENT, ROUNDINGS * torch.finfo(torch.float32).eps * mechanism.conditioning(call))


def refused(mechanism: Mechanism, call: Call) -> bool:
    """Whether the mechanism says that it cannot honour the call; then it must say so when it is called, too."""
    reason = mechanism.supports(call)
    if reason is None:
        return False
    with pytest.raises(UsageError) as raised:
        mechanism(call)
    assert reason in str(raised.value)
    return True


def gradients(call: Call, run: Callable[[Call], Output]) -> list[Tensor]:
    """Of a sum with fixed weights over out and lse, with respect to q, k and v."""
    leaves = [x.detach().clone().requires_grad_() for x in (call.q, call.k, call.v)]
    output = run(replace(call, q=leaves[0], k=leaves[1], v=leaves[2]))
    generator = torch.Generator().manual_seed(3)
    weights = torch.randn(output.out.shape, generator=generator, dtype=torch.float64)
    loss = (output.out.double() * weights).sum()
    if output.lse is not None:
        loss = loss + output.lse.double().masked_fill(output.lse == -torch.inf, 0.0).sum() * 0.3
    return list(torch.autograd.grad(loss, leaves, materialize_grads=True))


def widened(call: Call, dtype: torch.dtype) -> Call:
    return replace(call, q=call.q.to(dtype), k=call.k.to(dtype), v=call.v.to(dtype))


@every_mechanism
def test_an_everyday_call_is_honoured(mechanism: Mechanism) -> None:
    """A refusal is for what a mechanism cannot mean: causal or not, one of both every mechanism can be given."""
    assert None in (mechanism.supports(make()), mechanism.supports(make(right=None)))


@pytest.mark.parametrize("kind", KINDS)
@every_mechanism
def test_fast_equals_definition(mechanism: Mechanism, kind: str) -> None:
    call = KINDS[kind]()
    if refused(mechanism, call):
        return
    for given in (call, non_contiguous(call)):
        got, exact = mechanism(given, lse=True), mechanism.definition(given)
        assert got.out.dtype == call.q.dtype
        assert exact.out.dtype == torch.float64
        assert error(got.out, exact.out) <= tolerance(mechanism, call)
        assert (got.lse is None) == (exact.lse is None)
        if exact.lse is not None and got.lse is not None:
            assert error(got.lse, exact.lse) <= MECHANISM_AGREEMENT
    assert error(mechanism(call).out, got.out.double()) <= 2 * tolerance(mechanism, call)


@pytest.mark.parametrize(("name", "parameters"), SMALLEST_PARAMETERS)
def test_the_smallest_parameters_are_honoured(name: str, parameters: dict[str, object]) -> None:
    mechanism = mechanisms()[name](**parameters)
    calls = [call for call in (make(9), make(9, right=None)) if not refused(mechanism, call)]
    for call in calls:
        assert error(mechanism(call).out, mechanism.definition(call).out) <= tolerance(mechanism, call)
    assert calls


@pytest.mark.parametrize("kind", KINDS)
@every_mechanism
def test_gradients_equal_those_of_the_definition(mechanism: Mechanism, kind: str) -> None:
    call = KINDS[kind]()
    if refused(mechanism, call):
        return
    fast = gradients(call, lambda given: mechanism(given, lse=True))
    slow = gradients(widened(call, torch.float64), mechanism.definition)
    # Relative to the largest of the three: a row that sees one key has no gradient in q and k but rounding.
    largest = max(float(exact.abs().max()) for exact in slow)
    # A float32 score of size s is off by a rounding of s, and its probability by as much: 1e-5 at scores of 100.
    allowed = max(tolerance(mechanism, call), torch.finfo(torch.float32).eps * float(scores(call).abs().max()))
    for got, exact in zip(fast, slow, strict=True):
        assert bool(got.isfinite().all())
        assert float((got.double() - exact).abs().max()) <= allowed * largest


@every_mechanism
def test_a_perturbed_fast_path_is_noticed(mechanism: Mechanism) -> None:
    """One per cent is far outside the tolerance that the tests above allow."""
    call = honoured(mechanism)
    assert error(mechanism(call).out * 1.01, mechanism.definition(call).out) > 2 * tolerance(mechanism, call)


def honoured(mechanism: Mechanism, length: int = LENGTH) -> Call:
    """A causal call, or one without limits where the mechanism knows no causal ones."""
    causal = make(length)
    return causal if mechanism.supports(causal) is None else make(length, right=None)


@pytest.mark.parametrize("kind", ["causal", "full", "causal window", "sinks", "long window", "padding on the right"])
@every_mechanism
def test_dtypes(mechanism: Mechanism, kind: str) -> None:
    call = KINDS[kind]()
    if refused(mechanism, call):
        return
    for dtype, allowed in ((torch.float64, 1e-12), (torch.bfloat16, BFLOAT16_ROUNDING)):
        given = widened(call, dtype)
        got = mechanism(given)
        assert got.out.dtype == dtype
        assert error(got.out, mechanism.definition(given).out) <= allowed * mechanism.conditioning(given)


@pytest.mark.parametrize("d_head", [8, 40, 256])
@every_mechanism
def test_widths(mechanism: Mechanism, d_head: int) -> None:
    call = make(19, batch=1, heads=2, kv_heads=1, d_head=d_head, right=honoured(mechanism).right)
    assert error(mechanism(call).out, mechanism.definition(call).out) <= tolerance(mechanism, call)


@pytest.mark.parametrize("kind", ["causal window", "window on both sides", "stray mask", "full"])
@every_mechanism
def test_blocks_of_one_row_change_nothing(mechanism: Mechanism, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then no row of a block has a masked key, and each has other keys than the row before."""
    call = KINDS[kind]()
    if refused(mechanism, call):
        return
    for module in ("sparse.recompute", "mechanisms.dense"):
        monkeypatch.setattr(f"headscope.attention.{module}.BLOCK_ENTRIES", 1)
    assert error(mechanism(call).out, mechanism.definition(call).out) <= tolerance(mechanism, call)


@pytest.mark.parametrize("kind", ["padding on the left", "stray mask"])
@every_mechanism
def test_masked_rows(mechanism: Mechanism, kind: str) -> None:
    call = KINDS[kind]()
    if refused(mechanism, call):
        return
    output = mechanism(call, lse=True)
    blind = ~call.visible().any(dim=-1).expand(output.out.shape[:3])
    assert bool(blind.any())
    assert not bool(output.out[blind].any())
    assert not bool(output.out.isnan().any())
    if output.lse is not None:
        assert bool((output.lse[blind] == -torch.inf).all())


@pytest.mark.parametrize("n", [5, LENGTH, 300])
@every_mechanism
def test_decode_step_equals_prefill_row(mechanism: Mechanism, n: int) -> None:
    whole = make(n, d_head=8)
    if refused(mechanism, whole):
        return
    prefill = mechanism(whole, lse=True)
    allowed = tolerance(mechanism, whole) * float(prefill.out.abs().max())
    for row in (0, n // 2, n - 1):
        # What a cache holds when token `row` is decoded: every key up to it.
        step = whole.take(slice(row, row + 1), slice(0, row + 1))
        if mechanism.needs_all_queries:
            all_queries = whole.take(slice(0, row + 1), slice(0, row + 1))
            got = Output(mechanism.last_rows(all_queries, 1))
        else:
            got = mechanism(step, lse=True)
        assert torch.allclose(got.out[:, :, 0], prefill.out[:, :, row], rtol=0, atol=allowed)
        if got.lse is not None and prefill.lse is not None:
            assert torch.allclose(got.lse[:, :, 0], prefill.lse[:, :, row], atol=2e-6)


@every_mechanism
def test_a_dropped_key_is_never_read_again(mechanism: Mechanism) -> None:
    """Later queries give the same without the keys that the mechanism lets go, and see every key that it keeps."""
    n = 3 * LENGTH
    call = make(n)
    dropped = torch.zeros(n, dtype=torch.bool)
    for query in range(0, n, 7):
        read = mechanism.still_read(torch.arange(n), query)
        if read is None:
            assert not bool(dropped.any())
            continue
        assert not bool((read & dropped).any())
        dropped = ~read & (torch.arange(n) < query)
        later = call.take(slice(query, n), slice(0, n))
        alike = replace(later, k=later.k[:, :, ~dropped], v=later.v[:, :, ~dropped],
                        key_positions=later.key_positions[:, ~dropped])  # fmt: skip
        assert error(mechanism(alike).out, mechanism.definition(later).out) <= tolerance(mechanism, later)
        masked = mechanism.seen(later)
        assert masked is not None
        assert not bool(masked.visible()[..., dropped].any())


def test_the_keys_that_bands_keep() -> None:
    """As many as the formula says, where it can be said in a line."""
    n = 1000
    kept = {
        spelling: int(read.sum())
        for spelling in (
            "window(left=64)",
            "window(left=64, dilation=4)",
            "band_sparse(left=64, right=0, columns=(0, 7, 990))",
            "longformer(left=64, right=0, global_positions=(0, 5))",
        )
        if (read := spelled(spelling).still_read(torch.arange(n), n)) is not None
    }
    assert kept == {
        "window(left=64)": 64,
        "window(left=64, dilation=4)": 64,
        "band_sparse(left=64, right=0, columns=(0, 7, 990))": 66,
        "longformer(left=64, right=0, global_positions=(0, 5))": 66,
    }
    assert spelled("longformer(left=64, right=0, global_positions=(0, 1500))").still_read(torch.arange(n), n) is None


@pytest.mark.parametrize("kind", LIMITED)
@every_mechanism
def test_nothing_leaks_from_the_future(mechanism: Mechanism, kind: str) -> None:
    """Also where a choice of keys, a mean over a block or the length of the text could carry it."""
    call = KINDS[kind]()
    if refused(mechanism, call):
        return
    check = leak_check(mechanism, call, cuts=4)
    assert check.is_clean, check


@every_mechanism
def test_deterministic_and_inputs_untouched(mechanism: Mechanism) -> None:
    for kind in ("everything", "long window", "padding on the left", "full"):
        call = KINDS[kind]()
        if refused(mechanism, call):
            continue
        before = [x.clone() for x in (call.q, call.k, call.v)]
        first, second = mechanism(call).out, mechanism(call).out
        assert torch.equal(first, second)
        assert all(torch.equal(a, b) for a, b in zip(before, (call.q, call.k, call.v), strict=True))


@every_mechanism
def test_autocast_does_not_break_it(mechanism: Mechanism) -> None:
    call = honoured(mechanism, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = mechanism(call)
    # Where queries and keys choose, the rounded ones do.
    defined = widened(call, torch.bfloat16) if mechanism.chooses_pairs else call
    allowed = BFLOAT16_ROUNDING * mechanism.conditioning(call)
    assert error(got.out.double(), mechanism.definition(defined).out) <= allowed


@every_mechanism
def test_cost_grows_and_is_positive(mechanism: Mechanism) -> None:
    costs = [mechanism.cost(n, 64) for n in (1, 16, 256, 4096)]
    assert all(cost.flops > 0 and cost.bytes > 0 for cost in costs)
    assert [cost.flops for cost in costs] == sorted(cost.flops for cost in costs)


@every_mechanism
def test_what_it_has_seen_is_the_map_it_computes(mechanism: Mechanism) -> None:
    for kind in ("causal", "full", "padding on the right", "sinks", "bias", "softcap"):
        call = KINDS[kind]()
        seen = None if refused(mechanism, call) else mechanism.seen(call)
        if seen is None:
            continue
        dense = mechanisms()["dense"]()
        assert error(dense.definition(seen).out, mechanism.definition(call).out) <= 1e-12


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cls", mechanisms().values(), ids=lambda cls: cls.name)
def test_as_dense_is_dense(cls: type[Mechanism], kind: str) -> None:
    call = KINDS[kind]()
    # In units of positions: with gaps between them they reach further than there are keys.
    mechanism = cls.as_dense(int(call.key_positions.max()) + 1)
    if mechanism is None or refused(mechanism, call):
        return
    exact = mechanisms()["dense"]().definition(call).out
    assert error(mechanism(call).out, exact) <= tolerance(mechanism, call)


@every_mechanism
def test_it_can_be_shown_and_told_from_others(mechanism: Mechanism) -> None:
    assert mechanism in {mechanism}  # `session.replace` groups heads by mechanism
    doc = type(mechanism).__doc__ or ""
    assert doc.strip()
    assert not doc.startswith(type(mechanism).__name__ + "(")  # what dataclasses write where nobody did
