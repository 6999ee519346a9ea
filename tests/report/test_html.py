"""The page: complete, self-contained, hostile-proof, and the same bytes for the same run."""

import errno
import hashlib
import json
import os
import re
from base64 import b64decode, b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from headscope.core import Curves, Finding, Headline, HeadQuantity, Run, Series, Site
from headscope.errors import ResourceError
from headscope.report import figure_element
from headscope.report import overview as overview_module
from headscope.report import page as page_module
from headscope.report import section as section_module
from headscope.report.head_choice import role_groups
from headscope.report.head_grid import Head, HeadGrid, head_grid
from headscope.report.page import figure_html, finding_html, notebook_html, render, write
from headscope.report.page_data import atlas_json, json_for_html
from headscope.report.table import table
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


def test_ids_are_unique_and_links_lead_somewhere(page: Page, run: Run) -> None:
    ids = page.all("id")
    assert len(ids) == len(set(ids))
    links = {link[1:] for link in page.all("href") if link.startswith("#")}
    heads = {site.head_label(head) for site in run.sites for head in range(site.n_heads)}
    assert len(links - heads) > 15
    assert links & heads  # the script makes pages of heads
    assert links - heads <= set(ids)


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


def data_of(page: Page, id_: str) -> Any:
    """What the page carries for its script under an id."""
    (body,) = [body for attributes, body in page.scripts if attributes.get("id") == f"data-{id_}"]
    return json.loads(body)


def test_hostile_names_survive_as_text(page: Page) -> None:
    shown = "".join(page.text)
    assert shown.count(HOSTILE) >= 5  # model, text, token in a headline and in the table, reason of a failure
    assert all(attributes.get("src") != "x" for _, attributes in page.elements)
    (tokens,) = [
        column for column in data_of(page, "lens-focus-table-heads")["columns"] if column["label"] == "top token"
    ]
    assert tokens["values"][0] == HOSTILE
    assert data_of(page, "atlas")["quantities"][1]["label"] == f"row entropy {HOSTILE}"
    assert data_of(page, "patterns")["tokens"][0]["queries"][0] == f" {HOSTILE}"


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
        assert all(re.sub("[`_]", "", headline.full) in shown.replace("_", "") for headline in finding.headlines)
    assert "How to read it" in shown
    assert "layers 0–29: 9 heads on 3 key/value heads of size 64, causal" in shown
    assert run.model.sha256 in shown
    assert "4096 tokens in 8 windows of 512" in shown
    assert "headscope figures RUN --format pdf" in shown
    assert sum(1 for tag, _ in page.elements if tag == "figure") == 8


def test_the_first_screen_says_what_the_heads_do(text: str, run: Run) -> None:
    """The model in one line, the largest effects with their figures, and only then anything else."""
    above = int((run["focus"].table["first_token"] > 0.5).sum())
    assert f"30 layers × 9 heads; {above} heads look mostly at the first token." in text
    places = [
        text.index(f'id="{name}"') for name in ("top", "atlas", "findings", "contents", "ends", "verdicts", "heads")
    ]
    assert places == sorted(places)
    assert text.index('id="heads"') < text.index('id="lens-spectra"') < text.index('id="provenance"')
    first = text[text.index('id="findings"') : text.index('id="contents"')]
    effects = [float(effect) for effect in re.findall(r"effect ([\d.]+)", first)]
    assert effects == [0.76, 0.52]  # one of each lens, the largest first
    assert re.findall(r'data-spark="([^"]+)"', first) == ["lens-spectra-0", "lens-focus-0"]


def test_a_quantity_that_cannot_be_read_costs_no_other(page: Page) -> None:
    atlas = data_of(page, "atlas")
    assert [quantity["key"] for quantity in atlas["quantities"]] == [
        "spectra.stable_rank",
        "focus.entropy",
        "focus.first",
    ]
    assert "Not shown: focus, gone:" in "".join(page.text)


