"""Chosen heads as a page and as a figure: every number is the captured one, and the page opens in a browser."""

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headscope.api  # noqa: F401  it gives heads what draws them
from headscope.core import HeadNumber, HeadView, HeadViews, Site
from headscope.core.numbers import number
from headscope.errors import UsageError
from headscope.report import head_document
from headscope.report.head_document import render_heads
from headscope.report.head_figure import head_figure
from headscope.report.head_file import save_heads
from tests.html_page import Page
from tests.report.opened_page import Opened

HOSTILE = "</script><img src=x onerror=alert(1)>"
TOKENS = ("<s>", "The", " cat", "\n", HOSTILE, " sat", " on", " it")
NUMBERS = (
    HeadNumber("entropy_nats", "entropy", "nats", 1.25, 1.5),
    HeadNumber("first", "mass on the first token", "share", 0.375, 0.25),
    HeadNumber("distance", "mean distance", "tokens", None, None),
)


def a_site(layer: int, kind: str = "self", stack: str = "only", causal: bool = True) -> Site:
    return Site(stack, kind, layer, 4, 4, 8, 8, causal)  # type: ignore[arg-type]


def a_view(site: Site, head: int, seed: int = 0, tokens: tuple[str, ...] = TOKENS) -> HeadView:
    scores = torch.randn(len(tokens), len(tokens), generator=torch.Generator().manual_seed(seed)) * 2
    if site.causal:
        scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
    return HeadView("model <b>", site, head, "a text & more", scores.softmax(-1), tokens, tokens, NUMBERS)


SINGLE = HeadViews((a_view(a_site(1), 3),))
SEVERAL = HeadViews(
    (
        a_view(a_site(1), 3),
        a_view(a_site(0), 2, 1),
        a_view(a_site(0, "cross", "dec", causal=False), 1, 2),
    )
)


def data_of(page: str, name: str) -> Any:
    (text,) = [text for attributes, text in Page(page).scripts if attributes.get("id") == f"data-{name}"]
    return json.loads(text)


def unpacked(text: str, view: HeadView, dtype: str) -> np.ndarray:
    """The packed rows as a map."""
    cells = np.frombuffer(base64.b64decode(text), dtype)
    n = len(view.tokens)
    if not view.is_causal:
        return cells.reshape(n, n)
    values = np.zeros((n, n), dtype)
    values[np.tril_indices(n)] = cells
    return values


@pytest.mark.parametrize("views", [SINGLE, SEVERAL], ids=["one", "several"])
def test_the_page_holds_every_weight_as_it_was_captured(views: HeadViews) -> None:
    page = render_heads(views)
    patterns, atlas = data_of(page, "patterns"), data_of(page, "atlas")
    assert [head["label"] for head in atlas["heads"]] == [view.label for view in views]
    for view, packed, largest in zip(views, patterns["weights"], patterns["largest"], strict=True):
        assert np.array_equal(unpacked(packed, view, "<f4"), view.pattern.numpy())
        assert largest == view.pattern.max()
    panel = atlas["heads"][-1]["panel"]
    assert patterns["tokens"][panel]["queries"] == list(TOKENS)
    assert atlas["panels"][panel]["causal"] == views[-1].is_causal
    assert atlas["quantities"][0]["values"] == [1.25] * len(views)


def test_the_same_heads_give_the_same_bytes() -> None:
    assert render_heads(SEVERAL) == render_heads(SEVERAL)


def test_many_tokens_are_one_byte_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_document, "EXACT_TOKENS", len(TOKENS) - 1)
    page = render_heads(SINGLE)
    patterns, view = data_of(page, "patterns"), SINGLE[0]
    levels = unpacked(patterns["maps"][0], view, "<u1")
    assert np.abs(levels - 255 * np.sqrt(view.pattern.numpy() / view.pattern.max().item())).max() <= 0.5 + 1e-3
    assert patterns["weights"] == [None]
    assert "Weights are rounded" in page


