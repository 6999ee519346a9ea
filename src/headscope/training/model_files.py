"""The files that make saved weights a model which transformers opens."""

import json
from typing import Any

from torch import nn


def model_files(model: nn.Module) -> dict[str, bytes]:
    """config.json, and generation_config.json where the model writes text.

    A network without a configuration has neither.
    """
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "to_json_string"):
        return {}
    dtype = next(iter(model.parameters())).dtype
    content = json.loads(config.to_json_string())
    content |= {"architectures": [type(model).__name__], "dtype": str(dtype).removeprefix("torch.")}
    files = {"config.json": json.dumps(content, indent=2, sort_keys=True).encode() + b"\n"}
    generation: Any = getattr(model, "generation_config", None)
    if generation is not None:
        files["generation_config.json"] = generation.to_json_string().encode()
    return files
