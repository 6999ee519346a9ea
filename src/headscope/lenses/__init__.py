"""Questions about a model. A file in this folder that binds `LENS` is a lens: nothing else registers it."""

import difflib
import importlib
import pkgutil
from typing import TYPE_CHECKING

from headscope.errors import UsageError

if TYPE_CHECKING:
    from headscope.lenses.lens import Lens


def lenses() -> dict[str, "Lens"]:
    """Every lens of this folder by name, ordered by the module's `ORDER` where it has one, then by name."""
    found: list[tuple[float, str, Lens]] = []
    for module_info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{module_info.name}")
        one = getattr(module, "LENS", None)
        if one is not None:
            found.append((float(getattr(module, "ORDER", "inf")), one.name, one))
    found.sort(key=lambda entry: entry[:2])
    names = [name for _, name, _ in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UsageError(f"two files in {__path__[0]} define a lens of the same name: {', '.join(sorted(twice))}")
    return {name: one for _, name, one in found}


def lens_named(name: str) -> "Lens":
    """The lens of that name; an unknown name is an error that tells the nearest ones."""
    known = lenses()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise UsageError(f"there is no lens {name!r}", hint=f"{hint}the lenses are: {', '.join(known)}")
