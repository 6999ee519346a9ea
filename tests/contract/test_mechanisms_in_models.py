"""What every mechanism promises inside a real model, found by the scan.

With parameters that make it dense attention the model's output does not change. A mechanism that is never dense
attention (it computes something else) is held to its float64 definition, standing in the same heads. Generation with
a cache writes what generation without one writes.
"""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from headscope.attention.call import Call, Output
from headscope.attention.mechanism import Cost, Mechanism, mechanisms
from headscope.core import Site
from headscope.corpora import shipped_text
from headscope.model.language import generate_tokens
from headscope.model.model import Model, open_model
from tests.tolerances import SAME_REAL_MODEL

NAMES = [pytest.param("minilm", marks=pytest.mark.real), pytest.param("smollm2", marks=pytest.mark.real)]
LENGTH = 90
every_mechanism = pytest.mark.parametrize("cls", mechanisms().values(), ids=lambda cls: cls.name)


@dataclass(frozen=True, eq=False)
class Defined(Mechanism):
    """The definition of a mechanism in its place."""

    of: Mechanism
    name: ClassVar[str] = "defined"

    def attend(self, call: Call, *, lse: bool) -> Output:
        return Output(self.of.definition(call).out.to(call.q.dtype))

    def definition(self, call: Call) -> Output:
        return self.of.definition(call)

    def cost(self, n: int, d: int) -> Cost:
        return self.of.cost(n, d)


@pytest.fixture(scope="module", params=NAMES)
def model(request: pytest.FixtureRequest) -> Model:
    return open_model(request.param)


def tokens_of(model: Model, length: int = LENGTH) -> Tensor:
    return model.encode("\n\n".join(shipped_text().documents))[None, :length]


def last_states(model: Model, at: str | Site | None = None, mechanism: Mechanism | None = None) -> Tensor:
    """What the body of the model returns, with the mechanism in some heads."""
    with model.session() as session, torch.no_grad():
        if mechanism is not None:
            session.replace(at, mechanism)
        states: Tensor = model.hf.base_model(input_ids=tokens_of(model)).last_hidden_state
    return states


def asks(model: Model) -> Call:
    """A call like those of the model, to ask a mechanism whether it honours them."""
    site = model.sites[0]
    q, k = (torch.randn(1, heads, LENGTH, site.d_head) for heads in (site.n_heads, site.n_kv_heads))
    positions = torch.arange(LENGTH)[None]
    return Call(q, k, k, site.d_head**-0.5, positions, positions, right=0 if site.causal else None)


def difference(got: Tensor, want: Tensor) -> float:
    return float((got - want).abs().max() / want.abs().max())


@every_mechanism
def test_a_model_does_not_notice_what_is_dense(model: Model, cls: type[Mechanism]) -> None:
    plain = last_states(model)
    same = cls.as_dense(LENGTH)
    if same is not None:
        assert same.supports(asks(model)) is None
        allowed = SAME_REAL_MODEL * max(1.0, same.conditioning(asks(model)) / 100)
        assert difference(last_states(model, None, same), plain) <= allowed
    shown = next(given for given in cls.examples(LENGTH) if given.supports(asks(model)) is None)
    site = model.sites[len(model.sites) // 2]
    changed, defined = (last_states(model, site, each) for each in (shown, Defined(shown)))
    assert difference(changed, defined) <= SAME_REAL_MODEL * max(1.0, shown.conditioning(asks(model)) / 100)
    # Otherwise the line above would prove nothing.
    assert cls.name == "dense" or difference(changed, plain) > 10 * SAME_REAL_MODEL


@every_mechanism
def test_generation_with_a_cache_writes_the_same(tiny: Model, cls: type[Mechanism]) -> None:
    prompt = tokens_of(tiny, 40)[0]
    honoured = [given for given in cls.examples(LENGTH) if given.supports(asks(tiny)) is None]
    assert honoured
    for mechanism in honoured:
        with tiny.session() as session:
            session.replace("L0", mechanism)
            session.replace("L2.H0", mechanism)
            cached, whole = (
                generate_tokens(tiny.hf, prompt, max_new_tokens=12, temperature=0.0, cache=cache, seed=0)
                for cache in (True, False)
            )
        assert torch.equal(cached, whole), repr(mechanism)
