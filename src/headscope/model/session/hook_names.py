"""The names of TransformerLens for the same places.

Whoever knows `blocks.5.attn.hook_pattern` need not learn another name: hooks are accepted wherever a quantity is named,
and docs/transformer-lens.md sets the two side by side. Tensors keep headscope's axes: heads before positions.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from headscope.core.selection import Selection
from headscope.core.site import Site
from headscope.errors import UsageError

# By hook inside a block: the quantity of the same meaning.
BLOCK_HOOKS: dict[str, str] = {
    "hook_resid_pre": "resid",
    "ln1.hook_scale": "x_scale",
    "ln1.hook_normalized": "x",
    "attn.hook_q": "q",
    "attn.hook_k": "k",
    "attn.hook_v": "v",
    "attn.hook_rot_q": "q",
    "attn.hook_rot_k": "k",
    "attn.hook_attn_scores": "scores",
    "attn.hook_pattern": "pattern",
    "attn.hook_z": "z",
    "attn.hook_result": "head_out",
    "hook_attn_out": "attn_add",
    "hook_resid_mid": "resid_mid",
    "ln2.hook_scale": "mlp_scale",
    "ln2.hook_normalized": "mlp_in",
    "hook_mlp_in": "mlp_in",
    "mlp.hook_post": "mlp_act",
    "hook_mlp_out": "mlp_add",
    "hook_resid_post": "resid_post",
}
# Hooks outside the blocks.
MODEL_HOOKS: dict[str, str] = {
    "hook_embed": "embed",
    "ln_final.hook_scale": "final_scale",
    "hook_logits": "logits",
}
_BLOCK = re.compile(r"blocks\.(\d{1,4})\.(.+)")


def quantity_of_hook(hook: str) -> tuple[str, int | None] | None:
    """The quantity and the layer of a hook; None where it is no hook, no layer where it stands outside the blocks."""
    match = _BLOCK.fullmatch(hook)
    if match is None:
        return (MODEL_HOOKS[hook], None) if hook in MODEL_HOOKS else None
    quantity = BLOCK_HOOKS.get(match[2])
    return None if quantity is None else (quantity, int(match[1]))


def expanded_hooks(
    quantities: Sequence[str | Callable[[str], bool]], at: Any, sites: Sequence[Site], shown: frozenset[str]
) -> tuple[tuple[str, ...], Any]:
    """Names of quantities and where they are, for names, hooks and filter functions.

    Raises:
        UsageError: A hook has no counterpart, or hooks of several layers are mixed with a selection.
    """
    names: list[str] = []
    layers: set[int] = set()
    for entry in quantities:
        if callable(entry):
            chosen = [(site, name) for site in sites for name in sorted(shown) if entry(f"{site.label}.{name}")]
            if not chosen:
                raise UsageError(
                    "the function chose no place", hint=f"it is called with names like {sites[0].label}.pattern"
                )
            names += [name for _, name in chosen]
            layers |= {site.layer for site, _ in chosen}
            continue
        hook = quantity_of_hook(entry) if "hook_" in entry else None
        if "hook_" in entry and hook is None:
            raise UsageError(
                f"{entry!r} has no counterpart here", hint="docs/transformer-lens.md lists the hooks and their names"
            )
        names.append(entry if hook is None else hook[0])
        if hook is not None and hook[1] is not None:
            layers.add(hook[1])
    unique = tuple(dict.fromkeys(names))
    if not layers:
        return unique, at
    if at is not None:
        raise UsageError("the names already say which layers", hint="leave out at=, or give names without layers")
    return unique, Selection.at(layers=layers)
