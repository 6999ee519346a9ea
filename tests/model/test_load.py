"""From a source to a model: whole, seeded, in the right dtype, and with notes where something is missing."""

import json
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, BertModel, LlamaForCausalLM, PreTrainedModel

from headscope.errors import CheckpointError, ResourceError
from headscope.model.formats import completeness, memory
from headscope.model.load import load
from headscope.model.model import open_model, open_weights
from headscope.model.sources.names import resolve
from headscope.model.transformers.library_messages import quiet
from tests.hostile.broken import Q_PROJ, change_json, change_tensors, save_llama


def same_weights(one: PreTrainedModel, other: PreTrainedModel) -> bool:
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("shard_size", ["50GB", "20KB"], ids=["single", "sharded"])
def test_a_folder_opens_bit_by_bit(tmp_path: Path, shard_size: str) -> None:
    saved = save_llama(tmp_path, shard_size=shard_size)
    loaded = load(resolve(tmp_path))
    assert isinstance(loaded.model, LlamaForCausalLM)
    assert same_weights(loaded.model, saved)
    assert not loaded.model.training
    assert loaded.model.config._attn_implementation == "sdpa"
    assert loaded.checkpoint is not None
    assert loaded.sha256 == loaded.checkpoint.sha256() != ""
    assert (loaded.tokenizer, loaded.dequantised, loaded.dtype_on_disk, loaded.notes) == (None, "", "F32", ())


def test_it_computes_what_transformers_computes(tmp_path: Path) -> None:
    saved = save_llama(tmp_path)
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.equal(load(resolve(tmp_path)).model(tokens).logits, saved(tokens).logits)


def test_weights_are_our_own_memory(tmp_path: Path) -> None:
    """A model that shares memory with its file would change, or crash, when the file does."""
    save_llama(tmp_path)
    model = load(resolve(tmp_path)).model
    before = model.model.layers[0].self_attn.q_proj.weight.clone()
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert torch.equal(model.model.layers[0].self_attn.q_proj.weight, before)


def test_half_precision_on_disk_widens_exactly(tmp_path: Path) -> None:
    save_llama(tmp_path)
    change_tensors(tmp_path, lambda all_: all_.update({k: v.bfloat16() for k, v in all_.items()}))
    loaded = load(resolve(tmp_path))
    assert loaded.model.dtype == torch.float32
    assert loaded.dtype_on_disk == "BF16"
    weight = loaded.model.model.layers[0].self_attn.q_proj.weight
    assert torch.equal(weight, weight.bfloat16().float())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_dtype_is_what_was_asked_for(tmp_path: Path, dtype: torch.dtype) -> None:
    save_llama(tmp_path)
    loaded = load(resolve(tmp_path), dtype=dtype)
    assert {weight.dtype for weight in loaded.model.parameters()} == {dtype}
    rounded = any("rounded" in note for note in loaded.notes)
    assert rounded == (dtype.itemsize < 4)
    assert load(resolve(f"random:{tmp_path}"), dtype=dtype).model.dtype == dtype


