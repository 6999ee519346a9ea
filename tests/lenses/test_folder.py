"""The folder of lenses: a file that binds LENS is a lens, and nothing else has to be said."""

import subprocess
import sys
import textwrap
from importlib import import_module

import pytest

from headscope.errors import UsageError

# Not `import headscope.lenses`: that name is a function of the public interface.
FOLDER = import_module("headscope.lenses")
SHIPPED = list(FOLDER.lenses())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A second folder whose files count as if they lay in `lenses/`."""
    monkeypatch.setattr(FOLDER, "__path__", [*FOLDER.__path__, str(tmp_path)])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("headscope.lenses."):
            del sys.modules[name]


def drop(folder, name, lens, order=""):
    text = f"""
        from dataclasses import replace
        from headscope.lenses.focus.lens import LENS as FOCUS
        {order}
        LENS = replace(FOCUS, name={lens!r})
    """
    (folder / f"{name}.py").write_text(textwrap.dedent(text))


def test_one_file_is_a_lens(folder):
    drop(folder, "extra_question", "extra")
    assert set(FOLDER.lenses()) == {*SHIPPED, "extra"}
    assert FOLDER.lens_named("extra").name == "extra"


def test_order_goes_before_the_name(folder):
    drop(folder, "zebra", "zebra", order="ORDER = 0")
    drop(folder, "yak", "yak")
    drop(folder, "yard", "yard")
    found = list(FOLDER.lenses())
    assert found[:3] == ["zebra", "spectra", "focus"]
    assert found.index("yak") + 1 == found.index("yard")


def test_files_without_lens_are_passed_over(folder):
    (folder / "arithmetic.py").write_text("TWO = 1 + 1\n")
    assert list(FOLDER.lenses()) == SHIPPED


def test_two_lenses_of_one_name_are_refused(folder):
    drop(folder, "again", "focus")
    with pytest.raises(UsageError, match="focus"):
        FOLDER.lenses()


def test_unknown_name_tells_the_nearest():
    with pytest.raises(UsageError, match="no lens 'spectre'") as caught:
        FOLDER.lens_named("spectre")
    assert "did you mean spectra" in caught.value.hint
    assert "spectra, focus" in caught.value.hint


def test_naming_the_folder_loads_no_torch():
    check = "import sys, headscope\nfrom headscope.lenses import lens_named\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True)