def test_the_atlas_holds_every_head_with_its_null(page: Page, run: Run) -> None:
    atlas = data_of(page, "atlas")
    assert [head["label"] for head in atlas["heads"]][:10] == [f"L0.H{head}" for head in range(9)] + ["L1.H0"]
    rank, entropy, first = atlas["quantities"]
    assert rank["nulls"] == 24.71  # one for all heads
    assert first["nulls"] is None
    assert entropy["values"][4 * 9 + 2] is None  # not measured
    assert entropy["values"][0] == pytest.approx(run["focus"].table["entropy_nats"][0], rel=1e-4)
    assert atlas["panels"] == [{"title": "", "layers": list(range(30)), "columns": 9, "causal": True}]
    (curve,) = atlas["curves"]
    assert len(curve["values"]) == 270
    assert len(curve["law"]) == 1


def test_nulls_of_their_own_stay_with_the_heads(run: Run) -> None:
    finding = run["spectra"]
    table = finding.table.with_columns(stable_rank_null=pl.col("layer") + 1.0)
    changed = replace(run, findings={"spectra": replace(finding, tables={"heads": table})})
    nulls = data_of(Page(render(changed)), "atlas")["quantities"][0]["nulls"]
    assert nulls[:10] == [1] * 9 + [2]


def test_an_encoder_decoder_has_a_panel_for_each_kind_of_attention(run: Run) -> None:
    sites = (
        *(Site("enc", "self", i, 2, 2, 64, 64, causal=False) for i in range(3)),
        *(Site("dec", kind, i, 2, 2, 64, 64, causal=kind == "self") for i in range(2) for kind in ("self", "cross")),
    )
    rows = [(site, head) for site in sites for head in range(2)]
    table = pl.DataFrame(
        {
            "stack": [site.stack for site, _ in rows], "kind": [site.kind for site, _ in rows],
            "layer": [site.layer for site, _ in rows], "head": [head for _, head in rows],
            "value": np.arange(14.0),
        }
    )  # fmt: skip
    finding = Finding("odd", run["focus"].about, tables={"t": table}, quantities=(HeadQuantity("v", "value", "t"),))
    page = Page(render(Run(run.model, sites, {"odd": finding})))
    atlas = data_of(page, "atlas")
    assert [panel["title"] for panel in atlas["panels"]] == ["Encoder", "Decoder", "Cross-attention"]
    assert [panel["causal"] for panel in atlas["panels"]] == [False, True, False]
    assert [head["label"] for head in atlas["heads"]][6:10] == [
        "dec.L0.H0",
        "dec.L0.H1",
        "dec.L0.cross.H0",
        "dec.L0.cross.H1",
    ]
    assert atlas["quantities"][0]["values"] == list(range(14))
    assert "encoder 3 layers × 2 heads, decoder 2 layers × 2 heads, cross-attention the same" in "".join(page.text)


def test_patterns_are_those_of_the_run(page: Page, run: Run) -> None:
    stored, patterns = run["focus"].patterns, data_of(page, "patterns")
    assert stored is not None
    assert patterns["size"] == 64
    small = np.frombuffer(b64decode(patterns["maps"][9]), dtype=np.uint8)
    assert (small == stored.sites[1].levels[0, :64, :64][np.tril_indices(64)]).all()
    assert patterns["maps"][-1] is None  # the last layer has none
    assert patterns["largest"][-1] is None
    assert len(patterns["tokens"][0]["keys"]) == 64
    assert patterns["tokens"][0]["n_keys"] == 80
    card = np.frombuffer(b64decode(next(iter(patterns["cards"].values()))), dtype=np.uint8)
    assert card.size == 80 * 81 // 2


def test_the_heads_at_the_ends_have_cards(page: Page, run: Run) -> None:
    values = run["focus"].table["entropy_nats"].to_numpy()
    lowest = int(np.nanargmin(values))
    cards = {
        attributes["data-head"]: attributes["href"] for _, attributes in page.elements if "data-head" in attributes
    }
    assert cards[str(lowest)] == f"#L{lowest // 9}.H{lowest % 9}"
    shown = re.sub(r"\s+", " ", "".join(page.text))
    assert "sharpest" in shown
    assert "flattest" in shown


