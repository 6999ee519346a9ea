"""GGUF files: expanded once into float32 safetensors in the Hugging Face form, and kept in the cache.

Expanding 135M parameters takes a quarter of a minute, most of it parsing in Python; opening the result takes a second
or two. The folder is named by the hash of the GGUF file, so a changed file is never taken for the old. The hashes of
the expanded files are noted when they are written and compared whenever they are used: an expansion that was changed
since is made again. The model that an expansion is written from is handed on, so that the first opening builds one
model.
"""

import contextlib
import errno
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headscope.errors import CheckpointError, ResourceError, WeightsRefused
from headscope.fetch import cache
from headscope.model.formats import completeness
from headscope.model.formats.checkpoint_file import sha256_of
from headscope.model.formats.gguf_header import GgufHeader, read_gguf_header
from headscope.model.transformers import classes
from headscope.model.transformers.library_messages import quiet, reason
from headscope.progress import Step

# Float32 expansions up to this size are kept; a larger file is expanded in memory each time it is opened.
MAX_KEPT_BYTES = 2 << 30

_VERSION = 1  # of what is written below: a change makes old expansions invisible


@dataclass(frozen=True)
class Expansion:
    """A GGUF file as a folder in Hugging Face form, with what the file itself held.

    `model` is the float32 model that the folder was written from just now; None where the cache had the folder.
    """

    folder: Path
    sha256: str
    types: str
    dequantised: str
    model: Any | None = None


def expansion(file: Path, progress: Step | None = None) -> Expansion:
    """The kept expansion of a GGUF file, made now unless the cache has it.

    Raises `WeightsRefused` where it is not kept: too large for the cache, or the cache cannot be written.
    """
    header, sha256 = read_gguf_header(file), sha256_of(file)
    if 4 * header.n_numbers > MAX_KEPT_BYTES:
        raise WeightsRefused(f"{file} is expanded in memory only: {4 * header.n_numbers / 1e9:.1f} GB are not kept")
    folder = cache.cache_folder() / "expanded" / f"{sha256[:32]}-v{_VERSION}"
    models: list[Any] = []
    if cache.about(folder, contents=True) is None:
        if progress is not None:
            progress(f"expanding {file.name} (once)", 0, 0)
        notes = {"gguf": file.name, "sha256": sha256, "dequantised": header.dequantised}
        try:
            cache.install(folder, lambda new: models.append(_write(file, header, new)), notes=notes, contents=True)
        except ResourceError as error:
            raise WeightsRefused(f"{file} is expanded in memory only: {error.message}", hint=error.hint) from error
    return Expansion(folder, sha256, header.types, header.dequantised, models[0] if models else None)


def read_gguf_config(file: Path) -> Any:
    """The transformers configuration that a GGUF file describes."""
    from transformers import AutoConfig

    with _loading(file):
        config = AutoConfig.from_pretrained(file.parent, **_place(file))
    classes.check_depth(config.to_dict(), str(file))
    return config


def build(file: Path, header: GgufHeader, config: Any, dtype: Any = "float32") -> tuple[Any, dict[str, Any]]:
    """The model in a GGUF file, expanded in memory, with transformers' report of what did not fit."""
    cls = classes.model_class(config, str(file))
    attention = classes.attention_of(cls, config)
    completeness.check_size(classes.empty_model(cls, config, str(file)), header.n_numbers, {}, str(file))
    with _loading(file):
        model, report = cls.from_pretrained(
            file.parent,
            config=config,
            dtype=dtype,
            attn_implementation=attention,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **_expanding(),
            **_place(file),
        )
    return model, report


def read_gguf_tokenizer(file: Path, header: GgufHeader) -> Any | None:
    """The tokenizer in a GGUF file, None where it has none."""
    from transformers import AutoTokenizer

    if not header.has_tokenizer:
        return None
    with _loading(file):
        return AutoTokenizer.from_pretrained(file.parent, **_place(file))


def _place(file: Path) -> dict[str, Any]:
    return {"gguf_file": file.name, "local_files_only": True, "trust_remote_code": False}


def _expanding() -> dict[str, Any]:
    """Newer versions of transformers keep weights packed where a kernel is installed: we want them open."""
    import transformers

    config = getattr(transformers, "GgufConfig", None)
    return {"quantization_config": config(dequantize=True)} if config else {}


@contextlib.contextmanager
def _without_bar() -> Iterator[None]:
    """One progress bar of transformers' GGUF reader does not listen to its settings."""
    from transformers import modeling_gguf_pytorch_utils as reader

    bar = getattr(reader, "tqdm", None)
    if bar is None:
        yield
        return
    reader.tqdm = functools.partial(bar, disable=True)
    try:
        yield
    finally:
        reader.tqdm = bar


@contextlib.contextmanager
def _loading(file: Path) -> Iterator[None]:
    """Inside, transformers reads `file`: quietly, and what it raises becomes ours."""
    with quiet(), _without_bar():
        try:
            yield
        except ImportError as error:
            raise ResourceError(f"cannot open {file}: {error}", hint="pip install gguf accelerate") from error
        except Exception as error:
            raise CheckpointError(
                f"{file} cannot be expanded by transformers: {reason(error)}",
                hint="its family may not be readable from GGUF: use the safetensors of the same model",
            ) from error


@contextlib.contextmanager
def parsed_once() -> Iterator[None]:
    """Inside, a file is parsed once, and the table of its names is made once.

    transformers parses the file for every part that it reads, and makes the table for every module of the model.
    """
    try:
        import gguf
    except ImportError:  # transformers raises it too, and `_loading` says what to install
        yield
        return
    reader, name_map = gguf.GGUFReader, gguf.get_tensor_name_map
    shared_reader = functools.cache(reader)
    gguf.GGUFReader = lambda path, *modes: shared_reader(Path(path).resolve(), *modes)
    gguf.get_tensor_name_map = functools.cache(name_map)
    try:
        yield
    finally:
        gguf.GGUFReader, gguf.get_tensor_name_map = reader, name_map


def _write(file: Path, header: GgufHeader, folder: Path) -> Any:
    """Write the expansion and give back the model that it was written from."""
    with parsed_once():
        config = read_gguf_config(file)
        config.architectures = [classes.model_class(config, str(file)).__name__]
        model, report = build(file, header, config)
        tokenizer = read_gguf_tokenizer(file, header)
    completeness.check(report, model, str(file))
    # named_parameters leaves out the second name of a tied weight; a buffer belongs if it is in the state.
    once = {name for name, _ in model.named_parameters()} | {name for name, _ in model.named_buffers()}
    state = {name: value.contiguous() for name, value in model.state_dict().items() if name in once}
    config.to_json_file(folder / "config.json")
    _save(state, folder / "model.safetensors")
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    return model


def _save(state: dict[str, Any], file: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(state, file, metadata={"format": "pt"})
    except SafetensorError as error:  # its message is all that is left of the system's error number
        code = errno.ENOSPC if "space" in str(error) else errno.EIO
        raise OSError(code, str(error)) from error
