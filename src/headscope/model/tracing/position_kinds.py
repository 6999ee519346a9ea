r"""Classifies how a model encodes positions.

The kinds are rotary, relative bias, learned and sinusoidal. No table of families. A table of positions is sinusoidal
where its class says that it computes the formula, or where its numbers do: each column holds $\sin(\omega p)$ or
$\cos(\omega p)$, so that $x_{p-1} + x_{p+1} = 2 \cos(\omega)\, x_p$, and sines and cosines of the same frequencies make
every row $\sqrt{d/2}$ long.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headscope.core.site import Site

# Allowed deviation from the formula, in roundings of the stored dtype; learned tables are thousands away.
ROUNDINGS = 16
FEWEST_ROWS = 8


def position_kind(hf: Any, sites: tuple[Site, ...]) -> str:
    """The kind of position encoding of a model.

    `sinusoidal and learned` where the stacks differ, `unknown` where there is no sign of any.
    """
    # The bias of a cross-attention is no distance within one text.
    if any("bias" in site.extras and site.kind == "self" for site in sites) or any(
        _adds_linear_bias(module) for module in hf.modules()
    ):
        return "relative bias"
    if any(_turns(module) for module in hf.modules()):
        return "rotary"
    kinds = {_table_kind(module) for name, module in hf.named_modules() if _is_table(name, module)}
    names = [name.lower() for name, _ in hf.named_parameters(recurse=True)]
    if not kinds and any("position" in name or "wpe" in name for name in names):
        return "learned"
    return " and ".join(kind for kind in ("sinusoidal", "learned") if kind in kinds) or "unknown"


def _adds_linear_bias(module: nn.Module) -> bool:
    """Whether a module makes the biases of ALiBi.

    A module that could but does not has a switch that says so.
    """
    switches = [bool(value) for name, value in vars(module).items() if "alibi" in name]
    return any(switches) if switches else any("alibi" in name for name in dir(type(module)))


def _turns(module: nn.Module) -> bool:
    """Whether a module rotates queries and keys.

    It is a rotary embedding, or has a method or a size for it.
    """
    names = [type(module).__name__, *dir(type(module))]
    names += [name for name, value in vars(module).items() if value is not None and value is not False]
    return any("rotary" in name.lower() for name in names)


def _is_table(name: str, module: nn.Module) -> bool:
    if "sinusoid" in type(module).__name__.lower():
        return True
    last = name.rpartition(".")[2].lower()
    return isinstance(module, nn.Embedding) and ("position" in last or last == "wpe")


def _table_kind(module: Any) -> str:
    if "sinusoid" in type(module).__name__.lower():
        return "sinusoidal"
    return "sinusoidal" if is_sinusoidal(module.weight.detach()) else "learned"


def is_sinusoidal(table: Float[Tensor, "rows d"]) -> bool:
    """Whether the nonzero rows of a table are sines and cosines of the row number.

    Properties:
        - true of the formula in every layout and dtype  (tested: test_the_formula_is_recognised)
        - false of a smooth table that is not the formula  (tested: test_a_smooth_table_is_not_the_formula)
    """
    if table.is_meta:
        return False
    tolerance = ROUNDINGS * torch.finfo(table.dtype).eps
    rows = table.double()
    rows = rows[rows.norm(dim=1) > 0]
    if len(rows) < FEWEST_ROWS:
        return False
    length = (table.shape[1] / 2) ** 0.5
    if bool((rows.norm(dim=1) / length - 1).abs().max() > tolerance):
        return False
    before, centre, after = rows[:-2], rows[1:-1], rows[2:]
    factor = ((before + after) * centre).sum(0) / centre.square().sum(0)
    return bool((before + after - factor * centre).abs().max() <= 4 * tolerance)
