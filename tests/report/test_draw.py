"""Figures: drawn in every format, the same bytes each time, nothing left behind in matplotlib."""

import re
import threading
from dataclasses import replace
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest

from headscope.core import Curves, Figure, Flow, HeatMap, Histogram, Series
from headscope.errors import ResourceError, UsageError
from headscope.report.colours import LEVELS, night, paper
from headscope.report.draw.canvas import panel
from headscope.report.draw.curves import draw_series
from headscope.report.draw.figure import encode, page_svg
from headscope.report.draw.heat_map import scale_of
from headscope.report.figure_file import save_figure
from headscope.report.flow_layout import WIDEST_BUNDLE, flow_layout

X = np.linspace(0.1, 1, 40)
NASTY = ("</text><script>alert(1)</script>", "$", "$x^2$", r"$\frac{1}$", "の🙂", "\x00\n", "&amp;")


def heat(values: np.ndarray, **options: object) -> HeatMap:
    rows, columns = values.shape
    labels = tuple(f"L{i}" for i in range(rows)), tuple(f"H{i}" for i in range(columns))
    return HeatMap("heat", "A heat map", "Caption.", values, *labels, **options)  # type: ignore[arg-type]


def curves(*series: Series, **options: bool) -> Curves:
    return Curves("curves", "Some curves", "Caption.", "x", "y", series, **options)


def flow(**changes: object) -> Flow:
    """Two writers, what reads them, and what that does; one number is negative."""
    plain = Flow(
        "flow", "A flow", "Caption.", ("a", "b", "head", "logit"), ((), (), ("82 % there", "0 % without a"), ()),
        np.array([0.0, 0, 1, 2]), ("written by", "by the head", "raises"),
        np.array([[0, 2, 1, 9], [1, 2, 2, -3], [2, 3, 3, 0.5]]), ("keys", "queries", "effect"),
        ("score", "score", "logits"),
    )  # fmt: skip
    return replace(plain, **changes)  # type: ignore[arg-type]


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape)


def nasty() -> list[Figure]:
    values = noise(len(NASTY), len(NASTY))
    return [
        HeatMap("n", NASTY[0], "", values, NASTY, NASTY, "query", "key", unit=NASTY[3]),
        Curves("n", NASTY[3], "", NASTY[0], NASTY[2], tuple(Series(name, X, X) for name in NASTY)),
        Histogram("n", NASTY[5], "", NASTY[1], np.array([0.0, 1, 2]), np.array([0.5, 0.5]),
                  marks=tuple((name, 1.0) for name in NASTY)),
        flow(boxes=NASTY[:4], notes=((NASTY[5],), NASTY, (), (NASTY[3],)), kinds=NASTY[:3], units=NASTY[3:6]),
    ]  # fmt: skip


FIGURES: dict[str, Figure] = {
    "1×1": heat(noise(1, 1)),
    "6×12": heat(noise(6, 12), unit="nats"),
    "30×9": heat(noise(30, 9), reference=0.2, unit="z"),
    "32×40": heat(noise(32, 40), reference=0.0),
    "limits": heat(noise(3, 3), limits=(-0.5, 0.5), reference=0.5),
    "panels": heat(noise(7, 11), panels=(("early", "late"), ("before", "after", "control"))),
    "constant": heat(np.full((2, 2), 3.0)),
    "all NaN": heat(np.full((2, 3), np.nan)),
    "infinite": heat(np.array([[np.inf, 1.0], [-np.inf, np.nan]])),
    "few": curves(Series("a", X, X, X - 0.1, X + 0.1), Series("law", X, X**2, role="theory"),
                  Series("none", X, 0 * X, role="null")),
    "points": curves(Series("layers", X, X, points=True), Series("law", X, X**2, role="theory"), log_y=True),
    "many": curves(*(Series(f"L{i}", X, i * X) for i in range(30)), log_x=True),
    "as many laws": curves(*(Series(f"L{i}", X, i * X) for i in range(9)),
                           *(Series("law", X, i * X, role="theory") for i in range(9))),
    "one point": curves(Series("a", np.array([1.0]), np.array([2.0]))),
    "log with zeros": curves(Series("a", X, np.where(X > 0.5, 0, X)), log_x=True, log_y=True),
    "wide log": curves(Series("a", X, 10.0 ** (-30 * X)), log_y=True),
    "histogram": Histogram("h", "T", "C", "σ", np.linspace(0, 2, 21), np.ones(20) / 2,
                           laws=(Series("law", X, X, role="theory"),), marks=(("edge", 1.5), ("far", 9.0))),
    "log histogram": Histogram("h", "T", "C", "σ", np.linspace(0, 2, 21), np.linspace(0, 1, 20), log_y=True),
    "flow": flow(),
    "flow without bands": flow(bands=np.zeros((0, 4))),
    "flow of zeros": flow(bands=np.array([[0.0, 2, 1, 0]])),
    **{f"nasty {i}": figure for i, figure in enumerate(nasty())},
}  # fmt: skip


