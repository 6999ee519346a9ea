"""HeadCurve: a curve for each head, with the law that it is compared with."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headscope.errors import UsageError

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class HeadCurve:
    """A curve for each head, e.g. its singular values, over one axis.

    `values` has a row for each entry of `heads` (labels such as `L3.H7`) and a column for each entry of `x`; NaN where
    a curve is shorter. `law` is what theory or a null says, in one row for all heads or in a row for each.
    """

    key: str
    label: str
    x_axis: str
    y_axis: str
    heads: tuple[str, ...]
    x: Array
    values: Array
    law: Array | None = None
    law_label: str = ""
    log_x: bool = False
    log_y: bool = False

    def __post_init__(self) -> None:
        rows, columns = len(self.heads), self.x.size
        if self.x.ndim != 1 or self.values.shape != (rows, columns):
            raise UsageError(
                f"the curves {self.key!r} have values of the shape {self.values.shape} over {self.x.shape}, expected "
                f"a row for each of {rows} heads and a column for each x"
            )
        if self.law is not None and self.law.shape not in ((1, columns), (rows, columns)):
            raise UsageError(
                f"the law of the curves {self.key!r} has the shape {self.law.shape}, expected {columns} columns and "
                "one row, or a row for each head"
            )
