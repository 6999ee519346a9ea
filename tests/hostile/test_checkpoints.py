"""Every way we know to break a checkpoint: the error says what, where and what to do; no other escapes."""

import json
import os
import random
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from headscope.errors import CheckpointError, HeadscopeError, UsageError
from headscope.model import architecture, fit
from headscope.model.checkpoint import open_checkpoint
from headscope.model.configuration import read_config
from headscope.model.gguf_header import read_gguf_header
from headscope.model.load import load
from headscope.model.source import resolve
from tests.hostile import broken
from tests.hostile.broken import INDEX, Q_PROJ, WEIGHTS, change_header, change_json, change_tensors

CONFIG = "config.json"


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

CASES = [
    # config.json
    Case("no-config", without(CONFIG), ("has no config.json",), "config.json"),
    Case("config-empty", text(CONFIG, ""), (CONFIG, "is not JSON"), "fetch it again"),
    Case("config-not-json", text(CONFIG, "{'a': 1"), (CONFIG, "is not JSON"), "fetch it again"),
    Case("config-binary", raw(CONFIG, b"\xff\xfe\x00\x01"), (CONFIG, "is not JSON"), "fetch it again"),
    Case("config-a-list", text(CONFIG, "[1, 2]"), (CONFIG, "holds list, expected an object"), "again"),
    Case("config-nested-deep", text(CONFIG, "[" * 100_000), (CONFIG, "is not JSON"), "again"),
    Case("config-is-a-folder", as_folder(CONFIG), (CONFIG, "is a folder, expected a file"), "incomplete"),
    Case("config-dead-link", as_link(CONFIG, "gone"), (CONFIG, "is a link to gone"), "copy the file"),
    Case("config-link-loop", as_link(CONFIG, CONFIG), ("cannot read", CONFIG), "where it leads"),
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
    Case(
        "quantised-by-config",
        config(quantization_config={"quant_method": "gptq", "bits": 4}),
        ("quantised by gptq, but no tensor is",),
        "fetch both again",
    ),
    Case("quantised-otherwise", config(quantization_config={"quant_method": "hqq"}), ("by hqq",), "dequantise"),
    Case("quantised-somehow", config(quantization_config=[4]), ("quantised by [4]",), "dequantise"),
    Case("config-nan", text(CONFIG, '{"model_type": "llama", "rms_norm_eps": NaN}'), ("a value is NaN",), "mend it"),
    Case(
        "config-says-two-things",
        text(CONFIG, '{"model_type": "llama", "vocab_size": 64, "vocab_size": 65}'),
        ("'vocab_size' is there twice, as 64 and as 65",),
        "mend it",
    ),
    Case("heads-that-do-not-fit", config(num_attention_heads=5), ("multiple of the number",), "config.json"),
    Case("layers-beyond-all-models", config(num_hidden_layers=1001), ("is 1001, expected at most 1000",), "damaged"),
    Case(
        "layers-absurd-inside",
        config(model_type="llava", text_config={"model_type": "llama", "num_hidden_layers": 10**9}),
        ("text_config: num_hidden_layers is 1000000000",),
        "damaged",
    ),
    Case("labels-absurd", config(num_labels=10**9), ("num_labels is 1000000000",), "damaged"),
    Case("layers-absurd", config(num_hidden_layers=10**9), ("num_hidden_layers is 1000000000",), "damaged"),
    Case("layers-negative", config(num_hidden_layers=-1), ("18 tensors have no place",), "another model"),
    Case("layers-a-word", config(num_hidden_layers="two"), ("cannot use this configuration",), "config.json"),
    Case("heads-zero", config(num_attention_heads=0, head_dim=None), (), "config"),
    Case("width-absurd", config(hidden_size=10**7), ("has shape", "expected"), "another model"),
    Case("activation-unknown", config(hidden_act="nope"), ("LlamaForCausalLM", "nope"), "config.json"),
    Case(
        "vocabulary-absurd",
        config(vocab_size=10**12),
        ("lm_head", "(64, 32)", "(1000000000000, 32)"),
        "another model",
    ),
    # config against weights
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
    # what is in the weights
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
        "another",
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
    Case("nan", tensors(put_nan), (Q_PROJ, "1 of 1024", "NaN"), "diverged"),
    Case(
        "infinity",
        tensors(lambda t: put_nan(t, float("-inf"))),
        (Q_PROJ, "1 of 1024", "infinite"),
        "diverged",
    ),
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
    Case("no-tensor-at-all", tensors(lambda t: t.clear()), ("holds no tensor",), "again"),
    # the safetensors file itself
    Case("empty-file", raw(WEIGHTS, b""), (WEIGHTS, "0 bytes long"), "again"),
    Case("seven-bytes", raw(WEIGHTS, b"\0" * 7), (WEIGHTS, "7 bytes long"), "again"),
    Case("truncated-by-one", cut(1), (WEIGHTS, "truncated"), "again"),
    Case("truncated-in-the-header", lambda f: os.truncate(f / WEIGHTS, 100), ("truncated", "92 bytes"), "again"),
    Case("trailing-bytes", cut(-5), ("5 bytes after",), "again"),
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
    Case("header-not-json", raw(WEIGHTS, struct.pack("<Q", 4) + b"abcd"), ("not JSON",), "again"),
    Case("header-not-text", raw(WEIGHTS, struct.pack("<Q", 4) + b"\xff\xfe\xfd\xfc"), ("not JSON",), "again"),
    Case("header-a-list", lambda f: broken.write(f / WEIGHTS, [1], b""), ("is list",), "again"),
    Case("header-nested-deep", lambda f: broken.write(f / WEIGHTS, b"[" * 99_999, b""), ("not JSON",), "again"),
    Case("header-huge-number", lambda f: broken.write(f / WEIGHTS, b"1" * 9999, b""), ("not JSON",), "again"),
    Case("header-names-twice", twice_in_header, (Q_PROJ, "twice"), "again"),
    Case("overlap", overlapping, ("model.norm.weight", "inside tensor"), "overlap"),
    Case("hole", hole, ("4096 bytes before tensor", "belong to no tensor"), "again"),
    Case("offsets-out-of-range", entry(data_offsets=[10**12, 10**12 + 4096]), ("belong to no tensor",), "again"),
    Case("offsets-backwards", entry(data_offsets=[4096, 0]), (Q_PROJ, "malformed"), "again"),
    Case("offsets-negative", entry(data_offsets=[-4096, 0]), (Q_PROJ, "malformed"), "again"),
    Case("offsets-a-float", entry(data_offsets=[0.0, 4096.0]), (Q_PROJ, "malformed"), "again"),
    Case("shape-and-bytes-differ", entry(shape=[32, 33]), (Q_PROJ, "(32, 33)", "4224", "4096"), "again"),
    Case("shape-negative", entry(shape=[-32, -32]), (Q_PROJ, "malformed"), "again"),
    Case("shape-overflowing", entry(shape=[2**40, 2**40]), (Q_PROJ, "needs"), "again"),
    Case("shape-beyond-counting", entry(shape=[0, 10**30], data_offsets=[0, 0]), (Q_PROJ, "malformed"), "again"),
    Case("shape-of-many-dimensions", entry(shape=[1] * 5000 + [32, 32]), (Q_PROJ, "malformed"), "again"),
    Case("shape-a-word", entry(shape="32x32"), (Q_PROJ, "malformed"), "again"),
    Case("dtype-unknown", entry(dtype="F12"), (Q_PROJ, "unknown dtype 'F12'"), "convert"),
    Case("dtype-null", entry(dtype=None), (Q_PROJ, "unknown dtype None"), "convert"),
    Case(
        "entry-a-number",
        lambda f: change_header(f, lambda h: h.update({Q_PROJ: 7})),
        ("lacks dtype",),
        "again",
    ),
    Case("weights-are-a-folder", as_folder(WEIGHTS), (WEIGHTS, "is a folder"), "incomplete"),
    Case(
        "weights-are-a-dead-link",
        as_link(WEIGHTS, "/nowhere/x"),
        (WEIGHTS, "is a link to /nowhere/x"),
        "copy",
    ),
    Case("weights-link-to-themselves", as_link(WEIGHTS, WEIGHTS), ("cannot read", WEIGHTS), "where it leads"),
    Case("weights-are-a-device", as_link(WEIGHTS, "/dev/zero"), (WEIGHTS, "not a regular file"), "incomplete"),
    Case(
        "git-lfs-pointer",
        raw(WEIGHTS, b"version x-git-lfs/spec/v1\noid sha256:0"),
        ("Git LFS",),
        "git lfs pull",
    ),
    Case("pickle-in-disguise", raw(WEIGHTS, EVIL_PICKLE), (WEIGHTS, "pickle"), "convert"),
    Case("zip-in-disguise", raw(WEIGHTS, b"PK\x03\x04" + b"\0" * 50), (WEIGHTS, "pickle"), "convert"),
    # other kinds of weights, or none
    Case("no-weights", without(WEIGHTS), ("holds no weights", WEIGHTS), "random:"),
    Case(
        "pickle-bin",
        only("pytorch_model.bin", EVIL_PICKLE),
        ("pytorch_model.bin", "never opens"),
        "save_pretrained",
    ),
    Case("pickle-sharded", only("pytorch_model-00001-of-00002.bin"), ("pickle", "00001-of"), "save_pretrained"),
    Case("pickle-pt", only("model.pt"), ("model.pt", "never opens"), "save_pretrained"),
    Case("pickle-ckpt", only("model.ckpt"), ("model.ckpt", "never opens"), "save_pretrained"),
    Case("only-a-gguf", only("model.gguf", b"GGUF"), ("holds no safetensors",), "model.gguf"),
    Case("another-file-name", only("weights.safetensors"), ("weights.safetensors", "neither"), "rename"),
    # files beside the weights
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
    Case(
        "generation-broken",
        text("generation_config.json", "{"),
        ("generation_config.json", "not JSON"),
        "again",
    ),
    Case("generation-a-list", text("generation_config.json", "[]"), ("generation_config.json", "list"), "again"),
]


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