def test_the_page_is_sound_without_a_script() -> None:
    page = Page(render_heads(SEVERAL))
    assert page.open == []
    words = "".join(page.text)
    for part in ("L1.H3", "dec.L0.cross.H1", "mass on the first token", "37.5 %", "model <b>", "a text & more"):
        assert part in words or part in "".join(page.all("data-note"))
    assert "mean distance" not in words


def test_a_head_as_a_figure_has_the_captured_weights() -> None:
    view = SINGLE[0]
    figure = head_figure(SINGLE)
    seen = np.tril(np.ones(view.pattern.shape, dtype=bool))
    assert np.array_equal(figure.values[seen], view.pattern.double().numpy()[seen])
    assert np.isnan(figure.values[~seen]).all()
    assert figure.row_labels[1] == "1 The"
    assert figure.row_labels[3] == "3 '\\n'"
    assert figure.title.startswith("L1.H3 of model <b>, 8 tokens of a text & more")


def test_a_few_heads_are_in_a_line_with_their_labels() -> None:
    figure = head_figure(SEVERAL)
    assert figure.panels == (("",), ("L1.H3", "L0.H2", "dec.L0.cross.H1"))
    n = len(TOKENS)
    assert figure.values.shape == (n, 3 * (n + 1) - 1)
    assert np.array_equal(figure.values[:, 2 * (n + 1) :], SEVERAL[2].pattern.double().numpy())
    assert len(figure.column_labels) == 3 * (n + 1) - 1


def test_the_heads_of_layers_are_a_grid_of_layers_and_heads() -> None:
    views = HeadViews(tuple(a_view(a_site(layer), head, layer + head) for layer in (0, 2) for head in range(4))[:-1])
    figure = head_figure(views)
    assert figure.panels == (("L0", "L2"), ("H0", "H1", "H2", "H3"))
    n = len(TOKENS)
    corner = figure.values[n + 1 :, n + 1 : 2 * n + 1]
    assert np.array_equal(np.nan_to_num(corner), views["L2.H1"].pattern.double().numpy())
    assert np.isnan(figure.values[n + 1 :, 3 * (n + 1) :]).all()


def test_scattered_heads_are_named_line_by_line() -> None:
    views = HeadViews(tuple(a_view(a_site(layer), layer % 4) for layer in range(5)))
    left, above = head_figure(views).panels or ((), ())
    assert left == ("L0.H0, L1.H1, L2.H2, L3.H3", "L4.H0")
    assert len(above) == 4


@pytest.mark.parametrize("name", ["head.svg", "head.PNG", "head.pdf", "head.html"])
def test_a_head_saves_itself(tmp_path: Path, name: str) -> None:
    assert SINGLE[0].save(tmp_path / name) == tmp_path / name
    assert (tmp_path / name).stat().st_size > 1000
    first = (tmp_path / name).read_bytes()
    save_heads(SINGLE, tmp_path / name)
    assert (tmp_path / name).read_bytes() == first


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"unknown format '\.bmp'"):
        SINGLE.save(tmp_path / "head.bmp")
    assert not list(tmp_path.iterdir())


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """Opens pages of heads, which must stay silent whatever the test does with them."""
    pages: list[tuple[Opened, Path]] = []

    def open_page(views: HeadViews, **options: Any) -> Opened:
        file = tmp_path / f"{len(pages)}.html"
        save_heads(views, file)
        page = Opened(browser, file, **options)
        page.page.locator("#head-page .pattern-map canvas").wait_for()
        pages.append((page, file))
        return page

    yield open_page
    for page, file in pages:
        assert page.complaints == []
        assert [url for url in page.requests if not url.startswith(("blob:", "data:"))] == [file.as_uri()]
        page.page.close()


