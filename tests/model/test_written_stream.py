"""Writers and readers: their sums are the stream, the inputs of readers, and the logits."""

import pytest
import torch
from torch import Tensor

from headscope.errors import CaptureError, HeadscopeError, UsageError, VariantRefused
from headscope.model.model import Model, open_model
from headscope.model.session.written_stream import REST
from tests.model.families import DISPATCHING, OUTSIDE

FAMILIES = {family.name: family for family in DISPATCHING + OUTSIDE}
# Tied and grouped heads, LayerNorm with biases, norms after the parts, factors, parallel parts, flattened texts,
# experts, latent attention (which writes as a whole), two stacks, an encoder.
SUMS = [
    "llama_gqa", "gpt2", "gemma2", "gemma3", "olmo2", "granite", "gpt_neox", "cohere", "phi", "opt", "mixtral",
    "gpt_oss", "qwen3", "deepseek_v3", "t5", "pegasus", "modernbert",
]  # fmt: skip
POST_NORM = ["bert", "roberta", "albert", "distilbert", "bart", "marian"]
SAME = 2e-6
_models: dict[str, Model] = {}


def opened(name: str) -> Model:
    if name not in _models:
        _models[name] = open_model(FAMILIES[name].build())
    return _models[name]


def tokens(seed: int = 7) -> Tensor:
    return torch.randint(3, 99, (2, 9), generator=torch.Generator().manual_seed(seed))


def error(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max())


def stacks(model: Model) -> list[str]:
    return list(dict.fromkeys(site.stack for site in model.sites))


@pytest.mark.parametrize("name", SUMS)
def test_writers_add_up_to_the_stream(name: str) -> None:
    model = opened(name)
    cache = model.run(tokens(), "resid", "final").cache
    for stack in stacks(model):
        written = model.written(tokens(), stack)
        sites = [site for site in model.sites if site.stack == stack and site.kind == "self"]
        for site in sites:
            assert error(written.stream(site.label), cache.tensors["resid"][site]) <= SAME
        assert error(written.stream("final"), cache.tensors["final"][sites[-1]]) <= SAME


@pytest.mark.parametrize("name", [name for name in SUMS if name not in ("gpt_neox", "cohere", "phi")])
def test_writers_add_up_between_the_parts(name: str) -> None:
    model = opened(name)
    cache = model.run(tokens(), "resid_mid").cache
    for stack in stacks(model):
        written = model.written(tokens(), stack)
        for site, stream in cache.tensors["resid_mid"].items():
            if site.stack == stack:
                assert error(written.stream(site.label, "resid_mid"), stream) <= SAME


@pytest.mark.parametrize("name", [name for name in SUMS if name != "modernbert"])
def test_the_output_receives_the_logits(name: str) -> None:
    model = opened(name)
    logits = model.run(tokens(), "logits").cache["logits"]
    received = model.written(tokens()).reader("logits").received()
    assert error(torch.stack(torch.broadcast_tensors(*received.values())).sum(0), logits) <= SAME
    some = model.written(tokens()).reader("logits", tokens=[5, 17]).received()
    assert error(sum(some.values(), torch.zeros(())), logits[..., [5, 17]]) <= SAME


@pytest.mark.parametrize("name", [name for name in SUMS if name != "deepseek_v3"])
def test_readers_receive_the_sum(name: str) -> None:
    """Frozen or not, all writers together give the reader its input; by writer, q, k and v before rotary positions."""
    model = opened(name)
    cache = model.run(tokens(), "x", "mlp_in").cache
    for stack in stacks(model):
        written = model.written(tokens(), stack)
        for site in (site for site in model.sites if site.stack == stack):
            weights, x = model.weights(site), cache.tensors["x"][site]
            for letter in "q" if site.kind == "cross" else "qkv":
                reader = written.reader(site.head_label(1), letter)
                assert error(reader.input(), x) <= SAME
                assert error(reader.input(frozen=False), x) <= SAME
                head = 1 if letter == "q" else site.kv_head(1)
                w, b, gain = (getattr(weights, f"{part}_{letter}")[head] for part in ("w", "b", "gain"))
                total = sum(reader.received().values(), torch.zeros(()))
                assert error(total, (x @ w + b) * gain) <= 5 * SAME
        for site, entered in cache.tensors["mlp_in"].items():
            if site.stack == stack:
                reader = written.reader(site.label, "mlp")
                assert error(reader.input(), entered) <= SAME
                assert error(reader.input(frozen=False), entered) <= SAME


def test_writers_are_the_parts_themselves() -> None:
    model = opened("llama_gqa")
    written = model.written(tokens())
    cache = model.run(tokens(), "embed", "head_out", "mlp_add").cache
    assert written.writers == (
        "embed",
        *(f"L0.H{h}" for h in range(4)),
        "L0.mlp",
        *(f"L1.H{h}" for h in range(4)),
        "L1.mlp",
    )
    assert torch.equal(written["embed"], cache["embed"])
    assert torch.equal(written["L1.mlp"], cache["L1", "mlp_add"])
    assert error(written["L1.H2"], cache["L1.H2", "head_out"]) <= SAME
    assert repr(written) == f"<the stream of {model.spec.name} as a sum of 11 writers>"
    biased = opened("gpt2").written(tokens())
    bias = opened("gpt2").hf.transformer.h[0].attn.c_proj.bias
    assert torch.equal(biased["L0.bias"], bias.detach().expand_as(biased["L0.bias"]))


def test_some_writers_alone() -> None:
    """Frozen, the input of a reader is linear in the writers; at their own scale it is not."""
    model = opened("llama_gqa")
    reader = model.written(tokens()).reader("L1.H0", "q")
    one, other = ["embed", "L0.H1"], [name for name in reader.writers if name not in ("embed", "L0.H1")]
    assert error(reader.input(one) + reader.input(other), reader.input()) <= SAME
    apart = reader.input(one, frozen=False) + reader.input(other, frozen=False)
    assert error(apart, reader.input()) > 0.05
    assert REST in reader.received()


@pytest.mark.parametrize("name", POST_NORM)
def test_a_stream_that_is_normed_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(
        VariantRefused, match=r"at (enc\.|dec\.)?L0 its output is not its input plus .* norms the stream"
    ):
        opened(name).written(tokens())


def test_wrong_requests_say_what_is_possible() -> None:
    written = opened("llama_gqa").written(tokens())
    with pytest.raises(UsageError, match=r"no writer is called 'L9\.H1'.*\n.*embed, L0\.H0"):
        written["L9.H1"]
    with pytest.raises(UsageError, match="L0 names 4 heads, expected one"):
        written.reader("L0", "q")
    with pytest.raises(UsageError, match="cannot read as 'z'"):
        written.reader("L0.H1", "z")
    with pytest.raises(UsageError, match="no place 'mlp_in'"):
        written.stream("L1", "mlp_in")
    with pytest.raises(UsageError, match=r"'L1\.mlp' writes nothing that L0\.H1\.q reads"):
        written.reader("L0.H1", "q").input(["L1.mlp"])
    with pytest.raises(CaptureError, match="between the norm after the last layer and the output head"):
        opened("modernbert").written(tokens()).reader("logits")
    with pytest.raises(CaptureError, match="read the stream of the encoder"):
        opened("t5").written(tokens()).reader("dec.L0.cross.H0", "k")
    with pytest.raises(HeadscopeError, match="no logits are read"):
        opened("t5").written(tokens(), "enc").reader("logits")
