"""The folder of lenses: a folder with a lens.py is a lens, and nothing else has to be said."""

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
    """A second folder whose members count as if they lay in `lenses/`."""
    monkeypatch.setattr(FOLDER, "__path__", [*FOLDER.__path__, str(tmp_path)])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("headscope.lenses."):
            del sys.modules[name]


def drop(folder, name):
    text = f"""
        from headscope.lenses.focus.lens import Focus

        class Dropped(Focus):
            name = {name!r}

        LENS = Dropped()
    """
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text("")
    (folder / name / "lens.py").write_text(textwrap.dedent(text))


def test_one_folder_is_a_lens(folder):
    drop(folder, "extra")
    assert set(FOLDER.lenses()) == {*SHIPPED, "extra"}
    assert FOLDER.lens_named("extra").name == "extra"


def test_lenses_come_in_the_order_of_the_report_and_others_by_name(folder):
    drop(folder, "aardvark")
    drop(folder, "zebra")
    unordered = sorted({*SHIPPED, "aardvark", "zebra"} - set(FOLDER.ORDER))
    assert list(FOLDER.lenses()) == [*FOLDER.ORDER, *unordered]


def test_folders_without_lens_are_passed_over(folder):
    (folder / "arithmetic").mkdir()
    (folder / "arithmetic" / "__init__.py").write_text("TWO = 1 + 1\n")
    assert list(FOLDER.lenses()) == SHIPPED


def test_a_lens_has_the_name_of_its_folder():
    assert {name: lens.name for name, lens in FOLDER.lenses().items()} == {name: name for name in SHIPPED}


def test_unknown_name_tells_the_nearest():
    with pytest.raises(UsageError, match="no lens 'spectre'") as caught:
        FOLDER.lens_named("spectre")
    assert "did you mean spectra" in caught.value.hint
    assert "spectra, focus" in caught.value.hint


@pytest.mark.parametrize("ask", ["lens_members()['focus'].about", "lens_members()['focus'].settings()"])
def test_names_prose_and_settings_load_no_torch(ask):
    check = f"import sys\nfrom headscope.catalogue import lens_members\n{ask}\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True)


def test_a_lens_asked_alone_imports_no_other():
    check = (
        "import sys\nfrom headscope.lenses import lens_named\nlens_named('focus')\n"
        "others = [name for name in sys.modules if name.startswith('headscope.lenses.') and name.endswith('.lens')]\n"
        "assert others == ['headscope.lenses.lens', 'headscope.lenses.focus.lens'], others"
    )
    subprocess.run([sys.executable, "-c", check], check=True)
