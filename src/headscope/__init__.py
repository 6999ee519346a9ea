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
    "Selection": "headscope.core",
    "attention": "headscope.attention",
    "fewshot": "headscope.api",
    "intervene": "headscope.api",
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

__all__ = ["__version__", *_HOMES]

<<<<<<< HEAD
# `lenses` and `report` are functions here and folders on disk. Python binds a folder's module to its parent once, when
# it first imports it. That happens now, and the bindings go, so that `__getattr__` gives the functions from then on,
# whatever is imported later; `from headscope.report.page import render` still reaches the folder.
for _folder in ("lenses", "report"):
    import_module(f"{__name__}.{_folder}")
    del globals()[_folder]
=======

class _Package(ModuleType):
    """`headscope` as a module whose public names are fetched when first used.

    `report` and `lenses` are functions here and folders on disk. Python binds a folder's module to its parent
    when it is imported; this class ignores that binding, so that `headscope.report(…)` is a call in any order of
    imports, while `from headscope.report import render` still reaches the folder.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and _HOMES.get(name) == "headscope.api"):
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'headscope' has no attribute {name!r}")
        home = import_module(_HOMES[name])
        value = home if _HOMES[name].endswith(f".{name}") else getattr(home, name)
        self.__dict__[name] = value
        return value

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})
>>>>>>> english


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headscope' has no attribute {name!r}")
    home = import_module(_HOMES[name])
    value = home if _HOMES[name].endswith(f".{name}") else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
