"""Path patching: one reader receives something else from one writer, and nobody else does."""

import pytest
import torch
from torch import Tensor

from headscope.errors import UsageError, VariantRefused
from headscope.model.model import Model, open_model
from headscope.model.session.written_stream import WrittenStream
from tests.model.families import DISPATCHING, OTHER_OUTSIDE, OUTSIDE

# Grouped queries, LayerNorm with biases, norms after the parts, a factor, parallel parts, flattened texts, experts. The
# last three compute their attention themselves: with rotary positions, ALiBi, and a key head for all queries.
PRE_NORM = ["llama_gqa", "gpt2", "gemma2", "granite", "gpt_neox", "opt", "mixtral", "gptj", "bloom", "falcon"]
PARALLEL = ("gpt_neox", "gptj", "falcon")
_models: dict[str, Model] = {}


def opened(name: str) -> Model:
    if name not in _models:
        families = DISPATCHING + OUTSIDE + OTHER_OUTSIDE
        _models[name] = open_model(next(family for family in families if family.name == name).build())
    return _models[name]


def tokens(seed: int = 7) -> Tensor:
    return torch.randint(3, 99, (2, 9), generator=torch.Generator().manual_seed(seed))


def readers_of(model: Model, patch: tuple[str, object, dict[str, object]] | None) -> tuple[dict[str, Tensor], Tensor]:
    """What every reader receives: q, k and v of each head, the input of each feed-forward part, and the logits."""
    with model.session() as session:
        if patch is not None:
            session.patch_path(patch[0], patch[1], **patch[2])  # type: ignore[arg-type]
        capture = session.capture("q", "k", "v", "mlp_in", "z")
        logits = session.run(tokens()).logits
        taken = capture.take()
    inputs: dict[str, Tensor] = {}
    for site in model.sites:
        for letter in "qkv":
            tensor = taken[letter][site]
            for head in range(tensor.shape[1]):
                inputs[f"{site.label}.{head}.{letter}"] = tensor[:, head]
        if site in taken["mlp_in"]:
            inputs[f"{site.label}.mlp"] = taken["mlp_in"][site]
        for head in range(site.n_heads):
            inputs[f"{site.label}.{head}.z"] = taken["z"][site][:, head]
    return inputs, logits


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    return {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}


@pytest.mark.parametrize("name", PRE_NORM)
def test_no_other_reader_receives_anything_else(name: str) -> None:
    """In the last layer nothing follows a reader but its own output, so the difference can be seen whole."""
    model = opened(name)
    plain, logits = readers_of(model, None)
    last = model.sites[-1].label
    shares = model.sites[-1].n_heads != model.sites[-1].n_kv_heads
    for writer in ("embed", "L0.H1", "L0.attn", "L0.mlp"):
        after, other = readers_of(model, (writer, "logits", {}))
        assert not changed(plain, after)
        assert not torch.equal(other, logits)
        after, other = readers_of(model, (writer, (f"{last}.H1", "q"), {}))
        parallel = name in PARALLEL
        expected = {f"{last}.1.q", f"{last}.1.z"} | (set() if parallel else {f"{last}.mlp"})
        assert changed(plain, after) == expected
        after, other = readers_of(model, (writer, (last, "mlp"), {}))
        assert changed(plain, after) == {f"{last}.mlp"}
        assert not torch.equal(other, logits)
        for letter in "kv":
            after, other = readers_of(model, (writer, (f"{last}.H1", letter), {}))
            seen = set() if shares else {f"{last}.1.{letter}"}  # a shared key stays what the other heads read
            assert changed(plain, after) == expected - {f"{last}.1.q"} | seen


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("name", PRE_NORM)
def test_the_reader_receives_what_the_changed_stream_gives(name: str, frozen: bool) -> None:
    """Against a run in which the whole stream before the layer is changed: the reader is given that."""
    model = opened(name)
    written = model.written(tokens())
    part = written["L0.H1"]
    last = model.sites[-1]
    with model.session() as session:
        if frozen:
            scale = model.run(tokens(), "x_scale").cache[last.label, "x_scale"]
            session.patch(last.label, "x_scale", scale)
        session.patch(last.label, "resid", lambda stream: stream - part)
        capture = session.capture("q", "k", "v", at=last.label)
        session.run(tokens())
        expected = capture.take()
    with model.session() as session:
        session.patch_path("L0.H1", (f"{last.label}.H1", "q"), "zero", frozen=frozen)
        capture = session.capture("q", at=f"{last.label}.H1")
        session.run(tokens())
        assert torch.allclose(capture.take()["q"][last][:, 0], expected["q"][last][:, 1], atol=2e-6, rtol=1e-5)


