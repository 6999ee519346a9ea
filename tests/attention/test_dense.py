"""What is particular to dense attention: which kernel it takes, and that the ways agree."""

from dataclasses import replace

import pytest
import torch

from headscope.attention import dense, window
from headscope.attention.call import Call, Output
from headscope.attention.sparse import kernel
from headscope.errors import UsageError
from tests.attention.calls import KINDS, make
from tests.tolerances import MECHANISM_AGREEMENT

BOTH_WAYS = [kind for kind in KINDS if kind != "peaked"]  # its tolerance is its own; the contract tests have it


def leaves(call: Call) -> Call:
    return replace(call, **{name: getattr(call, name).clone().requires_grad_() for name in ("q", "k", "v")})


def loss(output: Output) -> torch.Tensor:
    assert output.lse is not None
    return output.out.square().sum() + output.lse.masked_fill(output.lse == -torch.inf, 0.0).sin().sum()


@pytest.mark.parametrize("kind", BOTH_WAYS)
def test_without_the_private_operator_nothing_changes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = leaves(KINDS[kind]())
    got = dense()(fast, lse=True)
    got_grads = torch.autograd.grad(loss(got), (fast.q, fast.k, fast.v))
    monkeypatch.setattr(kernel, "has_flash", lambda: False)
    portable = leaves(KINDS[kind]())
    want = dense()(portable, lse=True)
    want_grads = torch.autograd.grad(loss(want), (portable.q, portable.k, portable.v))
    pairs = [(got.out, want.out), (got.lse, want.lse), *zip(got_grads, want_grads, strict=True)]
    for a, b in pairs:
        assert a is not None
        assert b is not None
        assert torch.allclose(a, b, atol=1e-5, rtol=10 * MECHANISM_AGREEMENT)


@pytest.mark.parametrize(
    ("kind", "causal"), [("causal", True), ("full", False), ("decode step", False), ("one token", False)]
)
def test_a_plain_call_is_one_fused_call_without_a_mask(
    kind: str, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, object]] = []
    torch_kernel = torch.nn.functional.scaled_dot_product_attention

    def spy(*tensors: torch.Tensor, **options: object) -> torch.Tensor:
        seen.append({"keys": tensors[1], **options})
        return torch_kernel(*tensors, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    call = KINDS[kind]()
    dense()(call)
    assert len(seen) == 1
    assert seen[0]["attn_mask"] is None
    assert seen[0]["is_causal"] is causal
    assert seen[0]["keys"] is call.k  # grouped heads without a copy of the keys


def test_a_cache_longer_than_what_was_seen() -> None:
    """Static caches pass room for keys to come; their positions lie after the query's, so none is seen."""
    whole = make(40)
    row = dense()(whole.take(slice(11, 12), slice(0, 12)), lse=True)
    k, v = whole.k.clone(), whole.v.clone()
    k[:, :, 12:], v[:, :, 12:] = 1e3, 1e3
    static = dense()(replace(whole.take(slice(11, 12), slice(0, 40)), k=k, v=v), lse=True)
    assert torch.allclose(static.out, row.out, atol=1e-6)


def test_what_shapes_the_scores_can_learn() -> None:
    call = KINDS["bias"]()
    assert call.bias is not None
    bias, sinks = call.bias.clone().requires_grad_(), torch.zeros(4, requires_grad=True)
    learning = replace(call, bias=bias, sinks=sinks)
    got = torch.autograd.grad(dense()(learning).out.square().sum(), (bias, sinks))
    want = torch.autograd.grad(dense().definition(learning).out.square().sum(), (bias, sinks))
    for a, b in zip(got, want, strict=True):
        assert torch.allclose(a, b, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("lse", [False, True])
def test_a_bias_may_hide_a_whole_row(softcap: float | None, lse: bool) -> None:
    call = KINDS["bias"]()
    assert call.bias is not None
    bias = call.bias.clone()
    bias[:, 1, 7] = -torch.inf
    hidden = replace(call, bias=bias, softcap=softcap)
    output, exact = dense()(hidden, lse=lse), dense().definition(hidden)
    assert not bool(output.out[:, 1, 7].any())
    assert torch.allclose(output.out.double(), exact.out, atol=1e-5)
    if output.lse is not None:
        assert bool((output.lse[:, 1, 7] == -torch.inf).all())


def test_queries_that_see_nothing_stay_in_the_graph() -> None:
    call = leaves(replace(make(5, right=0), query_positions=torch.arange(-9, -4)[None]))
    output = dense()(call, lse=True)
    assert output.lse is not None
    assert bool((output.lse == -torch.inf).all())
    (grad,) = torch.autograd.grad(output.out.sum(), call.q)
    assert not bool(grad.any())


def test_mixed_dtypes_are_refused() -> None:
    call = make()
    with pytest.raises(UsageError, match="one dtype"):
        dense()(replace(call, v=call.v.double()))


def test_a_torch_without_the_private_operator_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> object:
        raise AttributeError("no such operator")

    kernel.has_flash.cache_clear()
    monkeypatch.setattr(kernel, "flash_forward", gone)
    with pytest.warns(RuntimeWarning, match="exactly but more slowly"):
        assert not kernel.has_flash()
    call = make(300, left=9)
    assert torch.allclose(window(left=9)(call).out.double(), window(left=9).definition(call).out, atol=1e-6)
    kernel.has_flash.cache_clear()