MAGIC = {"svg": b"<svg", "pdf": b"%PDF", "png": b"\x89PNG"}


@cache
def on_page(name: str) -> str:
    return page_svg(FIGURES[name], "mine-")


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_can_be_a_file_of_every_format(name: str) -> None:
    ElementTree.fromstring(encode(FIGURES[name], "svg"))
    for kind in ("pdf", "png"):
        assert encode(FIGURES[name], kind).startswith(MAGIC[kind])


@pytest.mark.parametrize("name", ["30×9", "few", "histogram"])
def test_the_same_figure_gives_the_same_bytes(name: str) -> None:
    for kind in MAGIC:
        assert encode(FIGURES[name], kind) == encode(FIGURES[name], kind)
    assert page_svg(FIGURES[name], "mine-") == on_page(name)


@pytest.mark.parametrize("name", FIGURES)
def test_page_svg_has_only_the_pages_colours_and_its_own_ids(name: str) -> None:
    text = on_page(name)
    assert not re.search(r"(fill|stroke|stop-color):\s*#", text)
    root = ElementTree.fromstring(text)
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    assert all(id_.startswith("mine-") for id_ in ids)
    referred = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', text))
    assert referred == set(ids)
    assert not list(root.iter("script"))
    assert not list(root.iter("style")), "a style element would reach the whole page"
    assert not list(root.iter("image")), "nothing is rasterised"


def test_every_variable_of_a_figure_is_defined_in_both_themes() -> None:
    used = {variable for name in FIGURES for variable in re.findall(r"var\(--hs-(\w+)\)", on_page(name))}
    assert used <= set(paper().named())
    assert paper().named().keys() == night().named().keys()


def test_cells_have_tooltips_and_nan_is_empty() -> None:
    values = np.full((4, 8), 0.1)
    values[3, 7], values[0, 0] = 0.42, np.nan
    root = ElementTree.fromstring(page_svg(heat(values, unit="nats"), "p"))
    tips = {cell.findtext("title"): cell.get("style") for cell in root.iter("rect") if cell.find("title") is not None}
    assert len(tips) == 32
    assert "L3.H7: 0.420 nats" in tips
    assert tips["L0.H0: NaN"] == "fill:transparent"


def test_cells_lie_where_the_panel_is_also_when_its_border_is_empty() -> None:
    values = noise(5, 5)
    full = ElementTree.fromstring(page_svg(heat(values, limits=(-3.0, 3.0)), "p"))
    values[0], values[-1], values[:, 0] = np.nan, np.nan, np.nan
    holed = ElementTree.fromstring(page_svg(heat(values, limits=(-3.0, 3.0)), "p"))
    places = [
        [(r.get("x"), r.get("y")) for r in root.iter("rect") if r.find("title") is not None] for root in (full, holed)
    ]
    assert places[0] == places[1]


def test_colours_diverge_evenly_from_the_reference() -> None:
    scale = scale_of(heat(np.array([[0.0, 1.0, 0.3]]), reference=0.2))
    assert scale is not None
    assert scale.level(0.2) == LEVELS // 2
    assert scale.level(1.0) == LEVELS - 1
    assert scale.level(0.2 + 0.11) - LEVELS // 2 == LEVELS // 2 - 1 - scale.level(0.2 - 0.11)
    assert scale.levels_shown.start == scale.level(0.0), "the colour bar shows only what occurs"


def test_roles_are_drawn_as_promised() -> None:
    figure = FIGURES["few"]
    root = ElementTree.fromstring(page_svg(figure, "p"))
    styles = {
        group.findtext("title"): group.find("path").get("style")  # type: ignore[union-attr]
        for group in root.iter("g")
        if group.find("title") is not None
    }
    assert "dasharray" not in styles["a"]
    assert "dasharray" in styles["law"]
    assert "--hs-ink" in styles["law"]
    assert "dasharray" in styles["none"]
    assert "--hs-muted" in styles["none"]


def test_points_have_no_line_between_them() -> None:
    canvas, axes = panel(200.0, 100.0)
    draw_series(axes, Series("layers", X, X, points=True), "#000000", "series-0")
    draw_series(axes, Series("line", X, X), "#000000", "series-1")
    points, line = axes.get_lines()
    assert (points.get_linestyle(), points.get_marker()) == ("None", "o")
    assert (line.get_linestyle(), line.get_marker()) == ("-", "None")
    assert canvas is not None


def test_many_curves_are_named_by_a_strip_few_by_a_legend() -> None:
    many = "".join(ElementTree.fromstring(page_svg(FIGURES["many"], "p")).itertext())
    assert "L29" in many
    root = ElementTree.fromstring(page_svg(FIGURES["few"], "p"))
    assert [text.text for text in root.iter("text") if text.text in ("a", "law", "none")] == ["a", "law", "none"]