def with_roles(run: Run, names: tuple[str, ...] = ("night head", "day head")) -> Run:
    """The run, in which heads with even numbers have the one role, and one head the other."""
    focus = run.findings["focus"]
    heads = focus.tables["heads"].with_columns(
        at_night=pl.when(pl.col("layer") < 2).then(pl.col("head") % 2 == 0).otherwise(False),
        by_day=(pl.col("layer") == 1) & (pl.col("head") == 3),
    )
    quantities = tuple(
        HeadQuantity(column, f"mass {column}", "heads", "first_token", unit="share", role=name, role_column=column)
        for name, column in zip(names, ("at_night", "by_day"), strict=True)
    )
    finding = replace(focus, tables={"heads": heads}, quantities=quantities)
    return replace(run, findings={"focus": finding})


def test_the_first_screen_names_the_heads_of_each_role(run: Run) -> None:
    changed = with_roles(run)
    grid = head_grid(changed)
    night = role_groups(grid)[0]
    values = grid.columns[0].values
    expected = [place for place, head in enumerate(grid.heads) if head.site.layer < 2 and head.head % 2 == 0]
    assert sorted(night.heads) == expected
    assert values[list(night.heads)].tolist() == sorted(values[expected], reverse=True), "those with the most first"
    html = overview_module.roles(grid)
    assert f">{len(expected)} night heads</a>: " in html
    assert ">1 day head</a>: " in html
    named = re.findall(r'<a href="#(L\d+\.H\d+)">', html)
    assert named[:8] == [grid.heads[place].label for place in night.heads[:8]]
    assert named[-1] == "L1.H3"
    assert (len(expected) > 8) == (f"and {len(expected) - 8} more" in html)
    assert 'id="roles"' in render(changed)
    assert 'id="roles"' not in render(run), "no role, no place for roles"


def test_the_count_of_a_role_leads_to_the_atlas_with_these_heads(run: Run) -> None:
    grid = head_grid(with_roles(run))
    night, _ = role_groups(grid)
    assert 'href="#overview?colour=focus.at_night&amp;role=night%20head"' in overview_module.roles(grid)
    data = atlas_json(with_roles(run), grid)
    assert [
        data["heads"][place]["roles"] for place in (night.heads[0], grid.heads.index(named_head(grid, "L1.H3")))
    ] == [
        ["night head"],
        ["day head"],
    ]


def test_a_role_counts_as_a_habit_and_hostile_names_stay_text(run: Run) -> None:
    changed = with_roles(run, (HOSTILE, "day head"))
    text = render(changed)
    assert HOSTILE not in text
    focus = changed.findings["focus"]
    quantities = [replace(quantity, habit="look at the dark", habit_above=2.0) for quantity in focus.quantities]
    habits_of = replace(changed, findings={"focus": replace(focus, quantities=tuple(quantities[1:]))})
    assert "1 head looks at the dark" in render(habits_of)


def named_head(grid: HeadGrid, label: str) -> Head:
    return next(head for head in grid.heads if head.label == label)


def test_each_lens_has_one_answer(page: Page, run: Run) -> None:
    answer = replace(run["focus"].headlines[0], answer="mostly there", value="-0.52", null="0.013")
    changed = replace(run, findings={**run.findings, "focus": replace(run["focus"], headlines=(answer,))})
    html = render(changed)
    verdicts = html[html.index('id="verdicts"') : html.index('id="heads"')]
    assert verdicts.count("<tr") == 1 + 4
    assert (
        '<td data-name="Answer">mostly there</td><td data-name="Number">−0.52</td><td data-name="Null">0.013</td>'
        in verdicts
    )
    # Without an answer in a few words: the short sentence, and the median head of the first quantity.
    assert "41 of 270 heads have a stable rank below 10." in verdicts
    assert "directions (median head)" in verdicts
    assert "not applicable: a decoder-only model has no cross-attention" in verdicts


