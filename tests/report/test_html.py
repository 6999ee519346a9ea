"""The page: complete, self-contained, hostile-proof, and the same bytes for the same run."""

import errno
import hashlib
import json
import os
import re
from base64 import b64encode
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from headscope.core import Curves, Finding, Headline, Run, Series, Site
from headscope.errors import ResourceError
from headscope.report import figure_element
from headscope.report import page as page_module
from headscope.report import section as section_module
from headscope.report.page import figure_html, finding_html, notebook_html, render, write
from headscope.report.table import json_for_html, table
from tests.html_page import Page
from tests.report.example import HOSTILE, example_run


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_the_same_run_gives_the_same_bytes(text: str) -> None:
    assert render(example_run()).encode() == text.encode()


def test_the_page_is_well_formed_and_of_reasonable_size(page: Page, text: str) -> None:
    assert page.open == []
    assert len(text.encode()) < 1_500_000


def test_ids_are_unique_and_links_lead_somewhere(page: Page) -> None:
    ids = page.all("id")
    assert len(ids) == len(set(ids))
    links = [link for link in page.all("href") if link.startswith("#")]
    assert len(links) > 20
    assert {link[1:] for link in links} <= set(ids)


def test_nothing_points_outside(page: Page, text: str) -> None:
    for attribute in ("src", "href", "xlink:href", "action", "data", "poster", "srcset"):
        assert all(value.startswith(("#", "data:")) for value in page.all(attribute)), attribute
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert style is not None
    assert "@import" not in style[1]
    urls = re.findall(r"url\(([^)]*)\)", text)
    assert urls
    assert all(url.startswith("#") for url in urls)
    assert not {"img", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in page.elements}


def test_the_policy_allows_this_script_and_no_other(page: Page) -> None:
    (policy,) = [a["content"] for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    (script,) = [body for attributes, body in page.scripts if not attributes]
    assert f"'sha256-{b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in policy
    assert "script-src 'unsafe" not in policy
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]


def test_hostile_names_survive_as_text(page: Page) -> None:
    shown = "".join(page.text)
    assert shown.count(HOSTILE) >= 5  # model, text, token in a headline and in the table, reason of a failure
    assert all(attributes.get("src") != "x" for _, attributes in page.elements)
    data = [json.loads(body) for attributes, body in page.scripts if attributes.get("type") == "application/json"]
    words = {word for table in data for column in table.get("columns", ()) for word in column.get("words", ())}
    assert HOSTILE in words


def test_json_cannot_leave_its_script() -> None:
    nasty = "</script><!--<script>&\u2028\u2029\ud800"
    text = json_for_html({"a": nasty})
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {"a": nasty}


def test_every_part_of_a_finding_is_there(page: Page, run: Run, text: str) -> None:
    shown = re.sub(r"\s+", " ", "".join(page.text))
    for finding in run.findings.values():
        assert finding.about.question in shown
        assert finding.method in shown
        assert f'id="lens-{finding.lens}"' in text
    for headline in run["focus"].headlines[:1]:
        assert f'<a href="#lens-focus">{headline}</a>' in text
    assert "How to read it" in shown
    assert "layers 0–29: 9 heads on 3 key/value heads of size 64, causal" in shown
    assert run.model.sha256 in shown
    assert "4096 tokens in 8 windows of 512" in shown
    assert "headscope figures RUN --format pdf" in shown
    assert sum(1 for tag, _ in page.elements if tag == "figure") == 8


def test_failed_and_inapplicable_findings_give_their_reason_in_place(page: Page, text: str) -> None:
    assert "Not applicable to this model.</b> a decoder-only model has no cross-attention" in text
    assert "This lens failed.</b> NumericsError" in text
    assert "Failed: NumericsError" in "".join(page.text)