@pytest.mark.parametrize(
    "figure",
    [
        curves(),
        curves(Series("a", X, np.full_like(X, np.nan))),
        curves(Series("a", X, -X), log_y=True),
        HeatMap("h", "T", "C", np.zeros((2, 2)), ("a",), ("b",)),
        HeatMap("h", "T", "C", np.zeros((0, 0)), (), ()),
        Histogram("h", "T", "C", "x", np.arange(3.0), np.ones(3)),
        Histogram("h", "T", "C", "x", np.arange(3.0), np.zeros(2), log_y=True),
        Histogram("h", "T", "C", "x", np.arange(3.0), np.full(2, np.nan)),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_words(figure: Figure) -> None:
    with pytest.raises(UsageError):
        encode(figure, "svg")


def test_matplotlib_is_left_as_it_was_and_does_not_matter() -> None:
    before = dict(matplotlib.rcParams)
    plain = page_svg(FIGURES["few"], "p")
    assert dict(matplotlib.rcParams) == before
    with matplotlib.rc_context({"font.size": 31, "lines.linewidth": 9, "axes.grid": False}):
        assert page_svg(FIGURES["few"], "p") == plain


def test_two_threads_draw_the_same() -> None:
    expected = [page_svg(FIGURES["few"], "p"), encode(FIGURES["few"], "svg")]
    found: dict[int, object] = {}
    threads = [
        threading.Thread(target=lambda: found.update({0: page_svg(FIGURES["few"], "p")})),
        threading.Thread(target=lambda: found.update({1: encode(FIGURES["few"], "svg")})),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[0], found[1]] == expected


def test_save_writes_by_suffix(tmp_path: Path) -> None:
    for suffix in ("svg", "PDF", "png"):
        path = save_figure(FIGURES["6×12"], tmp_path / "new" / f"figure.{suffix}")
        assert path.read_bytes() == encode(FIGURES["6×12"], suffix.lower())
    assert not [path for path in (tmp_path / "new").iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("name", ["figure.jpg", "figure"])
def test_save_refuses_other_formats(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"\.svg, \.pdf or \.png"):
        save_figure(FIGURES["1×1"], tmp_path / name)


def test_save_says_where_it_could_not_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match="file"):
        save_figure(FIGURES["1×1"], tmp_path / "file" / "figure.svg")


def test_maps_in_a_grid_are_named_and_square() -> None:
    root = ElementTree.fromstring(page_svg(FIGURES["panels"], "x-"))
    words = "".join(root.itertext())
    assert all(name in words for name in ("early", "late", "before", "after", "control"))
    assert "H0" not in [element.text for element in root.iter() if element.tag.endswith("text")]
    cells = [element for element in root.iter() if element.tag.endswith("rect")]
    assert cells
    assert all(
        float(cell.get("width", 0)) == pytest.approx(float(cell.get("height", 1)), rel=0.1) for cell in cells[:77]
    )


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"bands": np.array([[0.0, 2, 1]])}, "expected four finite numbers"),
        ({"bands": np.array([[0.0, 2, 1, np.nan]])}, "expected four finite numbers"),
        ({"bands": np.array([[0.0, 9, 1, 1]])}, "an end or a kind that there is not"),
        ({"bands": np.array([[0.0, 2, 4, 1]])}, "an end or a kind that there is not"),
        ({"bands": np.array([[2.0, 0, 1, 1]])}, "does not lead to a later column"),
        ({"columns": np.array([0.0, 0, 1, 3])}, "a box beyond its 3 columns"),
        ({"columns": np.array([0.0, 0, 1])}, "3 columns"),
        ({"notes": ()}, "0 notes"),
        ({"units": ("score",)}, "3 kinds of bands and 1 units"),
    ],
)
def test_a_flow_that_cannot_be_drawn_is_refused(changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        page_svg(flow(**changes), "mine-")


def test_bands_of_one_unit_share_a_scale_and_fill_their_boxes() -> None:
    layout = flow_layout(flow())
    assert layout.widths[0] == 3 * layout.widths[1]
    assert layout.widths[0] + layout.widths[1] == pytest.approx(WIDEST_BUNDLE)
    assert layout.widths[2] == pytest.approx(WIDEST_BUNDLE)
    assert layout.ends[1] == pytest.approx(layout.ends[0] + layout.widths[0])
    middles = (layout.starts + layout.widths / 2)[:2]
    np.testing.assert_allclose(middles, (layout.tops + layout.heights / 2)[:2])
    assert (layout.tops >= 0).all()
    assert (layout.tops + layout.heights).max() == pytest.approx(layout.height)


def test_bands_meet_the_middle_of_a_box_that_its_lines_make_higher() -> None:
    layout = flow_layout(flow(notes=((), (), (), ("line",) * 12)))
    assert layout.heights[3] > WIDEST_BUNDLE
    assert layout.ends[2] + layout.widths[2] / 2 == pytest.approx(layout.tops[3] + layout.heights[3] / 2)
