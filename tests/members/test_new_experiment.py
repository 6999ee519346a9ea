"""One new folder is a whole experiment: command, Python function, page of docs, section of the report, index entry."""

import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import headscope
import headscope.experiments as folder
from headscope.api import Item
from headscope.cli import command_lookup, main
from headscope.cli.index_command import rows
from headscope.theory.index.item import steps

PROJECT = Path(__file__).parents[2]
PACKAGE = PROJECT / "tests" / "packages" / "colour_members"
ITEM = Item("document", "1", "question", "1", "How sharp must attention be?", steps("repaint MODEL --strength 2"))


def forget() -> None:
    """Undo what is remembered about the experiments that there are."""
    command_lookup._named.cache_clear()
    vars(headscope).pop("repaint", None)
    for name in [*sys.modules]:
        if name.startswith(f"{folder.__name__}.repaint"):
            sys.modules.pop(name)


@pytest.fixture
def new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the example, copied into headscope for the length of a test."""
    for file in (PACKAGE / "colour_members" / "repaint").glob("*.*"):
        target = tmp_path / "repaint" / file.name
        target.parent.mkdir(exist_ok=True)
        target.write_text(file.read_text().replace("colour_members.repaint", f"{folder.__name__}.repaint"))
    forget()
    monkeypatch.setattr(folder, "__path__", [*folder.__path__, str(tmp_path)])
    yield target.parent
    forget()


def make_docs():
    spec = importlib.util.spec_from_file_location("make_docs", PROJECT / "scripts" / "make_docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_before_there_is_none() -> None:
    forget()
    assert not hasattr(headscope, "repaint")
    assert rows((ITEM,))[0]["reason"] == "not yet: command repaint"


@pytest.mark.usefixtures("new_folder")
def test_a_folder_is_a_command(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["repaint", "--help"])
    assert "--strength" in capfd.readouterr().out


@pytest.mark.usefixtures("new_folder")
def test_a_folder_is_a_function_and_a_section_of_the_report(tmp_path: Path) -> None:
    assert list(inspect.signature(headscope.repaint).parameters)[:4] == ["what", "strengths", "tokens", "seed"]
    assert "repaint" in dir(headscope)
    run = headscope.repaint("tiny", strengths=2, tokens=8, out=tmp_path / "out")
    assert run["repaint"].table["strength"].to_list() == [2.0]
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "Repainted attention" in page
    assert run["repaint"].headlines[0].full in page


@pytest.mark.usefixtures("new_folder")
def test_a_folder_is_a_page_of_docs() -> None:
    page = make_docs().experiment_pages()[PROJECT / "docs" / "repaint.md"]
    assert page.startswith("# Repainted attention\n")
    for part in ("headscope repaint MODEL", "headscope.repaint(model", "`--strength`", "`change`"):
        assert part in page


@pytest.mark.usefixtures("new_folder")
def test_an_item_of_the_index_that_names_it_has_a_command() -> None:
    (row,) = rows((ITEM,))
    assert row["commands"] == ["headscope repaint MODEL --strength 2"]
    assert row["reason"] is None
