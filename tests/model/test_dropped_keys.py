"""Caches that drop keys: the same text and logits, as many keys as the formula says, and refusals."""

import gc
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

import headscope as hs
from headscope import attention
from headscope.attention.call import Call
from headscope.errors import CaptureError
from headscope.model.model import Model, open_model
from headscope.model.plans.applied_plan import AppliedPlan, apply
from headscope.model.plans.plan import Plan
from headscope.model.session import attention_calls
from headscope.model.transformers.attention_hook import own_attention
from headscope.model.transformers.dropping_layer import DroppingLayer, cache_bytes
from tests.model.families import DECODERS, Family
from tests.model.test_fidelity import by_name

SAME_LOGITS = 1e-5
SINK = "band_sparse(left=5, right=0, columns=(0, 2))"
LONGER = "band_sparse(left=9, right=0, columns=(0,))"
PLANS: tuple[Mapping[str, str], ...] = (
    {"window(left=4)": "all"},
    {SINK: "all"},
    {SINK: "L0,L1.H0-1"},
    {SINK: "L0.H0,L1.H2", LONGER: "L0.H1-3,L1.H3"},  # groups of two bands, and groups that agree on nothing
    {"window(left=9, dilation=3)": "L0", "longformer(left=3, right=0, global_positions=(1, 12))": "L1"},
    {SINK: "L0.H0-1", "top_blocks(block=4, blocks=2)": "L0.H2-3"},
)
FULL = tuple(family for family in DECODERS if "sliding_window" not in family.options or family.name in ("mixtral",))


class KeepingCache(DynamicCache):
    """A cache that headscope leaves alone: its layers are of a kind that it does not know."""

    def __init__(self, config: Any) -> None:
        super().__init__(config=config)
        for layer in self.layers:
            layer.__class__ = type("KeepingLayer", (type(layer),), {})


def family(name: str) -> Family:
    return next(entry for entry in DECODERS if entry.name == name)


@lru_cache
def opened(name: str) -> Model:
    return open_model(family(name).build())


def text(length: int, batch: int = 1, seed: int = 5) -> Tensor:
    return torch.randint(3, 99, (batch, length), generator=torch.Generator().manual_seed(seed))


def read(model: Model, tokens: Tensor, cuts: tuple[int, ...], cache: Any, real: Tensor | None = None) -> Tensor:
    """The logits of tokens that are read in pieces, with a cache."""
    pieces, start = [], 0
    with torch.no_grad():
        for stop in (*cuts, *range(max(cuts, default=0) + 1, tokens.shape[1] + 1)):
            mask = {} if real is None else {"attention_mask": real[:, :stop]}
            pieces.append(model.hf(tokens[:, start:stop], past_key_values=cache, use_cache=True, **mask).logits)
            start = stop
    return torch.cat(pieces, dim=1)


def compared(model: Model, plan: Mapping[str, str], tokens: Tensor, cuts: tuple[int, ...], real: Any = None) -> Any:
    """Read with both caches, compare the logits, and give the cache that drops."""
    caches = DynamicCache(config=model.hf.config), KeepingCache(model.hf.config)
    with apply(Plan(dict(plan)), model):
        dropped, kept = (read(model, tokens, cuts, cache, real) for cache in caches)
    assert not any(isinstance(layer, DroppingLayer) for layer in caches[1].layers)
    assert float((dropped - kept).abs().max()) <= SAME_LOGITS * float(kept.abs().max())
    return caches[0]


def lengths(cache: Any) -> list[list[int]]:
    """The keys that each store of each layer holds."""
    return [
        [store.keys.shape[2] for store in layer.stores] if isinstance(layer, DroppingLayer) else [layer.keys.shape[2]]
        for layer in cache.layers
    ]


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: "; ".join(plan.values()))
@pytest.mark.parametrize("is_padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("name", ["llama_gqa", "gpt2"])
def test_steps_are_the_rows_of_a_prefill(name: str, is_padded: bool, plan: Mapping[str, str]) -> None:
    """A step asks all heads of a site at once, under masks of their own; a prefill asks mechanism by mechanism."""
    model, tokens = opened(name), text(24, batch=2)
    real = torch.ones_like(tokens)
    if is_padded:
        real[1, :5] = 0
    with apply(Plan(dict(plan)), model), torch.no_grad():
        stepped = read(model, tokens, (3,), KeepingCache(model.hf.config), real)
        whole = model.hf(tokens, attention_mask=real).logits
    difference = (stepped - whole)[real.bool()]
    assert float(difference.abs().max()) <= SAME_LOGITS * float(whole.abs().max())


def test_a_step_of_several_mechanisms_is_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    model = opened("llama_gqa")
    calls: list[int] = []

    def counted(call: Call) -> Tensor:
        calls.append(call.q.shape[1])
        return own_attention(call)

    monkeypatch.setattr(attention_calls, "own_attention", counted)
    heads = model.sites[0].n_heads
    plan = {SINK: "L0-1.H0", LONGER: "L0-1.H2", "window(left=4)": "L0-1.H3"}
    with apply(Plan(plan), model):
        read(model, text(6), (5,), KeepingCache(model.hf.config))
    assert calls[-len(model.sites) :] == [heads] * len(model.sites)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: "; ".join(plan.values()))
