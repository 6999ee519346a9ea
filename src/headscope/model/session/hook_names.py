"""The names of TransformerLens for the same places.

Whoever knows `blocks.5.attn.hook_pattern` need not learn another name: hooks are accepted wherever a quantity is named,
and docs/transformer-lens.md sets the two side by side. Tensors keep headscope's axes: heads before positions. The names
are those of `HookedTransformer` and of `TransformerBridge`. A hook that only resembles a quantity is refused with the
reason, not taken for it.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headscope.core.site import Site
from headscope.errors import UsageError

_Located = tuple[str, frozenset[Site] | None]  # a quantity, and its sites where the name says them


@dataclass(frozen=True)
class Hook:
    """The quantity that a hook is here, and what differs besides the order of axes."""

    quantity: str
    differs: str = ""


_GROUPED = "each key/value head once, as there without `ungroup_grouped_query_attention`"
_NOT_ROTARY = "also where positions are not rotary"
# By hook inside a block: the quantity of the same meaning.
BLOCK_HOOKS: dict[str, Hook] = {
    "hook_resid_pre": Hook("resid"),
    "ln1.hook_scale": Hook("x_scale"),
    "ln1.hook_out": Hook(
        "x", "a change reaches the attention alone, also where the feed-forward part reads the same norm"
    ),
    "attn.hook_q": Hook("q_proj"),
    "attn.hook_k": Hook("k_proj", _GROUPED),
    "attn.hook_v": Hook("v", _GROUPED),
    "attn.hook_rot_q": Hook("q", _NOT_ROTARY),
    "attn.hook_rot_k": Hook("k", f"{_NOT_ROTARY}; {_GROUPED}"),
    "attn.hook_attn_scores": Hook("scores", "before the mask: hidden pairs have scores too, there −∞"),
    "attn.hook_pattern": Hook("pattern"),
    "attn.hook_z": Hook("z"),
    "attn.hook_result": Hook("head_out", "needs no `use_attn_result`"),
    "attn.hook_out": Hook("attn_out"),
    "hook_attn_out": Hook("attn_add"),
    "hook_resid_mid": Hook(
        "resid_mid", "a change reaches all later readers; with `TransformerBridge` the next norm alone"
    ),
    "ln2.hook_scale": Hook("mlp_scale"),
    "ln2.hook_out": Hook("mlp_in"),
    "mlp.hook_in": Hook("mlp_in"),
    "mlp.hook_post": Hook("mlp_act"),
    "mlp.hook_out": Hook("mlp_out"),
    "hook_mlp_out": Hook("mlp_add"),
    "hook_resid_post": Hook("resid_post"),
    "hook_in": Hook("resid"),
    "hook_out": Hook("resid_post"),
}
# Hooks outside the blocks.
MODEL_HOOKS: dict[str, Hook] = {
    "hook_embed": Hook("embed"),
    "embed.hook_out": Hook("embed"),
    "ln_final.hook_scale": Hook("final_scale"),
    "unembed.hook_out": Hook("logits"),
    "hook_unembed": Hook("logits"),
}
# Hooks that are no quantity here, and what to use in their place; of a block, or of the model.
_READER = "it is what one reader alone gets of the stream: read `{}`, and change it by `session.patch_path`"
_NORMALISED = "it is before the gain of the norm in some versions and after it in others: take `{}`, which is after it"
OTHER_HOOKS: dict[str, str] = {
    "hook_attn_in": _READER.format("resid"),
    "hook_q_input": _READER.format("resid"),
    "hook_k_input": _READER.format("resid"),
    "hook_v_input": _READER.format("resid"),
    "hook_mlp_in": _READER.format("resid_mid"),
    "ln1.hook_normalized": _NORMALISED.format("x"),
    "ln2.hook_normalized": _NORMALISED.format("mlp_in"),
    "mlp.hook_pre": "what enters the activation function is not captured: take `mlp_in` or `mlp_act`",
    "mlp.hook_pre_linear": "what enters the activation function is not captured: take `mlp_in` or `mlp_act`",
    "hook_pos_embed": "what is added for positions is `resid` of the first layer less `embed`",
    "ln_final.hook_normalized": "take `final` and `final_scale`: the norm divides the one by the other",
}
_BLOCK = re.compile(r"blocks\.(\d{1,4})\.(.+)")


def quantity_of_hook(name: str) -> tuple[str, int | None] | None:
    """The quantity and the layer of a hook; None where it is no hook, no layer where it stands outside the blocks.

    Raises:
        UsageError: The hook has no counterpart.
    """
    if "hook_" not in name:
        return None
    match = _BLOCK.fullmatch(name)
    hook = MODEL_HOOKS.get(name) if match is None else BLOCK_HOOKS.get(match[2])
    if hook is None:
        reason = OTHER_HOOKS.get(name if match is None else match[2])
        raise UsageError(
            f"{name!r} has no counterpart here" + ("" if reason is None else f": {reason}"),
            hint="docs/transformer-lens.md lists the hooks and their names",
        )
    return hook.quantity, None if match is None else int(match[1])


@dataclass(frozen=True)
class Named:
    """Names of quantities, and the sites of those for which a hook or a function says where they are."""

    names: tuple[str, ...]
    sites: Mapping[str, frozenset[Site]]


def expanded_names(
    quantities: Sequence[str | Callable[[str], bool]],
    at: Any,
    sites: Sequence[Site],
    places: Callable[[], Iterable[tuple[Site, str]]],
) -> Named:
    """Names of quantities for names, hooks and functions; `places` lists what a function is asked about.

    Raises:
        UsageError: A hook has no counterpart, a function chooses nothing, or names say where and so does a selection.
    """
    sites_by_name: dict[str, frozenset[Site] | None] = {}
    for entry in quantities:
        for name, where in _of_function(entry, places()) if callable(entry) else [_of_name(entry, sites)]:
            before = sites_by_name.get(name, frozenset())
            sites_by_name[name] = None if before is None or where is None else before | where
    located = {name: where for name, where in sites_by_name.items() if where is not None}
    if located and at is not None:
        raise UsageError(
            "the names say which layers, and so does the selection",
            hint="leave out the selection, or give names without layers",
        )
    return Named(tuple(sites_by_name), located)


def _of_name(name: str, sites: Sequence[Site]) -> _Located:
    hook = quantity_of_hook(name)
    if hook is None or hook[1] is None:
        return name if hook is None else hook[0], None
    where = frozenset(site for site in sites if site.layer == hook[1])
    if not where:
        raise UsageError(f"{name!r}: this model has the layers 0 … {max(site.layer for site in sites)}")
    return hook[0], where


def _of_function(chooses: Callable[[str], bool], places: Iterable[tuple[Site, str]]) -> list[_Located]:
    offered = [(f"{site.label}.{name}", site, name) for site, name in places]
    chosen_places: list[_Located] = [(name, frozenset([site])) for label, site, name in offered if chooses(label)]
    if not chosen_places:
        raise UsageError(
            "the function chose no place", hint=f"it was asked about {len(offered)} names like {offered[0][0]}"
        )
    return chosen_places