def test_random_is_seeded_and_leaves_the_generator_alone(tmp_path: Path) -> None:
    save_llama(tmp_path)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    first, again, other = (load(resolve(f"random:{tmp_path}", seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(3), expected)
    assert same_weights(first.model, again.model)
    assert not same_weights(first.model, other.model)
    assert (first.checkpoint, first.sha256) == (None, "")
    assert "seed 1" in first.notes[0]


def test_random_is_drawn_as_the_configuration_says(tmp_path: Path) -> None:
    save_llama(tmp_path, hidden_size=256, initializer_range=0.05)
    (tmp_path / "model.safetensors").unlink()  # a configuration alone is enough
    weight = load(resolve(f"random:{tmp_path / 'config.json'}")).model.model.layers[0].mlp.up_proj.weight
    assert weight.std().item() == pytest.approx(0.05, rel=0.05)


def test_the_spec_tells_the_initialisation(tmp_path: Path) -> None:
    save_llama(tmp_path, initializer_range=0.05)
    assert open_weights(str(tmp_path)).spec.initial_sd == 0.05
    assert open_model(tmp_path).spec.initial_sd == 0.05


def test_random_larger_than_the_machine_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_llama(tmp_path)
    monkeypatch.setattr(memory, "physical_bytes", lambda: 1000)
    with pytest.raises(ResourceError, match=r"need 0\.0 GB as float32"):
        load(resolve(f"random:{tmp_path}"))


def test_opening_says_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    save_llama(tmp_path)
    capfd.readouterr()
    load(resolve(tmp_path))
    load(resolve(f"random:{tmp_path}"))
    assert capfd.readouterr() == ("", "")


def test_quiet_is_scoped() -> None:
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity(logging.INFO)
    logging.enable_progress_bar()
    try:
        with pytest.raises(KeyError), quiet():
            _ = {}["an exception passes through"]
        assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == (logging.INFO, True)
    finally:
        logging.set_verbosity(before)


def bert(folder: Path, cls: type[PreTrainedModel]) -> PreTrainedModel:
    config = BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, vocab_size=50)
    torch.manual_seed(0)
    with quiet():
        model = cls(config).eval()
        model.save_pretrained(folder)
    return model


def test_without_its_head_a_model_opens_headless(tmp_path: Path) -> None:
    bert(tmp_path, BertModel)
    change_json(tmp_path / "config.json", lambda config: config.update(architectures=["BertForMaskedLM"]))
    loaded = load(resolve(tmp_path))
    assert type(loaded.model) is BertModel
    assert loaded.notes[0] == "opened as BertModel: the checkpoint lacks the head of BertForMaskedLM"


def test_without_head_and_pooler_it_opens_too(tmp_path: Path) -> None:
    bert(tmp_path, BertModel)
    change_json(tmp_path / "config.json", lambda config: config.update(architectures=["BertForPreTraining"]))
    change_tensors(tmp_path, lambda all_: [all_.pop(name) for name in list(all_) if "pooler" in name])
    loaded = load(resolve(tmp_path))
    assert type(loaded.model) is BertModel
    assert "lacks the head of BertForPreTraining" in loaded.notes[0]
    assert "pooler" in loaded.notes[1]


def test_a_missing_pooler_is_noted(tmp_path: Path) -> None:
    bert(tmp_path, BertForMaskedLM)
    change_json(tmp_path / "config.json", lambda config: config.update(architectures=["BertModel"]))
    loaded = load(resolve(tmp_path))
    assert type(loaded.model) is BertModel
    assert "pooler" in loaded.notes[0]
    assert "cls.predictions" in loaded.notes[1]


def test_without_architectures_the_family_decides(tmp_path: Path) -> None:
    bert(tmp_path, BertForMaskedLM)
    change_json(tmp_path / "config.json", lambda config: config.pop("architectures"))
    assert type(load(resolve(tmp_path)).model) is BertForMaskedLM


def test_buffers_of_older_versions_are_harmless(tmp_path: Path) -> None:
    save_llama(tmp_path)
    extra = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
        "model.layers.0.self_attn.bias": torch.ones(1, 1, 8, 8),
        "model.layers.0.self_attn.masked_bias": torch.tensor(-1e4),
        "model.position_ids": torch.arange(8),
    }
    plain = load(resolve(tmp_path)).model.state_dict()
    change_tensors(tmp_path, lambda tensors: tensors.update(extra))
    loaded = load(resolve(tmp_path)).model.state_dict()
    assert loaded.keys() == plain.keys()
    assert all(torch.equal(loaded[name], plain[name]) for name in plain)


@pytest.mark.parametrize(
    ("family", "softcap", "expected"),
    [("gemma2", 50.0, "eager"), ("gemma3_text", 50.0, "eager"), ("gemma3_text", None, "sdpa")],
)
def test_a_softcap_is_not_left_to_sdpa(family: str, softcap: float | None, expected: str, tmp_path: Path) -> None:
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = {"model_type": family, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 50, **small}
    (tmp_path / "config.json").write_text(json.dumps(config | {"attn_logit_softcapping": softcap}))
    assert load(resolve(f"random:{tmp_path}")).model.config._attn_implementation == expected