@pytest.mark.parametrize("cuts", [(23,), (3,), (1,), (7, 8, 19)], ids=str)
@pytest.mark.parametrize("name", ["llama_gqa", "gpt2", "llama_mqa"])
def test_generation_is_that_of_the_ordinary_cache(name: str, cuts: tuple[int, ...], plan: Mapping[str, str]) -> None:
    """Prefills longer and shorter than the bands, in one piece and in several, then token by token."""
    cache = compared(opened(name), plan, text(31), cuts)
    assert any(isinstance(layer, DroppingLayer) for layer in cache.layers) or name == "llama_mqa"


@pytest.mark.parametrize("member", FULL, ids=by_name)
def test_every_family_drops_keys_or_says_why(member: Family) -> None:
    model = open_model(member.build())
    cache = compared(model, {SINK: "all"}, text(31), (17,))
    drops = [isinstance(layer, DroppingLayer) for layer in cache.layers]
    with apply(Plan({SINK: "all"}), model) as swapped:
        read(model, text(20), (17,), DynamicCache(config=model.hf.config))
        assert [f"L{index}" in swapped.undropped for index in range(len(drops))] == [not drop for drop in drops]
    assert all(drops) or member.name in ("deepseek_v3", "llama4")


@pytest.mark.parametrize("name", ["llama_gqa", "gpt2"])
def test_a_padded_batch(name: str) -> None:
    """Left padding, longer than a band for one text and in the column of another."""
    real = torch.ones(3, 31, dtype=torch.long)
    real[0, :9], real[1, :1] = 0, 0
    compared(opened(name), {SINK: "L0,L1.H0-1"}, text(31, batch=3), (19,), real)


def test_the_kept_keys_are_those_of_the_formula() -> None:
    """After a prefill the last `left` keys and the columns; a step adds its own key before the next one trims."""
    model = opened("llama_gqa")
    for length, expected in ((30, 5 + 2), (7, 5 + 1), (4, 4)):
        cache = compared(model, {SINK: "L0,L1.H0-1"}, text(length), (length,))
        assert lengths(cache) == [[expected], [expected, length]]
    cache = compared(model, {SINK: "L0,L1.H0-1"}, text(33), (30,))
    assert lengths(cache) == [[8], [8, 33]]
    assert cache.get_seq_length() == 33
    # A group keeps all keys where one of its heads is not replaced, and what its longest band reads otherwise.
    cache = compared(model, {SINK: "L0.H0,L1.H0,L1.H2", LONGER: "L1.H1"}, text(30), (30,))
    assert lengths(cache) == [[30], [5 + 4 + 2, 30]]


def test_the_memory_of_dropped_keys_is_free() -> None:
    model = opened("llama_gqa")
    site = model.sites[0]
    per_key = 2 * 2 * site.d_head * 4  # keys and values of two texts in float32
    cache = compared(model, {SINK: "L0,L1.H0-1"}, text(30, batch=2), (30,))
    assert cache_bytes(cache) <= per_key * (3 * 7 + 30) + 64
    whole = DynamicCache(config=model.hf.config)
    read(model, text(30, batch=2), (30,), whole)
    assert cache_bytes(whole) >= per_key * 4 * 30


def generated(model: Any, **settings: Any) -> Tensor:
    prompt = text(19, batch=2)
    options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, "eos_token_id": None, **settings}
    tokens: Tensor = model.hf.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
    return tokens


WAYS = ({}, {"num_beams": 3}, {"prefill_chunk_size": 5}, {"num_return_sequences": 2, "num_beams": 2})


@pytest.mark.parametrize("settings", WAYS, ids=str)
@pytest.mark.parametrize("name", ["llama_gqa", "gpt2"])
def test_generate_drops_keys_by_itself(name: str, settings: dict[str, Any]) -> None:
    """Greedy, by beams, and with a prefill in pieces: the tokens of the ordinary cache."""
    model = opened(name)
    with apply(Plan({SINK: "all"}), model) as swapped:
        kept = generated(swapped, past_key_values=KeepingCache(model.hf.config), **settings)
        outcome = swapped.hf.generate(
            text(19, batch=2),
            attention_mask=torch.ones(2, 19),
            max_new_tokens=12,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
            return_dict_in_generate=True,
            **settings,
        )
        assert torch.equal(outcome.sequences, kept)
        assert all(isinstance(layer, DroppingLayer) for layer in outcome.past_key_values.layers)


