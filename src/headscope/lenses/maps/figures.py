"""Figures of the maps lens: the course of what the average hides, and the maps in grids and one by one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from jaxtyping import Float
from torch import Tensor

from headscope.core import Curves, Figure, HeatMap, Series, Site
from headscope.core.numbers import ranges
from headscope.lenses.shared.map_figures import labelled, limits, lower
from headscope.lenses.shared.plots import Array, groups

ACROSS = 6
MOST_SITES = 48


@dataclass(frozen=True)
class SiteMaps:
    """The maps of one site on the window that is drawn, with the texts of its tokens and words."""

    heads: Float[Tensor, "heads rows columns"]
    mean: Float[Tensor, "rows columns"]
    weighted: Float[Tensor, "rows columns"] | None
    words: Float[Tensor, "row_words column_words"]
    row_names: tuple[str, ...]
    column_names: tuple[str, ...]
    row_words: tuple[str, ...]
    column_words: tuple[str, ...]


@dataclass(frozen=True)
class LargeMap:
    """What is drawn large: some heads of a site, on average, and their maps."""

    site: Site
    heads: tuple[int, ...]
    maps: SiteMaps

    @property
    def label(self) -> str:
        """The site, a head, or the heads that were selected: `L1`, `L1.H3`, `L1.H0-2`."""
        if len(self.heads) == self.site.n_heads:
            return self.site.label
        if len(self.heads) == 1:
            return self.site.head_label(self.heads[0])
        return ",".join(f"{self.site.label}.H{heads}" for heads in ranges(self.heads).replace("–", "-").split(", "))

    @property
    def caption(self) -> str:
        """Over what the average is taken."""
        if len(self.heads) == 1:
            return "This head alone"
        return "Averaged over heads" if len(self.heads) == self.site.n_heads else "Averaged over the selected heads"


def figures(maps_by_site: Mapping[Site, SiteMaps], layers: pl.DataFrame, large: LargeMap) -> tuple[Figure, ...]:
    """What the average hides over depth; a grid over layers; one map large, its layer's heads; the weighting."""
    sites = list(maps_by_site)
    weighting = _by_site(layers, "weighting")
    pictures: list[Figure] = [_course(layers, sites)]
    pictures += [_layers(group, members, maps_by_site) for group, members in groups(sites).items()]
    pictures += [_words(large), _tokens(large)]
    if large.site.n_heads > 1:
        pictures.append(_heads(large.site, maps_by_site[large.site]))
    weighted = [site for site in sites if maps_by_site[site].weighted is not None and site.n_heads > 1]
    if weighted:
        pictures.append(_weighted(max(weighted, key=lambda site: weighting.get(_key(site), 0.0)), maps_by_site))
    return tuple(pictures)


def _key(site: Site) -> tuple[str, str, int]:
    return site.stack, site.kind, site.layer


def _by_site(layers: pl.DataFrame, quantity: str) -> dict[tuple[str, str, int], float]:
    rows = layers.filter(pl.col("quantity") == quantity)
    return {(row["stack"], row["kind"], row["layer"]): row["value"] for row in rows.iter_rows(named=True)}


def _course(layers: pl.DataFrame, sites: Sequence[Site]) -> Curves:
    series: list[Series] = []
    for group, members in groups(sites).items():
        for quantity, label in (("hidden", "hidden"), ("weighting", "moved by weighting")):
            rows = layers.filter(
                pl.col("quantity") == quantity,
                pl.col("stack") == members[0].stack,
                pl.col("kind") == members[0].kind,
            ).sort("layer")
            if rows.is_empty():
                continue
            x, value, low, high = (_column(rows, name) for name in ("layer", "value", "low", "high"))
            ends = (low, high) if np.isfinite(low).any() else (None, None)
            series.append(Series(f"{group} {label}".strip(), x, value, *ends))
            if quantity == "hidden":
                name = f"{group} heads that share no key".strip()
                series.append(Series(name, x, _column(rows, "most"), role="null"))
    return Curves(
        "hidden_by_layer",
        "What the average over heads hides",
        "Share of a head's mass that lies elsewhere than the average's, mean over heads, with its interval over "
        "windows; 0 for equal heads. Moved: the average weighted by what heads write against the plain one.",
        "layer",
        "share of the mass",
        tuple(series),
    )


