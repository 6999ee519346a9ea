"""Turns matplotlib's SVG into a lean one for a page: unique ids and tooltips."""

import io
import re
from collections.abc import Callable, Iterable
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from matplotlib.backends.backend_svg import FigureCanvasSVG, RendererSVG
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from headscope.core.numbers import SYMBOL

_SVG = "{http://www.w3.org/2000/svg}"
_XLINK = "{http://www.w3.org/1999/xlink}"
_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_REFERENCE = re.compile(r"#([\w.-]+)")
_WORDS = ("text", "tspan", "title")
_PAD = 0.04  # inches around the drawing
Box = tuple[float, float, float, float]  # left, top, width, height


def tree(figure: Figure) -> Element:
    """The SVG of a figure, cropped, without metadata, styles or namespaces."""
    FigureCanvasSVG(figure)
    out = io.StringIO()
    figure.savefig(out, format="svg", bbox_inches=_drawn_box(figure), transparent=True,
                   metadata={"Date": None, "Creator": None, "Format": None, "Type": None})  # fmt: skip
    root = ElementTree.fromstring(out.getvalue())
    for element in root.iter():
        _plain(element)
    for useless in [child for child in root if child.tag in ("metadata", "defs")]:
        if useless.tag == "metadata" or useless.find("style") is not None:
            root.remove(useless)
    # Matplotlib sets this in a style sheet for "*", which would affect the whole page.
    root.set("stroke-linejoin", "round")
    return root


def _drawn_box(figure: Figure) -> Bbox:
    """The box around the drawing, in inches.

    `bbox_inches="tight"` gives the same box, but draws the whole figure again to find it.
    """
    width, height = figure.get_size_inches() * figure.dpi
    renderer = RendererSVG(width, height, io.StringIO())  # type: ignore[no-untyped-call]
    return figure.get_tightbbox(renderer).padded(_PAD)


def find(root: Element, id_: str) -> Element:
    """The element with that id."""
    return next(element for element in root.iter() if element.get("id") == id_)


def extent(element: Element) -> Box:
    """The smallest box around the paths under `element`."""
    points = [
        (float(x), float(y))
        for path in element.iter("path")
        for x, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", path.get("d", ""))
    ]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    return min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)


def rectangles(group: Element, cells: Iterable[tuple[Box, str, str]]) -> None:
    """Replace the content of `group` by rectangles: box, colour, optional tooltip."""
    for child in list(group):
        group.remove(child)
    group.set("shape-rendering", "crispEdges")
    for (left, top, width, height), colour, tip in cells:
        box = {"x": left, "y": top, "width": width, "height": height}
        rectangle = ElementTree.SubElement(group, "rect", {key: f"{value:.2f}" for key, value in box.items()})
        rectangle.set("style", f"fill:{colour}")
        if tip:
            ElementTree.SubElement(rectangle, "title").text = tip


def add_title(element: Element, text: str) -> None:
    """Add a tooltip to `element`."""
    title = Element("title")
    title.text = text
    element.insert(0, title)


def text_of(root: Element, prefix: str, finish: Callable[[str], str] = str) -> str:
    """The SVG as text; ids that are referred to get `prefix`, all others are removed."""
    _rename(root, prefix)
    _flatten(root)
    text = ElementTree.tostring(root, encoding="unicode", short_empty_elements=True)
    return finish(text)


def standalone(root: Element) -> Element:
    """`root` with the namespaces that a separate file needs."""
    root.set("xmlns", "http://www.w3.org/2000/svg")
    return root


def _plain(element: Element) -> None:
    element.tag = element.tag.removeprefix(_SVG)
    if (link := element.attrib.pop(f"{_XLINK}href", None)) is not None:
        element.set("href", link)
    for key, value in element.attrib.items():
        if key in ("d", "x", "y", "transform", "width", "height", "viewBox", "style"):
            element.set(key, _NUMBER.sub(lambda match: f"{float(match[0]):.2f}", value))
    if "d" in element.attrib:
        element.set("d", " ".join(element.attrib["d"].split()))
    if element.get("transform", "").startswith("rotate(-0 "):
        del element.attrib["transform"]
    if "style" in element.attrib:
        element.set("style", _style(element.attrib["style"]))
    if element.tag not in _WORDS:
        element.text = None
    element.tail = None
    if element.tag == "text":
        _lower_indices(element)


def _style(style: str) -> str:
    """The style without its font: the page uses the reader's font.

    Room was measured for DejaVu, which is wider.
    """
    style = re.sub(r"font: ([\d.]+px) [^;]*", r"font-size: \1", style)
    style = re.sub(r"font-family: [^;]*(; )?", "", style)
    return re.sub(r"([:;]) ", r"\1", style)


def _lower_indices(element: Element) -> None:
    """Set W_QK as a symbol with a subscript.

    The text after it returns to the base line.
    """
    words, is_lowered = element.text or "", False
    symbols = list(SYMBOL.finditer(words))
    if not symbols:
        return
    element.text = words[: symbols[0].start()]
    for match, following in zip(symbols, [*symbols[1:], None], strict=True):
        symbol = ElementTree.SubElement(
            element, "tspan", {"font-style": "italic"} | ({"dy": "-1.8"} if is_lowered else {})
        )
        symbol.text = match["symbol"]
        index = ElementTree.SubElement(element, "tspan", {"dy": "1.8", "font-size": "75%"})
        index.text, is_lowered = match["index"], True
        between = words[match.end() : following.start() if following else None]
        if between:
            ElementTree.SubElement(element, "tspan", {"dy": "-1.8"}).text = between
            is_lowered = False


def _flatten(element: Element) -> None:
    """Move the children out of groups without attributes."""
    children: list[Element] = []
    for child in element:
        _flatten(child)
        says_nothing = child.tag in ("g", "defs") and not child.attrib and child.find("title") is None
        children += list(child) if says_nothing and (child.tag == "g" or not len(child)) else [child]
    element[:] = children


def _rename(root: Element, prefix: str) -> None:
    referenced_ids = {
        name
        for element in root.iter()
        for key, value in element.attrib.items()
        if key == "href" or "url(" in value
        for name in _REFERENCE.findall(value)
    }
    for defs in root.iter("defs"):
        defs[:] = [child for child in defs if child.get("id") in referenced_ids]
    for element in root.iter():
        if (id_ := element.attrib.pop("id", None)) in referenced_ids:
            element.set("id", f"{prefix}{id_}")
        for key, value in element.attrib.items():
            if key == "href" or "url(" in value:
                element.set(key, _REFERENCE.sub(rf"#{prefix}\1", value))
