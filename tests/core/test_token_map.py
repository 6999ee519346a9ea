"""A map of tokens: an array, a few lines of text, and a drawing that no token can break."""

import re

import numpy as np
import pytest

from headscope.core import TokenMap
from headscope.core.token_map_html import ALL_LABELS, MOST_TOKENS
from headscope.errors import UsageError
from tests.html_page import Page

HOSTILE = "<b>\"&'</style><script>alert(1)</script>"


def causal_map(n: int) -> TokenMap:
    """Row q is uniform over the keys 0 … q."""
    values = np.tril(np.ones((n, n))) / np.arange(1, n + 1)[:, None]
    return TokenMap(values, [f" t{i}" for i in range(n)], [f" t{i}" for i in range(n)], "uniform")


def titles(token_map: TokenMap) -> list[str]:
    """What hovering over the cells says, row by row."""
    return Page(token_map._repr_html_()).all("title")


def opacities(token_map: TokenMap) -> list[float]:
    """How strongly each cell is coloured, without the legend."""
    cells = [attributes for tag, attributes in Page(token_map._repr_html_()).elements if tag == "i"]
    styles = [cell.get("style", "opacity:0") for cell in cells if "title" in cell]
    return [float(style.removeprefix("opacity:")) for style in styles]


def test_it_is_an_array() -> None:
    token_map = causal_map(4)
    assert token_map.shape == (4, 4)
    assert len(token_map) == 4
    assert token_map[1].tolist() == [0.5, 0.5, 0.0, 0.0]
    assert token_map[3, 0] == 0.25
    assert np.asarray(token_map) is token_map.values
    assert np.sum(token_map) == pytest.approx(4)
    assert [row.sum() for row in token_map] == pytest.approx([1, 1, 1, 1])
    assert (np.asarray(token_map, dtype=np.float32)).dtype == np.float32


def test_a_copy_is_a_copy() -> None:
    token_map = causal_map(2)
    copy = np.array(token_map)
    copy[:] = 7
    assert token_map[0, 0] == 1
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(token_map, dtype=np.float32, copy=False)


def test_whole_numbers_become_floats_and_float32_stays() -> None:
    assert TokenMap(np.eye(2, dtype=np.int64), "ab", "ab").values.dtype == np.float64
    assert TokenMap(np.eye(2, dtype=np.float32), "ab", "ab").values.dtype == np.float32


@pytest.mark.parametrize(
    ("values", "queries", "keys"),
    [
        (np.zeros((2, 3)), "ab", "ab"),
        (np.zeros((3, 2)), "ab", "ab"),
        (np.zeros(2), "ab", ""),
        (np.zeros((1, 2, 2)), "ab", "ab"),
    ],
)
def test_an_array_that_does_not_fit_its_tokens_is_refused(values: np.ndarray, queries: str, keys: str) -> None:
    with pytest.raises(UsageError, match=f"shape {re.escape(str(values.shape))} with 2 query tokens"):
        TokenMap(values, queries, keys)


def test_places_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UsageError, match="1 places of 2 key tokens"):
        TokenMap(np.eye(2), "ab", "ab", key_places=[3])


def test_the_text_gives_title_shape_and_the_strongest_keys() -> None:
    values = np.zeros((40, 3))
    values[np.arange(40), np.arange(40) % 3] = 0.123456
    token_map = TokenMap(values, [f"q{i}" for i in range(40)], [" the", "\n", "c"], "L1.H3 of tiny")
    first, *rows = repr(token_map).splitlines()
    assert first == "L1.H3 of tiny: 40 queries × 3 keys, values 0 to 0.123"
    assert len(rows) == 5
    assert rows[0].split() == ["0", "'q0'", "strongest", "key", "0", "'", "the':", "0.123"]
    assert rows[-1].endswith(r"strongest key 0 ' the': 0.123")
    assert rows[1].strip().startswith("10 'q10'")
    assert r"strongest key 1 '\n'" in rows[1]


def test_the_text_of_rows_without_numbers() -> None:
    values = np.array([[np.nan, np.nan], [np.nan, 0.5], [-np.inf, -2.0]])
    lines = repr(TokenMap(values, "abc", "xy")).splitlines()
    assert lines[0] == "a map of tokens: 3 queries × 2 keys, values −2 to 0.500, 3 NaN"
    assert lines[1].endswith("no finite value")
    assert lines[2].endswith("key 1 'y': 0.500")
    assert lines[3].endswith("key 1 'y': −2")


@pytest.mark.parametrize(
    "token_map",
    [
        causal_map(1),
        causal_map(ALL_LABELS),
        causal_map(MOST_TOKENS + 5),
        TokenMap(np.ones((1, 7)), "a", "abcdefg"),
        TokenMap(np.ones((7, 1)), "abcdefg", "a"),
        TokenMap(np.zeros((0, 0)), "", ""),
        TokenMap(np.zeros((0, 3)), "", "abc"),
        TokenMap(np.zeros((2, 2)), "ab", "ab", "nothing"),
        TokenMap(np.full((2, 2), np.nan), "ab", "ab"),
        TokenMap(np.full((2, 2), np.inf), "ab", "ab"),
        TokenMap(np.eye(2), ["", " "], ["\n\t", "\ud800"], "\ud800"),
        TokenMap(np.eye(2), [HOSTILE, "b"], ["a", HOSTILE], HOSTILE),
    ],
    ids=[
        "one",
        "labelled",
        "cropped",
        "row",
        "column",
        "empty",
        "no-query",
        "zeros",
        "NaN",
        "infinite",
        "odd",
        "hostile",
    ],
)
def test_every_map_is_drawn_well_formed_and_needs_nothing(token_map: TokenMap) -> None:
    text = token_map._repr_html_()
    page = Page(text)
    assert page.open == []
    assert {tag for tag, _ in page.elements} <= {"div", "style", "p", "strong", "b", "i", "span", "code"}
    assert "url(" not in text
    assert "://" not in text
    assert len(titles(token_map)) == min(token_map.shape[0], MOST_TOKENS) * min(token_map.shape[1], MOST_TOKENS)
    text.encode()
    assert len(repr(token_map).splitlines()) <= 7


