"""`headscope head`: pictures on a terminal and in a pipe, data, files, and what is refused before torch is loaded."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import headscope
from headscope import api
from headscope.cli import head_command, main
from headscope.cli.head_picture import Canvas, blocks_of, picture, seen_weights, thumbnail, tone_of
from headscope.core import HeadView, HeadViews
from headscope.model.model import Model
from tests.model.test_token_maps import TEXT, reading

PLAIN = Canvas(80, colours=False, blocks=True)
COLOURED = Canvas(100, colours=True, blocks=True)


@pytest.fixture
def run(capfd, monkeypatch):
    """Run a command in this process: (exit code, standard output, standard error)."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("HEADSCOPE_DEBUG", raising=False)

    def call(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["head", *words])
        out, err = capfd.readouterr()
        return ended.value.code or 0, out, err

    return call


@pytest.fixture(scope="module")
def view() -> HeadView:
    return headscope.head("tiny", "L1.H3")


@pytest.fixture
def opened(tiny: Model, monkeypatch):
    """Let the command use the open model."""
    plain_heads = api.heads
    monkeypatch.setattr(api, "heads", lambda model, *at, **options: plain_heads(tiny, *at, **options))


def test_a_head_needs_no_option(run, view: HeadView) -> None:
    code, out, _ = run("tiny", "L1.H3")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "L1.H3 of tiny, 64 tokens of plain English (shipped with headscope)"
    assert lines[1].split() == ["0", "10", "20", "30", "40", "50", "60"]
    rows = lines[2:66]
    assert [row.split()[0] for row in rows] == [str(place) for place in range(64)]
    assert [len(row.split()[-1]) for row in rows] == list(range(1, 65))  # causal: each row sees itself and the past
    assert not any(line.endswith(" ") for line in lines)
    assert "\x1b" not in out
    assert f"entropy                        {view.quantities['entropy_nats']:.3g} nats" in out
    assert "  0.939  5 at → 1 T" in out


def test_every_cell_of_the_picture_is_the_shade_of_its_weight(view: HeadView) -> None:
    lines = [line.plain for line in picture(view, PLAIN)][1:65]
    start = len(lines[63]) - 64
    weights = seen_weights(view)
    full = tone_of(weights).full
    for query in range(64):
        for key in range(query + 1):
            share = min(1.0, (float(view.pattern[query, key]) / full) ** 0.5)
            assert lines[query][start + key] == "·░▒▓█"[min(4, int(5 * share))]
        assert not lines[query][start + query + 1 :].strip()


def test_a_terminal_with_colours_has_two_rows_in_a_line(view: HeadView) -> None:
    lines = picture(view, COLOURED)
    assert len(lines) == 1 + 32 + 1
    assert lines[1].plain.startswith("0 <s>")
    assert lines[1].plain.endswith("1 T" + " " * (len(lines[1].plain) - len(lines[1].plain.rstrip())))
    levels = {span.style.color.triplet for line in lines[1:33] for span in line.spans if span.style.color}
    assert len(levels) > 10
    assert all(line.cell_len <= 100 for line in lines)


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("canvas", [PLAIN, COLOURED, Canvas(80, colours=False, blocks=False)], ids=str)
@pytest.mark.parametrize("tokens", [1, 2, 24, 65])
def test_a_picture_fits_its_width(tiny: Model, tokens: int, canvas: Canvas, width: int) -> None:
    view = headscope.head(tiny, "L1.H3", tokens=max(tokens, 2))
    part = replace(
        view, pattern=view.pattern[:tokens, :tokens], tokens=view.tokens[:tokens], key_tokens=view.tokens[:tokens]
    )
    lines = picture(part, Canvas(width, canvas.colours, canvas.blocks))
    assert all(line.cell_len <= width for line in lines)
    if not canvas.blocks:
        assert all(line.plain.replace("…", "").replace("×", "").isascii() for line in lines)


def test_a_wide_terminal_gives_each_weight_a_square(tiny: Model) -> None:
    lines = picture(headscope.head(tiny, "L1.H3", tokens=24), COLOURED)
    assert len(lines) == 1 + 24 + 1
    assert len(lines[24].plain) - len(lines[1].plain.rstrip()) >= 2 * 23


def test_blocks_hold_their_largest_weight() -> None:
    weights = np.arange(25.0).reshape(5, 5)
    weights[0, 2:] = np.nan
    weights[1, 2:] = np.nan
    expected = [[6, np.nan, np.nan], [16, 18, 19], [21, 23, 24]]
    assert np.array_equal(blocks_of(weights, 2), expected, equal_nan=True)
    assert np.array_equal(blocks_of(weights, 1), weights, equal_nan=True)


def test_wide_characters_and_controls_in_tokens(tiny: Model) -> None:
    lines = picture(headscope.head(tiny, "L0.H0", text="漢字 \x1b[31m\tnaïve"), PLAIN)
    assert not any("\x1b" in line.plain or "\t" in line.plain for line in lines)
    n_tokens = len(lines) - 2
    assert [line.cell_len for line in lines[1:-1]] == [lines[1].cell_len] * n_tokens  # all rows begin in one column