def test_generation_settings_come_along(tmp_path: Path) -> None:
    save_llama(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 5, "unheard_of": 1}))
    assert load(resolve(tmp_path)).model.generation_config.eos_token_id == 5
    (tmp_path / "generation_config.json").unlink()
    change_json(tmp_path / "config.json", lambda config: config.update(forced_eos_token_id=9))
    assert load(resolve(tmp_path)).model.generation_config.forced_eos_token_id == 9


def test_code_named_by_the_checkpoint_is_ignored(tmp_path: Path) -> None:
    """What could make transformers fetch or run something is dropped from the configuration."""
    save_llama(tmp_path)
    (tmp_path / "modeling_evil.py").write_text("raise SystemExit('this ran')")
    evil = {"AutoConfig": "modeling_evil.C", "AutoModelForCausalLM": "modeling_evil.M"}
    kernel = {"attn_implementation": "someone/kernel", "transformers_weights": "../x.bin"}
    change_json(tmp_path / "config.json", lambda config: config.update(auto_map=evil, **kernel))
    loaded = load(resolve(tmp_path))
    assert loaded.model.config._attn_implementation == "sdpa"
    assert type(loaded.model) is LlamaForCausalLM


def test_finite_looks_closer_when_only_the_sum_overflows() -> None:
    layer = torch.nn.Linear(4, 4)
    torch.nn.init.constant_(layer.weight, 3e38)
    completeness.check_finite(layer, "here")
    layer.weight.data[1, 2] = -torch.inf
    with pytest.raises(CheckpointError, match=r"tensor 'weight' in here has 1 of 16 values not finite \(inf"):
        completeness.check_finite(layer, "here")


def test_the_shape_of_every_tensor_is_checked(tmp_path: Path) -> None:
    save_llama(tmp_path)
    change_tensors(tmp_path, lambda tensors: tensors.update({Q_PROJ: torch.ones(16, 32)}))
    with pytest.raises(CheckpointError, match=r"has shape \(16, 32\), expected \(32, 32\)"):
        load(resolve(tmp_path))


@pytest.mark.parametrize("prefix", ["module", "_orig_mod"])
def test_the_name_of_a_wrapper_is_pointed_out(prefix: str, tmp_path: Path) -> None:
    save_llama(tmp_path)
    change_tensors(tmp_path, lambda all_: [all_.update({f"{prefix}.{name}": all_.pop(name)}) for name in list(all_)])
    with pytest.raises(CheckpointError, match="lacks 21 tensors") as caught:
        load(resolve(tmp_path))
    assert f"all names in the file begin with '{prefix}'" in caught.value.hint


def words(folder: Path, last: int) -> None:
    from tokenizers import Tokenizer, models

    vocabulary = {"[UNK]": 0, "hello": 1, "world": last}
    Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]")).save(str(folder / "tokenizer.json"))


def test_a_tokenizer_comes_along(tmp_path: Path) -> None:
    save_llama(tmp_path)
    words(tmp_path, last=63)
    for what in (tmp_path, f"random:{tmp_path}"):
        loaded = load(resolve(what))
        assert loaded.tokenizer is not None
        assert loaded.tokenizer("hello").input_ids == [1]
        assert not any("the tokenizer" in note for note in loaded.notes)


def test_a_tokenizer_with_more_ids_than_the_model_is_noted(tmp_path: Path) -> None:
    save_llama(tmp_path)
    words(tmp_path, last=64)
    assert load(resolve(tmp_path)).notes == ("the tokenizer has ids up to 64, the model embeds only ids below 64",)


def test_a_tokenizer_with_code_is_left_alone(tmp_path: Path) -> None:
    save_llama(tmp_path)
    words(tmp_path, last=2)
    (tmp_path / "evil.py").write_text("raise SystemExit('this ran')")
    said = {"auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]}, "tokenizer_class": "Evil"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(said))
    loaded = load(resolve(tmp_path))
    assert loaded.tokenizer is None
    assert "never runs code" in loaded.notes[0]


def test_a_tokenizer_that_needs_a_package_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    def missing(*_: object, **__: object) -> None:
        raise ValueError("You need to have sentencepiece or tiktoken installed")

    save_llama(tmp_path)
    words(tmp_path, last=2)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", missing)
    loaded = load(resolve(tmp_path))
    assert loaded.tokenizer is None
    assert "needs a package that is not installed (sentencepiece or tiktoken)" in loaded.notes[0]
