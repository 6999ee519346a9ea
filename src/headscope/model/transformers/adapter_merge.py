"""Merges active adapters: the changes of peft go into the weights of the layers.

A layer with an adapter computes x (W + ΔW) (for LoRA ΔW = B A · scale). Merging writes W + ΔW into the plain layer, so
that every number about the weights is about the effective ones. Each merged layer is compared with the adapted one on
random inputs, and an adapter that does not change weights (virtual tokens, for instance) is refused.
"""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from headscope.errors import CheckpointError, ResourceError
from headscope.model.formats.adapter import Adapter
from headscope.model.formats.adapter_folder import WEIGHTS
from headscope.model.formats.completeness import n_numbers
from headscope.model.formats.completeness import names as listed
from headscope.model.formats.memory import check_memory
from headscope.model.rounding import is_narrow
from headscope.model.transformers.library_messages import quiet, reason

INSTALL = "pip install peft (or headscope[adapters])"
_MEASURABLE = "headscope measures adapters that change weights, such as LoRA"
_NAME = "default"
_ROWS = 4


def merge_adapter(model: Any, adapter: Adapter) -> str:
    """Merge an adapter from disk into a model that we may change.

    Returns a note for the user. Raises `ResourceError` without peft, and `CheckpointError` where adapter and model do
    not match.
    """
    peft, where = _peft(f"{adapter.folder} holds an adapter ({adapter.method})"), str(adapter.folder)
    tensors = adapter.tensors()
    try:
        with quiet(), torch.random.fork_rng(devices=[]):
            config = peft.PeftConfig.from_pretrained(where)
            _check_method(config, where)
            adapted = peft.PeftModel(model, config, adapter_name=_NAME).eval()
            # Not the keys missing from the whole model: some methods compute tensors anew or share one among layers.
            expected_names = set(
                peft.get_peft_model_state_dict(adapted, adapter_name=_NAME, save_embedding_layers=False)
            )
            result = peft.set_peft_model_state_dict(adapted, tensors, adapter_name=_NAME)
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"peft cannot put the adapter {where} into {type(model).__name__}: {reason(error)}",
            hint="the adapter may be of another base model, or of a newer version of peft",
        ) from error
    _check_fit(result, expected_names - set(tensors), model, where)
    _merge_layers(model, where)
    kind = f"{adapter.method}, rank {config.r}" if isinstance(getattr(config, "r", None), int) else adapter.method
    return (
        f"the adapter {adapter.folder.name} ({kind}, sha256 {adapter.sha256()[:16]}…) is merged into the weights: "
        "what is measured is the adapted model"
    )


def plain_model(hf: Any) -> tuple[Any, tuple[str, ...]]:
    """The model without adapter modules, and notes.

    The model itself, or a copy with its active adapters merged.
    """
    is_wrapped = type(hf).__module__.startswith("peft.")
    inner = hf.get_base_model() if is_wrapped and hasattr(hf, "get_base_model") else hf
    if not is_wrapped and not getattr(hf, "_hf_peft_config_loaded", False):
        return hf, ()
    _peft("this model holds an adapter")
    where = f"this {type(hf).__name__}"
    configs = getattr(hf, "peft_config", {})
    for config in configs.values() if isinstance(configs, dict) else ():
        _check_method(config, where)
    check_memory(n_numbers(inner), inner.dtype, where)
    merged = copy.deepcopy(inner)
    active = _merge_layers(merged, where)
    verb = f"the adapter {listed(active)} is" if len(active) == 1 else f"the adapters {listed(active)} are"
    if not active:
        return merged, ("the adapters of this model are switched off: a copy of the base model is measured",)
    return merged, (f"{verb} merged into a copy of the model: what is measured is the adapted model",)


def _peft(finding: str) -> Any:
    try:
        import peft
    except ImportError as error:
        raise ResourceError(f"{finding}, and peft, which applies it, is not installed", hint=INSTALL) from error
    return peft


def _check_method(config: Any, where: str) -> None:
    """Refuse an adapter that does not change weights."""
    if config.is_prompt_learning or config.is_adaption_prompt:
        method = str(config.peft_type).rpartition(".")[2]
        raise CheckpointError(
            f"{where}: an adapter of the method {method} adds inputs of its own, so no weights W + ΔW describe it",
            hint=f"{_MEASURABLE}; open the base model to measure it alone",
        )


