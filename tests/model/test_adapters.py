"""Adapters: what is opened computes what peft computes, its weights are those in force, and nobody's model changes."""

import sys
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaForCausalLM

from headscope.errors import CheckpointError, ResourceError, UsageError
from headscope.model.load import load
from headscope.model.look import look
from headscope.model.model import open_model, open_weights
from headscope.model.sources.names import resolve
from headscope.model.transformers.library_messages import quiet
from tests.hostile.broken import change_json, save_gguf, save_llama

TOKENS = torch.arange(3, 23)[None]
# Merging rounds W + ΔW once where the adapted layer rounds W x and ΔW x apart: a few float32 roundings per layer.
SAME_LOGITS = 2e-6
LORA = {"r": 4, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj", "o_proj"], "init_lora_weights": False}


def adapted(base: Any, config: Any) -> Any:
    """The base model with an adapter of random weights that changes what it computes."""
    torch.manual_seed(1)
    with quiet():
        model = peft.get_peft_model(base, config).eval()
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                nn.init.normal_(parameter, mean=float("ia3" in name or "magnitude" in name), std=0.2)
    return model


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(TOKENS).logits


def deviation(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max())


METHODS: dict[str, Any] = {
    "lora": lambda: peft.LoraConfig(**LORA),
    "rank-stabilised": lambda: peft.LoraConfig(**LORA, use_rslora=True),
    "dora": lambda: peft.LoraConfig(**LORA, use_dora=True),
    "bias": lambda: peft.LoraConfig(**LORA, bias="lora_only"),
    "saved head": lambda: peft.LoraConfig(**LORA, modules_to_save=["lm_head"]),
    "embedding": lambda: peft.LoraConfig(**{**LORA, "target_modules": ["embed_tokens", "q_proj"]}),
    "tokens": lambda: peft.LoraConfig(**LORA, trainable_token_indices=[3, 7]),
    "ia3": lambda: peft.IA3Config(target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"]),
    "loha": lambda: peft.LoHaConfig(r=4, alpha=8, target_modules=["q_proj", "v_proj"]),
    "adalora": lambda: peft.AdaLoraConfig(init_r=4, target_r=2, total_step=9, target_modules=["q_proj", "v_proj"]),
    "vera": lambda: peft.VeraConfig(r=4, target_modules=["q_proj", "o_proj"]),
    "lokr": lambda: peft.LoKrConfig(r=4, alpha=8, target_modules=["q_proj", "v_proj"]),
}


def save_adapter(folder: Path, base: Any, config: Any) -> Any:
    model = adapted(base, config)
    with quiet():
        model.save_pretrained(folder)
    return model


@pytest.fixture
def lora(tmp_path: Path) -> Path:
    """A folder that holds only an adapter; its base is in another one, named by its path."""
    save_adapter(tmp_path / "lora", save_llama(tmp_path / "base"), METHODS["lora"]())
    change_json(
        tmp_path / "lora" / "adapter_config.json",
        lambda settings: settings.update(base_model_name_or_path=str(tmp_path / "base")),
    )
    return tmp_path / "lora"


def as_peft_computes(base: Path, adapter: Path) -> torch.Tensor:
    """The logits of peft's own loading of the same files; the base alone, so that the adapter is in it once."""
    with quiet():
        alone = LlamaForCausalLM(LlamaForCausalLM.config_class.from_pretrained(base)).eval()
        alone.load_state_dict(load_file(base / "model.safetensors"))
        return logits(peft.PeftModel.from_pretrained(alone, adapter))


@pytest.mark.parametrize("method", METHODS)
def test_a_folder_with_weights_and_adapter_computes_what_peft_computes(method: str, tmp_path: Path) -> None:
    plain = logits(save_llama(tmp_path))
    save_adapter(tmp_path, save_llama(tmp_path), METHODS[method]())
    expected = as_peft_computes(tmp_path, tmp_path)
    model = open_model(tmp_path)
    assert type(model.hf) is LlamaForCausalLM
    assert deviation(logits(model.hf), expected) < SAME_LOGITS
    assert deviation(plain, expected) > 0.05
    assert "is merged into the weights" in model.spec.notes[0]
    assert not any("Lora" in type(module).__name__ for module in model.hf.modules())


def test_the_weights_are_those_in_force(lora: Path) -> None:
    """W + B A · alpha / r, by hand in float64 from the two files."""
    base, added = load_file(lora.parent / "base" / "model.safetensors"), load_file(lora / "adapter_model.safetensors")
    name = "model.layers.1.self_attn.q_proj"
    a, b = (added[f"base_model.model.{name}.lora_{letter}.weight"].double() for letter in "AB")
    expected = (base[f"{name}.weight"].double() + b @ a * 16 / 4).T
    for source in (open_weights(lora), open_model(lora).weight_source()):
        site = source.sites[1]
        w_q = source.weights(site).w_q.double()  # heads, d_model, d_head
        assert source.status(site).status == "exact"
        assert torch.allclose(torch.cat(list(w_q), dim=1), expected, rtol=0, atol=1e-6)
        assert (base[f"{name}.weight"].T.double() - expected).abs().max() > 0.1


def test_an_adapter_alone_finds_its_base(lora: Path) -> None:
    expected = as_peft_computes(lora.parent / "base", lora)
    assert deviation(logits(open_model(lora).hf), expected) < SAME_LOGITS
    change_json(lora / "adapter_config.json", lambda settings: settings.update(base_model_name_or_path="../base"))
    assert deviation(logits(open_model(lora).hf), expected) < SAME_LOGITS


@pytest.mark.parametrize("name", ["someone/some-model", "", None, "/nowhere"])
def test_the_base_can_be_named_with_a_plus(name: str | None, lora: Path) -> None:
    base, expected = lora.parent / "base", as_peft_computes(lora.parent / "base", lora)
    change_json(lora / "adapter_config.json", lambda settings: settings.update(base_model_name_or_path=name))
    with pytest.raises(CheckpointError, match="an adapter without its base model") as caught:
        open_model(lora)
    assert f"BASE+{lora}" in caught.value.hint
    assert ("--hub" in caught.value.hint) == (name == "someone/some-model")
    model = open_model(f"{base}+{lora}")
    assert deviation(logits(model.hf), expected) < SAME_LOGITS
    assert model.spec.name == f"{base}+{lora}"


def test_a_base_on_the_hub_is_fetched(lora: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change_json(lora / "adapter_config.json", lambda settings: settings.update(base_model_name_or_path="someone/base"))
    folders = {"someone/base": lora.parent / "base", "someone/lora": lora}
    monkeypatch.setattr("headscope.model.sources.hub.fetch", lambda name, progress: folders[name])
    for name in (str(lora), "someone/lora", "someone/base+someone/lora"):
        source = resolve(name, hub=True)
        assert (source.folder, source.adapter) == (lora.parent / "base", lora)


def test_a_gguf_base(lora: Path, own_cache: Path, tmp_path: Path) -> None:
    base = LlamaForCausalLM.from_pretrained(lora.parent / "base")
    save_gguf(tmp_path / "base.gguf", base)
    model = open_model(f"{tmp_path / 'base.gguf'}+{lora}")
    assert deviation(logits(model.hf), as_peft_computes(lora.parent / "base", lora)) < SAME_LOGITS


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_other_dtypes(dtype: torch.dtype, lora: Path) -> None:
    """Merged in the dtype that was asked for; the roundings of a narrow one show."""
    ours = load(resolve(lora), dtype=dtype).model
    assert ours.dtype == dtype
    assert deviation(logits(ours).float(), as_peft_computes(lora.parent / "base", lora)) < 8 * max(
        torch.finfo(dtype).eps, SAME_LOGITS
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_merge_that_is_wrong_by_five_per_cent_is_seen(
    dtype: torch.dtype, lora: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16 too, whose own rounding is of that size."""
    change = peft.tuners.lora.Linear.get_delta_weight
    monkeypatch.setattr(peft.tuners.lora.Linear, "get_delta_weight", lambda *args: 1.05 * change(*args))
    with pytest.raises(CheckpointError, match="the merged layer differs from the adapted one"):
        load(resolve(lora), dtype=dtype)


def test_a_quantised_base(lora: Path) -> None:
    base = lora.parent / "base"
    tensors = load_file(base / "model.safetensors")
    for name in [name for name in tensors if "_proj" in name]:
        scale = tensors[name].abs().amax(dim=1)
        tensors[name.replace("weight", "SCB")] = scale
        tensors[name] = (tensors[name] / scale[:, None] * 127).round().to(torch.int8)
    exact = as_peft_computes(base, lora)
    save_file(tensors, base / "model.safetensors", metadata={"format": "pt"})
    settings = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    change_json(base / "config.json", lambda config: config.update(quantization_config=settings))
    model = open_model(lora)
    assert 0 < deviation(logits(model.hf), exact) < 0.02
    assert "bitsandbytes int8" in model.spec.dequantised
    assert "is merged into the weights" in model.spec.notes[0]


def test_the_adapter_is_part_of_the_identity(lora: Path) -> None:
    base, first = load(resolve(lora.parent / "base")), load(resolve(lora))
    assert first.sha256 not in ("", base.sha256)
    assert open_weights(lora).spec.sha256 == first.sha256
    tensors = load_file(lora / "adapter_model.safetensors")
    tensors[next(iter(tensors))][0, 0] += 1
    save_file(tensors, lora / "adapter_model.safetensors")
    assert load(resolve(lora)).sha256 not in ("", base.sha256, first.sha256)


def test_look_says_it_and_random_lends_no_adapter(lora: Path) -> None:
    assert "an adapter is merged into the weights: lora" in str(look(lora))
    assert resolve(f"random:{lora}").adapter is None


@pytest.mark.parametrize("method", METHODS)
def test_a_model_of_peft_in_memory(method: str, tmp_path: Path) -> None:
    theirs = adapted(save_llama(tmp_path), METHODS[method]())
    before = {name: value.clone() for name, value in theirs.state_dict().items()}
    modules = [type(module) for module in theirs.modules()]
    expected = logits(theirs)
    model = open_model(theirs)
    assert deviation(logits(model.hf), expected) < SAME_LOGITS
    assert model.spec.notes == (
        "the adapter default is merged into a copy of the model: what is measured is the adapted model",
    )
    after = theirs.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert modules == [type(module) for module in theirs.modules()]
    assert torch.equal(logits(theirs), expected)


def test_what_is_active_is_what_counts(tmp_path: Path) -> None:
    theirs = adapted(save_llama(tmp_path), METHODS["lora"]())
    theirs.add_adapter("second", METHODS["lora"]())
    for name in ("default", "second"):
        theirs.set_adapter(name)
        model = open_model(theirs)
        assert deviation(logits(model.hf), logits(theirs)) < SAME_LOGITS
        assert f"the adapter {name} is merged" in model.spec.notes[0]
    theirs.base_model.set_adapter(["default", "second"])
    model = open_model(theirs)
    assert deviation(logits(model.hf), logits(theirs)) < SAME_LOGITS
    assert "the adapters default, second are merged" in model.spec.notes[0]
    with theirs.disable_adapter():
        model = open_model(theirs)
        assert deviation(logits(model.hf), logits(theirs)) < SAME_LOGITS
        assert "switched off" in model.spec.notes[0]
    theirs.merge_adapter()
    assert deviation(logits(open_model(theirs).hf), logits(theirs)) < SAME_LOGITS


def test_an_adapter_that_transformers_holds(lora: Path) -> None:
    with quiet():
        theirs = LlamaForCausalLM.from_pretrained(lora.parent / "base").eval()
        theirs.load_adapter(str(lora))
    model = open_model(theirs)
    assert deviation(logits(model.hf), logits(theirs)) < SAME_LOGITS
    assert "merged into a copy" in model.spec.notes[0]


def test_a_tied_head_keeps_the_weights_of_the_base() -> None:
    """The adapter of an embedding is not one of the head that shares its matrix."""
    torch.manual_seed(0)
    base = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=4)).eval()
    table = base.transformer.wte.weight.detach().clone()
    config = peft.LoraConfig(
        **{**LORA, "target_modules": ["wte", "c_attn"], "fan_in_fan_out": True}, task_type="CAUSAL_LM"
    )
    theirs = adapted(base, config)
    model = open_model(theirs)
    assert deviation(logits(model.hf), logits(theirs)) < SAME_LOGITS
    assert torch.equal(model.hf.lm_head.weight, table)
    assert not torch.equal(model.hf.transformer.wte.weight, table)


def test_training_mode_is_refused(tmp_path: Path) -> None:
    theirs = adapted(save_llama(tmp_path), METHODS["lora"]()).train()
    with pytest.raises(UsageError, match="training mode"):
        open_model(theirs)


def test_without_peft_it_is_refused(lora: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ResourceError, match=r"holds an adapter \(LORA\), and peft.* is not installed") as caught:
        open_model(lora)
    assert caught.value.exit_code == 5
    assert "pip install peft" in caught.value.hint


def virtual_tokens() -> Any:
    return peft.PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM")


def test_virtual_tokens_are_no_weights(tmp_path: Path) -> None:
    theirs = save_adapter(tmp_path, save_llama(tmp_path), virtual_tokens())
    for source in (theirs, tmp_path):
        with pytest.raises(CheckpointError, match="PROMPT_TUNING adds inputs of its own"):
            open_model(source)


def damage_pickle(folder: Path) -> None:
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")


def damage_weights(folder: Path) -> None:
    (folder / "adapter_model.safetensors").unlink()


def damage_config(folder: Path) -> None:
    (folder / "adapter_config.json").unlink()


def change_adapter(change: Any) -> Any:
    def damage(folder: Path) -> None:
        tensors = load_file(folder / "adapter_model.safetensors")
        change(tensors, next(iter(tensors)))
        save_file(tensors, folder / "adapter_model.safetensors")

    return damage


def change_settings(**changes: Any) -> Any:
    return lambda folder: change_json(folder / "adapter_config.json", lambda settings: settings.update(changes))


DAMAGE: dict[str, tuple[Any, str]] = {
    "pickle": (damage_pickle, "as pickle"),
    "no weights": (damage_weights, "but no adapter_model.safetensors"),
    "no settings": (damage_config, "but no adapter_config.json"),
    "nan": (change_adapter(lambda all_, name: all_[name].fill_(torch.nan)), "not finite"),
    "missing": (change_adapter(lambda all_, name: all_.pop(name)), "lacks 1 tensors that its settings ask for"),
    "unexpected": (
        change_adapter(lambda all_, name: all_.update({name.replace("layers.0", "layers.7"): all_[name].clone()})),
        "1 of its tensors have no place",
    ),
    "integers": (change_adapter(lambda all_, name: all_.update({name: all_[name].int()})), "stored as I32"),
    "another rank": (change_settings(r=5), "peft cannot put the adapter"),
    "another base": (change_settings(target_modules=["query"]), "peft cannot put the adapter"),
    "unknown method": (change_settings(peft_type="NOVEL"), "peft cannot put the adapter"),
    "not an object": (lambda folder: (folder / "adapter_config.json").write_text("[]"), "expected an object"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_adapter_is_refused(kind: str, tmp_path: Path) -> None:
    save_adapter(tmp_path, save_llama(tmp_path), METHODS["lora"]())
    damage, message = DAMAGE[kind]
    damage(tmp_path)
    with pytest.raises(CheckpointError, match=message):
        open_model(tmp_path)


def test_a_plus_without_an_adapter(lora: Path, tmp_path: Path) -> None:
    for text in (f"{lora.parent / 'base'}+{tmp_path / 'nothing'}", f"tiny+{lora.parent / 'base'}"):
        with pytest.raises(CheckpointError, match="is no folder with an adapter"):
            resolve(text)
    with pytest.raises(CheckpointError, match="holds an adapter itself"):
        resolve(f"{lora}+{lora}")
    change_json(lora / "adapter_config.json", lambda settings: settings.update(base_model_name_or_path="."))
    with pytest.raises(CheckpointError, match="holds an adapter itself"):
        resolve(lora)
    plus = tmp_path / "a+b"
    save_llama(plus)
    assert resolve(str(plus)).folder == plus
