"""Checkpoints to refuse, by the kind of damage: how to break a sound one, and what the error says."""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tests.hostile import broken
from tests.hostile.broken import INDEX, Q_PROJ, WEIGHTS, change_header, change_json, change_tensors

CONFIG = "config.json"
GGUF = "m.gguf"


class Case(NamedTuple):
    """How to break a sound folder, what the message must say, and what the hint must say."""

    id: str
    break_it: Callable[[Path], object]
    says: tuple[str, ...]
    hints: str


def text(name: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(content)


def raw(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def without(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def config(**changes: Any) -> Callable[[Path], object]:
    return lambda folder: change_json(folder / CONFIG, lambda content: content.update(changes))


def entry(**changes: Any) -> Callable[[Path], object]:
    return lambda folder: change_header(folder, lambda header: header[Q_PROJ].update(changes))


def tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], object]:
    return lambda folder: change_tensors(folder, change)


def only(name: str, content: bytes = b"\x80\x04.") -> Callable[[Path], object]:
    """The weights replaced by one other file."""

    def break_it(folder: Path) -> None:
        (folder / WEIGHTS).unlink()
        (folder / name).write_bytes(content)

    return break_it


def cut(bytes_off: int) -> Callable[[Path], object]:
    return lambda folder: os.truncate(folder / WEIGHTS, (folder / WEIGHTS).stat().st_size - bytes_off)


def as_folder(name: str) -> Callable[[Path], object]:
    return lambda folder: ((folder / name).unlink(), (folder / name).mkdir())


def as_link(name: str, target: str) -> Callable[[Path], object]:
    return lambda folder: ((folder / name).unlink(), (folder / name).symlink_to(target))


def pipe(name: str) -> Callable[[Path], object]:
    """A named pipe: whoever opens it waits until somebody writes."""
    return lambda folder: os.mkfifo(folder / name)


def overlapping(folder: Path) -> None:
    def change(header: dict[str, Any]) -> None:
        begin, end = header["model.norm.weight"]["data_offsets"]
        header["model.norm.weight"]["data_offsets"] = [begin - 4, end - 4]

    change_header(folder, change)


def twice_in_header(folder: Path) -> None:
    header, data = broken.header_of(folder / WEIGHTS)
    again = json.dumps({Q_PROJ: header[Q_PROJ]})[1:]
    broken.write(folder / WEIGHTS, (json.dumps(header)[:-1] + ", " + again).encode(), data)


def hole(folder: Path) -> None:
    change_header(folder, lambda header: header.pop(Q_PROJ))


def put_nan(bad: dict[str, torch.Tensor], value: float = float("nan")) -> None:
    bad[Q_PROJ][3, 5] = value


def rename(old: str, new: str) -> Callable[[dict[str, torch.Tensor]], object]:
    return lambda bad: bad.update({new: bad.pop(old)})


EVIL_PICKLE = b"\x80\x04cposix\nsystem\n(S'touch pickle_was_run'\ntR."

FOLDERS = {
    "config.json is missing or another kind of file": [
        Case("no-config", without(CONFIG), ("has no config.json",), "config.json"),
        Case("config-is-a-folder", as_folder(CONFIG), (CONFIG, "is a folder, expected a file"), "incomplete"),
        Case("config-dead-link", as_link(CONFIG, "gone"), (CONFIG, "is a link to gone"), "copy the file"),
        Case("config-link-loop", as_link(CONFIG, CONFIG), ("cannot read", CONFIG), "where it leads"),
    ],
    "config.json is not JSON": [
        Case("config-empty", text(CONFIG, ""), (CONFIG, "is not JSON"), "fetch it again"),
        Case("config-not-json", text(CONFIG, "{'a': 1"), (CONFIG, "is not JSON"), "fetch it again"),
        Case("config-binary", raw(CONFIG, b"\xff\xfe\x00\x01"), (CONFIG, "is not JSON"), "fetch it again"),
        Case("config-a-list", text(CONFIG, "[1, 2]"), (CONFIG, "holds list, expected an object"), "again"),
        Case("config-nested-deep", text(CONFIG, "[" * 100_000), (CONFIG, "is not JSON"), "again"),
        Case(
            "config-nan", text(CONFIG, '{"model_type": "llama", "rms_norm_eps": NaN}'), ("a value is NaN",), "mend it"
        ),
        Case(
            "config-says-two-things",
            text(CONFIG, '{"model_type": "llama", "vocab_size": 64, "vocab_size": 65}'),
            ("'vocab_size' is there twice, as 64 and as 65",),
            "mend it",
        ),
    ],
    "config.json names no family that can be read": [
        Case("no-model-type", config(model_type=None), ("has no model_type (got None)",), "model_type"),
        Case("model-type-a-number", config(model_type=3), ("has no model_type (got 3)",), "model_type"),
        Case("unknown-family", config(model_type="zzz"), ("unsupported family 'zzz'",), "update transformers"),
        Case(
            "family-with-its-own-code",
            config(model_type="zzz", auto_map={"AutoModel": "evil.Model"}),
            ("unsupported family 'zzz'", "never runs"),
            "transformers",
        ),
        Case("family-of-another-class", config(architectures=["BertModel"]), ("BertModel", "'llama'"), "together"),
    ],
    "config.json says quantised": [
        Case(
            "quantised-by-config",
            config(quantization_config={"quant_method": "gptq", "bits": 4}),
            ("quantised by gptq, but no tensor is",),
            "fetch both again",
        ),
        Case("quantised-otherwise", config(quantization_config={"quant_method": "hqq"}), ("by hqq",), "dequantise"),
        Case("quantised-somehow", config(quantization_config=[4]), ("quantised by [4]",), "dequantise"),
    ],
    "config.json with values that do not fit together": [
        Case("heads-that-do-not-fit", config(num_attention_heads=5), ("multiple of the number",), "config.json"),
        Case("layers-negative", config(num_hidden_layers=-1), ("18 tensors have no place",), "another model"),
        Case("layers-a-word", config(num_hidden_layers="two"), ("cannot use this configuration",), "config.json"),
        Case("heads-zero", config(num_attention_heads=0, head_dim=None), (), "config"),
        Case("activation-unknown", config(hidden_act="nope"), ("LlamaForCausalLM", "nope"), "config.json"),
    ],
    "config.json with absurd sizes": [
        Case(
            "layers-beyond-all-models", config(num_hidden_layers=1001), ("is 1001, expected at most 1000",), "damaged"
        ),
        Case(
            "layers-absurd-inside",
            config(model_type="llava", text_config={"model_type": "llama", "num_hidden_layers": 10**9}),
            ("text_config: num_hidden_layers is 1000000000",),
            "damaged",
        ),
        Case("labels-absurd", config(num_labels=10**9), ("num_labels is 1000000000",), "damaged"),
        Case("layers-absurd", config(num_hidden_layers=10**9), ("num_hidden_layers is 1000000000",), "damaged"),
        Case("width-absurd", config(hidden_size=10**7), ("has shape", "expected"), "another model"),
        Case(
            "vocabulary-absurd",
            config(vocab_size=10**12),
            ("lm_head", "(64, 32)", "(1000000000000, 32)"),
            "another model",
        ),
    ],
    "config.json and weights of two models": [
        Case(
            "more-layers-than-weights",
            config(num_hidden_layers=3),
            ("lacks 9 tensors", "layers.2"),
            "another model",
        ),
        Case(
            "fewer-layers-than-weights",
            config(num_hidden_layers=1),
            ("9 tensors have no place", "layers.1"),
            "another",
        ),
        Case(
            "vocabulary-too-large",
            config(vocab_size=65),
            ("lm_head", "(64, 32)", "(65, 32)"),
            "another model",
        ),
        Case(
            "heads-of-another-model",
            config(num_key_value_heads=4),
            ("k_proj", "(16, 32)", "(32, 32)"),
            "another model",
        ),
        Case(
            "family-of-other-weights",
            config(model_type="gpt2", architectures=None),
            ("lacks", "tensors"),
            "another",
        ),
    ],
    "tensors missing, renamed or too many": [
        Case(
            "shape-wrong",
            tensors(lambda t: t.update({Q_PROJ: t[Q_PROJ][:8].clone()})),
            ("(8, 32)", "(32, 32)"),
            "other",
        ),
        Case("tensor-missing", tensors(lambda t: t.pop(Q_PROJ)), ("lacks 1 tensors", Q_PROJ), "another model"),
        Case("head-of-model-renamed", tensors(rename(Q_PROJ, "q")), ("lacks 1 tensors", Q_PROJ), "another model"),
        Case(
            "all-renamed",
            tensors(lambda t: [t.update({f"x.{k}": t.pop(k)}) for k in list(t)]),
            ("lacks",),
            "remove the prefix",
        ),
        Case(
            "bias-without-a-place",
            tensors(lambda t: t.update({Q_PROJ.replace("weight", "bias"): torch.ones(32)})),
            ("1 tensors have no place in LlamaForCausalLM", "q_proj.bias"),
            "another model",
        ),
        Case(
            "norm-without-a-place",
            tensors(lambda t: t.update({"model.layers.1.self_attn.q_norm.weight": torch.ones(8)})),
            ("have no place", "q_norm"),
            "another model",
        ),
        Case("no-tensor-at-all", tensors(lambda t: t.clear()), ("holds no tensor",), "again"),
    ],
    "weights that are not finite": [
        Case("nan", tensors(put_nan), (Q_PROJ, "1 of 1024", "NaN"), "diverged"),
        Case(
            "infinity",
            tensors(lambda t: put_nan(t, float("-inf"))),
            (Q_PROJ, "1 of 1024", "infinite"),
            "diverged",
        ),
    ],
    "weights stored as codes": [
        Case(
            "stored-as-codes",
            tensors(lambda t: t.update({Q_PROJ: t[Q_PROJ].char()})),
            (Q_PROJ, "I8"),
            "quantised",
        ),
        Case(
            "stored-as-float8",
            tensors(lambda t: t.update({Q_PROJ: t[Q_PROJ].to(torch.float8_e4m3fn)})),
            (Q_PROJ, "F8_E4M3"),
            "convert",
        ),
    ],
    "safetensors cut short or too long": [
        Case("empty-file", raw(WEIGHTS, b""), (WEIGHTS, "0 bytes long"), "again"),
        Case("seven-bytes", raw(WEIGHTS, b"\0" * 7), (WEIGHTS, "7 bytes long"), "again"),
        Case("truncated-by-one", cut(1), (WEIGHTS, "truncated"), "again"),
        Case("truncated-in-the-header", lambda f: os.truncate(f / WEIGHTS, 100), ("truncated", "92 bytes"), "again"),
        Case("trailing-bytes", cut(-5), ("5 bytes after",), "again"),
    ],
    "safetensors header of absurd length": [
        Case(
            "header-absurd",
            raw(WEIGHTS, b"\xff" * 64),
            (str(2**64 - 1), "at most 100000000"),
            "not a safetensors",
        ),
        Case(
            "header-100MB",
            raw(WEIGHTS, struct.pack("<Q", 99_999_999) + b"{}"),
            ("truncated", "99999999"),
            "again",
        ),
    ],
    "safetensors header is not JSON": [
        Case("header-not-json", raw(WEIGHTS, struct.pack("<Q", 4) + b"abcd"), ("not JSON",), "again"),
        Case("header-not-text", raw(WEIGHTS, struct.pack("<Q", 4) + b"\xff\xfe\xfd\xfc"), ("not JSON",), "again"),
        Case("header-a-list", lambda f: broken.write(f / WEIGHTS, [1], b""), ("is list",), "again"),
        Case("header-nested-deep", lambda f: broken.write(f / WEIGHTS, b"[" * 99_999, b""), ("not JSON",), "again"),
        Case("header-huge-number", lambda f: broken.write(f / WEIGHTS, b"1" * 9999, b""), ("not JSON",), "again"),
        Case(
            "entry-a-number",
            lambda f: change_header(f, lambda h: h.update({Q_PROJ: 7})),
            (Q_PROJ, "malformed", "integer `7`, expected struct"),
            "again",
        ),
    ],
    "safetensors names a tensor twice": [
        Case("header-names-twice", twice_in_header, (Q_PROJ, "twice"), "again"),
    ],
    "safetensors data overlaps or has holes": [
        Case("overlap", overlapping, ("model.norm.weight", "overlaps", "inside tensor"), "again"),
        Case("hole", hole, ("4096 bytes before tensor", "belong to no tensor"), "again"),
        Case("offsets-out-of-range", entry(data_offsets=[10**12, 10**12 + 4096]), ("belong to no tensor",), "again"),
    ],
    "safetensors offsets are nonsense": [
        Case("offsets-backwards", entry(data_offsets=[4096, 0]), (Q_PROJ, "malformed"), "again"),
        Case("offsets-negative", entry(data_offsets=[-4096, 0]), (Q_PROJ, "malformed"), "again"),
        Case("offsets-a-float", entry(data_offsets=[0.0, 4096.0]), (Q_PROJ, "malformed"), "again"),
    ],
    "safetensors shapes are nonsense": [
        Case("shape-and-bytes-differ", entry(shape=[32, 33]), (Q_PROJ, "(32, 33)", "4224", "4096"), "again"),
        Case("shape-negative", entry(shape=[-32, -32]), (Q_PROJ, "malformed"), "again"),
        Case("shape-overflowing", entry(shape=[2**40, 2**40]), (Q_PROJ, "needs"), "again"),
        Case("shape-beyond-counting", entry(shape=[0, 10**30], data_offsets=[0, 0]), (Q_PROJ, "malformed"), "again"),
        Case("shape-of-many-dimensions", entry(shape=[1] * 5000 + [32, 32]), (Q_PROJ, "5002 dimensions"), "again"),
        Case("shape-a-word", entry(shape="32x32"), (Q_PROJ, "malformed"), "again"),
    ],
    "safetensors dtypes are nonsense": [
        Case("dtype-unknown", entry(dtype="F12"), (Q_PROJ, "malformed", "'dtype': 'F12'"), "convert"),
        Case("dtype-null", entry(dtype=None), (Q_PROJ, "malformed", "'dtype': None"), "again"),
    ],
    "weights are a folder, a link or a device": [
        Case("weights-are-a-folder", as_folder(WEIGHTS), (WEIGHTS, "is a folder"), "incomplete"),
        Case(
            "weights-are-a-dead-link",
            as_link(WEIGHTS, "/nowhere/x"),
            (WEIGHTS, "is a link to /nowhere/x"),
            "copy",
        ),
        Case("weights-link-to-themselves", as_link(WEIGHTS, WEIGHTS), ("cannot read", WEIGHTS), "where it leads"),
        Case("weights-are-a-device", as_link(WEIGHTS, "/dev/zero"), (WEIGHTS, "not a regular file"), "incomplete"),
    ],
    "weights are something else in disguise": [
        Case(
            "git-lfs-pointer",
            raw(WEIGHTS, b"version x-git-lfs/spec/v1\noid sha256:0"),
            ("Git LFS",),
            "git lfs pull",
        ),
        Case("pickle-in-disguise", raw(WEIGHTS, EVIL_PICKLE), (WEIGHTS, "pickle"), "convert"),
        Case("zip-in-disguise", raw(WEIGHTS, b"PK\x03\x04" + b"\0" * 50), (WEIGHTS, "pickle"), "convert"),
    ],
    "weights are missing or in another format": [
        Case("no-weights", without(WEIGHTS), ("holds no weights", WEIGHTS), "random:"),
        Case("only-a-gguf", only("model.gguf", b"GGUF"), ("holds no safetensors",), "model.gguf"),
        Case("another-file-name", only("weights.safetensors"), ("weights.safetensors", "neither"), "rename"),
    ],
    "pickle": [
        Case(
            "pickle-bin",
            only("pytorch_model.bin", EVIL_PICKLE),
            ("pytorch_model.bin", "never opens"),
            "save_pretrained",
        ),
        Case("pickle-sharded", only("pytorch_model-00001-of-00002.bin"), ("pickle", "00001-of"), "save_pretrained"),
        Case("pickle-pt", only("model.pt"), ("model.pt", "never opens"), "save_pretrained"),
        Case("pickle-ckpt", only("model.ckpt"), ("model.ckpt", "never opens"), "save_pretrained"),
    ],
    "damaged tokenizer files": [
        Case(
            "tokenizer-broken",
            text("tokenizer.json", "{"),
            ("tokenizer", "cannot be read"),
            "fetch the tokenizer",
        ),
        Case("tokenizer-a-folder", lambda f: (f / "tokenizer.json").mkdir(), ("is a folder",), "incomplete"),
        Case("tokenizer-a-pipe", pipe("tokenizer.json"), ("not a regular file",), "incomplete"),
        Case(
            "tokenizer-settings-a-pipe",
            lambda f: (text("tokenizer.json", "{}")(f), pipe("tokenizer_config.json")(f)),
            ("tokenizer_config.json is not a regular file",),
            "incomplete",
        ),
        Case("tokenizer-empty", text("tokenizer.json", ""), ("tokenizer", "cannot be read"), "fetch the tokenizer"),
    ],
    "damaged generation settings": [
        Case(
            "generation-broken",
            text("generation_config.json", "{"),
            ("generation_config.json", "not JSON"),
            "again",
        ),
        Case("generation-a-list", text("generation_config.json", "[]"), ("generation_config.json", "list"), "again"),
    ],
}


def shard_map(change: Callable[[dict[str, str]], object]) -> Callable[[Path], object]:
    return lambda folder: change_json(folder / INDEX, lambda index: change(index["weight_map"]))


def first_shard(folder: Path) -> Path:
    return sorted(folder.glob("model-*.safetensors"))[0]


def duplicated(folder: Path) -> None:
    one, two, *_ = sorted(folder.glob("model-*.safetensors"))
    header, data = broken.header_of(one)
    name = next(name for name in header if name != "__metadata__")
    other, more = broken.header_of(two)
    size = header[name]["data_offsets"][1] - header[name]["data_offsets"][0]
    other[name] = header[name] | {"data_offsets": [len(more), len(more) + size]}
    broken.write(two, other, more + data[:size])


SHARDED = {
    "shards missing or damaged": [
        Case("shard-missing", lambda f: first_shard(f).unlink(), ("the shard model-00001", "is missing"), "fetch"),
        Case("shard-truncated", lambda f: os.truncate(first_shard(f), 200), ("model-00001", "truncated"), "again"),
        Case("shard-dead-link", lambda f: as_link(first_shard(f).name, "gone")(f), ("is a link to gone",), "copy"),
        Case("tensor-in-two-shards", duplicated, ("is in two files", "model-00001", "model-00002"), "mixed"),
    ],
    "index of shards is damaged": [
        Case("index-not-json", text(INDEX, "{"), (INDEX, "is not JSON"), "index again"),
        Case("index-a-list", text(INDEX, "[]"), (INDEX, "no weight_map"), "index again"),
        Case("index-without-tensors", text(INDEX, '{"weight_map": {}}'), (INDEX, "no weight_map"), "index again"),
        Case("index-is-a-folder", as_folder(INDEX), (INDEX, "is a folder"), "incomplete"),
        Case(
            "index-names-a-tensor-too-many",
            shard_map(lambda m: m.update(ghost=next(iter(m.values())))),
            ("'ghost'",),
            "index",
        ),
        Case(
            "index-long-name",
            shard_map(lambda m: m.update({Q_PROJ: "x" * 300 + ".safetensors"})),
            ("expected a safetensors file beside it",),
            "trusted",
        ),
        Case("index-zero-byte", shard_map(lambda m: m.update({Q_PROJ: "x\0.safetensors"})), ("beside it",), "trusted"),
        Case(
            "index-surrogate", shard_map(lambda m: m.update({Q_PROJ: "\ud800.safetensors"})), ("beside it",), "trusted"
        ),
        Case("index-long-tensor", shard_map(lambda m: m.update({"n" * 100_000: 3})), ("into 3",), "trusted"),
        Case("index-a-number", shard_map(lambda m: m.update({Q_PROJ: 3})), ("into 3",), "trusted"),
    ],
    "index of shards leads out of the folder": [
        Case(
            "index-leads-out",
            shard_map(lambda m: m.update({Q_PROJ: "../x.safetensors"})),
            ("'../x.safetensors'",),
            "trusted",
        ),
        Case(
            "index-absolute",
            shard_map(lambda m: m.update({Q_PROJ: "/x.safetensors"})),
            ("'/x.safetensors'",),
            "trusted",
        ),
        Case(
            "index-backslashes",
            shard_map(lambda m: m.update({Q_PROJ: "..\\x.safetensors"})),
            ("x.safetensors",),
            "trusted",
        ),
        Case("index-names-pickle", shard_map(lambda m: m.update({Q_PROJ: "x.bin"})), ("'x.bin'",), "trusted"),
    ],
}


def gguf_start(n_tensors: int, n_values: int) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_values)


