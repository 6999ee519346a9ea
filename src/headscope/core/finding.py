"""Finding: what one lens says about one model, complete enough to be drawn without the lens."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from headscope.core.figure import Figure
from headscope.core.ports import rendered
from headscope.errors import UsageError


@dataclass(frozen=True)
class About:
    """What a lens asks and how to read its answer; formulas are TeX (the subset of matplotlib's mathtext)."""

    title: str
    question: str
    definition: str
    formulas: tuple[str, ...]
    reading: str
    reference: str
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """The result of a lens: tidy tables with a null or a prediction beside each value, and how they came about.

    Tables always have the columns stack, kind, layer, head where the row is about a head (head is null where
    the row is about a whole site). `method` says how the numbers were obtained: exact, sampled, approximated.
    """

    lens: str
    about: About
    status: Literal["ok", "not applicable", "failed"] = "ok"
    reason: str = ""
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    figures: tuple[Figure, ...] = ()
    headlines: tuple[str, ...] = ()
    method: str = ""
    warnings: tuple[str, ...] = ()
    params: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)

    @property
    def table(self) -> pl.DataFrame:
        """The first table, which is the lens's main one."""
        if not self.tables:
            raise UsageError(f"the finding of {self.lens!r} has no table: {self.status} ({self.reason})")
        return next(iter(self.tables.values()))

    def _repr_html_(self) -> str:
        return rendered(self)