def test_a_path_to_the_output_is_the_sum_without_the_writer() -> None:
    """Frozen, the logits change by exactly what the output received from the writer."""
    model = opened("llama_gqa")
    written = model.written(tokens())
    received = written.reader("logits").received()
    plain = model.run(tokens(), "logits").logits
    for writer in ("embed", "L0.H3", "L1.mlp"):
        with model.session() as session:
            session.patch_path(writer, "logits", frozen=True)
            logits = session.run(tokens()).logits
        assert torch.allclose(plain - logits, received[writer], atol=1e-5)


def test_values_positions_and_other_texts() -> None:
    model = opened("llama_gqa")
    other = model.written(tokens(8))
    assert isinstance(other, WrittenStream)
    plain = model.run(tokens(), "logits").logits
    by_value = {}
    for key, value in {"stream": other, "tensor": other["L0.H1"], "function": lambda part: other["L0.H1"]}.items():
        with model.session() as session:
            session.patch_path("L0.H1", ("L1", "mlp"), value)
            by_value[key] = session.run(tokens()).logits
    assert torch.equal(by_value["stream"], by_value["tensor"])
    assert torch.equal(by_value["stream"], by_value["function"])
    with model.session() as session:
        session.patch_path("L0.H1", ("L1", "mlp"), other, positions=[4])
        logits = session.run(tokens()).logits
    assert torch.equal(logits[:, [0, 1, 2, 3, 5, 6, 7, 8]], plain[:, [0, 1, 2, 3, 5, 6, 7, 8]])
    assert not torch.equal(logits[:, 4], plain[:, 4])


def test_two_writers_of_one_reader_add_up() -> None:
    model = opened("llama_gqa")
    written = model.written(tokens())
    received = written.reader("logits").received()
    plain = model.run(tokens(), "logits").logits
    with model.session() as session:
        session.patch_path("L0.H0", "logits", frozen=True)
        session.patch_path("L0.H1", "logits", frozen=True)
        logits = session.run(tokens()).logits
        with pytest.raises(UsageError, match="changed twice"):
            session.patch_path("L0.H1", "logits", frozen=True)
        with pytest.raises(UsageError, match="both with a frozen scale"):
            session.patch_path("L0.H2", "logits")
        assert torch.equal(session.run(tokens()).logits, logits)
    assert torch.allclose(plain - logits, received["L0.H0"] + received["L0.H1"], atol=1e-5)
    assert torch.equal(model.run(tokens(), "logits").logits, plain)


def test_generation_with_a_cache_follows_the_path() -> None:
    """Without a cache all tokens are read again in each step: the same text must come out."""
    model = opened("llama_gqa")
    written: dict[bool, Tensor] = {}
    with model.session() as session:
        session.patch_path("embed", ("L1.H1", "k"), lambda part: part * -3)
        session.patch_path("L0.mlp", "logits", lambda part: part * 5)
        for cache in (False, True):
            written[cache] = model.hf.generate(
                tokens(), max_new_tokens=8, do_sample=False, use_cache=cache, pad_token_id=0, eos_token_id=None
            )
    assert torch.equal(written[False], written[True])
    plain = model.hf.generate(tokens(), max_new_tokens=8, do_sample=False, pad_token_id=0, eos_token_id=None)
    assert not torch.equal(plain, written[True])


def test_paths_that_do_not_exist_are_refused() -> None:
    model = opened("llama_gqa")
    with model.session() as session:
        with pytest.raises(UsageError, match=r"L0\.H1\.q reads the stream before L0\.mlp writes into it"):
            session.patch_path("L0.mlp", ("L0.H1", "q"))
        with pytest.raises(UsageError, match=r"L0\.H1\.q reads the stream before L0\.H2 writes"):
            session.patch_path("L0.H2", ("L0.H1", "q"))
        with pytest.raises(UsageError, match="no writer is called 'heads'"):
            session.patch_path("heads", "logits")
        with pytest.raises(UsageError, match="no reader is called 'L1'"):
            session.patch_path("embed", "L1")
        with pytest.raises(UsageError, match="L1 names 4 heads"):
            session.patch_path("embed", ("L1", "q"))
        session.patch_path("L0.H2", ("L0", "mlp"))  # the feed-forward part follows the attention
    parallel = opened("gpt_neox")
    with parallel.session() as session, pytest.raises(UsageError, match=r"L0\.mlp reads the stream before L0\.H2"):
        session.patch_path("L0.H2", ("L0", "mlp"))
    with opened("bert").session() as session, pytest.raises(VariantRefused, match="norms the stream"):
        session.patch_path("L0.H2", ("L1", "mlp"))
