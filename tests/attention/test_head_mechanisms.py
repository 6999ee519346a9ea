"""Mechanisms by head: each head of a call computes its own."""

import pytest
import torch

from headscope.attention.call import Call
from headscope.attention.head_mechanisms import HeadMechanisms, mechanisms_of
from headscope.attention.mechanism_rules import heads_by_mechanism
from headscope.attention.mechanism_spelling import spelled
from headscope.attention.mechanisms.dense import Dense
from headscope.core.site import Site
from headscope.errors import UsageError
from tests.tolerances import MECHANISM_AGREEMENT

WORDS = (None, "window(left=2)", "linear", None, "window(left=2)", "band_sparse(left=1, right=0, columns=(0,))")


def call(groups: int = 1, dtype: torch.dtype = torch.float32) -> Call:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 6, 11, 4, generator=generator, dtype=dtype)
    k, v = (torch.randn(2, 6 // groups, 11, 4, generator=generator, dtype=dtype) for _ in range(2))
    at = torch.arange(11)[None]
    return Call(q, k, v, 0.5, at, at, right=0)


def mixed() -> HeadMechanisms:
    return HeadMechanisms(tuple(None if word is None else spelled(word) for word in WORDS))


@pytest.mark.parametrize("groups", [1, 3])
def test_each_head_attends_through_its_mechanism(groups):
    whole = call(groups)
    out = mixed()(whole)
    for head, word in enumerate(WORDS):
        alone = (Dense() if word is None else spelled(word)).definition(whole.heads((head,))).out[:, 0]
        assert float((out[:, head] - alone).abs().max() / alone.abs().max()) < MECHANISM_AGREEMENT
    assert float((out - mixed().definition(whole)).abs().max()) < 1e-5


def test_gradients_reach_every_head():
    whole = call(dtype=torch.float64)
    leaves = [x.requires_grad_() for x in (whole.q, whole.k, whole.v)]
    chosen = torch.randn(2, 6, 11, 4, dtype=torch.float64)
    fast = torch.autograd.grad((mixed()(whole) * chosen).sum(), leaves)
    exact = torch.autograd.grad((mixed().definition(whole) * chosen).sum(), leaves)
    for a, b in zip(fast, exact, strict=True):
        assert torch.allclose(a, b, atol=1e-9)


def test_maps_are_those_of_the_mechanisms():
    assert mixed().pattern(call()) is None  # linear attention has none
    softmaxes = HeadMechanisms(tuple(None if word in (None, "linear") else spelled(word) for word in WORDS))
    maps, whole = softmaxes.pattern(call()), call()
    assert torch.allclose(maps @ whole.v, softmaxes(whole), atol=1e-5)
    ahead = torch.arange(11)[:, None] - torch.arange(11)
    assert not maps[:, 1][:, ahead > 2].any()
    assert maps[:, 0][:, ahead > 2].any()


def test_only_a_module_that_says_so_has_mechanisms():
    module = torch.nn.Linear(2, 2)
    assert mechanisms_of(module) is None
    module.mechanisms = mixed()
    assert mechanisms_of(module) is module.mechanisms


def test_rules_name_each_head_once():
    sites = tuple(Site("only", "self", layer, 4, 4, 8, 8, causal=True) for layer in range(2))
    heads = heads_by_mechanism({"window(left=4)": "L0.H0-1", "linear": "L1"}, sites)
    assert heads == {"window(left=4)": {sites[0]: (0, 1)}, "linear": {sites[1]: (0, 1, 2, 3)}}
    with pytest.raises(UsageError, match=r"L0\.H1 is replaced twice"):
        heads_by_mechanism({"window(left=4)": "L0.H0-1", "linear": "L0.H1"}, sites)
