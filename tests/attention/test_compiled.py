"""The compiled kernel against the definition, where it can be built."""

import shutil
from dataclasses import replace

import pytest
import torch

import headscope.attention as attention
from headscope.attention.compiled import build, is_used, row_sums, use
from headscope.attention.compiled.row_kernel import MOST_BANDS
from headscope.attention.mechanisms.dense import Dense
from headscope.attention.mechanisms.window import Window
from headscope.attention.statistics import Request, observe, pattern_statistics, row_statistics
from headscope.attention.statistics.slabs import FLOAT32_REACH
from headscope.errors import ResourceError
from tests.attention.calls import KINDS, make
from tests.tolerances import MECHANISM_AGREEMENT, STREAMED_STATISTICS

can_build = pytest.mark.skipif(
    (shutil.which("c++") is None and shutil.which("g++") is None) or shutil.which("ninja") is None,
    reason="there is no C++ compiler or no ninja on this machine",
)


@pytest.fixture
def compiled():
    use(True)
    yield
    use(False)


def by_hand(q, k, v, scale, left, right, offset):
    groups = q.shape[0] // k.shape[0]
    scores = q.double() @ k.double().repeat_interleave(groups, 0).mT * scale
    ahead = torch.arange(q.shape[1])[:, None] + offset - torch.arange(k.shape[1])
    seen = torch.ones_like(ahead, dtype=torch.bool)
    seen &= ahead <= left if left is not None else seen
    seen &= ahead >= -right if right is not None else seen
    scores = scores.masked_fill(~seen, -torch.inf)
    weights = torch.nan_to_num(scores.softmax(-1))
    return weights @ v.double().repeat_interleave(groups, 0), scores.logsumexp(-1)


@can_build
@pytest.mark.parametrize(
    ("heads", "kv_heads", "queries", "keys", "width", "d_value", "left", "right", "offset"),
    [
        (1, 1, 1, 1, 8, 8, 0, 0, 0),
        (2, 1, 37, 37, 16, 16, None, 0, 0),
        (4, 2, 700, 700, 64, 64, 128, 128, 0),
        (1, 1, 5, 29, 8, 24, None, 0, 24),  # after a cache, values wider than keys
        (3, 3, 1201, 1201, 40, 40, None, None, 0),  # several tiles of keys
        (2, 2, 100, 60, 256, 256, 10, 5, -20),  # some queries see nothing
        (2, 1, 13, 2000, 33, 7, 700, None, 900),  # widths that fill no vector
    ],
)
def test_rows_equal_the_definition(heads, kv_heads, queries, keys, width, d_value, left, right, offset):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(heads, queries, width, generator=generator) * 2
    k = torch.randn(kv_heads, keys, width, generator=generator)
    v = torch.randn(kv_heads, keys, d_value, generator=generator)
    limits = {"scale": width**-0.5, "left": left, "right": right, "offset": offset}
    got, (out, lse) = row_sums(q, k, v, **limits), by_hand(q, k, v, **limits)
    assert float((got.out - out).abs().max()) <= MECHANISM_AGREEMENT * float(out.abs().max())
    assert torch.equal(got.lse.isfinite(), lse.isfinite())
    assert torch.allclose(got.lse.double(), lse, atol=1e-5)
    assert torch.equal(row_sums(q.mT.contiguous().mT, k, v, **limits).out, got.out)


@can_build
@pytest.mark.parametrize("kind", KINDS)
def test_statistics_of_every_kind_of_call(compiled, kind):
    """Where the kernel does not apply, the statistics are as before."""
    call = KINDS[kind]()
    request = Request(bands=(1, 5))
    got, output = row_statistics(call, request), observe(call, request).output
    exact = pattern_statistics(_float64_pattern(call), call, request)
    n = call.k.shape[2]
    for name, scale in {"entropy_nats": 4.0, "participation": 1, "diagonal": 1, "first": 1, "distance": n}.items():
        a, b = getattr(got, name), getattr(exact, name)
        assert torch.equal(a.isnan(), b.isnan())
        assert float((a - b).nan_to_num().abs().max()) <= STREAMED_STATISTICS * scale, name
    assert torch.allclose(output.out, Dense()(call).out, atol=1e-5)


@can_build
def test_a_band_does_not_depend_on_how_many_others_are_asked_for(compiled):
    """The kernel also answers a request for more than it takes at once, with the same numbers."""
    call, many = make(150), Request(bands=tuple(range(1, 2 * MOST_BANDS + 3)))
    few, all_of_them = row_statistics(call, Request(bands=(1, 30))), row_statistics(call, many)
    assert "compiled" in all_of_them.method
    assert all(torch.equal(few.bands[width], all_of_them.bands[width]) for width in (1, 30))
    assert torch.equal(few.entropy_nats, all_of_them.entropy_nats)


