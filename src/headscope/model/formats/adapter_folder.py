"""The folder of an adapter: whether one is there, and which base model it names. Loads no torch."""

from pathlib import Path

from headscope.model.formats.config_json import read_object

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"


def holds_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter or a part of one."""
    return any(folder.glob(CONFIG)) or any(folder.glob("adapter_model*"))


def base_name(folder: Path) -> str:
    """The base model that adapter_config.json names: a path or a hub id; empty where it names none."""
    name = read_object(folder / CONFIG).get("base_model_name_or_path") if (folder / CONFIG).exists() else None
    return name if isinstance(name, str) else ""
