"""The streaming loop: the same numbers however the map is cut, in O(n·d) memory, and it says what it did."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from headscope.attention.call import Call
from headscope.attention.sparse.explicit_softmax import explicit_attention
from headscope.attention.statistics import Request, observe, pattern_statistics, row_statistics, uniform_statistics
from headscope.attention.statistics import slabs as slabs_module
from tests.attention.calls import KINDS, make
from tests.tolerances import STREAMED_STATISTICS

REQUEST = Request((1, 9))


class LargestTensor(TorchDispatchMode):
    """Remembers the size of the largest tensor that any operator returned."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        sizes = [x.untyped_storage().size() // 4 for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        self.entries = max(self.entries, *sizes, 0)
        return result


@pytest.mark.parametrize("kind", ["causal", "full", "padding on the left", "everything", "longer than a block"])
@pytest.mark.parametrize(("entries", "rows"), [(1, 64), (600, 5), (1 << 13, 7)])
def test_any_cut_gives_the_same(kind: str, entries: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    call = KINDS[kind]()
    whole = observe(call, REQUEST)
    monkeypatch.setattr(slabs_module, "SLAB_ENTRIES", entries)
    monkeypatch.setattr(slabs_module, "SLAB_ROWS", rows)
    cut = observe(call, REQUEST)
    assert torch.allclose(cut.output.out, whole.output.out, atol=1e-5)
    for name in ("entropy_nats", "participation", "distance", "diagonal", "first", "lse"):
        a, b = getattr(cut.statistics, name), getattr(whole.statistics, name)
        assert torch.allclose(a, b, atol=1e-4, rtol=1e-5, equal_nan=True), name
    assert torch.equal(cut.statistics.n_visible, whole.statistics.n_visible)


@pytest.mark.parametrize(
    "make_call", [lambda: make(3000, batch=1, d_head=8), lambda: make(3000, batch=1, d_head=8, right=None)]
)
def test_no_map_is_ever_stored(make_call: Any) -> None:
    call = make_call()
    one_map = call.q.shape[2] * call.k.shape[2]
    with LargestTensor() as observed:
        observe(call, REQUEST)
    with LargestTensor() as uniform:
        uniform_statistics(call, REQUEST)
    assert observed.entries <= 2 * slabs_module.SLAB_ENTRIES < one_map / 4
    assert uniform.entries < one_map / 50


def test_strong_scores_are_computed_in_float64_and_said_so() -> None:
    weak, strong = make(200), make(200, size=100.0)
    assert row_statistics(weak, REQUEST).method.endswith("scores in float32")
    assert row_statistics(strong, REQUEST).method.endswith("scores in float64")
    mixed = replace(weak, q=torch.cat([weak.q[:, :, :100], strong.q[:, :, 100:]], dim=2))
    assert "float64 in" in row_statistics(mixed, REQUEST).method


def exact_pattern(call: Call) -> torch.Tensor:
    keys = call.k.shape[2]
    eye = torch.eye(keys, dtype=torch.float64).expand(call.q.shape[0], call.k.shape[1], keys, keys)
    return explicit_attention(replace(call, v=eye), call.visible()).out


@pytest.mark.parametrize("strength", [3.0, 25.0, 60.0])
@pytest.mark.parametrize("where", ["first", "previous", "middle", "anywhere"])
@pytest.mark.parametrize("n", [33, 130, 700])
def test_narrow_rows_far_away(n: int, where: str, strength: float) -> None:
    """Rows that rest on one key, near or far: where E[x²] − E[x]² loses everything in float32."""
    call = make(n, batch=1, heads=2, kv_heads=1, d_head=32)
    k = torch.nn.functional.normalize(call.k, dim=-1)
    target = {"first": k[:, :, :1], "previous": k.roll(1, 2), "middle": k[:, :, n // 2 : n // 2 + 1], "anywhere": 0 * k}
    q = torch.nn.functional.normalize(target[where] + 0.3 * call.q / 32**0.5, dim=-1)
    peaked = replace(call, q=q * strength, k=k, scale=1.0)
    got = row_statistics(peaked, REQUEST)
    want = pattern_statistics(exact_pattern(peaked), peaked, REQUEST)
    for name, span in (("distance", n), ("distance_sd", n), ("entropy_nats", torch.tensor(n).log()), ("first", 1)):
        assert float((getattr(got, name) - getattr(want, name)).abs().max() / span) <= STREAMED_STATISTICS, name


def test_sinks_take_the_rest() -> None:
    call = KINDS["sinks"]()
    rows = row_statistics(call, Request((100,)))
    assert rows.sink is not None
    assert torch.allclose(rows.sink + rows.bands[100], torch.ones_like(rows.sink), atol=1e-6)


def test_what_is_not_visible_has_no_mass_at_all() -> None:
    """Exactly 0, not the smallest weight that the loop computes with."""
    windowed = row_statistics(make(50, left=5), REQUEST)
    assert not bool(windowed.first[:, :, 6:].any())
    mask = ~torch.eye(37, dtype=torch.bool)[None, None]
    blindfolded = row_statistics(replace(make(right=None), mask=mask), REQUEST)
    assert not bool(blindfolded.diagonal.any())