def _float64_pattern(call):
    from headscope.attention.maps import pattern

    wide = {name: getattr(call, name).double() for name in ("q", "k", "v")}
    return pattern(replace(call, **wide))


@can_build
def test_the_kernel_is_used_and_said_so(compiled):
    assert "compiled" in row_statistics(make(200), Request()).method
    strong = make(200, size=FLOAT32_REACH)
    assert "float64" in row_statistics(strong, Request()).method  # scores beyond float32 are not its business
    use(False)
    assert "compiled" not in row_statistics(make(200), Request()).method


@can_build
@pytest.mark.parametrize("threads", [1, 2])
def test_a_window_in_the_kernel(compiled, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        call = make(900, batch=2, d_head=24, right=None)
        window = Window(left=40, right=30)
        got, exact = window(call, lse=True), window.definition(call)
    finally:
        torch.set_num_threads(before)
    assert float((got.out - exact.out).abs().max()) <= MECHANISM_AGREEMENT * float(exact.out.abs().max())
    assert torch.allclose(got.lse.double(), exact.lse, atol=1e-5)


PATTERNS = [
    attention.window(left=40, right=30),
    attention.window(left=12),
    attention.longformer(left=20, right=5, global_positions=(0, 3, 400)),
    attention.bigbird(block=32),
    attention.vertical_slash(columns=9, diagonals=3, width=5, near=40, rows=4),
    attention.top_blocks(block=32, blocks=3),
    attention.band_sparse(left=16, right=16, columns=(0, 7, 300)),
    attention.graph(tuple(tuple(range(max(0, i - 3), i + 1)) + (() if i % 2 else (0,) * (i > 3)) for i in range(700))),
]


@can_build
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("mechanism", PATTERNS, ids=lambda mechanism: mechanism.name)
def test_patterns_and_their_gradients_in_the_kernel(compiled, mechanism, causal):
    """Every pattern that is made of bands and gathered blocks, at odd sizes, with grouped heads and padding."""
    call = make(523, batch=2, heads=4, kv_heads=2, d_head=24, right=0 if causal else None)
    real = torch.ones(2, 523, dtype=torch.bool)
    real[1, -70:] = False
    for given in (call, replace(call, key_padding=real)):
        fast, slow = (gradients(given, run) for run in (lambda c: mechanism(c, lse=True), mechanism.definition))
        for got, exact in zip(fast, slow, strict=True):
            assert float((got - exact).abs().max()) <= 4 * MECHANISM_AGREEMENT * float(exact.abs().max())


def gradients(call, run):
    """Output, log-sum-exp and the gradients of a sum over both."""
    leaves = [x.detach().clone().requires_grad_() for x in (call.q, call.k, call.v)]
    output = run(replace(call, q=leaves[0], k=leaves[1], v=leaves[2]))
    weights = torch.randn(output.out.shape, generator=torch.Generator().manual_seed(3))
    seen = output.lse.masked_fill(output.lse == -torch.inf, 0.0)
    grads = torch.autograd.grad((output.out * weights).sum() + 0.3 * seen.sum(), leaves)
    return output.out.detach().double(), seen.detach().double(), *(grad.double() for grad in grads)


@can_build
@pytest.mark.parametrize("n", [257, 300, 5000])
@pytest.mark.parametrize(("width", "d_value"), [(16, 16), (64, 64), (33, 7)])
@pytest.mark.parametrize("feature", ["elu", "relu", "identity"])
def test_causal_linear_attention_in_the_kernel(compiled, feature, width, d_value, n):
    call = make(n, batch=2, heads=2, kv_heads=1, d_head=width, d_value=d_value)
    linear = attention.linear(feature, normalise=feature != "identity")
    got, exact = linear(call).out, linear.definition(call).out
    assert float((got - exact).abs().max()) <= MECHANISM_AGREEMENT * float(exact.abs().max())


def test_a_machine_without_a_compiler_is_told_what_to_do(monkeypatch):
    from torch.utils import cpp_extension

    def fail(*args, **kwargs):
        raise RuntimeError("no compiler here\nand a long story")

    build.library.cache_clear()
    monkeypatch.setattr(cpp_extension, "load", fail)
    with pytest.raises(ResourceError, match="no compiler here"):
        use(True)
    assert not is_used()
    build.library.cache_clear()