def text_of(content: str) -> bytes:
    return struct.pack("<Q", len(content)) + content.encode()


TENSOR = text_of("t") + struct.pack("<IQIQ", 1, 8, 0, 0)  # one dimension of 8, F32, offset 0

GGUF_FILES = {
    "GGUF alignment": [
        Case(
            "gguf-alignment-a-word",
            raw(GGUF, gguf_start(1, 1) + text_of("general.alignment") + struct.pack("<I", 8) + text_of("x") + TENSOR),
            ("alignment is 'x'",),
            "again",
        ),
        Case(
            "gguf-alignment-zero",
            raw(GGUF, gguf_start(1, 1) + text_of("general.alignment") + struct.pack("<II", 4, 0) + TENSOR),
            ("alignment is 0",),
            "again",
        ),
    ],
    "GGUF types": [
        Case(
            "gguf-type-unknown", raw(GGUF, gguf_start(1, 0) + TENSOR[:-12] + b"\x77" * 12), ("unknown type",), "again"
        ),
    ],
    "GGUF magic and version": [
        Case("gguf-empty", raw(GGUF, b""), ("begins with b''",), "again"),
        Case("gguf-not-gguf", raw(GGUF, b"hello, world"), ("begins with b'hell'",), "again"),
        Case("gguf-version", raw(GGUF, b"GGUF" + struct.pack("<IQQ", 99, 0, 0)), ("version is 99",), "again"),
        Case(
            "gguf-big-endian",
            raw(GGUF, b"GGUF" + struct.pack(">IQQ", 3, 0, 0)),
            ("version is", "little"),
            "again",
        ),
    ],
    "GGUF cut short": [
        Case("gguf-header-only", lambda f: os.truncate(f / GGUF, 24), ("not a whole GGUF",), "again"),
        Case("gguf-cut-in-the-header", lambda f: os.truncate(f / GGUF, 300), ("does not fit",), "again"),
        Case("gguf-cut-in-the-data", lambda f: os.truncate(f / GGUF, 40_000), ("truncated", "40000"), "again"),
    ],
    "GGUF counts and lengths": [
        Case(
            "gguf-counts-absurd",
            raw(GGUF, b"GGUF" + struct.pack("<IQQ", 3, 2**60, 1)),
            (str(2**60),),
            "again",
        ),
        Case("gguf-without-tensors", raw(GGUF, b"GGUF" + struct.pack("<IQQ", 3, 0, 0)), ("no tensor",), "again"),
        Case(
            "gguf-array-absurd",
            raw(GGUF, b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 8, 2**50) + b"\0" * 99),
            ("array claims", str(2**50)),
            "again",
        ),
        Case(
            "gguf-text-absurd",
            raw(GGUF, b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**63) + b"\0" * 99),
            ("does not fit",),
            "again",
        ),
    ],
    "GGUF is a folder": [
        Case(
            "gguf-is-a-folder",
            lambda f: ((f / GGUF).unlink(), (f / GGUF).mkdir()),
            ("no config.json",),
            "",
        ),
    ],
}
