"""Models on devices that are not there: opening, sessions, edits, text and every lens."""

import copy
from collections.abc import Iterator

import pytest
import torch

import headscope as hs
from headscope.attention.bench.timing import one_thread
from headscope.attention.mechanisms.window import Window
from headscope.attention.statistics import Request
from headscope.errors import UsageError
from headscope.lenses import lenses
from headscope.model.model import Model, open_model
from headscope.model.session.captures import QUANTITIES
from headscope.model.transformers import linear_kernel
from headscope.model.verify import verify
from tests.model.families import DISPATCHING, OUTSIDE, Family
from tests.model.test_fidelity import by_name
from tests.pretence import NARROW, WIDE, Pretence, moved
from tests.tolerances import SAME_FUNCTION

DEVICES = [pytest.param(WIDE, id="a device with float64"), pytest.param(NARROW, id="a device without float64")]
SHORT, LONG = 24, 136  # a small map is written out, a larger one goes through the fused kernel
TEXT = {"first_tokens": 160, "window": 48}


@pytest.fixture(scope="module", params=DEVICES)
def there(request: pytest.FixtureRequest, tiny: Model) -> Iterator[Model]:
    """The embedded model on a device that is not there."""
    with Pretence(request.param) as mode:
        model = open_model(moved(copy.deepcopy(tiny.hf), request.param), tokenizer=tiny.tokenizer)
        model.weight_source()
        yield model
    assert mode.operations > 0


def test_a_model_is_opened_where_it_is(there: Model, tiny: Model) -> None:
    assert there.spec.device == str(there.hf.device) != tiny.spec.device == "cpu"
    assert there.sites == tiny.sites
    for site in tiny.sites:
        assert there.weight_status(site) == tiny.weight_status(site)
        assert torch.equal(there.weights(site).w_q, tiny.weights(site).w_q)


@pytest.mark.parametrize("length", [SHORT, LONG])
def test_captures_and_streams(there: Model, tiny: Model, length: int) -> None:
    tokens = torch.randint(3, tiny.spec.vocabulary, (2, length), generator=torch.Generator().manual_seed(0))
    real = torch.ones_like(tokens, dtype=torch.bool)
    real[1, -3:] = False
    shown = []
    for model in (there, tiny):
        model.weight_source()
        with model.session() as session:
            captured, streamed = session.capture(*QUANTITIES), session.stream(Request((1, 5)))
            session.run(tokens, real)
            shown.append((captured.take(), *streamed.take()))
    (ours, rows, uniform), (theirs, want, null) = shown
    for what in QUANTITIES:
        for site, expected in theirs[what].items():
            got = ours[what][site]
            assert got.device.type == ("cpu" if what == "scale" else there.hf.device.type)
            finite = expected.isfinite()
            error = (got.cpu() - expected)[finite].abs().max()
            assert float(error) <= 10 * SAME_FUNCTION * max(1.0, float(expected[finite].abs().max())), what
    for got_rows, want_rows in ((rows, want), (uniform, null)):
        for site, each in want_rows.items():
            assert torch.allclose(got_rows[site].cpu().entropy_nats, each.entropy_nats, atol=1e-4, equal_nan=True)


def test_changes_of_the_attention(there: Model, tiny: Model) -> None:
    tokens = torch.arange(3, 3 + SHORT)[None]
    ends = []
    for model in (there, tiny):
        with model.session() as session:
            session.replace("L0", Window(left=4))
            session.ablate("L1.H2")
            session.patch("L2.H1", "z", torch.zeros(SHORT, tiny.sites[0].d_value))  # a CPU tensor is moved
            session.patch("L3.H0", "pattern", lambda before: before.roll(1, dims=-1))
            final = session.capture("final")
            session.run(tokens)
            ends.append(next(iter(final.take()["final"].values())).cpu())
    assert float((ends[0] - ends[1]).abs().max()) <= 10 * SAME_FUNCTION * float(ends[1].abs().max())


def test_edits_text_and_generation(there: Model, tiny: Model) -> None:
    text = "The harbour was quiet, and the boats lay side by side along the wall until the tide came back."
    results = []
    for model in (there, tiny):
        before = model.perplexity(text).nats_per_token
        with model.edit() as edit:
            edit.scale_spectrum("qk", 2.0)
            edit.truncate("L1", "vo", 3)
            changed = model.perplexity(text).nats_per_token
        assert model.perplexity(text).nats_per_token == before
        results.append((before, changed))
        written = model.generate("The boats", max_new_tokens=5)
        assert isinstance(written, str)
    assert results[0] == pytest.approx(results[1], rel=1e-5)
    assert results[1][0] != pytest.approx(results[1][1], rel=1e-3)


def test_verify(there: Model) -> None:
    assert [check.check for check in verify(there) if not check.ok] == []


# A relative bias and cross-attention, a family that is seen at its softmax, an image.
OTHERS = [family for family in (*DISPATCHING, *OUTSIDE) if family.name in ("t5", "bloom", "vit")]


@pytest.mark.parametrize("family", OTHERS, ids=by_name)
def test_other_families(family: Family) -> None:
    with Pretence(NARROW):
        model = open_model(moved(family.build(), NARROW))
        assert [check.check for check in verify(model) if not check.ok] == []


def test_every_lens(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are handed CPU tensors, and what they ask of the weights comes and goes between devices."""
    # On the CPU linear layers multiply by oneDNN, in another order than on a device that only pretends.
    monkeypatch.setattr(linear_kernel, "has_kernel", lambda: False)
    # The pretended device is there in this thread alone, and lenses work on as many threads as torch has.
    with one_thread():
        with Pretence(NARROW):
            there = open_model(moved(copy.deepcopy(tiny.hf), NARROW), tokenizer=tiny.tokenizer)
            got = hs.measure(there, **TEXT)
        want = hs.measure(tiny, **TEXT)
    assert [*got.findings] == [*want.findings] == [*lenses()]
    for name, finding in want.findings.items():
        assert got[name].status == finding.status != "failed", got[name].reason
        for table, expected in finding.tables.items():
            assert got[name].tables[table].columns == expected.columns
            for column, kind in expected.schema.items():
                if kind.is_float() and len(expected):
                    both = (got[name].tables[table], expected)
                    a, b = (each[column].fill_null(0.0).fill_nan(0.0).to_torch() for each in both)
                    assert float((a - b).abs().max()) <= 1e-4 * max(1e-9, float(b.abs().max())), (name, table, column)


def test_a_model_in_memory_is_not_moved(tiny: Model, there: Model) -> None:
    assert open_model(tiny, device="cpu") is tiny
    assert open_model(there, device=str(there.hf.device)) is there
    with pytest.raises(UsageError, match=r"this model is on .*, and cpu was asked for"):
        open_model(there, device="cpu")
