"""Attention mechanisms on one contract: `Call → Mechanism → Output`.

Statistics of the rows need no map.

Each mechanism found in `mechanisms/` is also a constructor here: `headscope.attention.window(left=256)`. The
table of all of them is `headscope.attention.mechanism.mechanisms()`.
"""

from collections.abc import Callable

from headscope.attention.call import Call, Output
from headscope.attention.layer import MultiHead
from headscope.attention.mechanism import Cost, Mechanism, mechanism_named, mechanism_names
from headscope.attention.sparse.merge import merge

__all__ = ["Call", "Cost", "Mechanism", "MultiHead", "Output", "merge"]


def __getattr__(name: str) -> Callable[..., Mechanism]:
    if not name.startswith("_") and name in mechanism_names():
        return mechanism_named(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *mechanism_names()})
