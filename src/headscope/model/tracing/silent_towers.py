"""Finds the towers of a multimodal model that no measurement reaches."""

from typing import Any

from headscope.core.site import Site
from headscope.model.formats.completeness import names as listed
from headscope.model.transformers.probe_inputs import read_by


def silent_towers(hf: Any, sites: tuple[Site, ...]) -> tuple[str, ...]:
    """One sentence for each kind of tower that attends but holds no site.

    For instance the vision tower of a model that is run on text. A tower is a module with a configuration of its own
    class; encoder and decoder share the model's.
    """
    names_by_kind: dict[str, list[str]] = {}
    for name, module in hf.named_modules():
        inside = any(name.startswith(f"{outer}.") for names in names_by_kind.values() for outer in names)
        if name and not inside and _is_tower(module, hf) and not _holds_site(name, sites) and _attends(module):
            names_by_kind.setdefault(type(module).__name__, []).append(name)
    reason = (
        "because headscope runs this model on tokens alone"
        if read_by(hf) == ("input_ids",)
        else "because headscope sees no map of it in a forward of this model"
    )
    return tuple(f"not measured, {reason}: {listed(names)} ({kind})" for kind, names in names_by_kind.items())


def _is_tower(module: Any, hf: Any) -> bool:
    from transformers import PreTrainedConfig

    config = getattr(module, "config", None)
    return isinstance(config, PreTrainedConfig) and type(config) is not type(hf.config)


def _holds_site(name: str, sites: tuple[Site, ...]) -> bool:
    return any(site.module == name or site.module.startswith(f"{name}.") for site in sites)


def _attends(module: Any) -> bool:
    return any("attention" in type(inner).__name__.lower() for inner in module.modules())