def _column(rows: pl.DataFrame, name: str) -> Array:
    return rows[name].cast(pl.Float64).fill_null(np.nan).to_numpy()


def _layers(group: str, members: Sequence[Site], maps_by_site: Mapping[Site, SiteMaps]) -> HeatMap:
    """The averaged word maps of all layers (or some, evenly spread), six in a line."""
    step = -(-len(members) // MOST_SITES)
    drawn_sites = members[::step]
    maps = [(site.label, lower(site, maps_by_site[site].words.numpy())) for site in drawn_sites]
    spacing_note = "" if step == 1 else f" Every {step}th layer."
    name = f"layers_{group.replace(' ', '_')}" if group else "layers"
    return _grid(
        maps,
        name,
        f"Maps of all layers, word level{f' ({group})' if group else ''}",
        f"Averaged over heads, sub-words summed.{spacing_note}",
    )


def _heads(site: Site, site_maps: SiteMaps) -> HeatMap:
    maps = [(f"H{head}", lower(site, cells.numpy())) for head, cells in enumerate(site_maps.heads)]
    return _grid(
        maps[:MOST_SITES],
        "heads",
        f"The heads of {site.label}, token level",
        "What their average does not show.",
    )


def _weighted(site: Site, maps_by_site: Mapping[Site, SiteMaps]) -> HeatMap:
    site_maps = maps_by_site[site]
    weighted = site_maps.mean if site_maps.weighted is None else site_maps.weighted
    maps = [("average", lower(site, site_maps.mean.numpy())), ("weighted", lower(site, weighted.numpy()))]
    return _grid(
        maps,
        "weighted",
        f"{site.label}: average over heads, plain and weighted through W_O",
        "The layer in which the weighting moves most.",
        named=True,
    )


def _grid(maps: Sequence[tuple[str, Array]], name: str, title: str, caption: str, *, named: bool = False) -> HeatMap:
    """Maps of one size line by line; `named`: one line, each with its own name above it."""
    rows, columns = maps[0][1].shape
    lines = [maps[start : start + ACROSS] for start in range(0, len(maps), ACROSS)]
    wide = min(ACROSS, len(maps))
    cells: Array = np.full((len(lines) * (rows + 1) - 1, wide * (columns + 1) - 1), np.nan)
    for down, line in enumerate(lines):
        for across, (_, values) in enumerate(line):
            cells[down * (rows + 1) :][:rows, across * (columns + 1) :][:, :columns] = values
    above = tuple(label for label, _ in maps) if named or len(lines) == 1 else tuple(
        "first" if number == 0 else f"+{number}" for number in range(wide)
    )  # fmt: skip
    left = ("",) if len(lines) == 1 else tuple(f"{line[0][0]} …" for line in lines)
    order = "" if len(lines) == 1 else " Line by line; each line begins with the one named at its left."
    low, high = limits(cells)
    return HeatMap(
        name=name,
        title=title,
        caption=f"{caption}{order} One scale for all; values above {high:.2g} have one colour.",
        values=cells,
        row_labels=_numbered(len(lines), rows),
        column_labels=_numbered(wide, columns),
        row_axis="from",
        column_axis="to",
        unit="weight",
        limits=(low, high),
        panels=(left, above),
    )


def _words(large: LargeMap) -> HeatMap:
    return labelled(
        lower(large.site, large.maps.words.numpy()), large.maps.row_words, large.maps.column_words,
        "words", f"Map of {large.label}, word level",
        f"{large.caption}; sub-words summed on both sides, so that the mass is kept.",
    )  # fmt: skip


def _tokens(large: LargeMap) -> HeatMap:
    return labelled(
        lower(large.site, large.maps.mean.numpy()), large.maps.row_names, large.maps.column_names,
        "tokens", f"Map of {large.label}, token level",
        f"{large.caption}.",
    )  # fmt: skip


def _numbered(count: int, n: int) -> tuple[str, ...]:
    labels = [label for _ in range(count) for label in (*(str(number + 1) for number in range(n)), "")]
    return tuple(labels[:-1])