def test_a_thumbnail_has_half_as_many_lines(view: HeadView) -> None:
    assert [line.cell_len for line in thumbnail(view, COLOURED, 24)] == [22] * 11  # blocks of 3 × 3


def test_several_heads_are_thumbnails_with_a_table(run, opened) -> None:
    code, out, _ = run("tiny", "L1", "L2.H0", "--first-tokens", "32")
    assert code == 0
    assert out.startswith("L1.H0, L1.H1, L1.H2, L1.H3, L1.H4, L1.H5 and 3 more of tiny, 32 tokens")
    assert [line.split()[0] for line in out.splitlines()[-9:]] == [*(f"L1.H{head}" for head in range(8)), "L2.H0"]
    code, out, _ = run("tiny", "L1.H3,L2.H0")
    assert out.count("largest weights") == 2


def test_json_has_every_weight(run, opened, view: HeadView) -> None:
    code, out, _ = run("tiny", "L1.H3", "--format", "json")
    (head,) = json.loads(out)
    assert code == 0
    assert np.float32(head["pattern"]).tolist() == view.pattern.tolist()
    assert head["tokens"] == list(view.tokens)
    assert head["quantities"] == view.quantities
    assert (head["label"], head["layer"], head["head"], head["kind"]) == ("L1.H3", 1, 3, "self")


def test_csv_has_a_row_for_each_weight(run, opened, view: HeadView) -> None:
    _, out, _ = run("tiny", "L1.H3", "L1.H4", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert len(rows) == 2 * 64 * 64
    row = rows[5 * 64 + 1]
    assert (row["layer"], row["head"], row["query"], row["key"], row["query_token"]) == ("1", "3", "5", "1", " at")
    assert float(row["weight"]) == pytest.approx(float(view.pattern[5, 1]), rel=1e-7)


@pytest.mark.parametrize(
    ("name", "start"), [("h.html", b"<!doctype"), ("h.png", b"\x89PNG"), ("h.svg", b"<svg"), ("h.pdf", b"%PDF")]
)
def test_files(run, opened, tmp_path: Path, name: str, start: bytes) -> None:
    code, out, _ = run("tiny", "L1.H3", "--out", str(tmp_path / name), "--first-tokens", "16")
    assert code == 0
    assert (tmp_path / name).read_bytes().startswith(start)
    assert out.splitlines()[-1] == f"The {'page' if name == 'h.html' else 'picture'}: {tmp_path / name}"
    assert "█" not in out


def test_a_text_of_ones_own(run, opened, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("The cat sat on the mat.")
    code, out, _ = run("tiny", "L1.H3", "--text", str(tmp_path / "notes.txt"))
    assert code == 0
    assert "of notes.txt" in out.splitlines()[0]
    assert " mat" in out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["tiny"], 2, "Missing argument"),
        (["tiny", "L1.H3", "--out", "head.gif"], 2, "unknown format '.gif'"),
        (["tiny", "L1.H3", "--out", "head"], 2, "no ending"),
        (["tiny", "L1.H3", "--out", "nowhere/head.png"], 5, "there is no folder"),
        (["tiny", "L9.H0"], 2, "tiny has no head L9.H0: it has 4 layers with 8 heads each, L0.H0 to L3.H7"),
        (["tiny", "L1.H3", "L1.H8"], 2, "tiny has no head L1.H8"),
        (["tiny", "third"], 2, "cannot read 'third'"),
        (["tiny", "L1.H3", "--first-tokens", "0"], 2, "--first-tokens"),
        (["tiny", "L1.H3", "--text", "nothing-of-this-name"], 2, "neither a text file"),
        (["tinny", "L1.H3"], 2, "did you mean tiny"),
    ],
)
def test_refusals_come_before_the_model_is_opened(run, monkeypatch, tmp_path, words, code, message) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(api, "heads", lambda *_, **__: pytest.fail("the model was opened"))
    refused, out, err = run(*words)
    assert refused == code
    assert message in " ".join(err.split())
    assert not out


def test_a_window_beyond_the_context(run, opened) -> None:
    code, _, err = run("tiny", "L1.H3", "--first-tokens", "2000")
    assert code == 2
    assert "tiny reads at most 1024" in err


def test_an_encoder_decoder_on_the_screen(monkeypatch, capsys) -> None:
    views = headscope.heads(reading("t5"), "dec.L0.cross.H1", text=TEXT)
    screen = Console(width=80, file=io.StringIO())
    monkeypatch.setattr(head_command, "console", lambda: screen)
    head_command._show_on_screen(HeadViews(tuple(views)), is_drawn=True)
    out = screen.file.getvalue()
    assert out.startswith("dec.L0.cross.H1 of t5, 14 tokens")
    row = next(line for line in out.splitlines() if line.startswith("0 [CLS]"))
    assert len(row) - len("0 [CLS]") >= 28  # every key is seen
    assert "mean distance" not in out
