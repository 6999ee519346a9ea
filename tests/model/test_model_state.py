"""Opening, measuring and tracing leave a model as it was: its state, its outputs, and the random generators."""

import random
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn

from headscope.errors import CaptureError
from headscope.model.model import open_model
from headscope.model.transformers.model_state import restored
from headscope.model.transformers.probe_inputs import forward_options, probe_inputs
from tests.model.families import DISPATCHING, OUTSIDE, SMALL, Family, _family, _spread
from tests.model.test_fidelity import by_name, first_output

BIRD = next(family for family in OUTSIDE if family.name == "big_bird")
PEGASUS = {
    "vocab_size": 99, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 128,
    "attention_type": "block_sparse", "block_size": 8, "num_random_blocks": 1, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip
DYNAMIC = {
    **SMALL,
    "rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0},
    "max_position_embeddings": 4,
}
SWITCHING = (
    BIRD,
    _family("bigbird_pegasus", "BigBirdPegasus", PEGASUS, "", head="ForConditionalGeneration"),
    _family("dynamic_rotary", "Llama", DYNAMIC, "a text longer than 4 tokens changes the frequencies"),
)


def state_of(model: nn.Module) -> dict[str, Any]:
    """All that can be read off a model: classes, attributes, buffers, weights, hooks, configuration."""
    state: dict[str, Any] = {}
    for name, module in model.named_modules():
        state[f"{name}: class"] = (type(module).__qualname__, id(module))
        for key, value in vars(module).items():
            if key == "config":
                state[f"{name}.config"] = (id(value), str(value.to_dict()), value._attn_implementation_internal)
            elif key not in ("_parameters", "_buffers", "_modules"):
                state[f"{name}.{key}"] = repr(value)
        for key, tensor in (*module._parameters.items(), *module._buffers.items()):
            state[f"{name}.{key}"] = tensor if tensor is None else (id(tensor), tensor.detach().clone())
    return state


def same(a: Any, b: Any) -> bool:
    if isinstance(a, tuple) and isinstance(a[-1], Tensor):
        return bool(a[0] == b[0] and torch.equal(a[-1], b[-1]))
    return bool(a == b)


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [key for key in before.keys() | after.keys() if not same(before.get(key), after.get(key))]


def generators() -> tuple[Any, ...]:
    return str(np.random.get_state()), torch.get_rng_state().tolist()  # noqa: NPY002


def long_inputs(hf: Any, length: int) -> dict[str, Tensor]:
    inputs = probe_inputs(hf, batch=2, seed=5)
    generator = torch.Generator().manual_seed(5)
    length = min(length, getattr(hf.config, "max_target_positions", length))
    return {
        key: torch.randint(3, 99, (2, length), generator=generator) if key.endswith("input_ids") else value
        for key, value in inputs.items()
    }


def output(hf: Any, inputs: dict[str, Tensor]) -> Tensor:
    """What the model gives, asked in a way that leaves it alone."""
    with restored(hf), torch.no_grad():
        return first_output(hf(**inputs, **forward_options(hf)))


@pytest.mark.parametrize("family", [*DISPATCHING, *OUTSIDE, *SWITCHING[1:]], ids=by_name)
def test_opening_changes_nothing(family: Family) -> None:
    hf = family.build()
    inputs = long_inputs(hf, 60)
    before, drawn, answered = state_of(hf), generators(), output(hf, inputs)
    model = open_model(hf)
    model.weight_status(model.sites[0])
    assert changed(before, state_of(hf)) == []
    assert generators() == drawn
    assert torch.equal(output(hf, inputs), answered)


@pytest.mark.parametrize("family", SWITCHING, ids=by_name)
def test_measuring_changes_nothing(family: Family) -> None:
    hf = family.build()
    model = open_model(hf)
    before = state_of(hf)
    tokens = torch.arange(3, 10)[None]
    with model.session() as session:
        seen = session.capture("pattern")
        session.run(tokens)
        seen.take()
    assert changed(before, state_of(hf)) == []


def test_a_sparse_bird_stays_sparse() -> None:
    """Its own attention type and its own logits on a text that it reads block by block."""
    hf = BIRD.build()
    inputs = long_inputs(hf, 60)
    with torch.no_grad():
        sparse = hf(**inputs).logits
        assert hf.bert.attention_type == "block_sparse"
        model = open_model(hf)
        assert hf.bert.attention_type == "block_sparse"
        assert torch.equal(hf(**inputs).logits, sparse)
    assert any("attention_type from 'block_sparse' to 'original_full'" in note for note in model.spec.notes)


def test_a_sparse_bird_is_measured_on_short_text_and_refused_on_long() -> None:
    """Short text is read in full by transformers too; block by block there is no map that headscope could give."""
    model = open_model(BIRD.build())
    short, long = torch.arange(3, 33)[None], torch.arange(3, 63)[None]
    for _ in range(2):
        with model.session() as session:
            captured = session.capture("pattern")
            session.run(short)
            ours = captured.take()["pattern"]
        full = BIRD.build()
        full.bert.set_attention_type("original_full")
        with torch.no_grad():
            theirs = full(input_ids=short, output_attentions=True).attentions
        assert all(torch.equal(a, b) for a, b in zip(ours.values(), theirs, strict=True))
        with model.session() as session, pytest.raises(CaptureError, match="another form than at opening"):
            session.capture("pattern")
            session.run(long)


def test_texts_do_not_depend_on_those_before_them() -> None:
    """With dynamic rotary positions a long text leaves its frequencies behind, in transformers."""
    model = open_model(SWITCHING[2].build())
    generator = torch.Generator().manual_seed(0)
    longer, shorter = (torch.randint(3, 99, (1, length), generator=generator) for length in (40, 12))

    def maps(tokens: Tensor) -> list[Tensor]:
        with model.session() as session:
            captured = session.capture("pattern")
            session.run(tokens)
            return list(captured.take()["pattern"].values())

    alone = maps(shorter)
    maps(longer)
    assert all(torch.equal(a, b) for a, b in zip(maps(shorter), alone, strict=True))


class Restless(nn.Module):
    """A module whose forward changes everything that it can."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.mode, self.cache, self.seen, self.sizes = "first", {"a": 1}, [1], {1}
        self.plain = torch.zeros(2)
        self.register_buffer("count", torch.zeros(1))
        self.config = transformers.LlamaConfig(num_hidden_layers=1)

    def forward(self) -> None:
        self.mode, self.extra = "second", 3
        self.cache["b"] = 2
        self.seen.append(2)
        self.sizes.add(2)
        self.plain.add_(1.0)
        self.count.add_(1.0)  # type: ignore[operator]
        self.inner = nn.Linear(2, 2)
        self.register_buffer("mask", torch.ones(1))
        self.config.num_hidden_layers = 7
        self.config.rope_parameters["rope_theta"] = 1.0
        self.train()
        random.random()
        np.random.rand()  # noqa: NPY002  as a model may


def test_everything_is_restored() -> None:
    module = Restless().eval()
    before, drawn, python = state_of(module), generators(), random.getstate()
    with restored(module) as changes:
        module()
        assert len(changed(before, state_of(module))) > 8
    assert changed(before, state_of(module)) == []
    assert module.plain.tolist() == [0.0, 0.0]
    assert (generators(), random.getstate()) == (drawn, python)
    assert {"mode", "extra", "num_hidden_layers"} <= {change.attribute for change in changes}


def test_a_forward_that_writes_weights_is_refused() -> None:
    module = nn.Linear(2, 2)
    with pytest.raises(CaptureError, match="writes into its own weights"), restored(module), torch.no_grad():
        module.weight.add_(1.0)


def test_a_session_in_inference_mode_reads_padding() -> None:
    model = open_model(_spread(transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)).eval(), 0))
    tokens, real = torch.arange(3, 15).reshape(2, 6), torch.ones(2, 6, dtype=torch.bool)
    real[1, 4:] = False
    seen = []
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode, model.session() as session:
            captured = session.capture("pattern")
            model.hf(input_ids=tokens, attention_mask=real.long(), use_cache=False)
            seen.append(captured.take()["pattern"])
    assert all(torch.equal(a, b) for a, b in zip(seen[0].values(), seen[1].values(), strict=True))
