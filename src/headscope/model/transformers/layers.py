"""Finds the layers of a model: walks from a module to the lists around it."""

from collections.abc import Iterator, Sequence

from torch import nn

from headscope.core.site import Site


def enclosing_names(module: str) -> Iterator[str]:
    """The names of the modules around a module, innermost first.

    Without the whole model.
    """
    while "." in module:
        module = module.rpartition(".")[0]
        yield module


def list_elements(hf: nn.Module, module: str) -> Iterator[str]:
    """The elements of module lists that are or hold a module, innermost first."""
    for name in (module, *enclosing_names(module)):
        if isinstance(hf.get_submodule(name.rpartition(".")[0]), nn.ModuleList):
            yield name


def enclosing_layer(hf: nn.Module, module: str) -> str:
    """The nearest element of a module list around a module.

    The module itself where there is none.
    """
    return next(list_elements(hf, module), module)


def shared_layer(hf: nn.Module, attention: str, feed_forward: str) -> str:
    """The nearest element of a module list around both modules.

    The attention itself where there is none. Where `feed_forward` is empty it is the nearest element around the
    attention.
    """
    around = (name for name in list_elements(hf, attention) if name != attention)
    return next((name for name in around if not feed_forward or feed_forward.startswith(f"{name}.")), attention)


def layer_list(hf: nn.Module, module: str) -> str | None:
    """The outermost module list around a module; its elements are the layers."""
    *_, outermost = (None, *list_elements(hf, module))
    return None if outermost is None else outermost.rpartition(".")[0]


def layer_lists(hf: nn.Module, sites: Sequence[Site]) -> tuple[str, ...]:
    """The outermost module lists around the sites, each once."""
    names = (layer_list(hf, site.module) for site in sites)
    return tuple(dict.fromkeys(name for name in names if name is not None))


def last_layer(hf: nn.Module, module: str) -> str:
    """The last layer of the stack that a module is in.

    The module itself where its stack is not a list.
    """
    name = layer_list(hf, module)
    layers = None if name is None else hf.get_submodule(name)
    return f"{name}.{len(layers) - 1}" if isinstance(layers, nn.ModuleList) else module
