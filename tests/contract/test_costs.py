"""What a mechanism says that it costs, beside counted work: visible pairs, executed products, allocated memory."""

from functools import lru_cache

import pytest
import torch

from headscope.attention.call import Call
from headscope.attention.mechanism import Mechanism, mechanisms
from tests.attention.calls import make
from tests.attention.counted_work import counted_bytes, counted_flops

D = 64
# Lengths and widths that no block, tile or power of two divides, and ends of the range that models have.
ODD_SIZES = [(193, 33), (511, 8), (300, 256), (1000, 128)]

# Where the formula follows each step of the path it is nearer than the factor of two that holds for all.
SHARPER = {"dense": 1.01, "bigbird": 1.1, "low_rank": 1.25, "intention": 1.25, "pooling": 1.3, "band_sparse": 1.35}
SHARPER |= {"linformer": 1.5, "longformer": 1.6, "vertical_slash": 1.2, "top_blocks": 1.4}


def plain_call(n: int, d: int = D) -> Call:
    return make(n, batch=1, heads=1, kv_heads=1, d_head=d, right=None)


def is_a_set(mechanism: Mechanism, call: Call) -> bool:
    """Whether it is a softmax over a set of pairs, whole or in parts: then blocks compute some masked pairs too."""
    in_parts = mechanism.name == "linformer" and getattr(mechanism, "segment", None) is not None
    return mechanism.seen(call) is not None or in_parts


@lru_cache(maxsize=64)
def examples(name: str, n: int) -> tuple[Mechanism, ...]:
    return mechanisms()[name].examples(n)


CASES = [(name, index) for name in mechanisms() for index in range(len(examples(name, 2)))]
every_example = pytest.mark.parametrize(("name", "index"), CASES)


@pytest.mark.parametrize("n", [1, 2, 37, 300])
@every_example
def test_flops_count_the_visible_pairs(name: str, index: int, n: int) -> None:
    mechanism, call = examples(name, n)[index], plain_call(n)
    seen = mechanism.seen(call)
    if seen is not None and mechanism.chooses_pairs:
        # How many pairs are chosen depends on the input; to see what is chosen costs the estimate and nothing else.
        pairs, estimate = int(seen.visible().expand(1, 1, n, n).sum()), counted_flops(lambda: mechanism.seen(call))
        assert mechanism.cost(n, D).flops == pytest.approx(4 * D * pairs + estimate, rel=0.15)
        assert estimate > 0
    elif seen is not None:
        pairs = int(seen.visible().expand(1, 1, n, n).sum())
        assert mechanism.cost(n, D).flops == 4 * D * pairs, f"4 d for each of {pairs} pairs (`Cost`)"
    else:
        assert mechanism.cost(n, D).flops > 0


@pytest.mark.parametrize(("n", "d"), [(48, D), (768, D), (37, 33), (511, 8)])
@every_example
def test_flops_count_the_products_that_run(name: str, index: int, n: int, d: int) -> None:
    mechanism, call = examples(name, n)[index], plain_call(n, d)
    stated, counted = mechanism.cost(n, d).flops, counted_flops(lambda: mechanism(call))
    if is_a_set(mechanism, call):
        # Blocks also compute masked pairs, but never fewer than the visible ones.
        assert counted >= stated * (1 - 1e-9)
    else:
        assert counted == pytest.approx(stated, rel=1e-9)


@every_example
def test_flops_grow_with_the_heads(name: str, index: int) -> None:
    """Twelve heads cost twelve times one; less, but not less than one for each kv head, where heads share them."""
    n, d = 75, 24
    mechanism = examples(name, n)[index]
    alike = make(n, batch=2, heads=6, kv_heads=6, d_head=d, right=None)
    grouped = make(n, batch=2, heads=6, kv_heads=2, d_head=d, right=None)
    counted, shared = counted_flops(lambda: mechanism(alike)), counted_flops(lambda: mechanism(grouped))
    stated = mechanism.cost(n, d).flops
    if is_a_set(mechanism, alike):
        assert counted >= shared >= 12 * stated * (1 - 1e-9)
    else:
        assert counted == pytest.approx(12 * stated, rel=1e-9)
        assert 4 * stated * (1 - 1e-9) <= shared <= 12 * stated * (1 + 1e-9)


@pytest.mark.parametrize(("n", "d"), [(256, D), (768, D), *ODD_SIZES])
@every_example
def test_bytes_count_the_allocations(name: str, index: int, n: int, d: int) -> None:
    mechanism, call = examples(name, n)[index], plain_call(n, d)
    assert_near(mechanism.cost(n, d).bytes, allocated(mechanism, call), SHARPER.get(name, 2.0))