SHARDED = [
    Case("shard-missing", lambda f: first_shard(f).unlink(), ("the shard model-00001", "is missing"), "fetch"),
    Case("shard-truncated", lambda f: os.truncate(first_shard(f), 200), ("model-00001", "truncated"), "again"),
    Case("shard-dead-link", lambda f: as_link(first_shard(f).name, "gone")(f), ("is a link to gone",), "copy"),
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
    Case("index-a-number", shard_map(lambda m: m.update({Q_PROJ: 3})), ("into 3",), "trusted"),
    Case("tensor-in-two-shards", duplicated, ("is in two files", "model-00001", "model-00002"), "mixed"),
]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    broken.save_llama(folder)
    return folder


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    broken.save_llama(folder, shard_size="20KB")
    return folder


def expect(case: Case, folder: Path) -> None:
    case.break_it(folder)
    with pytest.raises(CheckpointError) as caught:
        load(resolve(folder))
    assert str(folder) in caught.value.message
    message = caught.value.message.replace(str(folder), "")  # its name holds words of the case's id
    for part in case.says:
        assert part in message
    assert case.hints in caught.value.hint
    assert caught.value.exit_code == 3
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_broken_folder(case: Case, sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    expect(case, Path(shutil.copytree(sound, tmp_path / "model")))
    assert not (tmp_path / "pickle_was_run").exists()


@pytest.mark.parametrize("case", SHARDED, ids=[case.id for case in SHARDED])
def test_broken_shards(case: Case, sharded: Path, tmp_path: Path) -> None:
    expect(case, Path(shutil.copytree(sharded, tmp_path / "model")))


FROM_HEADERS = ("fewer-layers-than-weights", "vocabulary-too-large", "heads-of-another-model", "shape-wrong",
                "bias-without-a-place", "norm-without-a-place", "stored-as-codes")  # fmt: skip


@pytest.mark.parametrize("case", [case for case in CASES if case.id in FROM_HEADERS], ids=lambda case: case.id)
def test_what_headers_alone_tell(case: Case, sound: Path, tmp_path: Path) -> None:
    """Weights that are read from the file, without a model, are refused for the same reasons."""
    folder = Path(shutil.copytree(sound, tmp_path / "model"))
    case.break_it(folder)
    with pytest.raises(CheckpointError) as caught:
        check_headers(folder)
    assert all(part in caught.value.message for part in case.says)


def check_headers(folder: Path) -> None:
    config = architecture.parsed_config(read_config(folder), CONFIG)
    empty = architecture.empty_model(architecture.model_class(config, CONFIG), config, CONFIG)
    fit.check_file(empty, open_checkpoint(folder).tensors, str(folder))


def test_sound_headers_pass(sound: Path, sharded: Path) -> None:
    check_headers(sound)
    check_headers(sharded)


def test_the_unbroken_folders_open(sound: Path, sharded: Path) -> None:
    """Otherwise every case above could be red for one and the same wrong reason."""
    for folder in (sound, sharded):
        assert sum(weight.numel() for weight in load(resolve(folder)).model.parameters()) > 0


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_permission_denied(sound: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    genuine = Path.open

    def forbid(path: Path, *args: Any, **options: Any) -> Any:
        if path.name == name:  # tests may run as root, for whom nothing is forbidden
            raise PermissionError(13, "Permission denied")
        return genuine(path, *args, **options)

    monkeypatch.setattr(Path, "open", forbid)
    with pytest.raises(CheckpointError, match=f"cannot read .*{name}: Permission denied") as caught:
        load(resolve(sound))
    assert "who may read" in caught.value.hint


def test_a_file_that_shrinks_while_it_is_read(sound: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(sound, tmp_path / "model"))
    checkpoint = open_checkpoint(folder)
    os.truncate(folder / WEIGHTS, 5000)
    with pytest.raises(CheckpointError, match="changed while it was read"):
        checkpoint.read("model.norm.weight")


def test_hints_for_other_kinds_of_folders(tmp_path: Path) -> None:
    for name, hint in [
        ("adapter_config.json", "BASE+"),
        ("model_index.json", "one of them"),
        ("x.gguf", "x.gguf"),
    ]:
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        (folder / name).write_text("{}")
        with pytest.raises(CheckpointError) as caught:
            load(resolve(folder))
        assert hint in caught.value.hint


def mutants(content: bytes, most: int, seed: int) -> Iterator[bytes]:
    """The file with bytes changed, cut or put in, mostly in its header."""
    draw = random.Random(seed)
    for _ in range(300):
        at = draw.randrange(min(len(content), most))
        kind = draw.randrange(4)
        if kind == 0:
            yield content[:at]
        elif kind == 1:
            yield content[:at] + bytes([draw.randrange(256)]) + content[at + 1 :]
        elif kind == 2:
            yield content[:at] + draw.randbytes(draw.randrange(1, 9)) + content[at:]
        else:
            yield content[:at] + content[at + draw.randrange(1, 9) :]


def test_safetensors_mutants_open_or_are_refused(sound: Path, tmp_path: Path) -> None:
    file = tmp_path / WEIGHTS
    refused = 0
    for content in mutants((sound / WEIGHTS).read_bytes(), 2500, seed=1):
        file.write_bytes(content)
        try:
            open_checkpoint(tmp_path)
        except CheckpointError:
            refused += 1
    assert refused > 200


def gguf_start(n_tensors: int, n_values: int) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_values)


def text_of(content: str) -> bytes:
    return struct.pack("<Q", len(content)) + content.encode()


TENSOR = text_of("t") + struct.pack("<IQIQ", 1, 8, 0, 0)  # one dimension of 8, F32, offset 0

GGUF_CASES = [
    Case(
        "gguf-alignment-a-word",
        raw("m.gguf", gguf_start(1, 1) + text_of("general.alignment") + struct.pack("<I", 8) + text_of("x") + TENSOR),
        ("alignment is 'x'",),
        "again",
    ),
    Case(
        "gguf-alignment-zero",
        raw("m.gguf", gguf_start(1, 1) + text_of("general.alignment") + struct.pack("<II", 4, 0) + TENSOR),
        ("alignment is 0",),
        "again",
    ),
    Case(
        "gguf-type-unknown", raw("m.gguf", gguf_start(1, 0) + TENSOR[:-12] + b"\x77" * 12), ("unknown type",), "again"
    ),
    Case("gguf-empty", raw("m.gguf", b""), ("begins with b''",), "again"),
    Case("gguf-not-gguf", raw("m.gguf", b"hello, world"), ("begins with b'hell'",), "again"),
    Case("gguf-header-only", lambda f: os.truncate(f / "m.gguf", 24), ("not a whole GGUF",), "again"),
    Case("gguf-cut-in-the-header", lambda f: os.truncate(f / "m.gguf", 300), ("does not fit",), "again"),
    Case("gguf-cut-in-the-data", lambda f: os.truncate(f / "m.gguf", 40_000), ("truncated", "40000"), "again"),
    Case("gguf-version", raw("m.gguf", b"GGUF" + struct.pack("<IQQ", 99, 0, 0)), ("version is 99",), "again"),
    Case(
        "gguf-big-endian",
        raw("m.gguf", b"GGUF" + struct.pack(">IQQ", 3, 0, 0)),
        ("version is", "little"),
        "again",
    ),
    Case(
        "gguf-counts-absurd",
        raw("m.gguf", b"GGUF" + struct.pack("<IQQ", 3, 2**60, 1)),
        (str(2**60),),
        "again",
    ),
    Case("gguf-without-tensors", raw("m.gguf", b"GGUF" + struct.pack("<IQQ", 3, 0, 0)), ("no tensor",), "again"),
    Case(
        "gguf-array-absurd",
        raw("m.gguf", b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 8, 2**50) + b"\0" * 99),
        ("array claims", str(2**50)),
        "again",
    ),
    Case(
        "gguf-text-absurd",
        raw("m.gguf", b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**63) + b"\0" * 99),
        ("does not fit",),
        "again",
    ),
    Case(
        "gguf-is-a-folder",
        lambda f: ((f / "m.gguf").unlink(), (f / "m.gguf").mkdir()),
        ("no config.json",),
        "",
    ),
]


