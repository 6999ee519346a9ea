"""headscope: the mathematics of attention, executable on any transformer.

    import headscope as hs

    model = hs.open("tiny")
    run = hs.measure(model, lenses=["spectra", "focus"])
    hs.report(run, out="out")

Nothing heavy is loaded until it is used.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Where each public name lives; `import headscope` itself loads none of these modules.
_HOMES = {
    "HeadscopeError": "headscope.errors",
    "Plan": "headscope.api",
    "Selection": "headscope.core",
    "apply": "headscope.api",
    "attention": "headscope.attention",
    "compare": "headscope.api",
    "head": "headscope.api",
    "heads": "headscope.api",
    "lenses": "headscope.api",
    "load": "headscope.api",
    "look": "headscope.api",
    "measure": "headscope.api",
    "mechanisms": "headscope.api",
    "models": "headscope.api",
    "open": "headscope.api",
    "report": "headscope.api",
    "save_figure": "headscope.api",
    "text": "headscope.api",
    "texts": "headscope.api",
    "translate": "headscope.api",
    "trajectory": "headscope.api",
    "verify": "headscope.api",
}

# Of experiments these two; every other one is a function here too, by its name.
__all__ = ["__version__", "fewshot", "intervene", *_HOMES]

_CATALOGUE = "headscope.catalogue"

# `lenses` and `report` are functions here and folders on disk. Python binds a folder's module to its parent once, when
# it first imports it. That happens now, and the bindings go, so that `__getattr__` gives the functions from then on,
# whatever is imported later; `from headscope.report.page import render` still reaches the folder.
for _folder in ("lenses", "report"):
    import_module(f"{__name__}.{_folder}")
    del globals()[_folder]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        home = import_module(_HOMES[name])
        value = home if _HOMES[name].endswith(f".{name}") else getattr(home, name)
    elif name.startswith("_") or (value := import_module(_CATALOGUE).experiment_function(name)) is None:
        raise AttributeError(f"module 'headscope' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *import_module(_CATALOGUE).experiment_members()})
