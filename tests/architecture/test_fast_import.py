"""`import headscope`, help, lists, version and wrong arguments load nothing heavy."""

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "matplotlib", "polars", "pyarrow", "scipy", "numpy")


def loaded_after(code: str) -> set[str]:
    probe = f"{code}\nimport json, sys\nsys.stderr.write(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    return set(json.loads(done.stderr.splitlines()[-1]))


def command(*words: str) -> str:
    return f"from headscope.cli import main\ntry: main({[*words]!r})\nexcept SystemExit: pass"


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["--version"],
        ["report", "--help"],
        ["mechanisms", "--help"],
        ["mechanisms", "wimdow"],
        ["mechanisms", "--wrong"],
        ["lens", "--help"],
        ["lens", "focus", "--help"],
        ["lens", "fokus", "tiny"],
        ["intervene", "--help"],
        ["intervene", "tiny", "--wrong"],
        ["intervene", "tiny", "--window", "none"],
        ["study", "fewshot", "--help"],
    ],
    ids=" ".join,
)
def test_help_and_wrong_arguments_load_nothing_heavy(words: list[str]) -> None:
    # Messages go to standard error, where the names of modules go last.
    assert not loaded_after(command(*words)) & set(HEAVY)


def test_the_list_of_lenses_loads_no_torch() -> None:
    assert not loaded_after(command("lenses")) & {"torch", "transformers", "matplotlib", "scipy"}


@pytest.mark.parametrize(
    "code",
    [
        "import headscope; headscope.__version__; dir(headscope)",
        "import headscope; help(headscope.intervene); headscope.fewshot.__doc__",
        "import headscope; hasattr(headscope, 'nothing_of_this_name')",
        "import headscope.attention; dir(headscope.attention)",
        "from headscope.catalogue import mechanism_members; mechanism_members()",
    ],
)
def test_nothing_heavy_is_loaded(code):
    assert not loaded_after(code) & set(HEAVY)