def test_tokens_are_shown_and_cannot_leave_their_place() -> None:
    token_map = TokenMap(np.eye(2), [HOSTILE, " b"], [" a", HOSTILE], HOSTILE)
    page = Page(token_map._repr_html_())
    assert HOSTILE in page.text  # the title
    assert titles(token_map)[0] == f"query 0 “{HOSTILE}”, key 0 “ a”: 1"
    assert titles(token_map)[3] == f"query 1 “ b”, key 1 “{HOSTILE}”: 1"
    labels = [text for text in page.text if text in ("b", "a")]
    assert labels == ["a", "b"]  # columns first; no blanks around them


def test_cells_say_query_key_and_value_with_few_digits() -> None:
    token_map = TokenMap(np.array([[1 / 3, 0.0], [1e-7, np.nan]]), ["x", " y"], ["u", "v"])
    assert titles(token_map) == [
        "query 0 “x”, key 0 “u”: 0.333",
        "query 0 “x”, key 1 “v”: 0",
        "query 1 “ y”, key 0 “u”: 1.00×10⁻⁷",
        "query 1 “ y”, key 1 “v”: NaN",
    ]


def test_colours_grow_with_the_value() -> None:
    token_map = TokenMap(np.array([[0.0, 0.25, 1.0, -1.0, np.nan, -np.inf]]), "a", "bcdefg")
    assert opacities(token_map) == [0.0, 0.5, 1.0, 1.0, 0.0, 0.0]
    cells = [attributes for tag, attributes in Page(token_map._repr_html_()).elements if tag == "i"][:6]
    assert [cell.get("class") for cell in cells] == ["z", None, None, "n", "x", "z"]


def test_colours_do_not_depend_on_the_scale_of_the_values() -> None:
    values = np.array([[0.1, 0.2], [0.3, 0.4]])
    drawings = [opacities(TokenMap(scale * values, "ab", "ab")) for scale in (1.0, 1e-6, 1e6)]
    assert drawings[0] == drawings[1] == drawings[2] == [0.5, 0.71, 0.87, 1.0]


@pytest.mark.parametrize(
    ("values", "legend"),
    [
        ([[0.0, 0.8]], ["0", "0.04", "0.2", "0.4", "0.8"]),
        ([[-1.0, 0.5]], ["−1", "−0.5", "−0.25", "−0.05", "0", "0.05", "0.25", "0.5", "1"]),
        ([[-1.0, -0.5]], ["−1", "−0.5", "−0.25", "−0.05"]),
        ([[0.0, 0.0]], ["0"]),
        ([[np.nan, 2.0]], ["0", "0.1", "0.5", "1", "2", "NaN"]),
    ],
)
def test_the_legend_shows_what_the_map_holds(values: list[list[float]], legend: list[str]) -> None:
    text = TokenMap(np.array(values), "a", "bc")._repr_html_()
    assert re.findall(r"<span>(.*?)</span>", text) == legend


def test_many_tokens_have_fewer_labels() -> None:
    texts = [Page(causal_map(n)._repr_html_()).text for n in (ALL_LABELS, ALL_LABELS + 1)]
    assert texts[0].count("t1") == 2  # once on each side
    assert texts[1].count("t1") == 0
    assert texts[1].count("t2") == 2


def test_a_crop_is_stated_and_the_rest_can_be_had() -> None:
    n = MOST_TOKENS + 4
    token_map = causal_map(n)
    text = "".join(Page(token_map._repr_html_()).text)
    assert f"{n} queries (rows) × {n} keys (columns)" in text
    assert f"Drawn are the first {MOST_TOKENS} of {n} queries and the first {MOST_TOKENS} of {n} keys" in text
    assert f".part(queries=range(4, {n}), keys=range(4, {n}))" in text
    rest = token_map.part(queries=range(4, n), keys=range(4, n))
    assert rest.shape == (MOST_TOKENS, MOST_TOKENS)
    assert rest.query_tokens[0] == " t4"
    assert titles(rest)[0] == "query 4 “ t4”, key 4 “ t4”: 0.200"
    assert "Drawn are" not in "".join(Page(rest._repr_html_()).text)
    wide = TokenMap(np.ones((2, n)), "ab", ["k"] * n)
    assert f"Drawn are the first {MOST_TOKENS} of {n} keys;" in "".join(Page(wide._repr_html_()).text)


def test_parts_of_parts_keep_their_places() -> None:
    part = causal_map(10).part(range(2, 8)).part(range(3, 5), range(0, 10, 4))
    assert part.query_places == (5, 6)
    assert part.key_places == (0, 4, 8)
    assert part.values.tolist() == [[1 / 6, 1 / 6, 0], [1 / 7, 1 / 7, 0]]
    assert part.key_tokens == (" t0", " t4", " t8")
    assert part.title == "uniform"


@pytest.mark.parametrize("numbers", [range(-1, 2), range(3, 5)])
def test_a_part_outside_the_map_is_refused(numbers: range) -> None:
    with pytest.raises(UsageError, match="but the map has 4 queries: 0 to 3"):
        causal_map(4).part(numbers)
    with pytest.raises(UsageError, match="but the map has 4 keys: 0 to 3"):
        causal_map(4).part(keys=numbers)
