"""Write tests/model/quantised/*.safetensors: small weights, quantised and decoded.

Needs bitsandbytes and compressed-tensors, which nothing else here needs: run it in its own environment, with
headscope's dependencies, when a library changes its format. Each case holds the tensors of one linear layer under
`case/layer.…`, the library's decoded weights under `case/expected`, and its quantization_config in the metadata.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

TARGET = Path(__file__).parents[1] / "tests" / "model" / "quantised"
ROWS, COLUMNS = 40, 96


def main() -> None:
    """Write both files."""
    TARGET.mkdir(exist_ok=True)
    for name, cases in (("bitsandbytes", bitsandbytes_cases()), ("compressed_tensors", compressed_cases())):
        parts = [(f"{case}/{key}", value) for case, (state, _) in cases.items() for key, value in state.items()]
        tensors = {key: value.contiguous() for key, value in parts}
        configs = {case: json.dumps(config) for case, (_, config) in cases.items()}
        save_file(tensors, TARGET / f"{name}.safetensors", metadata=configs)
        print(f"{name}: {', '.join(cases)}")


def weight() -> torch.Tensor:
    """Return the matrix that every case quantises."""
    return 0.1 * torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0))


def bitsandbytes_cases() -> dict[str, tuple[dict[str, torch.Tensor], dict]]:
    """Return tensors and configuration of each form of bitsandbytes."""
    import bitsandbytes
    from bitsandbytes.functional import dequantize_4bit, int8_vectorwise_dequant, int8_vectorwise_quant, quantize_4bit

    cases = {}
    for case, kind, nested, dtype in (
        ("nf4", "nf4", False, torch.float32),
        ("nf4-nested", "nf4", True, torch.float32),
        ("nf4-bfloat16", "nf4", True, torch.bfloat16),
        ("fp4", "fp4", False, torch.float32),
    ):
        packed, state = quantize_4bit(weight().to(dtype), blocksize=64, compress_statistics=nested, quant_type=kind)
        parts = {f"layer.weight.{name}": value for name, value in state.as_dict(packed=True).items()}
        parts |= {"layer.weight": packed, "expected": dequantize_4bit(packed, state)}
        cases[case] = (parts, {"quant_method": "bitsandbytes", "load_in_4bit": True})
    codes, scales, _ = int8_vectorwise_quant(weight().half())
    parts = {"layer.weight": codes, "layer.SCB": scales, "layer.weight_format": torch.tensor(0, dtype=torch.uint8)}
    parts["expected"] = int8_vectorwise_dequant(codes, scales)
    cases["int8"] = (parts, {"quant_method": "bitsandbytes", "load_in_8bit": True})
    print(f"bitsandbytes {bitsandbytes.__version__}")
    return cases


def compressed_cases() -> dict[str, tuple[dict[str, torch.Tensor], dict]]:
    """Return tensors and configuration of each form of compressed-tensors."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    group = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
    channel = {"num_bits": 8, "type": "int", "strategy": "channel"}
    float8 = {"num_bits": 8, "type": "float"}
    settings = {
        "int4-group": ("pack-quantized", {**group, "symmetric": True}),
        "int4-group-zeros": ("pack-quantized", {**group, "symmetric": False}),
        "int8-packed": ("pack-quantized", {**channel, "symmetric": True}),
        "int8": ("int-quantized", {**channel, "symmetric": True}),
        "fp8-tensor": ("float-quantized", {**float8, "strategy": "tensor"}),
        "fp8-channel": ("float-quantized", {**float8, "strategy": "channel"}),
        "fp8-block": ("float-quantized", {**float8, "strategy": "block", "block_structure": [32, 64]}),
    }
    cases = {}
    for case, (form, args) in settings.items():
        scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**args))
        lowest, highest = extremes(args)
        scale, zero = calculate_qparams(lowest, highest, scheme.weights)
        compressor = BaseCompressor.get_value_from_registry(form)
        state = compressor.compress({"weight": weight(), "weight_scale": scale, "weight_zero_point": zero}, scheme)
        decoded = compressor.decompress(state, scheme)["weight"]
        parts = {f"layer.{name}": value for name, value in state.items()} | {"expected": decoded}
        config = {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": {"weights": args}}}
        cases[case] = (parts, config)
    return cases


def extremes(args: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest and the largest number that share a scale, for each scale."""
    heights, widths = {
        "group": (1, args.get("group_size")),
        "channel": (1, COLUMNS),
        "tensor": (ROWS, COLUMNS),
        "block": tuple(args.get("block_structure", (0, 0))),
    }[args["strategy"]]
    rows, columns = -(-ROWS // heights), -(-COLUMNS // widths)
    padded = torch.full((rows * heights, columns * widths), torch.nan)
    padded[:ROWS, :COLUMNS] = weight()
    blocks = padded.reshape(rows, heights, columns, widths).transpose(1, 2).reshape(rows, columns, -1)
    lowest = torch.nan_to_num(blocks, nan=torch.inf).amin(-1)
    highest = torch.nan_to_num(blocks, nan=-torch.inf).amax(-1)
    return (lowest.reshape(-1), highest.reshape(-1)) if args["strategy"] == "tensor" else (lowest, highest)


if __name__ == "__main__":
    main()
