"""Attention on devices that are not there: every mechanism, statistic and map, with values, and no mix of devices."""

from collections.abc import Iterator
from dataclasses import fields

import pytest
import torch
from torch import Tensor

from headscope.attention import maps
from headscope.attention.call import Call
from headscope.attention.devices import exact_device, has_float64
from headscope.attention.mechanism import mechanisms
from headscope.attention.mechanisms.dense import Dense
from headscope.attention.sparse import kernel
from headscope.attention.statistics import (
    Request,
    RowStatistics,
    observe,
    pattern_statistics,
    row_statistics,
    uniform_statistics,
)
from tests.attention.calls import KINDS, make
from tests.pretence import NARROW, WIDE, Pretence, Pretended
from tests.tolerances import MECHANISM_AGREEMENT, ROUNDINGS, STREAMED_STATISTICS

DEVICES = [pytest.param(WIDE, id="a device with float64"), pytest.param(NARROW, id="a device without float64")]
REQUEST = Request(bands=(1, 5))


@pytest.fixture
def pretence(device: torch.device) -> Iterator[Pretence]:
    with torch.no_grad(), Pretence(device) as mode:
        yield mode
    assert mode.operations > 0  # it was not the CPU all along


def largest_score(call: Call) -> float:
    keys = call.k.repeat_interleave(call.q.shape[1] // call.k.shape[1], dim=1)
    return float((call.q @ keys.mT * call.scale).abs().max())


def test_the_pretence_refuses_what_a_device_refuses() -> None:
    with Pretence(WIDE):
        x = torch.arange(4.0, device=WIDE)
        assert x.device == WIDE
        assert (x * torch.tensor(2.0)).tolist() == [0.0, 2.0, 4.0, 6.0]
        with pytest.raises(RuntimeError, match="expected all tensors"):
            x + torch.ones(4)
        with pytest.raises(RuntimeError, match="expected all tensors"):
            x + torch.ones(4, device=NARROW)
        with pytest.raises(TypeError, match="float64"):
            torch.zeros(1, device=NARROW).double()


def test_a_device_without_float64_is_told_by_trying() -> None:
    with Pretence(WIDE):
        assert has_float64(WIDE)
        assert exact_device(WIDE) == WIDE
    with Pretence(NARROW):
        assert not has_float64(NARROW)
        assert exact_device(NARROW) == torch.device("cpu")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", mechanisms())
def test_mechanisms(name: str, kind: str, device: torch.device) -> None:
    call = KINDS[kind]()
    # A score of size s is rounded by 2⁻²⁴·s in float32, which is the relative error of its weight. Parts that merge by
    # their log-sum-exp show it (measured against float64 on the peaked call: 3.3e-6 in the plain kernel of `graph`).
    rounding = 2**-24 * largest_score(call)
    for mechanism in mechanisms()[name].examples(call.k.shape[2])[:2]:
        with torch.no_grad(), Pretence(device) as mode:
            there = call.to(device)
            assert {x.device for x in vars(there).values() if isinstance(x, Tensor)} == {device}
            assert mechanism.supports(there) == mechanism.supports(call)
            if mechanism.supports(call) is not None:
                continue
            got = mechanism(there).out
            assert isinstance(got, Pretended)
            assert got.device == device
            assert mode.operations > 0
            out = got.cpu()
        exact = mechanism.definition(call).out
        allowed = max(MECHANISM_AGREEMENT, ROUNDINGS * 2**-24 * mechanism.conditioning(call), rounding)
        assert float((out.double() - exact).abs().max()) <= allowed * max(1e-30, float(exact.abs().max()))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_log_sum_exp(kind: str, device: torch.device, pretence: Pretence) -> None:
    call = KINDS[kind]()
    got, want = Dense()(call.to(device), lse=True), Dense()(call, lse=True)
    assert got.lse is not None
    assert want.lse is not None
    assert got.lse.device == device
    assert torch.allclose(got.lse.cpu().double(), want.lse.double(), atol=1e-5)
    assert torch.allclose(got.out.cpu(), want.out, atol=1e-5)


@pytest.mark.parametrize("device", [WIDE])
def test_the_log_sum_exp_elsewhere_holds_no_map_of_all_rows(
    device: torch.device, pretence: Pretence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the CPU's operator the scores are written out: in blocks of rows."""
    monkeypatch.setattr("headscope.attention.mechanisms.dense.BLOCK_ENTRIES", 1 << 12)
    rows = []
    plain = kernel.plain

    def counted(q: Tensor, *operands: Tensor, **options: object) -> object:
        rows.append(q.shape[2])
        return plain(q, *operands, **options)

    monkeypatch.setattr(kernel, "plain", counted)
    call = make(200, batch=1, heads=2, kv_heads=1)
    got = Dense()(call.to(device), lse=True)
    assert max(rows) * 200 * 2 <= 1 << 12
    assert torch.allclose(got.out.cpu(), Dense()(call).out, atol=1e-5)


def assert_close(got: RowStatistics, want: RowStatistics, keys: int) -> None:
    for field in fields(RowStatistics):
        a, b = getattr(got, field.name), getattr(want, field.name)
        pairs = [(a[width], b[width]) for width in b] if field.name == "bands" else [(a, b)]
        for x, y in pairs:
            if isinstance(y, Tensor):
                difference = (x.cpu().double() - y.double()).abs()
                assert torch.equal(x.cpu().isnan(), y.isnan())
                assert float(difference.nan_to_num().max()) <= STREAMED_STATISTICS * max(4.0, keys), field.name


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_statistics(kind: str, device: torch.device, pretence: Pretence) -> None:
    call = KINDS[kind]()
    there, keys = call.to(device), call.k.shape[2]
    real = torch.ones(call.q.shape[0], call.q.shape[2], dtype=torch.bool)
    real[-1, -1:] = False
    rows = row_statistics(there, REQUEST, real_queries=real.to(device))
    assert rows.entropy_nats.dtype == torch.float64
    assert rows.entropy_nats.device == exact_device(device)
    assert rows.cpu().entropy_nats.device == torch.device("cpu")
    assert_close(rows, row_statistics(call, REQUEST, real_queries=real), keys)
    uniform = uniform_statistics(there, REQUEST, real_queries=real.to(device))
    assert_close(uniform, uniform_statistics(call, REQUEST, real_queries=real), keys)
    stored = pattern_statistics(maps.pattern(there), there, REQUEST, real_queries=real.to(device))
    assert_close(stored, pattern_statistics(maps.pattern(call), call, REQUEST, real_queries=real), keys)
    assert torch.allclose(observe(there, REQUEST).output.out.cpu(), observe(call, REQUEST).output.out, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["scores", "pattern", "score_rows", "corner", "early", "pattern_pairs"])
def test_maps(name: str, kind: str, device: torch.device, pretence: Pretence) -> None:
    call: Call = KINDS[kind]()
    got, want = (getattr(maps, name)(each) for each in (call.to(device), call))
    assert got.device == device
    assert torch.allclose(got.cpu(), want, atol=1e-6)
