"""config.json, read and checked before transformers sees it."""

import json
from pathlib import Path
from typing import Any

from headscope.errors import CheckpointError
from headscope.model.formats.checkpoint_file import file_size, unreadable
from headscope.model.formats.format import recognised_files
from headscope.model.transformers.library_messages import quiet

_MAX_BYTES = 16_000_000
_FLOAT_TAG = "__float__"

# What else people have in hand when they lack a config.json, and what to do about it.
_INSTEAD = {
    "adapter_config.json": "this is an adapter: name its base model too, as BASE+ADAPTER",
    "model_index.json": "this is a pipeline of several models: give the folder of one of them",
    "params.json": "these are original weights: convert them to the Hugging Face form",
}


def read_config(folder: Path) -> dict[str, Any]:
    """The content of `folder/config.json`: an object with a `model_type`; raises a clear error otherwise."""
    file = folder / "config.json"
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder", hint="give a folder with config.json and safetensors")
    if not file.exists() and not file.is_symlink():
        raise CheckpointError(f"{folder} has no config.json", hint=_instead(folder))
    config = read_object(file)
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise CheckpointError(
            f"{file} has no model_type (got {model_type!r}), so the family is unknown",
            hint='add it, e.g. "model_type": "llama"',
        )
    return config


def generation_config(folder: Path, config: Any, raw: dict[str, Any]) -> Any:
    """How the checkpoint wants to be generated from: generation_config.json, else what config.json says."""
    from transformers import GenerationConfig

    with quiet():
        generation = GenerationConfig.from_model_config(config)
    file = folder / "generation_config.json"
    settings = read_object(file) if file.is_file() else raw
    # Only what is known: older config.json files hold settings such as forced_eos_token_id among their own.
    setting_names = generation.to_dict().keys() - {"transformers_version"}
    with quiet():
        generation.update(
            **{key: value for key, value in settings.items() if key in setting_names and value is not None}
        )
    return generation


def read_object(file: Path) -> dict[str, Any]:
    """The object in a JSON file of a checkpoint; raises a clear error where it holds something else."""
    content = _parsed(file)
    if not isinstance(content, dict):
        raise CheckpointError(f"{file} holds {type(content).__name__}, expected an object", hint="fetch it again")
    return content


def _parsed(file: Path) -> Any:
    if file_size(file) > _MAX_BYTES:
        raise CheckpointError(f"{file} is larger than {_MAX_BYTES} bytes", hint="this is no configuration")
    try:
        text = file.read_text(encoding="utf-8")
        return json.loads(text, object_pairs_hook=_unambiguous, parse_constant=_number)
    except OSError as error:
        raise unreadable(file, error) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is not JSON ({error})", hint="fetch it again, or mend it") from error


def _unambiguous(pairs: list[tuple[str, Any]]) -> Any:
    """Python keeps the last of two equal keys, others the first: harmless only where both say the same."""
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values and values[key] != value:
            raise ValueError(f"{key!r} is there twice, as {values[key]!r} and as {value!r}")
        values[key] = value
    return _tagged(values)


def _tagged(values: dict[str, Any]) -> Any:
    """transformers 5 writes infinity as `{"__float__": "Infinity"}`; any other object stays as it is."""
    tag = values.get(_FLOAT_TAG)
    if len(values) != 1 or tag not in ("Infinity", "-Infinity", "NaN"):
        return values
    return _number(tag)


def _number(text: str) -> float:
    """Infinity is a limit in some configurations (time_step_limit); NaN is never meant."""
    if text == "NaN":
        raise ValueError("a value is NaN")
    return float(text)


def _instead(folder: Path) -> str:
    for name, hint in _INSTEAD.items():
        if (folder / name).exists():
            return hint
    if other_files := recognised_files(folder):
        return f"give the file itself: {other_files[0]}"
    inner = sorted(path.parent for path in folder.glob("*/config.json"))
    return f"did you mean {inner[0]}?" if inner else "fetch the checkpoint's config.json too"
