"""Measure the memory that weight-only lenses take on sharded checkpoints.

    python -m benchmarks.large_checkpoint [--gigabytes 2.0] [--layers 2 4] [--lenses NAME …] [--folder DIR]

The table also says how much memory building the model would take. The first checkpoint is a Llama of random float32
weights. The others have the shapes of Mistral 7B in bfloat16 and as many layers as `--layers` says: memory must not
grow with depth. All are written shard by shard, so that making them takes little memory. Each peak is that of its own
process.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Shapes:
    """A decoder of the Llama kind.

    `bytes` is the size of one stored number (4: float32, 2: bfloat16).
    """

    family: str
    d_model: int
    d_ff: int
    heads: int
    kv_heads: int
    vocabulary: int
    bytes: int

    @property
    def per_layer(self) -> int:
        """The number of weights in a layer."""
        kv = self.d_model // self.heads * self.kv_heads
        return 2 * self.d_model * (self.d_model + kv) + 3 * self.d_model * self.d_ff + 2 * self.d_model


LLAMA = Shapes("llama", 2048, 5504, 16, 16, 8000, 4)
MISTRAL_7B = Shapes("mistral", 4096, 14336, 32, 8, 32000, 2)


def write(folder: Path, shapes: Shapes, layers: int) -> None:
    """Write random weights of these shapes, one shard per layer."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(0)
    dtype = torch.bfloat16 if shapes.bytes == 2 else torch.float32

    def matrix(out: int, wide: int) -> torch.Tensor:
        return (torch.randn(out, wide, generator=generator) * 0.02).to(dtype)

    where: dict[str, str] = {}

    def shard(number: int, tensors: dict[str, torch.Tensor]) -> None:
        name = f"model-{number + 1:05d}-of-{layers + 1:05d}.safetensors"
        save_file(tensors, folder / name, metadata={"format": "pt"})
        where.update(dict.fromkeys(tensors, name))

    d_model, kv = shapes.d_model, shapes.d_model // shapes.heads * shapes.kv_heads
    for layer in range(layers):
        start = f"model.layers.{layer}"
        attention = {f"{start}.self_attn.{x}_proj.weight": matrix(d_model, d_model) for x in "qo"}
        attention |= {f"{start}.self_attn.{x}_proj.weight": matrix(kv, d_model) for x in "kv"}
        feed = {f"{start}.mlp.{x}_proj.weight": matrix(shapes.d_ff, d_model) for x in ("gate", "up")}
        feed[f"{start}.mlp.down_proj.weight"] = matrix(d_model, shapes.d_ff)
        norms = {f"{start}.{x}_layernorm.weight": torch.ones(d_model) for x in ("input", "post_attention")}
        shard(layer, {**attention, **feed, **norms})
    ends = {name: matrix(shapes.vocabulary, d_model) for name in ("model.embed_tokens.weight", "lm_head.weight")}
    shard(layers, {**ends, "model.norm.weight": torch.ones(d_model)})
    config = {
        "model_type": shapes.family,
        "architectures": [f"{shapes.family.title()}ForCausalLM"],
        "hidden_size": d_model,
        "num_attention_heads": shapes.heads,
        "num_key_value_heads": shapes.kv_heads,
        "num_hidden_layers": layers,
        "intermediate_size": shapes.d_ff,
        "vocab_size": shapes.vocabulary,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


LENS = """
import sys, time, torch
torch.set_num_threads(1)
import headscope as hs
from pathlib import Path
start = time.perf_counter()
names = sys.argv[2].split(",")
run = hs.measure(sys.argv[1], lenses=names)
for name in names:
    finding = run[name]
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
    """Write checkpoints, measure each in its own process, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0, help="of the first checkpoint; 0 leaves it out")
    parser.add_argument("--layers", type=int, nargs="*", default=[2, 4], help="of those with a 7B model's shapes")
    parser.add_argument("--folder", type=Path, default=None, help="where to write them (default: a temporary folder)")
    parser.add_argument("--lenses", nargs="*", default=["spectra", "alignment", "embeddings"], help="asked about those")
    arguments = parser.parse_args()
    print("One thread\n\n| checkpoint | way | peak memory | time | how |\n|---|---|---|---|---|", flush=True)
    if arguments.gigabytes:
        ends = 2 * LLAMA.vocabulary * LLAMA.d_model
        layers = max(1, round((arguments.gigabytes * 1e9 / LLAMA.bytes - ends) / LLAMA.per_layer))
        with _checkpoint(arguments.folder, LLAMA, layers) as (name, folder):
            print(_row(name, "lens spectra", LENS, folder, "spectra"), flush=True)
            print(_row(name, "building the model only", BUILD, folder), flush=True)
    for layers in arguments.layers:
        with _checkpoint(arguments.folder, MISTRAL_7B, layers) as (name, folder):
            for lens in arguments.lenses:
                print(_row(name, f"lens {lens}", LENS, folder, lens), flush=True)


@contextmanager
def _checkpoint(where: Path | None, shapes: Shapes, layers: int) -> Iterator[tuple[str, Path]]:
    with tempfile.TemporaryDirectory(dir=where) as scratch:
        folder = Path(scratch)
        write(folder, shapes, layers)
        size = sum(file.stat().st_size for file in folder.iterdir())
        yield f"{layers} layers, d_model {shapes.d_model}, {size / 1e9:.2f} GB in {layers + 1} shards", folder


def _row(name: str, way: str, code: str, *arguments: object) -> str:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    peak, seconds, how = done.stdout.strip().splitlines()[-1].split(maxsplit=2)
    return f"| {name} | {way} | {int(peak) / 1e9:.2f} GB | {float(seconds):.0f} s | {how} |"


if __name__ == "__main__":
    main()
