"""Attention mechanisms on one contract: `Call → Mechanism → Output`.

Statistics of the rows need no map.

Each mechanism is also a constructor here: `headscope.attention.window(left=256)`. The table of all of them is
`headscope.attention.mechanism.mechanisms()`. Names are fetched when they are used, so that
lists of mechanisms load no torch.
"""

from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from headscope.attention.mechanisms import mechanism_member, mechanism_members
from headscope.errors import UsageError

if TYPE_CHECKING:
    from headscope.attention.call import Call, Output
    from headscope.attention.layer import MultiHead
    from headscope.attention.mechanism import Cost, Mechanism
    from headscope.attention.sparse.merge import merge

__all__ = ["Call", "Cost", "Mechanism", "MultiHead", "Output", "merge"]

_HOMES = {
    "Call": "call",
    "Cost": "mechanism",
    "Mechanism": "mechanism",
    "MultiHead": "layer",
    "Output": "call",
    "merge": "sparse.merge",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    if name in _HOMES.values():
        return import_module(f"{__name__}.{name}")
    if not name.startswith("_"):
        with suppress(UsageError):
            mechanism_member(name)
            return import_module(f"{__name__}.mechanism").mechanism_named(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *mechanism_members()})
