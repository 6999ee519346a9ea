"""Figures of the low-rank lens: components against n, over heads, and the spectra themselves."""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from headscope.core import Curves, Figure, HeatMap, Series, Site
from headscope.lenses.shared.plots import Array, groups, head_map

_FLOOR = 1e-4  # of the spectra: a hundred millionth of the energy of the largest


def figures(tables: Mapping[str, pl.DataFrame], sigma: Mapping[Site, Array]) -> tuple[Figure, ...]:
    """Growth with n, the number at the largest n, the power of the growth, and spectra by layer."""
    table, sites = tables["components"], list(sigma)
    pictures: list[Figure] = [_growth(table), _largest(table, sites)]
    if "growth" in tables:
        pictures.append(_powers(tables["growth"], sites))
    return (*pictures, _spectra(sigma))


def _growth(table: pl.DataFrame) -> Curves:
    series: list[Series] = []
    sizes = sorted(set(table["tokens"].to_list()))
    x = np.array(sizes, dtype=np.float64)
    for name, share in (("components_90", "90 %"), ("components_99", "99 %")):
        rows = [table.filter(pl.col("quantity") == name, pl.col("tokens") == size) for size in sizes]
        low, median, high = (
            np.array([np.quantile(rows_at_size["value"].to_numpy(), q) for rows_at_size in rows])
            for q in (0.1, 0.5, 0.9)
        )
        series.append(Series(f"{share}, median head", x, median, low, high))
    # One null only: nulls are drawn alike.
    popular = np.array([np.median(rows_at_size["popular"].to_numpy()) for rows_at_size in rows])
    series.append(Series("99 %, popular keys alone", x, popular, role="null"))
    series.append(Series("ln n", x, np.log(x), role="theory"))
    series.append(Series("n", x, x, role="theory"))
    return Curves(
        "growth",
        "Components of the pattern as the text grows",
        "Singular components that carry 90 % and 99 % of the energy of the leading n × n block. Line: the median head; "
        "band: from the tenth to the ninetieth of a hundred. Dotted: popular keys alone, with weights in random places "
        "and row and column sums kept. Each token looking at itself would need them all (n); a "
        "rank of order log n would run beside ln n.",
        "n, tokens",
        "components",
        tuple(series),
        log_x=True,
        log_y=True,
    )


def _cells(table: pl.DataFrame, sites: Sequence[Site]) -> dict[Site, list[float]]:
    values_by_site = {}
    for site in sites:
        rows = table.filter(
            pl.col("stack") == site.stack, pl.col("kind") == site.kind, pl.col("layer") == site.layer
        ).sort("head")
        if rows.height:
            values_by_site[site] = rows["value"].to_list()
    return values_by_site


def _largest(table: pl.DataFrame, sites: Sequence[Site]) -> HeatMap:
    size = max(table["tokens"].to_list())
    rows = table.filter(pl.col("quantity") == "components_90", pl.col("tokens") == size)
    cells = _cells(rows, sites)
    top = max(max(row) for row in cells.values())
    return head_map(
        cells,
        name="components_90",
        title=f"Components for 90 % of the energy at n = {size}",
        caption=f"Mean over windows. 1: all rows look at the same keys; {size} would be every token at itself. "
        f"ln n = {np.log(size):.1f}.",
        unit="components",
        limits=(1.0, max(2.0, top)),
    )


def _powers(fits: pl.DataFrame, sites: Sequence[Site]) -> HeatMap:
    rows = fits.filter(pl.col("quantity") == "components_99")
    itself = float(rows["logarithm"][0])
    return head_map(
        _cells(rows, sites),
        name="power",
        title="Power of n with which the components for 99 % grow",
        caption=f"0: not at all; {itself:.2f}: as ln n over these sizes (white); 1: in proportion to n. Above white a "
        "head needs more than a multiple of ln n.",
        unit="power of n",
        reference=itself,
        limits=(itself - max(itself, 1 - itself), itself + max(itself, 1 - itself)),
    )


def _spectra(sigma: Mapping[Site, Array]) -> Curves:
    series: list[Series] = []
    for members in groups(list(sigma)).values():
        for index in sorted({0, len(members) // 2, len(members) - 1}):
            measured, popular = np.median(sigma[members[index]], axis=1)
            x = np.arange(1, len(measured) + 1, dtype=np.float64)
            measured, popular = (np.maximum(values / values[0], _FLOOR) for values in (measured, popular))
            series.append(Series(members[index].label, x, measured))
            if index == len(members) // 2:
                # One null of a kind: nulls are drawn alike.
                series.append(Series(f"{members[index].label}, popular keys alone", x, popular, role="null"))
    n = max(len(site_sigma[0, 0]) for site_sigma in sigma.values())
    few = np.log(n)
    series.append(Series("ln n", np.array([few, few]), np.array([_FLOOR, 1.0]), role="theory"))
    return Curves(
        "spectra",
        f"Singular values of the pattern at n = {n}",
        "Over the largest, median over the heads of the first, the middle and the last layer, mean over windows. A "
        "rank of order log n would fall to nothing soon behind the dashed line. Values below 10⁻⁴ are drawn there.",
        "number of the singular value",
        "σ over the largest",
        tuple(series),
        log_x=True,
        log_y=True,
    )