def test_a_figure_that_cannot_be_drawn_says_so_and_the_rest_is_drawn(text: str) -> None:
    assert text.count("This figure could not be drawn.</b> UsageError: the heat map &#x27;broken&#x27;") == 1
    assert text.count('<figure id="lens-focus-') == 4
    assert text.count('data-figure="lens-focus-') == 3


def test_a_crash_in_drawing_or_in_a_table_costs_only_that_part(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> str:
        raise ZeroDivisionError(HOSTILE)

    monkeypatch.setattr(figure_element, "figure_json", crash)
    monkeypatch.setattr(section_module, "table", crash)
    page = Page(render(run))
    assert "".join(page.text).count(f"ZeroDivisionError: {HOSTILE}") == 7 + 3  # the eighth figure is refused before


def test_a_dequantised_model_is_marked_in_every_section(run: Run, text: str) -> None:
    assert text.count("were expanded from Q8_0: rounding noise") == 3  # the card and both findings with numbers
    clean = replace(run, model=replace(run.model, dequantised=""), findings={"focus": run["focus"]})
    assert "rounding noise" not in render(clean)


def test_an_empty_run_and_an_empty_finding_render(run: Run) -> None:
    bare = Finding("bare", replace(run["focus"].about, formulas=(), columns={}), tables={"none": pl.DataFrame()})
    for findings in ({}, {"bare": bare}):
        assert Page(render(Run(run.model, (), findings))).open == []


def test_sites_of_two_stacks_are_told_apart(run: Run) -> None:
    sites = (
        *(Site("enc", "self", i, 8, 8, 64, 64, causal=False) for i in range(6)),
        *(Site("dec", "self", i, 8, 8, 64, 32, causal=True, window=4, extras=("bias",)) for i in (0, 2)),
        Site("dec", "cross", 0, 8, 8, 64, 64, causal=False),
    )
    shown = " ".join(Page(render(Run(run.model, sites, {}))).text)
    assert "72 heads at 9 sites" in shown
    assert "encoder self-attention in layers 0–5: 8 heads of size 64, sees everything" in shown
    assert "decoder self-attention in layers 0, 2: 8 heads of size 64, values 32, causal, window 4, bias" in shown
    assert "decoder cross-attention in layer 0: 8 heads" in shown


def test_long_tables_are_cut_and_short_ones_are_not() -> None:
    def rows(n: int) -> int:
        return table("t", pl.DataFrame({"a": np.arange(float(n)) + 0.5}), {}).count("<tr>") - 1

    assert (rows(1), rows(16), rows(17), rows(5000)) == (1, 16, 12, 12)


def test_table_says_what_columns_mean_and_what_is_the_same_in_all_rows() -> None:
    frame = pl.DataFrame({"stack": ["only"] * 2, "layer": [0, 1], "head": pl.Series([None, None], dtype=pl.Int64),
                          "value": [1.5, None]})  # fmt: skip
    text = table("t", frame, {"layer, head": "where <it> is", "other": "unused"})
    assert "in all of them stack only" in text
    assert text.count("<th ") == 2  # stack and head are the same in all rows
    assert 'title="where &lt;it&gt; is"' in text
    assert "<dt>layer, head</dt><dd>where &lt;it&gt; is</dd>" in text
    assert "unused" not in text
    assert "<td class=n>–</td>" in text


def test_a_table_of_every_type_renders() -> None:
    frame = pl.DataFrame(
        {
            "f32": pl.Series([1.5, float("nan")], dtype=pl.Float32), "u8": pl.Series([1, 255], dtype=pl.UInt8),
            "bool": [True, False], "list": [[1], [2]], "inf": [float("inf"), float("-inf")],
            "none": [None, None], "words": ["\n", "\ud7ff"],
        }
    )  # fmt: skip
    page = Page(table("t", frame, {}))
    (data,) = [json.loads(body) for _, body in page.scripts]
    assert [c["values"] for c in data["columns"] if c["name"] in ("f32", "inf")] == [
        [1.5, "NaN"],
        ["Infinity", "-Infinity"],
    ]


def test_a_finding_shows_itself_in_a_notebook_without_script_and_without_leaking(run: Run) -> None:
    text = finding_html(run["focus"])
    page = Page(text)
    assert page.open == []
    assert not page.scripts
    assert "button" not in {tag for tag, _ in page.elements}
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert style is not None
    sheet = re.sub(r"/\*.*?\*/", "", style[1], flags=re.DOTALL)
    selectors = re.findall(r"([^{}@;]+)\{", re.sub(r"@(media|page)[^{]*", "", sheet))
    assert all(one.strip().startswith((".headscope", ":root:has(> .headscope.page)"))
               for group in selectors if group.strip() for one in group.split(","))  # fmt: skip


def test_a_notebook_is_given_the_html_of_what_it_shows(run: Run) -> None:
    bare = replace(run["focus"], figures=run["focus"].figures[:1])
    assert notebook_html(bare) == finding_html(bare)
    assert notebook_html(bare.figures[0]) == figure_html(bare.figures[0])


def test_a_finding_shows_its_conclusions_before_all_else(run: Run) -> None:
    text = "".join(Page(finding_html(run["focus"])).text)
    places = [
        text.index(part) for part in ("141 of 270 heads look at the first token.", "Definition", "How to read it")
    ]
    assert places == sorted(places)
    assert "effect 0.52" in text[: places[1]]


def test_a_figure_shows_its_drawing_with_its_caption(run: Run) -> None:
    figure = run["spectra"].figures[0]
    page = Page(figure_html(figure))
    assert page.open == []
    assert "svg" in {tag for tag, _ in page.elements}
    assert figure.title.split(" of ")[0] in "".join(page.text)
    assert figure.caption in "".join(page.text)
    assert not page.scripts


def test_a_figure_that_cannot_be_drawn_says_so_in_a_notebook(run: Run) -> None:
    broken = replace(run["spectra"].figures[0], values=np.zeros((2, 2)), caption=HOSTILE)
    page = Page(figure_html(broken))
    assert page.open == []
    assert "could not be drawn" in "".join(page.text)
    assert HOSTILE in "".join(page.text)


def test_two_findings_of_one_lens_share_no_id(run: Run) -> None:
    x = np.linspace(0, 1, 5000)  # longer than what numpy prints, and different only where it does not print
    y = np.where(np.arange(5000) == 2500, 1.0, x)
    first, other = (
        replace(run["spectra"], tables={}, figures=(Curves("c", "T", "C", "x", "y", (Series("a", x, values),)),))
        for values in (x, y)
    )
    ids = [set(Page(finding_html(finding)).all("id")) for finding in (first, other)]
    assert ids[0]
    assert ids[1]
    assert not ids[0] & ids[1]


def test_write_is_whole_or_nothing(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(run, findings={})
    path = write(small, tmp_path / "out" / "report.html")
    assert path.read_text(encoding="utf-8") == render(small)
    before = path.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(ResourceError, match=r"report\.html") as caught:
        write(replace(small, seed=1), path)
    assert "disk is full" in caught.value.hint
    assert caught.value.exit_code == 5
    assert path.read_bytes() == before
    assert [one.name for one in path.parent.iterdir()] == ["report.html"]


def test_characters_that_no_file_can_hold_do_not_stop_the_report(run: Run, tmp_path: Path) -> None:
    odd = "a\ud800b\x00c"
    finding = replace(
        run["focus"],
        figures=(),
        headlines=(Headline(odd, odd),),
        tables={odd: pl.DataFrame({"x": ["\x00"]})},
        method=odd,
    )
    model = replace(run.model, name=odd)
    path = write(Run(model, (), {"focus": finding}), tmp_path / "report.html")
    assert "a\ufffdb␀c" in path.read_text(encoding="utf-8")


def test_assets_are_shipped_with_the_package() -> None:
    assert len(page_module.style()) > 1000
