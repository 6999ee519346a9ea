"""Finds the feed-forward matrices of each layer, without a table of families.

A layer is the part of the model around an attention module that holds no other layer's attention. Apart from attention
it multiplies by matrices in pairs: one widens from d_model to some width (or to twice that, where it includes a gate),
another comes back. A matrix without such a partner (a router, a gate of one number) is not a feed-forward matrix. A
layer without attention, as hybrids have, contributes the modules that have the same names as in layers with attention.
Only names and shapes are read, so a model without weights is enough.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from headscope.core.site import Site
from headscope.core.weights import FeedForward
from headscope.model.tracing.linear_modules import is_linear
from headscope.model.tracing.projections import Plan
from headscope.model.transformers.layers import enclosing_names


@dataclass(frozen=True)
class FeedForwardMatrices:
    """Every feed-forward matrix in layer order, and sentences about those left out."""

    matrices: tuple[FeedForward, ...]
    notes: tuple[str, ...] = ()


def find_feed_forward(model: nn.Module, plans: dict[Site, Plan]) -> FeedForwardMatrices:
    """The feed-forward matrices of a model, real or on the meta device."""
    sites = tuple(plans)
    projections = {
        part.module for plan in plans.values() if (parts := plan.projections) for part in vars(parts).values()
    }
    matrices: list[FeedForward] = []
    sites_by_bank: dict[str, list[Site]] = {}
    sites_without: list[Site] = []
    blocks: dict[str, Site] = {}
    for site in _one_per_layer(sites):
        block, linears = _block(model, site, sites, projections)
        blocks[block] = site
        matrices += [
            FeedForward(site.stack, site.layer, name.removeprefix(f"{block}."), name, _sizes(linear))
            for name, linear in linears.items()
        ]
        banks = list(_banks(model, block, _attention(model, block, sites)))
        for bank in banks:
            sites_by_bank.setdefault(bank.removeprefix(f"{block}."), []).append(site)
        if not linears and not banks:
            sites_without.append(site)
    matrices += _without_attention(model, blocks, matrices)
    ordered = sorted(matrices, key=lambda matrix: ([site.stack for site in sites].index(matrix.stack), matrix.layer))
    return FeedForwardMatrices(tuple(ordered), (*_stacked_notes(sites_by_bank), *_bare_notes(sites_without)))


def _without_attention(model: nn.Module, blocks: dict[str, Site], matrices: list[FeedForward]) -> Iterator[FeedForward]:
    """The modules outside `blocks` that have the names of feed-forward modules inside."""
    lists = {block.rpartition(".")[0]: site.stack for block, site in blocks.items()}
    numbered = all(block.rpartition(".")[2] == str(site.layer) for block, site in blocks.items())
    for parent, stack in lists.items() if numbered else ():
        names = dict.fromkeys(matrix.name for matrix in matrices if matrix.stack == stack)
        for number, layer in model.get_submodule(parent).named_children():
            inner = dict(layer.named_modules()) if f"{parent}.{number}" not in blocks and number.isdigit() else {}
            same = {name: inner[name] for name in names if name in inner and is_linear(inner[name])}
            for name, linear in _pairs(same).items():
                yield FeedForward(stack, int(number), name, f"{parent}.{number}.{name}", _sizes(linear))


def _stacked_notes(sites_by_bank: dict[str, list[Site]]) -> Iterator[str]:
    if sites_by_bank:
        layers = list(dict.fromkeys(_layer(site) for sites in sites_by_bank.values() for site in sites))
        yield (
            f"Left out: the experts of {_count(layers)} (first {layers[0]}), which are kept as one stack of matrices "
            f"({', '.join(sites_by_bank)})."
        )


def _bare_notes(sites_without: list[Site]) -> Iterator[str]:
    if sites_without:
        labels = ", ".join(_layer(site) for site in sites_without[:4]) + (" …" if len(sites_without) > 4 else "")
        yield f"No feed-forward matrices were found beside the attention of {_count(sites_without)} ({labels})."


def _count(layers: Sequence[object]) -> str:
    return f"{len(layers)} layer{'s' * (len(layers) > 1)}"


def _layer(site: Site) -> str:
    return site.label.removesuffix(".cross")


def _one_per_layer(sites: Iterable[Site]) -> list[Site]:
    """The first site of each layer.

    Self- and cross-attention of a decoder layer share their feed-forward part.
    """
    return list({(site.stack, site.layer): site for site in reversed(tuple(sites))}.values())[::-1]


def _block(
    model: nn.Module, site: Site, sites: tuple[Site, ...], projections: set[str]
) -> tuple[str, dict[str, nn.Module]]:
    """The layer around a site, and its feed-forward modules.

    The smallest part of the model that has feed-forward modules.
    """
    other_modules = [other.module for other in sites if (other.stack, other.layer) != (site.stack, site.layer)]
    outermost = ""
    for path in _around(site.module):
        # A module that several layers share counts only for its own block.
        if any(_inside(module, path) and module != site.module for module in other_modules):
            break
        if isinstance(model.get_submodule(path), nn.ModuleList | nn.ModuleDict):
            continue
        outermost = path
        if linears := _pairs(_linears(model, path, _attention(model, path, sites), projections)):
            return path, linears
    return outermost, {}


def _around(module: str) -> Iterator[str]:
    """The names of the parts around a module, inside out, up to a numbered one."""
    numbered = re.match(r"(?:.*?\.)?\d+(?=\.|$)", module)
    last = len(numbered[0]) if numbered else 0
    for name in enclosing_names(module):
        if len(name) < last:
            return
        yield name


def _attention(model: nn.Module, block: str, sites: tuple[Site, ...]) -> list[str]:
    """The children of a block that attend; plain lists of modules are looked through."""
    attention_paths = []
    for site in sites:
        if _inside(site.module, block):
            names_below = site.module.removeprefix(f"{block}.").split(".")
            path = block
            while names_below:
                path = f"{path}.{names_below.pop(0)}"
                if not isinstance(model.get_submodule(path), nn.ModuleList | nn.ModuleDict):
                    break
            attention_paths.append(path)
    return attention_paths


def _inside(module: str, block: str) -> bool:
    return module.startswith(f"{block}.")


def _modules_outside(model: nn.Module, block: str, attention: list[str]) -> Iterator[tuple[str, nn.Module]]:
    if not block:
        return
    for name, module in model.get_submodule(block).named_modules(prefix=block):
        if not any(name == path or _inside(name, path) for path in attention):
            yield name, module


def _linears(model: nn.Module, block: str, attention: list[str], projections: set[str]) -> dict[str, nn.Module]:
    return {
        name: module
        for name, module in _modules_outside(model, block, attention)
        if is_linear(module) and name not in projections
    }


def _banks(model: nn.Module, block: str, attention: list[str]) -> Iterator[str]:
    """Parameters that hold a stack of matrices, as experts do.

    The kernel of a convolution does not count.
    """
    for name, module in _modules_outside(model, block, attention):
        if not isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            parameters = module.named_parameters(recurse=False)
            yield from (f"{name}.{key}" for key, parameter in parameters if parameter.ndim == 3)


def _pairs(linears: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """The linear modules that widen or narrow and have a partner.

    A fused gate doubles the width of the widening matrix.
    """
    sizes = {name: _sizes(module) for name, module in linears.items()}

    def partnered(name: str) -> bool:
        d_in, d_out = sizes[name]
        back = [(d_out, d_in), (d_out, 2 * d_in)] + ([(d_out // 2, d_in)] if d_out % 2 == 0 else [])
        return any(other != name and sizes[other] in back for other in sizes)

    return {name: module for name, module in linears.items() if partnered(name)}


def _sizes(linear: Any) -> tuple[int, int]:
    """The numbers of inputs and outputs of a linear module."""
    weight: Tensor = linear.weight
    rows, columns = weight.shape
    return (columns, rows) if isinstance(linear, nn.Linear) else (rows, columns)
