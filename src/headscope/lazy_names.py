"""The public names of a package, fetched from their modules when they are used.

Importing the package then loads none of its modules, so that a list or a check of arguments needs no torch. For type
checkers the package also imports the names under `TYPE_CHECKING`.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package whose names live in its modules.

    Args:
        package: `__name__` of the package.
        homes: The public names by module, separated by blanks: `{"figure": "Curves HeatMap"}`.
    """
    home_by_name = {name: module for module, names in homes.items() for name in names.split()}

    def fetch(name: str) -> Any:
        if name in homes:
            return import_module(f"{package}.{name}")
        if name not in home_by_name:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{home_by_name[name]}"), name)
        setattr(sys.modules[package], name, value)  # the next use finds it without asking here
        return value

    return fetch