@pytest.mark.parametrize("name", list(mechanisms()))
def test_bytes_count_the_allocations_of_long_texts(name: str) -> None:
    mechanism, call = examples(name, 2048)[0], plain_call(2048)
    assert_near(mechanism.cost(2048, D).bytes, allocated(mechanism, call), 2.0)


# Parameters and sizes at which one term of a formula decides, and how near stated and allocated bytes then are.
DECIDED_BY_ONE_TERM = [
    ("vertical_slash", {"columns": 0, "diagonals": 6, "width": 64, "near": 32, "rows": 1}, 1000, D, 1.1),
    ("vertical_slash", {"columns": 0, "diagonals": 3, "width": 100, "near": 16, "rows": 1}, 777, 33, 1.1),
    ("vertical_slash", {"columns": 0, "diagonals": 1, "width": 256, "near": 64, "rows": 1}, 1024, D, 1.05),
    ("vertical_slash", {"columns": 0, "diagonals": 16, "width": 64, "near": 256, "rows": 1}, 4096, D, 1.05),
    ("vertical_slash", {"columns": 200, "diagonals": 0, "width": 1, "near": 16, "rows": 1}, 1000, D, 1.05),
    ("vertical_slash", {"columns": 300, "diagonals": 0, "width": 1, "near": 128, "rows": 1}, 1024, 8, 1.05),
    ("vertical_slash", {"columns": 500, "diagonals": 0, "width": 1, "near": 100, "rows": 1}, 2000, D, 1.05),
    ("vertical_slash", {"columns": 100, "diagonals": 8, "width": 32, "near": 64, "rows": 1}, 2048, 16, 1.05),
    ("linformer", {"rank": 64, "segment": 16}, 1000, D, 1.06),
    ("linformer", {"rank": 64, "segment": 16}, 992, D, 1.06),
    ("linformer", {"rank": 1, "segment": 8}, 2000, 2, 1.06),
    ("linformer", {"rank": 200, "segment": 64}, 256, D, 1.16),
    ("linformer", {"rank": 1, "segment": 512}, 500, 8, 1.18),
    ("linformer", {"rank": 1, "segment": 100}, 300, 8, 1.2),
    ("bigbird", {"block": 32, "window": 1, "first": 0, "last": 0, "random": 0}, 4096, 2, 1.001),
    ("bigbird", {"block": 64, "window": 1, "first": 0, "last": 0, "random": 0}, 4096, 1, 1.01),
    ("bigbird", {"block": 16, "window": 1, "first": 0, "last": 0, "random": 6}, 4096, D, 1.01),
    ("top_blocks", {"block": 16, "blocks": 0, "near": 0}, 4096, D, 1.04),
    ("top_blocks", {"block": 16, "blocks": 0, "near": 0}, 4096, 8, 1.2),
    ("intention", {}, 512, D, 1.08),
    ("window", {"left": 64, "right": 64, "dilation": 4}, 2048, D, 1.35),
    ("window", {"left": 900, "right": 0}, 4096, D, 1.1),
    ("window", {"left": 700, "right": 700}, 4096, D, 1.12),
    ("window", {"left": 1000, "right": 900}, 4096, 8, 1.01),
    ("window", {"left": 0, "right": 600}, 2048, 2, 1.02),
    ("longformer", {"left": 2, "right": 2, "global_positions": tuple(range(0, 1024, 4))}, 1024, D, 1.6),
]


@pytest.mark.parametrize(("name", "parameters", "n", "d", "factor"), DECIDED_BY_ONE_TERM)
def test_bytes_count_every_term(name: str, parameters: dict[str, object], n: int, d: int, factor: float) -> None:
    mechanism = mechanisms()[name](**parameters)
    assert_near(mechanism.cost(n, d).bytes, allocated(mechanism, plain_call(n, d)), factor)


def assert_near(stated: float, measured: int, factor: float) -> None:
    assert measured / factor <= stated <= measured * factor, (
        f"cost() says {stated:,.0f} bytes, torch allocates {measured:,}: `Cost` says what counts, and "
        "attention/sparse/working_memory.py has the bytes of shared paths"
    )


def allocated(mechanism: Mechanism, call: Call) -> int:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # every thread has a tile of its own
    try:
        return counted_bytes(lambda: mechanism(call))
    finally:
        torch.set_num_threads(threads)
