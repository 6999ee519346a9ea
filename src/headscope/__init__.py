"""headscope: the mathematics of attention, executable on any transformer.

    import headscope as hs

    model = hs.open("tiny")
    run = hs.measure(model, lenses=["spectra", "focus"])
    hs.report(run, out="out")

Nothing heavy is loaded until it is used.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

__version__ = "0.1.0"

# Where each public name lives; `import headscope` itself loads none of these modules.
_HOMES = {
    "HeadscopeError": "headscope.errors",
    "Selection": "headscope.core",
    "attention": "headscope.attention",
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
    "verify": "headscope.api",
}

# Of experiments these two; every other one is a function here too, by its name.
__all__ = ["__version__", "fewshot", "intervene", *_HOMES]


_CATALOGUE = "headscope.catalogue"


class _Package(ModuleType):
    """`headscope` as a module whose public names are fetched when first used.

    `report` and `lenses` are functions here and folders on disk. Python binds a folder's module to its parent
    when it is imported; that binding is turned away, so that `headscope.report(…)` is a call in any order of
    imports, while `from headscope.report import render` still reaches the folder.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and _HOMES.get(name) == "headscope.api"):
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name in _HOMES:
            home = import_module(_HOMES[name])
            value = home if _HOMES[name].endswith(f".{name}") else getattr(home, name)
        elif name.startswith("_") or (value := import_module(_CATALOGUE).experiment_function(name)) is None:
            raise AttributeError(f"module 'headscope' has no attribute {name!r}")
        self.__dict__[name] = value
        return value

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__, *import_module(_CATALOGUE).experiment_members()})


sys.modules[__name__].__class__ = _Package