def test_the_page_of_one_head_in_a_browser(opened: Any) -> None:
    page, view = opened(SINGLE), SINGLE[0]
    assert page.page.inner_text("#head-page h1") == "L1.H3 of model <b>"
    assert page.page.title() == "L1.H3 of model <b>"
    assert "On 8 tokens of a text & more." in page.page.inner_text("#head-page header")
    assert page.page.locator(".steps, .back, .thumbnail").count() == 0
    assert page.page.locator(".head-numbers tbody tr").all_inner_texts() == [
        "entropy\t1.25 nats\t1.50 nats", "mass on the first token\t37.5 %\t25 %",
    ]  # fmt: skip
    assert 'hs.head("model <b>", "L1.H3", text="your text")' in page.page.inner_text(".python pre")
    strongest = page.page.locator(".strongest li").all_inner_texts()
    assert len(strongest) == 6
    assert strongest[0].endswith(f"{number(view.largest()[0].weight)}")
    assert f" {view.largest()[0].query} → " in strongest[0]


def test_hovering_gives_the_captured_weight_and_a_click_keeps_the_row(opened: Any) -> None:
    page, view = opened(SINGLE), SINGLE[0]
    box = page.page.locator(".pattern-map canvas").bounding_box()
    size = box["width"] / len(TOKENS)
    page.page.mouse.move(box["x"] + 2.5 * size, box["y"] + 6.5 * size)
    assert page.page.inner_text(".tip") == f"6 “ on” → 2 “ cat”: {number(float(view.pattern[6, 2]))}"
    shown = page.page.locator(".strongest li i").all_inner_texts()
    assert shown == [number(weight) for weight in sorted(view.pattern[6, :7].tolist(), reverse=True)[:6]]
    page.page.mouse.click(box["x"] + 2.5 * size, box["y"] + 6.5 * size)
    page.page.hover("#head-page h1")
    assert "kept" in page.page.inner_text(".pattern-text p")
    assert HOSTILE in page.page.inner_text(".token-text")


def test_several_heads_lead_to_each_other(opened: Any) -> None:
    page = opened(SEVERAL)
    assert page.page.inner_text("#head-page h1").startswith("L1.H3")
    assert page.page.locator(".thumbnail").all_inner_texts() == ["L1.H3", "L0.H2", "dec.L0.cross.H1"]
    page.page.keyboard.press("ArrowRight")
    page.page.locator("#head-page h1", has_text="L0.H2").wait_for()
    page.page.locator(".thumbnail").nth(2).click()
    page.page.locator("#head-page h1", has_text="dec.L0.cross.H1").wait_for()
    assert "cross-attention of model <b>" in page.page.inner_text("#head-page h1")
    page.page.keyboard.press("Escape")
    assert page.page.inner_text("#head-page h1").startswith("dec.L0.cross.H1")
    page.page.go_back()
    page.page.locator("#head-page h1", has_text="L0.H2").wait_for()


def test_a_hundred_tokens_and_another_text_of_keys(opened: Any) -> None:
    tokens = tuple(f" t{place}" for place in range(100))
    view = a_view(a_site(0, "cross", "dec", causal=False), 0, 3, tokens)
    page = opened(HeadViews((replace(view, key_tokens=tuple(f" k{place}" for place in range(100))),)))
    assert page.js("document.querySelector('.pattern-map canvas').width") == 100
    assert page.page.locator(".pattern-text h4").all_inner_texts() == ["Queries", "Keys"]
    page.page.locator(".token-text span").nth(70).hover()
    assert number(float(view.pattern[70].max())) in page.page.inner_text(".strongest li >> nth=0")


def test_a_long_text_scrolls_to_the_row_under_the_pointer(opened: Any) -> None:
    view = a_view(a_site(0), 0, 4, tuple(f" token{place}" for place in range(400)))
    page = opened(HeadViews((view,)))
    box = page.page.locator(".pattern-map canvas").bounding_box()
    assert page.js("document.querySelector('.token-text').scrollTop") == 0
    page.page.mouse.move(box["x"] + 1, box["y"] + box["height"] * 350.5 / 400)
    frame, token = (page.page.locator(name).bounding_box() for name in (".token-text", ".token-text span.query"))
    assert frame["y"] <= token["y"]
    assert token["y"] + token["height"] <= frame["y"] + frame["height"]
    assert page.js("scrollY") == 0
    assert page.page.inner_text(".token-text span.query") == " token350"
