"""The lens `colour` by its formula, row by row on the stored maps, in float64."""

from collections.abc import Iterator, Sequence

import polars as pl
from torch import Tensor

from colour_members.colour.settings import Params
from colour_members.colour.tables import SCHEMA
from headscope.core import Site
from headscope.lenses.lens import Batch


def definition(params: Params, batches: Sequence[Batch]) -> dict[str, pl.DataFrame]:
    """The means by head; the ends of the intervals stay empty."""
    rows: list[dict[str, object]] = []
    for site in batches[0].captures["pattern"] if batches else ():
        for head in range(site.n_heads if site.kind == "self" else 0):
            windows = [
                [*_rows(params, site, maps[head].double(), real)]
                for batch in batches
                for maps, real in zip(batch.captures["pattern"][site], batch.real, strict=True)
            ]
            masses = [pair for window in windows for pair in window]
            where = {"stack": site.stack, "kind": site.kind, "layer": site.layer, "head": head}
            value, uniform = (sum(column) / len(masses) for column in zip(*masses, strict=True))
            rows.append({**where, "value": value, "uniform": uniform, "windows": sum(map(bool, windows))})
    return {"heads": pl.DataFrame(rows, schema=SCHEMA)}


def _rows(params: Params, site: Site, pattern: Tensor, real: Tensor) -> Iterator[tuple[float, float]]:
    """The mass on the token itself in each row that counts, measured and uniform."""
    for i in range(len(pattern)):
        visible = [j for j in range(len(pattern)) if bool(real[j]) and (j <= i or not site.causal)]
        n_keys = len([j for j in visible if site.window is None or i - j < site.window])
        if bool(real[i]) and n_keys >= params.keys:
            yield float(pattern[i, i]), 1 / n_keys
