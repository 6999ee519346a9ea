"""What a mechanism says that it costs, beside counted work: visible pairs, executed products, allocated memory."""

from functools import lru_cache

import pytest
import torch

from headscope.attention.call import Call
from headscope.attention.mechanism import Mechanism, mechanisms
from tests.attention.calls import make
from tests.attention.counted_work import counted_bytes, counted_flops

D = 64


def plain_call(n: int) -> Call:
    return make(n, batch=1, heads=1, kv_heads=1, d_head=D, right=None)


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
    if seen is not None:
        pairs = int(seen.visible().expand(1, 1, n, n).sum())
        assert mechanism.cost(n, D).flops == 4 * D * pairs
    else:
        assert mechanism.cost(n, D).flops > 0


@pytest.mark.parametrize("n", [48, 768])
@every_example
def test_flops_count_the_products_that_run(name: str, index: int, n: int) -> None:
    mechanism, call = examples(name, n)[index], plain_call(n)
    stated, counted = mechanism.cost(n, D).flops, counted_flops(lambda: mechanism(call))
    if mechanism.seen(call) is not None or getattr(mechanism, "segment", None) is not None:
        # Blocks also compute masked pairs, but never fewer than the visible ones.
        assert counted >= stated * (1 - 1e-9)
    else:
        assert counted == pytest.approx(stated, rel=1e-9)


@pytest.mark.parametrize("n", [256, 768])
@every_example
def test_bytes_count_the_allocations(name: str, index: int, n: int) -> None:
    mechanism, call = examples(name, n)[index], plain_call(n)
    assert 0.5 <= mechanism.cost(n, D).bytes / allocated(mechanism, call) <= 2


@pytest.mark.parametrize("name", list(mechanisms()))
def test_bytes_count_the_allocations_of_long_texts(name: str) -> None:
    mechanism, call = examples(name, 2048)[0], plain_call(2048)
    assert 0.5 <= mechanism.cost(2048, D).bytes / allocated(mechanism, call) <= 2


def allocated(mechanism: Mechanism, call: Call) -> int:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # every thread has a tile of its own
    try:
        return counted_bytes(lambda: mechanism(call))
    finally:
        torch.set_num_threads(threads)