def _check_fit(result: Any, missing: set[str], model: Any, where: str) -> None:
    """Refuse an adapter file with a tensor that has no place, or with one `missing`."""
    if strange := set(result.unexpected_keys):
        raise CheckpointError(
            f"{where}: {len(strange)} of its tensors have no place in {type(model).__name__}: {listed(strange)}",
            hint="the adapter is of another base model",
        )
    if missing:
        raise CheckpointError(
            f"{where} lacks {len(missing)} tensors that its settings ask for: {listed(missing)}",
            hint=f"adapter_config.json and {WEIGHTS} do not belong together",
        )


def _merge_layers(model: nn.Module, where: str) -> tuple[str, ...]:
    """Replace each adapted layer by a plain one with W + ΔW.

    Returns the names of the active adapters.
    """
    active: dict[str, None] = {}
    with quiet(), torch.no_grad():
        _untie(model)
        for name, layer in list(_adapted_layers(model)):
            try:
                plain, adapters = _merge_layer(layer, f"{where}: {name}")
            except CheckpointError:
                raise
            except Exception as error:
                raise CheckpointError(
                    f"{where}: peft cannot merge its adapter into {name} ({type(layer).__name__}): {reason(error)}",
                    hint="merge it yourself and save the result, where the method allows that",
                ) from error
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, plain)
            active |= dict.fromkeys(adapters)
    for attribute in ("peft_config", "_hf_peft_config_loaded"):
        model.__dict__.pop(attribute, None)
    return tuple(active)


def _adapted_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """The outermost modules of peft around layers of the model."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    outer: list[str] = []
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{other}.") for other in outer)
        if isinstance(module, BaseTunerLayer | AuxiliaryTrainingWrapper) and not inside:
            outer.append(name)
            yield name, module


def _merge_layer(layer: Any, where: str) -> tuple[Any, tuple[str, ...]]:
    """The plain layer that computes the same as the adapted one, and its adapters."""
    dtype = _base_of(layer).weight.dtype if isinstance(getattr(_base_of(layer), "weight", None), Tensor) else None
    if dtype is not None and is_narrow(dtype):
        # In a narrow dtype rounding would hide a difference; and W + ΔW is rounded once, at the end.
        layer.float()
    inputs = _random_inputs(layer, where)
    expected = layer(inputs).double()
    adapters = () if layer.disable_adapters else tuple(layer.active_adapters)
    if not adapters:
        plain = _switched_off(layer)
    elif hasattr(layer, "unload_and_optionally_merge_module"):
        plain = layer.unload_and_optionally_merge_module(merge=True, safe_merge=True, adapter_names=None)
    else:
        layer.merge(safe_merge=True)
        plain = layer.get_base_layer()
    error = float((plain(inputs).double() - expected).abs().max() / expected.abs().max().clamp(min=1e-30))
    tolerance = 64 * torch.finfo(plain.weight.dtype).eps  # one rounding of each weight, summed over a row
    if not error <= tolerance:
        raise CheckpointError(
            f"{where}: the merged layer differs from the adapted one by {error:.1e} (relative, tolerance "
            f"{tolerance:.1e}), so its adapter is no change of weights",
            hint=_MEASURABLE,
        )
    return plain.to(dtype), adapters


def _switched_off(layer: Any) -> Any:
    if hasattr(layer, "original_module"):
        return layer.original_module
    if getattr(layer, "merged", False):
        layer.unmerge()
    return layer.get_base_layer()


def _base_of(layer: Any) -> Any:
    """The layer of the base model inside the modules of peft."""
    while (inner := getattr(layer, "base_layer", getattr(layer, "original_module", None))) is not None:
        layer = inner
    return layer


def _random_inputs(layer: Any, where: str) -> Tensor:
    base = _base_of(layer)
    generator = torch.Generator().manual_seed(0)
    weight = getattr(base, "weight", None)
    if isinstance(base, nn.Embedding):
        return torch.randint(base.num_embeddings, (1, 16 * _ROWS), generator=generator).to(base.weight.device)
    if isinstance(weight, Tensor) and weight.ndim <= 2 and not isinstance(base, nn.modules.conv._ConvNd):
        width = weight.shape[-1] if isinstance(base, nn.Linear) else weight.shape[0]
        return torch.randn(1, _ROWS, width, generator=generator).to(weight)
    raise CheckpointError(
        f"{where} is a {type(base).__name__} with an adapter, which headscope cannot check after merging",
        hint="headscope merges adapters of linear layers, embeddings and norms",
    )


def _untie(model: Any) -> None:
    """Give an adapted layer its own weights; the tied layer keeps the base model's."""
    uses: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    for _, layer in _adapted_layers(model):
        for module in layer.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if uses[id(parameter)] > 1:
                    setattr(module, name, nn.Parameter(parameter.detach().clone(), requires_grad=False))
                    model.config.tie_word_embeddings = False
