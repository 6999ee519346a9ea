"""A model and its attention in a few words, for cards, notebooks and the terminal."""

from collections.abc import Sequence
from pathlib import PurePath

from headscope.core.card import Card
from headscope.core.model_spec import ModelSpec
from headscope.core.numbers import count, counted, ranges
from headscope.core.site import Site

_STACKS = {"enc": "encoder ", "dec": "decoder ", "only": "", "text": "text ", "image": "image ", "sound": "sound "}


_HEADING_PARTS = 3  # of the path of a folder: DIR/training/best


def model_heading(model: ModelSpec) -> str:
    """The name of a model above its report; of a folder's whole path the last parts."""
    path = PurePath(model.name)
    is_long = path.is_absolute() and len(path.parts) > _HEADING_PARTS + 1
    return "…/" + "/".join(path.parts[-_HEADING_PARTS:]) if is_long else model.name


def model_card(model: ModelSpec, sites: Sequence[Site]) -> Card:
    """The card of an opened model: one line, its sites, and what its numbers have to be read with."""
    context = "" if model.context is None else f", context {count(model.context)} tokens"
    lead = (f"{head_count(sites)}{context}", *site_lines(sites))
    return Card(f"model {model_line(model)}", lead=lead, end=tuple(filter(None, (model.weight_warning, *model.notes))))


def model_line(model: ModelSpec) -> str:
    """The model in one line: `smollm2: LlamaForCausalLM, decoder-only, 135 million parameters`."""
    weights = f"expanded from {model.dequantised}" if model.dequantised else ""
    device = f"on {model.device}" if model.device != "cpu" else ""
    size = f"{amount(model.n_parameters)} parameters in {model.dtype}"
    return f"{model.name}: " + ", ".join(filter(None, (model.architecture, model.kind, size, weights, device)))


def site_lines(sites: Sequence[Site]) -> tuple[str, ...]:
    """One line for the attention sites of a kind; it names their layers."""
    layers_of: dict[tuple[str, str], list[int]] = {}
    for site in sites:
        layers_of.setdefault(_description(site), []).append(site.layer)
    return tuple(
        f"{place} in {'layer' if len(set(layers)) == 1 else 'layers'} {ranges(layers)}: {features}"
        for (place, features), layers in layers_of.items()
    )


def head_count(sites: Sequence[Site]) -> str:
    """How many heads and sites there are: `270 heads at 30 sites`."""
    n_heads = sum(site.n_heads for site in sites)
    return f"{counted(n_heads, 'head')} at {counted(len(sites), 'site')}"


def amount(n: int) -> str:
    """A large number in words: `135 million`."""
    for size, name in ((10**9, "billion"), (10**6, "million")):
        if n >= size:
            return f"{n / size:.3g} {name}"
    return count(n)


def _description(site: Site) -> tuple[str, str]:
    """Stack and kind of a site, and what distinguishes it from others of its kind."""
    kv_heads = f" on {counted(site.n_kv_heads, 'key/value head')}" if site.n_heads != site.n_kv_heads else ""
    values = f", values {site.d_value}" if site.d_head != site.d_value else ""
    visible_keys = "causal" if site.causal else "sees everything" if site.window is None else ""
    window = f"window {site.window}" if site.window is not None else ""
    features = [
        f"{counted(site.n_heads, 'head')}{kv_heads} of size {site.d_head}{values}",
        visible_keys,
        window,
        *site.extras,
    ]
    return f"{_STACKS[site.stack]}{site.kind}-attention", ", ".join(part for part in features if part)
