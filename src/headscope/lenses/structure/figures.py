"""Figures of the lens `structure`: errors, smallest structures, families, maps."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import polars as pl

from headscope.core import Curves, Figure, HeatMap, Mosaic, Series, Site
from headscope.core.figure import Role
from headscope.lenses.shared.plots import Array, groups, head_map
from headscope.lenses.structure.example import Example
from headscope.lenses.structure.structures import (
    BAND,
    BAND_ENTRIES,
    BAND_FIRST,
    BASELINES,
    BLOCKS,
    COLUMNS,
    FIRST,
    KERNEL,
    LOW_RANK,
    OFFSETS,
    Structure,
    mask_of,
)
from headscope.lenses.structure.tables import FIRST_TOKEN, NONE, POSITIONAL, RARE, SYNTACTIC, shared_width

FAMILIES = (POSITIONAL, SYNTACTIC, RARE, FIRST_TOKEN, NONE)
_DRAWN_KEYS = 64
_WITHIN = 10  # percent: the bound of the structures that are drawn over maps
# Figure → title, what the picture says, the curves: form of the structure and width of the band.
_CURVES: dict[str, tuple[str, str, tuple[tuple[str, int | None], ...]]] = {
    "errors": (
        "What fixed structures miss of what heads write",
        "Structures that need not look at the map.",
        ((BAND, None), (BAND_FIRST, None), (FIRST, None), (BLOCKS, None)),
    ),
    "errors_chosen": (
        "What structures chosen from the map miss of what heads write",
        "Entries, columns and offsets are chosen by looking at the map of each window.",
        ((BAND_ENTRIES, 1), (BAND_ENTRIES, 8), (COLUMNS, None), (OFFSETS, None)),
    ),
}


def figures(tables: Mapping[str, pl.DataFrame], examples: Mapping[Site, Example]) -> tuple[Figure, ...]:
    """Curves of errors, maps of heads, families by layer, and fitted maps."""
    sites = list(examples)
    pictures: list[Figure] = [_errors(tables["structures"], name) for name in _CURVES]
    pictures.append(_smallest(tables["smallest"], sites))
    for name, structure in (("band_first", BAND_FIRST), ("band", BAND)):
        width = shared_width(tables["structures"], structure)
        if width is not None:
            pictures.append(_band(tables["structures"], sites, name, Structure(structure, width)))
    pictures += [_families(tables["families"], group, members) for group, members in groups(sites).items()]
    return (*pictures, *_fitted_maps(tables, examples))


def _errors(structures: pl.DataFrame, name: str) -> Curves:
    title, says, curves = _CURVES[name]
    rows = structures.filter(pl.col("kept") > 0, pl.col("value").is_not_null())
    series = [
        _median_curve(rows.filter(pl.col("form") == form, width is None or pl.col("size") == width), label, "measured")
        for form, width in curves
        for label in [form if width is None else f"band of {width} and entries"]
    ]
    series += [_median_curve(rows.filter(pl.col("form") == form), form, "theory") for form in (LOW_RANK, KERNEL)]
    ends = np.array([rows["kept"].to_numpy().min(), rows["kept"].to_numpy().max()])
    for form in BASELINES:
        errors = structures.filter(pl.col("form") == form)["value"].drop_nulls().to_numpy()
        if errors.size:
            series.append(Series(form, ends, np.full(2, float(np.median(errors))), role="null"))
    return Curves(
        name,
        title,
        f"The median head: written error against the pairs kept per query. {says} Dashed: low rank and a linear kernel "
        "(a point), with two numbers per query for each component or feature. Dotted: the zero matrix, and attention "
        "that is uniform over all keys or over the visible ones.",
        "pairs or numbers kept per query",
        "share of the output missed",
        tuple(curve for curve in series if curve.x.size),
        log_x=True,
    )


def _median_curve(rows: pl.DataFrame, label: str, role: Role) -> Series:
    """The medians over heads of what each size keeps and misses."""
    medians = rows.group_by("size", "entries").agg(pl.col("kept", "value").median()).sort("kept", "size")
    x, y = (medians[column].to_numpy().astype(np.float64) for column in ("kept", "value"))
    return Series(label, x, y, role=role, points=medians.height == 1)


def _cells(rows: pl.DataFrame, sites: Sequence[Site], column: str) -> dict[Site, list[float]]:
    parts = rows.partition_by(["stack", "kind", "layer"], as_dict=True)
    keys = {site: (site.stack, site.kind, site.layer) for site in sites}
    return {
        site: parts[key].sort("head")[column].cast(pl.Float64).fill_null(np.nan).to_list()
        for site, key in keys.items()
        if key in parts
    }


def _smallest(smallest: pl.DataFrame, sites: Sequence[Site]) -> HeatMap:
    rows = smallest.filter(pl.col("within") == 5)
    return head_map(
        _cells(rows, sites, "share"),
        name="smallest",
        title="Share of the visible keys that carries each head",
        caption="The fewest pairs of any structure that change what the head writes by at most 5 %, as a share of all "
        "visible pairs. 1: no structure does.",
        unit="share",
        limits=(0.0, 1.0),
    )


def _band(structures: pl.DataFrame, sites: Sequence[Site], name: str, structure: Structure) -> HeatMap:
    rows = structures.filter(pl.col("structure") == structure.words)
    even = rows["visible_uniform"].drop_nulls().to_numpy()
    with_first = " with the first token" if structure.form == BAND_FIRST else ""
    return head_map(
        _cells(rows, sites, "value"),
        name=name,
        title=f"Output missed by a band of half-width {structure.size}{with_first}",
        caption="0: it writes what the head writes. The reference is the median of attention that is uniform over the "
        "visible keys.",
        unit="share",
        reference=float(np.median(even)) if even.size else None,
    )


def _families(families: pl.DataFrame, group: str, sites: Sequence[Site]) -> Mosaic:
    cells: Array = np.zeros((len(sites), max(site.n_heads for site in sites)))
    for index, site in enumerate(sites):
        rows = families.filter(
            pl.col("stack") == site.stack, pl.col("kind") == site.kind, pl.col("layer") == site.layer
        ).sort("head")
        for head, family in enumerate(rows["family"].to_list()):
            cells[index, head] = FAMILIES.index(family) + 1
    return Mosaic(
        f"families_{group.replace(' ', '_')}" if group else "families",
        f"The family of each head{f' ({group})' if group else ''}",
        "Positional: on itself. Syntactic: in a band about itself. Rare token: neighbours share a key, other tokens "
        "look at themselves. First token: at rest on the first token, which is none of Conti's families.",
        cells,
        FAMILIES,
        row_axis="layer",
        column_axis="head",
    )


def _fitted_maps(tables: Mapping[str, pl.DataFrame], examples: Mapping[Site, Example]) -> Iterator[Mosaic]:
    """The first head of each family, with its smallest structure over the map."""
    for family in (POSITIONAL, SYNTACTIC, RARE, NONE):
        rows = tables["families"].filter(pl.col("family") == family)
        if rows.is_empty():
            continue
        top = rows.row(int(np.argmax(rows["value"].to_numpy())), named=True)
        site = next(site for site in examples if (site.stack, site.kind, site.layer) == _place(top))
        smallest = tables["smallest"].filter(
            pl.col("within") == _WITHIN,
            pl.col("stack") == site.stack,
            pl.col("kind") == site.kind,
            pl.col("layer") == site.layer,
            pl.col("head") == top["head"],
        )
        structure = Structure(*smallest.select("form", "size", "entries").row(0))
        yield _fitted_map(site.head_label(top["head"]), family, structure, examples[site], top["head"])


def _place(row: Mapping[str, object]) -> tuple[object, ...]:
    return row["stack"], row["kind"], row["layer"]


def _fitted_map(label: str, family: str, structure: Structure, example: Example, head: int) -> Mosaic:
    mask = mask_of(structure, example.pattern[head], example.visible, example.positions).numpy()
    weights, visible = example.pattern[head].double().numpy(), example.visible.numpy()
    is_large = weights > weights.sum(1, keepdims=True) / visible.sum(1, keepdims=True)
    cells = np.where(mask & is_large, 1.0, np.where(mask, 2.0, np.where(visible & is_large, 3.0, 0.0)))
    last = int(example.positions[-1]) + 1
    return Mosaic(
        f"map_{family.replace(' ', '_')}",
        f"{label} ({family if family != NONE else 'no family'}), carried by: {structure.words}",
        f"The last {len(mask)} queries of the first window, with the last {min(_DRAWN_KEYS, last)} keys. Over the map "
        "lies the structure with the fewest pairs that changes what the head writes by at most "
        f"{_WITHIN} % over the text; what is chosen from the map is chosen here from the rows that are drawn. Large: "
        "above the weight of uniform attention.",
        cells[:, max(0, last - _DRAWN_KEYS) : max(last, _DRAWN_KEYS)],
        ("large weight, kept", "small weight, kept", "large weight, left out"),
    )
