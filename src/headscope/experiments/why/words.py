"""Numbers and names as the sentences and pictures of the experiment `why` write them."""

from torch import Tensor

from headscope.core.numbers import MINUS
from headscope.experiments.why.score_terms import Side


def plural(side: Side) -> str:
    """What a side of the score has many of."""
    return "keys" if side == "key" else "queries"


def signed(number: float | Tensor, digits: int = 1) -> str:
    """A number with few decimals and a true minus sign; never minus zero."""
    return f"{round(float(number), digits) + 0.0:.{digits}f}".replace("-", MINUS)


def percent(mass: float) -> str:
    """A mass; from 10 % on without decimals."""
    share = 100 * mass
    return f"{share:.0f} %" if share >= 9.95 else f"{share:.1f} %" if share >= 0.05 else "less than 0.1 %"
