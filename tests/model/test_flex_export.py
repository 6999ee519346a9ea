"""Plans that leave headscope: the masks as expressions, and a written module that runs where headscope is not."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import headscope as hs
from headscope.attention.call import Call
from headscope.attention.flex_mask import FlexMask
from headscope.attention.mechanism import Mechanism, mechanisms
from headscope.attention.mechanism_spelling import spelled
from headscope.attention.mechanisms.band_sparse import BandSparse
from headscope.attention.mechanisms.longformer import Longformer
from headscope.errors import UsageError
from headscope.model.model import Model
from headscope.model.plans.flex_export import flex_source
from headscope.model.plans.plan import Plan
from headscope.model.plans.repaired_weights import RepairedWeights, Slice

N = 150  # two blocks of FlexAttention, the second one ragged
MANY = tuple(range(0, 60, 5))  # more positions than are compared one by one
PLAN = {
    "window(left=9)": "L0.H0",
    "window(left=30, right=4, dilation=3)": "L0.H1",
    f"band_sparse(left=5, right=0, columns={MANY})": "L0.H2-3",
    "longformer(left=3, right=0, global_positions=(0, 40))": "L1.H0",
    "bigbird(block=8, random=2)": "L1.H1-2",
    "graph(neighbours=((0,), (0, 1), (1, 2), (0, 2)))": "L1.H3",
}
LONG = {spelling: heads for spelling, heads in PLAN.items() if not spelling.startswith("graph")}
# It runs in a process of its own, in which there is no headscope.
SCRIPT = """
import importlib.util, json, sys, warnings
sys.modules["headscope"] = None
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, StaticCache
import torch.nn.attention.flex_attention as flex

flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True  # on the CPU: no compiler for sizes as small as these
folder, out, cases = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
results = {}
for name, (model_folder, file, ids, mask, weights) in cases.items():
    spec = importlib.util.spec_from_file_location(f"exported_{name}", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    model = AutoModelForCausalLM.from_pretrained(model_folder).eval()
    if weights:
        try:
            module.install(model)
        except ValueError as error:
            assert "was repaired" in str(error)
        else:
            raise AssertionError("a repaired plan needs its weights")
    module.install(model, weights)
    ids, mask = torch.tensor(ids), None if mask is None else torch.tensor(mask)
    with torch.no_grad():
        results[f"{name} prefill"] = model(ids, attention_mask=mask).logits
        if mask is None and ids.shape[1] > 20:
            first = model(ids[:, :-12], use_cache=True)
            chunk = model(ids[:, -12:-5], past_key_values=first.past_key_values)
            steps = [first.logits, chunk.logits]
            for token in ids[:, -5:].T:
                steps.append(model(token[:, None], past_key_values=first.past_key_values).logits)
            results[f"{name} cached"] = torch.cat(steps, 1)
            cache = StaticCache(model.config, max_cache_len=ids.shape[1] + 9)
            begun = model(ids[:, :-1], past_key_values=cache).logits
            results[f"{name} static"] = torch.cat([begun, model(ids[:, -1:], past_key_values=cache).logits], 1)
    for layer, described in module.LAYERS.items():
        n = min(ids.shape[1], module.POSITIONS or ids.shape[1])
        block = module.block_mask(layer, n)
        results[f"{name} mask {layer}"] = flex.create_mask(block.mask_mod, 1, len(described.masks), n, n, device="cpu")
    model.set_attn_implementation("sdpa")
    if weights:
        continue
    results[f"{name} undone"] = model(ids[:, :10]).logits.detach()
save_file({key: value.contiguous() for key, value in results.items()}, out)
"""


def example_call(n: int, *, causal: bool) -> Call:
    positions = torch.arange(n)[None]
    vectors = torch.randn(3, 1, 2, n, 4, generator=torch.Generator().manual_seed(0))
    return Call(*vectors, 1.0, positions, positions, right=0 if causal else None)


def evaluated(mask: FlexMask, n: int) -> torch.Tensor:
    positions = torch.arange(n)
    q, k = positions[:, None].expand(n, n), positions[None].expand(n, n)
    return eval(mask.expression, {"q": q, "k": k, **mask.tables})  # what the module would hold


@pytest.mark.parametrize("causal", [True, False])
def test_expressions_are_the_masks(causal: bool) -> None:
    """For every example of every mechanism: the mask that it states is the one that it computes with."""
    n, n_masks, n_refused = 70, 0, 0
    others: list[Mechanism] = [BandSparse(2, None, MANY), Longformer(2, 3, MANY)]
    for mechanism in [example for kind in mechanisms().values() for example in kind.examples(n)] + others:
        mask = mechanism.flex_mask(n, causal=causal)
        call = example_call(n, causal=causal)
        if not isinstance(mask, FlexMask):
            n_refused += 1
            assert " " in mask
            continue
        visible = mechanism.seen(call).visible()[0, 0]
        allowed = evaluated(mask, n) & call.visible()[0, 0]
        assert torch.equal(allowed, visible), mechanism
        n_masks += 1
    assert n_masks >= 16
    assert n_refused >= 5


def random_model(folder: Path, kv_heads: int) -> Path:
    """A checkpoint of two layers and four heads: Llama with shared keys, or GPT-2."""
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(kv_heads)
    if kv_heads == 4:
        model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=256))
    else:
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
        config = LlamaConfig(vocab_size=64, num_key_value_heads=kv_heads, max_position_embeddings=256, **sizes)
        model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)  # attention of some contrast: otherwise every mask gives nearly the same
    model.eval().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Model, Plan, torch.Tensor, torch.Tensor | None]]:
    from transformers import AutoModelForCausalLM

    made = {}
    generator = torch.Generator().manual_seed(5)
    for name, kv_heads in (("grouped", 2), ("ungrouped", 4)):
        folder = random_model(tmp_path_factory.mktemp(name), kv_heads)
        model = hs.open(AutoModelForCausalLM.from_pretrained(folder).eval())
        ids = torch.randint(64, (2, N), generator=generator)
        made[name] = (model, Plan.for_model(model, LONG), ids, None)
        made[f"{name}-short"] = (model, Plan.for_model(model, PLAN), ids[:, :4], None)
        padding = torch.ones_like(ids)
        padding[0, :11] = 0
        padding[1, -7:] = 0
        made[f"{name}-padded"] = (model, Plan.for_model(model, LONG), ids, padding)
    model, plan, ids, _ = made["grouped"]
    weight, rows = "model.layers.1.self_attn.o_proj.weight", torch.arange(4, 20)
    repair = RepairedWeights.of({weight: Slice(1, rows, torch.randn(32, 16, generator=generator))})
    made["grouped-repaired"] = (model, replace(plan, repair=repair), ids[:, :20], None)
    return made


@pytest.fixture(scope="module")
def elsewhere(cases, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """What the written modules compute in a process without headscope."""
    folder = tmp_path_factory.mktemp("exported")
    listed = {}
    for name, (model, plan, ids, mask) in cases.items():
        file = folder / f"{name.replace('-', '_')}.py"
        file.write_text(flex_source(plan, model), encoding="utf-8")
        weights = file.with_suffix(".safetensors")
        if plan.repair is not None:
            plan.repair.write(weights)
        rows = None if mask is None else mask.tolist()
        listed[name] = [model.hf.config._name_or_path, str(file), ids.tolist(), rows, plan.repair and str(weights)]
    arguments = ["-W", "error::UserWarning", "-c", SCRIPT, str(folder), str(folder / "out"), json.dumps(listed)]
    ran = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return load_file(folder / "out")


@pytest.mark.parametrize(
    "name",
    [f"{kind}{case}" for kind in ("grouped", "ungrouped") for case in ("", "-short", "-padded")] + ["grouped-repaired"],
)
def test_an_exported_plan_runs_without_headscope(name: str, cases, elsewhere) -> None:
    """Logits of a whole text, of cached steps and of padded texts are those of `hs.apply`."""
    model, plan, ids, mask = cases[name]
    with torch.no_grad(), hs.apply(plan, model):
        expected = model.hf(ids, attention_mask=mask).logits
    with torch.no_grad():
        original = model.hf(ids, attention_mask=mask).logits
        undone = model.hf(ids[:, :10]).logits
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    scale = float(expected.abs().max())
    assert float((expected - original)[real].abs().max()) > 1e-2 * scale or name.endswith("short")
    outcomes = [
        key for key in elsewhere if key.split(" ")[0] == name and key.split(" ")[1] in ("prefill", "cached", "static")
    ]
    assert len(outcomes) == (3 if mask is None and len(ids[0]) > 20 else 1)
    for key in outcomes:
        assert float((elsewhere[key] - expected)[real].abs().max()) < 1e-5 * max(1.0, scale), key
    if plan.repair is None:
        assert torch.allclose(elsewhere[f"{name} undone"], undone, atol=1e-5)


@pytest.mark.parametrize("name", ["grouped", "ungrouped-short"])
def test_the_masks_of_a_written_module(name: str, cases, elsewhere) -> None:
    """Head by head: the mask of the module is that of the mechanism in a causal call."""
    model, plan, ids, _ = cases[name]
    n = ids.shape[1]
    call = example_call(n, causal=True)
    for site in model.sites:
        masks = elsewhere[f"{name} mask {site.layer}"][0]
        for spelling, heads_by_site in plan.heads(model.sites).items():
            for head in heads_by_site.get(site, ()):
                visible = spelled(spelling).seen(call).visible()[0, 0]
                assert torch.equal(masks[head], visible), (spelling, head)


def test_what_is_no_mask(cases) -> None:
    """The heads, the mechanism and the reason are named."""
    model = cases["grouped"][0]
    plan = Plan.for_model(model, {"linear": "L0.H0-1", "top_blocks(block=4)": "L1", "window(left=3)": "L0.H2"})
    with pytest.raises(UsageError, match=r"L0\.H0-1 attend through linear: it is no softmax") as refusal:
        flex_source(plan, model)
    assert "L1 attend through top_blocks(block=4): queries and keys choose its pairs" in refusal.value.message
    assert "window" not in refusal.value.message
    heads_differ = Plan.for_model(model, {"window(left=3, dilation=(1, 2))": "L0.H0-1"})
    with pytest.raises(UsageError, match="dilations of their own"):
        flex_source(heads_differ, model)


def test_models_that_a_module_cannot_describe() -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    encoder_decoder = hs.open(T5ForConditionalGeneration(T5Config(vocab_size=50, **sizes)).eval())
    with pytest.raises(UsageError, match="several stacks"):
        flex_source(Plan({"window(left=3)": "enc.L0"}), encoder_decoder)
