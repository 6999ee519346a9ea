"""How plain data shows itself: conclusions first, a few lines of text, HTML that no name can break."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from headscope.core import (
    About,
    Curves,
    Figure,
    Finding,
    Flow,
    Headline,
    HeatMap,
    Histogram,
    ModelSpec,
    Mosaic,
    Network,
    Run,
    Series,
    Site,
    TextSpec,
    ports,
)
from headscope.core.card import MOST_ROWS, Card, Point, listed
from headscope.core.model_summary import model_card, model_heading, model_line, site_lines
from tests.html_page import Page

HOSTILE = "<b>\"&'</style><script>alert(1)</script>"
ABOUT = About("Focus", "Where does each head look?", "", (), "", "")
X = np.arange(3.0)
FIGURES: tuple[Figure, ...] = (
    HeatMap("entropy", "Entropy", "Bright heads average.", np.array([[0.5, np.nan], [1.25, 2.0]]),
            ("0", "1"), ("0", "1"), unit="nats"),
    Curves("decay", "Decay", "It falls.", "distance", "mass", (Series("measured", X, X), Series("theory", X, X))),
    Histogram("law", "Singular values", "The bulk.", "singular value", X, X[:2], (Series("Gaussian", X, X),)),
    Mosaic("window", "Window", "The band.", np.eye(3), ("band", "global")),
    Network("graph", "Graph", "Edges.", ("a", "b"), np.array([[0.0, 1.0, 1.0]]), ("edge",)),
    Flow("circuit", "Circuit", "Bands.", ("a", "b", "c"), ((), (), ()), np.array([0.0, 0, 1]), ("from", "to"),
         np.array([[0.0, 2, 1, 1]]), ("keys",), ("score",)),
)  # fmt: skip


def spec(name: str = "smollm2", **changes: object) -> ModelSpec:
    fields = dict(
        name=name, source="carrier", family="llama", architecture="LlamaForCausalLM", kind="decoder-only", n_layers=2,
        n_heads=9, n_kv_heads=3, d_model=576, d_head=64, vocabulary=99, context=8192, n_parameters=134_515_008,
        dtype="float32",
    )  # fmt: skip
    return ModelSpec(**{**fields, **changes})  # type: ignore[arg-type]


def finding(lens: str = "focus", *headlines: Headline, **changes: object) -> Finding:
    return replace(Finding(lens, ABOUT, headlines=headlines), **changes)  # type: ignore[arg-type]


def run(*findings: Finding, **changes: object) -> Run:
    return replace(Run(spec(), (), {entry.lens: entry for entry in findings}), **changes)  # type: ignore[arg-type]


def shown_text(html: str) -> str:
    page = Page(html)
    assert page.open == []
    assert not page.scripts
    return "".join(page.text)


def headline(short: str, effect: float | None = None) -> Headline:
    return Headline(f"In full: {short}", short, effect)


def test_a_card_has_its_parts_in_order_in_text_and_html() -> None:
    card = Card("T", ("lead",), (Point("p", "point", 0.5),), (("f", "fact"),), ("end",))
    assert card.text().splitlines() == ["T", "  lead", "  p  effect 0.50  point", "  f  fact", "  end"]
    words = shown_text(card.html())
    places = [words.index(part) for part in ("T", "lead", "point", "effect 0.50", "fact", "end")]
    assert places == sorted(places)
    assert "width:50%" in card.html()


def test_long_cards_are_short_as_text_and_complete_as_html() -> None:
    facts = tuple((f"name{i}", "word " * 100) for i in range(MOST_ROWS + 5))
    card = Card("long " * 100, facts=facts, points=tuple(Point("p", f"point {i}") for i in range(MOST_ROWS + 1)))
    lines = card.text().splitlines()
    assert len(lines) == 2 + (MOST_ROWS + 1) + (MOST_ROWS + 1)
    assert lines[-1] == "  … and 5 more"
    assert lines[-2].endswith(" …")
    assert max(map(len, lines)) <= 120
    assert f"name{MOST_ROWS + 4}" in shown_text(card.html())


def test_a_card_escapes_everything() -> None:
    card = Card(HOSTILE, (HOSTILE,), (Point(HOSTILE, HOSTILE, 1.0),), ((HOSTILE, HOSTILE),), (HOSTILE,))
    assert shown_text(card.html()).count(HOSTILE) == 7
    assert "<code>a &lt;b&gt;</code>" in Card("see `a <b>`").html()
    assert Card("a\nb\x00\ud800").text() == "a b␀\ufffd"
    Card("\ud800", (), (Point("\ud800", "\x00"),)).html().encode()


@pytest.mark.parametrize(("effect", "width"), [(-0.5, "0%"), (0.0, "0%"), (0.126, "13%"), (1.7, "100%")])
def test_the_bar_of_an_effect_stays_in_its_place(effect: float, width: str) -> None:
    assert f"width:{width}" in Card("", points=(Point("", "", effect),)).html()


@pytest.mark.parametrize("effect", [None, float("nan"), float("inf")])
def test_an_effect_that_is_no_number_is_not_shown(effect: float | None) -> None:
    card = Card("T", points=(Point("p", "point", effect),))
    assert card.text() == "T\n  p  point"
    assert "effect " not in shown_text(card.html())


@pytest.mark.parametrize(("n", "text"), [(0, "none"), (1, "a"), (3, "a, b, c"), (5, "a, b, c and 2 more")])
def test_a_list_of_names(n: int, text: str) -> None:
    assert listed(list("abcde")[:n], most=3) == text


def test_a_model_in_one_line() -> None:
    assert model_line(spec()) == "smollm2: LlamaForCausalLM, decoder-only, 135 million parameters in float32"
    assert model_line(spec(dequantised="Q4_1", device="cuda:0")).endswith("float32, expanded from Q4_1, on cuda:0")


@pytest.mark.parametrize(
    ("name", "heading"),
    [
        ("smollm2", "smollm2"),
        ("org/model", "org/model"),
        ("/a/b/c", "/a/b/c"),
        ("out/translation/training/best", "out/translation/training/best"),
        ("/home/somebody/out/training/best", "…/out/training/best"),
    ],
)
def test_the_heading_of_a_report_has_the_last_parts_of_a_path(name: str, heading: str) -> None:
    assert model_heading(spec(name)) == heading


def test_a_model_shows_its_sites_and_what_to_be_careful_with() -> None:
    sites = tuple(Site("only", "self", layer, 9, 3, 64, 64, causal=True) for layer in range(2))
    text = model_card(spec(dequantised="Q4_1", notes=("tied",)), sites).text().splitlines()
    assert text[0].startswith("model smollm2: ")
    assert text[1:3] == [
        "  18 heads at 2 sites, context 8192 tokens",
        "  self-attention in layers 0–1: 9 heads on 3 key/value heads of size 64, causal",
    ]
    assert "rounding noise" in " ".join(text[3:])
    assert text[-1] == "  tied"
    one_head = Site("dec", "cross", 3, 1, 1, 4, 8, causal=False, extras=("bias",))
    (line,) = site_lines([one_head])
    assert line == "decoder cross-attention in layer 3: 1 head of size 4, values 8, sees everything, bias"


def test_a_run_shows_model_conclusions_by_effect_and_report() -> None:
    small = finding("focus", headline("A small effect.", 0.1), headline("Nothing compared."))
    large = finding("spectra", headline("A large effect.", 0.9))
    failed = finding("maps", status="failed", reason="NaN")
    absent = finding("angles", status="not applicable", reason="")
    text = TextSpec("prose", "00", 1, 20_000, 8, 512)
    lines = repr(run(failed, absent, small, large, text=text)).splitlines()
    assert lines[0] == "run on smollm2: LlamaForCausalLM, decoder-only, 135 million parameters in float32"
    assert lines[1] == "  4 findings on prose (20\u202f000 tokens)"
    assert [line.split(maxsplit=1)[0] for line in lines[2:7]] == ["spectra", "focus", "focus", "angles", "maps"]
    assert lines[2].split() == ["spectra", "effect", "0.90", "A", "large", "effect."]
    assert lines[5].endswith("not applicable: no reason was given")
    assert lines[6].endswith("failed: NaN")
    assert lines[7] == "  `headscope.report(run)` writes the report."


def test_a_run_is_the_same_in_a_notebook_and_holds_no_figure() -> None:
    with_figures = finding("focus", headline(f"The token {HOSTILE}.", 0.5), figures=FIGURES, reason=HOSTILE)
    html = run(with_figures, finding("maps", status="failed", reason=HOSTILE), model=spec(HOSTILE))._repr_html_()
    words = shown_text(html)
    assert words.count(HOSTILE) == 3
    assert "effect 0.50" in words
    assert "svg" not in {tag for tag, _ in Page(html).elements}
    assert shown_text(run()._repr_html_()).startswith("run on smollm2")


def test_a_run_says_where_it_and_its_report_are(tmp_path: Path) -> None:
    measured = run()
    assert measured.folder is None
    measured.note_folder(tmp_path)
    assert f"Stored in {tmp_path};" in measured._repr_html_()
    (tmp_path / "report.html").write_text("")
    assert measured._card().end == (f"Report: {tmp_path / 'report.html'}",)
    assert measured == run()  # the folder is no part of what was found
    assert replace(measured, seed=1).folder is None  # what was changed is not in the folder


def test_a_run_of_quantised_weights_says_so() -> None:
    assert "rounding noise" in repr(run(model=spec(dequantised="Q4_1")))


def test_a_finding_in_a_few_lines() -> None:
    table = pl.DataFrame({"layer": range(270)})
    text = repr(
        finding(
            "focus", headline("Half.", 0.52), tables={"heads": table}, figures=FIGURES[:2], warnings=("Q4_1.", "More."),
        )
    )  # fmt: skip
    assert text.splitlines() == [
        "finding focus: Where does each head look?",
        "  effect 0.52  Half.",
        "  tables    heads (270 rows)",
        "  figures   entropy, decay",
        "  warnings  Q4_1. More.",
    ]
    assert repr(finding("focus", status="failed", reason="it broke")).splitlines()[1] == "  failed: it broke"
    assert repr(finding()) == "finding focus: Where does each head look?"


CONTENTS = (
    "layer × head: 2 × 2, values 0.500 to 2, 1 NaN nats",
    "mass against distance: measured, theory",
    "singular value in 2 bins, with Gaussian",
    "query × key: 3 × 3, band, global",
    "2 nodes, 1 edge: edge",
    "a, b, c: 1 band",
)


@pytest.mark.parametrize("index", range(len(FIGURES)))
def test_a_figure_in_three_lines(index: int) -> None:
    figure = FIGURES[index]
    title = f"{type(figure).__name__} {figure.name}: {figure.title}"
    assert repr(figure).splitlines() == [title, f"  {CONTENTS[index]}", f"  {figure.caption}"]


@pytest.mark.parametrize("values", [np.zeros((0, 0)), np.zeros(3), np.full((2, 2), np.nan), np.full((1, 1), np.inf)])
def test_a_broken_heat_map_has_a_text(values: np.ndarray) -> None:
    heat_map = replace(FIGURES[0], values=values, caption="")
    assert repr(heat_map).startswith("HeatMap entropy: Entropy\n  layer × head: ")


def test_without_a_renderer_findings_and_figures_show_their_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_render", None)
    hostile = finding("focus", headline(HOSTILE))
    assert shown_text(hostile._repr_html_()) == repr(hostile)
    assert shown_text(FIGURES[0]._repr_html_()) == repr(FIGURES[0])


def test_with_a_renderer_they_show_what_it_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_render", lambda thing: f"<p>{type(thing).__name__}</p>")
    assert finding()._repr_html_() == "<p>Finding</p>"
    assert FIGURES[1]._repr_html_() == "<p>Curves</p>"