def test_a_section_begins_with_its_answer_and_the_figure_of_it(run: Run) -> None:
    headline = replace(run["focus"].headlines[0], answer="yes", figure="first-token")
    html = render(replace(run, findings={"focus": replace(run["focus"], headlines=(headline,))}))
    section = html[html.index('<section id="lens-focus"') :]
    places = [
        section.index(part) for part in ("141 of 270", 'id="lens-focus-1"', 'id="lens-focus-0"', "<table", "Definition")
    ]
    assert places == sorted(places)
    folded = [section[match.end() : match.end() + 40] for match in re.finditer("<details><summary>", section)]
    titles = [text.partition("<")[0] for text in folded]
    assert titles[:4] == ["How to read it", "Definition", "Method", "Columns of the tables"]


def test_failed_and_inapplicable_findings_give_their_reason_in_place(page: Page, text: str) -> None:
    assert "Not applicable to this model.</b> a decoder-only model has no cross-attention" in text
    assert "This lens failed.</b> NumericsError" in text
    assert "failed: NumericsError" in "".join(page.text)


def test_a_figure_that_cannot_be_drawn_says_so_and_the_rest_is_drawn(text: str) -> None:
    assert text.count("This figure could not be drawn.</b> UsageError: the heat map &#x27;broken&#x27;") == 1
    assert text.count('<figure id="lens-focus-') == 4
    assert text.count('data-figure="lens-focus-') == 3


def test_a_crash_in_drawing_or_in_a_table_costs_only_that_part(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object, **__: object) -> str:
        raise ZeroDivisionError(HOSTILE)

    monkeypatch.setattr(figure_element, "figure_json", crash)
    monkeypatch.setattr(section_module, "table", crash)
    page = Page(render(run))
    assert "".join(page.text).count(f"ZeroDivisionError: {HOSTILE}") == 7 + 3  # the eighth figure is refused before


def test_a_dequantised_model_is_marked_once_before_all_numbers(run: Run, text: str) -> None:
    assert text.count("were expanded from Q8_0: rounding noise") == 2  # above the first number, and in the provenance
    assert text.index("rounding noise") < text.index('id="overview"')
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
        frame = pl.DataFrame({"layer": np.arange(n), "a": np.arange(float(n)) + 0.5})
        return table("t", frame, {}).count("<tr>") - 1

    assert (rows(1), rows(16), rows(17), rows(5000)) == (1, 16, 12, 12)


def test_wide_tables_say_how_many_columns_are_not_shown() -> None:
    def columns(n: int) -> tuple[int, bool]:
        frame = pl.DataFrame({"layer": [0, 1], **{f"c{i}": [0.5, 1.5] for i in range(n)}})
        html = table("t", frame, {}, id_="t")
        return html.count('scope="col"'), f"First 7 of {n} columns" in html and f"All {n} columns" in html

    assert columns(11) == (12, False)
    assert columns(12) == (8, True)


def test_table_says_what_columns_mean_and_what_is_the_same_in_all_rows() -> None:
    frame = pl.DataFrame({"layer": [0, 1], "shape": ["a × b"] * 2, "value": [1.5, None], "rest": [1.0, 2.0]})
    text = table("t", frame, {"value, rest": "what <it> is", "other": "unused"}, lens="some")
    assert "in all of them shape a × b" in text
    assert "<code>tables/some.t.parquet</code>" in text
    assert text.count('scope="col"') == 3
    assert text.count('title="what &lt;it&gt; is"') == 2
    assert "<td class=n>–</td>" in text


def test_a_table_of_every_type_renders() -> None:
    frame = pl.DataFrame(
        {
            "f32": pl.Series([1.5, float("nan")], dtype=pl.Float32), "u8": pl.Series([1, 255], dtype=pl.UInt8),
            "bool": [True, False], "list": [[1], [2]], "inf": [float("inf"), float("-inf")],
            "none": [None, None], "words": ["\n", "\ud7ff"],
        }
    )  # fmt: skip
    html = table("t", frame, {}, id_="t")
    assert html.count("<td class=n>–</td>") == 3  # the script, too, is given no such numbers
    columns = {column["label"]: column["values"] for column in data_of(Page(html), "t")["columns"]}
    assert columns["f32"] == [1.5, None]
    assert columns["inf"] == [None, None]
    assert columns["words"] == ["\n", "\ud7ff"]
    assert "none" not in columns


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
    places = [text.index(part) for part in ("141 of 270 heads put more than half", "How to read it", "Definition")]
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
