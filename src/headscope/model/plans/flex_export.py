"""Writes a plan as a module of mask functions for torch's FlexAttention.

Each mechanism writes its own mask (`Mechanism.flex_mask`); the rest of the module is the source of `flex_runtime`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headscope.attention.mechanism_rules import Heads
from headscope.core.selection import selection_text
from headscope.core.site import Site
from headscope.errors import UsageError
from headscope.files import Destination, write_file
from headscope.model.plans.plan import Plan

if TYPE_CHECKING:
    from headscope.attention.flex_mask import FlexMask
    from headscope.model.model import Model

LONGEST = 1 << 15  # positions that tables cover where the model states no context
_RUNTIME = Path(__file__).with_name("flex_runtime.py")
_WRITING = Destination(
    "cannot write the masks {path}: {reason}", "name another file", refusal="cannot write the masks {path}: {reason}"
)
_INDENT = " " * 4


def write_flex_module(plan: Plan, model: "Model", file: str | Path) -> None:
    """Write the masks of a plan for a model into a file, in one step.

    Raises:
        UsageError: A mechanism is no mask, or the model has attention that the module cannot describe.
    """
    write_file(Path(file), flex_source(plan, model).encode(), _WRITING)


def flex_source(plan: Plan, model: "Model") -> str:
    """The source of the module.

    Properties:
        - run alone, it gives what `apply` gives  (tested: test_an_exported_plan_runs_without_headscope)
        - mechanisms that are no masks are refused with the heads and the reason  (tested: test_what_is_no_mask)
    """
    plan.check_model(model)
    _check_sites(model)
    heads_by_mechanism = plan.heads(model.sites)
    masks = _masks(heads_by_mechanism, model)
    limits = [mask.positions for mask in masks.values() if mask.positions is not None]
    section = [
        f"# The mechanisms of the plan, by number: `q` and `k` are positions of queries and keys in the text.\n"
        f"{_numbered(masks)}\n\n",
        f"NAME = {_name(plan)!r}",
        f"LAYERS = {_layers(model.sites, heads_by_mechanism)}",
        f"MASKS = {{{', '.join(f'{number}: mask_{number}' for number in range(1, len(masks) + 1))}}}",
        f"POSITIONS = {min(limits) if limits else None}  # that the masks reach over; None is no limit",
        f"REPAIR = {None if plan.repair is None else plan.repair.sha256!r}  # sha256 of the plan's own weights",
    ]
    runtime = _RUNTIME.read_text(encoding="utf-8")
    imports = runtime[runtime.index("import hashlib") : runtime.index("# <plan>")]
    functions = runtime[runtime.index("# </plan>") + len("# </plan>\n") :]
    return f'"""{_description(plan, model)}"""\n\n{imports}{chr(10).join(section)}\n{functions}'


def _check_sites(model: "Model") -> None:
    """Refuse models whose attention the module cannot describe."""
    modules = [site.module for site in model.sites]
    for site in model.sites:
        if site.stack != "only" or site.kind != "self":
            reason = "it has several stacks, and layers are named by their number"
        elif refused := [extra for extra in site.extras if extra != "softcap"]:
            reason = f"the scores of {site.label} hold {' and '.join(refused)}"
        elif site.window is not None and not site.causal:
            reason = f"{site.label} has a window of its own on both sides"
        elif modules.count(site.module) > 1 or not model.dispatches:
            reason = f"{site.label} has no module of its own that transformers calls by name"
        else:
            continue
        raise UsageError(f"a plan for {model.spec.name} cannot be written for FlexAttention: {reason}")


def _masks(heads_by_mechanism: Mapping[str, Heads], model: "Model") -> dict[str, "FlexMask"]:
    """The mask of each mechanism, by its spelling."""
    from headscope.attention.flex_mask import FlexMask
    from headscope.attention.mechanism_spelling import spelled

    n = model.spec.context or LONGEST
    masks: dict[str, FlexMask] = {}
    refusals = []
    for spelling, heads_by_site in heads_by_mechanism.items():
        mask = spelled(spelling).flex_mask(n, causal=all(site.causal for site in heads_by_site))
        if isinstance(mask, FlexMask):
            masks[spelling] = mask
        else:
            refusals.append(f"{selection_text(heads_by_site)} attend through {spelling}: {mask}")
    if refusals:
        raise UsageError(
            f"this plan cannot be written for FlexAttention. {'; '.join(refusals)}",
            hint="give these heads a mechanism that is a mask of positions: window, band_sparse, longformer, bigbird",
        )
    return masks


def _numbered(masks: Mapping[str, "FlexMask"]) -> str:
    """A function for each mask, which makes its tables on a device."""
    functions = []
    for number, (spelling, mask) in enumerate(masks.items(), start=1):
        lines = [f"def mask_{number}(device: Any) -> Allows:", f'"""{spelling}"""']
        lines += [f"{name} = {_table(table)}" for name, table in mask.tables.items()]
        lines.append(f"return lambda q, k: {mask.expression}")
        functions.append("\n".join([lines[0], *(_INDENT + line for line in lines[1:])]))
    return "\n\n\n".join(functions)


def _table(table: object) -> str:
    """A tensor of one axis as source."""
    import torch

    if not isinstance(table, torch.Tensor):
        raise TypeError(f"a table is a tensor, got {table!r}")
    ending = ".bool()" if table.dtype == torch.bool else ""
    return f"torch.tensor({table.long().tolist()}, device=device){ending}"


def _layers(sites: Sequence[Site], heads_by_mechanism: Mapping[str, Heads]) -> str:
    """The layers as source, a line for each."""
    lines = []
    for site in sites:
        masks = [0] * site.n_heads
        for number, heads_by_site in enumerate(heads_by_mechanism.values(), start=1):
            for head in heads_by_site.get(site, ()):
                masks[head] = number
        window = "" if site.window is None else f", window={site.window}"
        lines.append(f"{_INDENT}{site.layer}: Layer({site.module!r}, {tuple(masks)}, causal={site.causal}{window}),")
    return "\n".join(["{", *lines, "}"])


def _name(plan: Plan) -> str:
    """A name for transformers, another one for another plan."""
    from headscope.files import sha256_of

    # It must not contain "flex", "sdpa" or "flash", which transformers treats specially.
    return f"exported_plan_{sha256_of(plan.text('weights').encode())[:12]}"


def _description(plan: Plan, model: "Model") -> str:
    weights = plan.model.get("weights", "")
    made_for = f"{model.spec.name} ({model.spec.architecture}{f', weights {weights}' if weights else ''})"
    install = "install(model)                " if plan.repair is None else 'install(model, "…_repair.safetensors")'
    return f"""Mask functions for torch's FlexAttention: which heads of a model see which keys.

Model: {made_for}
Written by headscope, which it does not need. Tested with torch 2.13 and, for `install`, transformers 5.23.

    {install}  # a model of transformers attends by the plan, also with a cache and with padding
    mask_mod(layer, device)         # the mask function of a layer, for torch.nn.attention.flex_attention
    block_mask(layer, n, device=…)  # its block mask for n tokens

On the CPU flex_attention runs uncompiled; on other devices attention and block masks are compiled at their first call.
"""