@pytest.fixture(scope="module")
def sound_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gguf")
    broken.save_gguf(folder / "m.gguf", broken.save_llama(folder / "hf"))
    return folder / "m.gguf"


@pytest.mark.parametrize("case", GGUF_CASES, ids=[case.id for case in GGUF_CASES])
def test_broken_gguf(case: Case, sound_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path / "cache"))
    shutil.copy(sound_gguf, tmp_path)
    case.break_it(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        load(resolve(tmp_path / "m.gguf"))
    message = caught.value.message.replace(str(tmp_path), "")
    for part in (*case.says, *([] if "folder" in case.id else ["m.gguf"])):
        assert part in message
    assert case.hints in caught.value.hint
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        ({"layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"layers": 3}, "lacks 9 tensors"),
        ({"width": 10**7}, "numbers, but LlamaForCausalLM needs"),
        ({"width": 40}, "has shape"),
    ],
    ids=["layers-absurd", "layers-too-many", "width-absurd", "width-wrong"],
)
def test_gguf_that_lies_about_itself(
    lie: dict[str, int], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path / "cache"))
    broken.save_gguf(tmp_path / "m.gguf", broken.save_llama(tmp_path / "hf"), **lie)
    with pytest.raises(CheckpointError, match=message):
        load(resolve(tmp_path / "m.gguf"))


def test_gguf_of_a_family_that_cannot_be_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gguf

    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path / "cache"))
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "unheard-of")
    writer.add_tensor("x", torch.ones(32).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match=r"m\.gguf cannot be expanded by transformers: .*unheard-of"):
        load(resolve(tmp_path / "m.gguf"))


def test_gguf_mutants_are_walked_or_refused(sound_gguf: Path, tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    refused = 0
    for content in mutants(sound_gguf.read_bytes(), 2000, seed=2):
        file.write_bytes(content)
        try:
            read_gguf_header(file)
        except CheckpointError:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize("name", ["", "  ", "random:", "~nobody-has-this-name/x", "x" * 5000, "a\0b", "no/such/folder"])
def test_names_that_name_nothing(name: str) -> None:
    with pytest.raises(HeadscopeError) as caught:
        resolve(name)
    assert isinstance(caught.value, UsageError | CheckpointError)
    assert caught.value.hint