def test_a_cache_is_not_held_by_its_plan() -> None:
    """The memory of a generation is free when it ends, also while the plan stays in place."""
    model = opened("llama_gqa")
    with apply(Plan({SINK: "all"}), model), torch.no_grad():
        cache = model.hf(text(20), use_cache=True).past_key_values
        alive = weakref.ref(cache)
        del cache
        gc.collect()
        assert alive() is None


def test_a_session_drops_keys_too() -> None:
    model = opened("llama_gqa")
    with model.session() as session, torch.no_grad():
        session.replace("all", attention.window(left=4))
        cache = model.hf(text(20), use_cache=True).past_key_values
    assert lengths(cache) == [[4], [4]]


def test_a_plan_that_drops_nothing_leaves_the_cache_alone() -> None:
    model = opened("llama_gqa")
    for plan in ({}, {SINK: "L0.H0,L1.H3"}, {"top_blocks(block=4, blocks=2)": "all"}, {"window(right=0)": "all"}):
        cache = compared(model, plan, text(20), (18,))
        assert not any(isinstance(layer, DroppingLayer) for layer in cache.layers)


@contextmanager
def filled(model: Model) -> Iterator[tuple[AppliedPlan, Any]]:
    """A plan in place, and a cache that was filled under it."""
    with apply(Plan({SINK: "all"}), model) as swapped:
        cache = DynamicCache(config=model.hf.config)
        read(model, text(20), (20,), cache)
        yield swapped, cache


def test_a_cache_goes_on_only_under_its_plan() -> None:
    """Without the plan, under another one, or watched: refused before anything wrong is computed."""
    model = opened("llama_gqa")
    with filled(model) as (_, cache):
        for what in ("k", "pattern"):
            with model.session() as session:
                session.capture(what)
                with pytest.raises(CaptureError, match="has dropped keys"):
                    model.hf(text(1), past_key_values=cache)
        with model.session() as session:
            session.capture("z", "resid_post")
            model.hf(text(1), past_key_values=cache)
    with pytest.raises(CaptureError, match="has dropped keys"):
        model.hf(text(1), past_key_values=cache)
    with apply(Plan({LONGER: "all"}), model), pytest.raises(CaptureError, match="has dropped keys"):
        model.hf(text(1), past_key_values=cache)
    with apply(Plan({SINK: "all"}), model):
        model.hf(text(1), past_key_values=cache)
        with pytest.raises(CaptureError, match="cannot go back"):
            cache.crop(-1)
        with pytest.raises(CaptureError, match="another text"):
            cache.reset()


def test_a_cache_that_is_watched_keeps_its_keys() -> None:
    model = opened("llama_gqa")
    with apply(Plan({SINK: "all"}), model) as swapped, model.session() as session:
        maps = session.capture("pattern", at="L0")
        cache = model.hf(text(20), use_cache=True).past_key_values
        assert lengths(cache) == [[20], [7]]
        assert maps.take()["pattern"][model.sites[0]].shape[-1] == 20
        assert "capture" in swapped.undropped["L0"]


def test_a_cache_that_is_not_understood_stays_and_says_so() -> None:
    """Sliding layers of a family, and those of another class."""
    model = opened("gemma2")
    with apply(Plan({"window(left=3)": "all"}), model) as swapped:
        cache = model.hf(text(20), use_cache=True).past_key_values
        assert lengths(cache) == [[3], [3]]  # the first layer slides by itself, over 4 keys with the query's own
        assert list(swapped.undropped) == ["L0"]
        assert "token by token" in swapped.undropped["L0"]


def test_a_cache_from_before_the_plan_is_trimmed() -> None:
    model = opened("llama_gqa")
    cache = DynamicCache(config=model.hf.config)
    read(model, text(20), (20,), cache)
    with apply(Plan({SINK: "all"}), model):
        model.hf(text(1), past_key_values=cache)
    assert lengths(cache) == [[7], [7]]


def test_a_real_model_writes_the_same_text() -> None:
    model = hs.open("tiny")
    prompt = "Call me Ishmael. Some years ago, never mind how long precisely, I went to sea."
    with apply(Plan({"band_sparse(left=8, right=0, columns=(0,))": "all"}), model) as swapped:
        assert swapped.generate(prompt, max_new_tokens=30) == swapped.generate(prompt, max_new_tokens=30, cache=False)
        assert swapped.undropped == {}
