"""The hostile corpus: every row ends with its exit code and its sentence, never with a traceback."""

import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.hostile import checkpoint_rows, folder_rows, machine_rows, model_rows, text_rows, word_rows
from tests.hostile.row import Row, Scene, Seeds

ROWS = [
    *checkpoint_rows.ROWS,
    *model_rows.ROWS,
    *text_rows.ROWS,
    *word_rows.ROWS,
    *folder_rows.ROWS,
    *machine_rows.ROWS,
]


def test_the_corpus_is_large_and_varied() -> None:
    assert len(ROWS) >= 200
    assert len({row.kind for row in ROWS}) >= 40
    assert len({row.id for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=[row.id for row in ROWS])
def test_row(
    row: Row,
    seeds: Seeds,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    headscope: Callable[..., tuple[int, str, str]],
) -> None:
    folder = tmp_path / "scene"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with ExitStack() as streams:
        line = row.prepare(Scene(folder, seeds, monkeypatch, streams))
        code, _, err = headscope(*line)
    said = re.sub(r"[\s│]+", " ", err.replace(str(folder), "…"))  # its name holds words of the row
    assert code == row.code, err
    assert "Traceback" not in err
    assert "bug in headscope" not in err
    assert len(err) < 4000, "an error is read by people"
    for part in row.says:
        assert part in said
    if row.code in range(2, 6) and row.says:
        message = re.findall(r"error: (.*?)(?= hint: |$)", said)
        assert len(message) == 1 or "─ Error ─" in said
    if row.hints:
        assert row.hints in said.rpartition(" hint: ")[2]
    assert not list(folder.parent.rglob("pickle_was_run"))
