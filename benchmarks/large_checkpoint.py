"""Spectra of a sharded checkpoint of 2 GB: how much memory the lens takes, and how much building the model would.

    python -m benchmarks.large_checkpoint [--gigabytes 2.0] [--folder DIR]

The checkpoint is a Llama of random float32 weights, written shard by shard so that making it takes little memory.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

D_MODEL, D_FF, HEADS, VOCABULARY = 2048, 5504, 16, 8000
PER_LAYER = 4 * D_MODEL * D_MODEL + 3 * D_MODEL * D_FF + 2 * D_MODEL


def write(folder: Path, gigabytes: float) -> int:
    """A Llama of about that size, one shard per layer; returns its layers."""
    import torch
    from safetensors.torch import save_file

    layers = max(1, round((gigabytes * 1e9 / 4 - 2 * VOCABULARY * D_MODEL) / PER_LAYER))
    generator = torch.Generator().manual_seed(0)

    def matrix(out: int, wide: int) -> torch.Tensor:
        return torch.randn(out, wide, generator=generator) * 0.02

    where: dict[str, str] = {}

    def shard(number: int, tensors: dict[str, torch.Tensor]) -> None:
        name = f"model-{number + 1:05d}-of-{layers + 1:05d}.safetensors"
        save_file(tensors, folder / name, metadata={"format": "pt"})
        where.update(dict.fromkeys(tensors, name))

    for layer in range(layers):
        start = f"model.layers.{layer}"
        attention = {f"{start}.self_attn.{x}_proj.weight": matrix(D_MODEL, D_MODEL) for x in "qkvo"}
        feed = {f"{start}.mlp.{x}_proj.weight": matrix(D_FF, D_MODEL) for x in ("gate", "up")}
        feed[f"{start}.mlp.down_proj.weight"] = matrix(D_MODEL, D_FF)
        norms = {f"{start}.{x}_layernorm.weight": torch.ones(D_MODEL) for x in ("input", "post_attention")}
        shard(layer, {**attention, **feed, **norms})
    ends = {"model.embed_tokens.weight": matrix(VOCABULARY, D_MODEL), "lm_head.weight": matrix(VOCABULARY, D_MODEL)}
    shard(layers, {**ends, "model.norm.weight": torch.ones(D_MODEL)})
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": D_MODEL,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "num_hidden_layers": layers,
        "intermediate_size": D_FF,
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return layers


LENS = """
import sys, time, torch
torch.set_num_threads(1)
import headscope as hs
from pathlib import Path
start = time.perf_counter()
run = hs.measure(sys.argv[1], lenses=["spectra"])
finding = run["spectra"]
assert finding.status == "ok", finding.reason
peak = next(int(x.split()[1]) for x in open("/proc/self/status") if x.startswith("VmHWM"))  # ru_maxrss is inherited
print(peak * 1024, time.perf_counter() - start, finding.method)
"""
BUILD = """
import sys, time, torch
from transformers import AutoModelForCausalLM
start = time.perf_counter()
AutoModelForCausalLM.from_pretrained(sys.argv[1])
peak = next(int(x.split()[1]) for x in open("/proc/self/status") if x.startswith("VmHWM"))  # ru_maxrss is inherited
print(peak * 1024, time.perf_counter() - start, "from_pretrained")
"""


def main() -> None:
    """Write, measure in processes of their own, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--folder", type=Path, default=None, help="where to write it (default: a temporary folder)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        folder = Path(scratch)
        layers = write(folder, given.gigabytes)
        size = sum(file.stat().st_size for file in folder.iterdir())
        print(f"Llama of {layers} layers, d_model {D_MODEL}, {size / 1e9:.2f} GB in {layers + 1} shards, one thread\n")
        print("| way | peak memory | time | how |\n|---|---|---|---|")
        for name, code in (("headscope lens spectra", LENS), ("building the model only", BUILD)):
            done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
            peak, seconds, how = done.stdout.strip().splitlines()[-1].split(maxsplit=2)
            print(f"| {name} | {int(peak) / 1e9:.2f} GB | {float(seconds):.0f} s | {how} |", flush=True)


if __name__ == "__main__":
    main()
