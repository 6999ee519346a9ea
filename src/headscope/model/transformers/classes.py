"""Chooses the transformers class of a configuration, and its attention.

There is no table of families.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch

from headscope.errors import CheckpointError, ResourceError
from headscope.model.formats.quantisation import check_method
from headscope.model.transformers.library_messages import quiet, reason
from headscope.networks.families import FAMILIES, register

# Far beyond any model; more modules would take minutes to build, more labels gigabytes to name.
_MAX_LAYERS = 1_000
_MAX_LABELS = 1_000_000


def parsed_config(raw: dict[str, Any], where: str) -> Any:
    """The transformers configuration of a config.json.

    Refuses a family that transformers lacks.
    """
    from transformers import CONFIG_MAPPING

    family = raw["model_type"]
    if family in FAMILIES:
        register()
    if family not in CONFIG_MAPPING:
        code = " with code of its own, which headscope never runs" if "auto_map" in raw else ""
        raise CheckpointError(
            f"unsupported family {family!r}{code} ({where}): this transformers does not know it",
            hint="update transformers if the family is new; headscope opens what transformers has built in",
        )
    check_method(raw, where)
    check_depth(raw, where)
    # A checkpoint must not make transformers fetch or run anything.
    safe_config = {key: value for key, value in raw.items() if key not in _DROPPED}
    try:
        with quiet():
            return CONFIG_MAPPING[family].from_dict(safe_config)
    except Exception as error:
        raise _unusable(where, error) from error


_DROPPED = (
    "auto_map", "attn_implementation", "_attn_implementation", "_attn_implementation_internal",
    "experts_implementation", "_experts_implementation", "transformers_weights", "fusion_config",
    "distributed_config", "custom_pipelines", "_name_or_path", "dtype", "torch_dtype", "quantization_config",
)  # fmt: skip


def model_class(config: Any, where: str) -> Any:
    """The class that `architectures` names, else the usual class of the family."""
    import transformers

    class_names = getattr(config, "architectures", None)
    for name in class_names if isinstance(class_names, list) else ():
        candidate: Any = getattr(transformers, name, None) if isinstance(name, str) else None
        if _is_model(candidate):
            config_class = getattr(candidate, "config_class", None)
            if config_class is not None and not isinstance(config, config_class):
                raise CheckpointError(
                    f"{where}: architectures names {name}, which is not of the family {config.model_type!r}",
                    hint="model_type and architectures must belong together",
                )
            return candidate
    for mapping in _mappings(config):
        if type(config) in mapping:
            return mapping[type(config)]
    raise CheckpointError(
        f"{where}: transformers has no model for the family {config.model_type!r}",
        hint="headscope opens text models of families that transformers has built in",
    )


def _is_model(candidate: Any) -> bool:
    """Whether this is a concrete model of transformers, not one of the base classes."""
    from transformers import PreTrainedModel

    if not isinstance(candidate, type) or not issubclass(candidate, PreTrainedModel):
        return False
    return getattr(candidate, "forward", None) is not torch.nn.Module.forward


def base_class(config: Any) -> Any:
    """The model class of the family without a head, or None."""
    from transformers import MODEL_MAPPING

    classes = MODEL_MAPPING.get(type(config), None)
    return classes[0] if isinstance(classes, tuple | list) else classes


def empty_model(cls: Any, config: Any, where: str) -> Any:
    """The model without memory for its weights, so that its needs can be counted."""
    try:
        with quiet(), torch.random.fork_rng(devices=[]), torch.device("meta"):
            return cls._from_config(copy.deepcopy(config))
    except Exception as error:
        raise build_error(cls, where, error) from error


def build_error(cls: Any, where: str, error: Exception) -> CheckpointError | ResourceError:
    """The error of headscope for an error of transformers while building a model."""
    if isinstance(error, MemoryError) or "allocate" in str(error):
        return ResourceError(f"not enough memory to build {cls.__name__} from {where}", hint="try dtype float16")
    return CheckpointError(
        f"transformers cannot build {cls.__name__} from {where}: {reason(error)}",
        hint="config.json and weights may not belong together, or a value in config.json is damaged",
    )


def attention_of(cls: Any, config: Any) -> str:
    """The attention of a class: `sdpa` where it is correct, else `eager`.

    sdpa ignores a softcap on the scores.
    """
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    softcap = getattr(text, "attn_logit_softcapping", None)
    return "sdpa" if getattr(cls, "_supports_sdpa", False) and softcap is None else "eager"


def _mappings(config: Any) -> tuple[Any, ...]:
    from transformers import (
        MODEL_FOR_CAUSAL_LM_MAPPING,
        MODEL_FOR_MASKED_LM_MAPPING,
        MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
        MODEL_MAPPING,
    )

    if getattr(config, "is_encoder_decoder", False):
        return (MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING, MODEL_MAPPING)
    # BERT and its kin are in both mappings; they are encoders unless their config says otherwise.
    if getattr(config, "is_decoder", False):
        return (MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING)
    return (MODEL_FOR_MASKED_LM_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING)


def check_depth(raw: Mapping[Any, Any], where: str) -> None:
    """Refuse an absurd number of layers or labels anywhere in the configuration."""
    for key, value in raw.items():
        if isinstance(value, dict):
            check_depth(value, f"{where}, {key}")
            continue
        most = _MAX_LABELS if key == "num_labels" else _MAX_LAYERS
        counts = "layers" in str(key) or key in ("n_layer", "depth", "num_labels")
        if counts and isinstance(value, int) and value > most:
            raise CheckpointError(
                f"{where}: {key} is {value}, expected at most {most}", hint="the configuration is damaged"
            )


def _unusable(where: str, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"{where}: transformers cannot use this configuration: {reason(error)}",
        hint="compare config.json with the original",
    )
