"""`import headscope`, help, lists, version and wrong arguments load nothing heavy."""

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "matplotlib", "polars", "pyarrow", "scipy", "numpy")
# What takes seconds; checks of a run folder need numpy.
HEAVIEST = ("torch", "transformers", "matplotlib", "scipy", "polars")


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
        ["compare", "--help"],
        ["trajectory", "--help"],
        ["trajectory", "nothing-of-this-name", "--lens", "roles"],
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
        ["lenses"],
        ["lenses", "--format", "json"],
        ["models"],
        ["mechanisms"],
        ["data"],
        ["data", "moby-dik"],
        ["claims", "--help"],
        ["claims", "W-5.1z"],
        ["index", "--help"],
        ["index", "wertich:A.99"],
        ["index", "--kind", "pictures"],
        ["bench", "attention", "--help"],
        ["bench", "attention", "--mechanism", "window(lft=8)"],
        ["mechanisms", "--draw", "window(lft=8)"],
        ["look", "nothing-of-this-name"],
        ["verify", "gpt2", "--hub"],
        ["lens", "focus", "nothing-of-this-name"],
        ["lens", "focus", "tiny", "--bands", "wide"],
        ["lens", "focus", "tiny", "--table", "layers"],
        ["lens", "maps", "tiny", "--at", "third"],
        ["lens", "focus", "tiny", "--first-tokens", "9", "--all"],
        ["intervene", "tiny", "--scale", "much"],
        ["intervene", "tiny", "--randomise", "all"],
        ["intervene", "tiny", "--table", "nothing"],
        ["head", "--help"],
        ["head", "tiny", "L9.H0"],
        ["head", "tiny", "third"],
        ["head", "tiny", "L1.H3", "--out", "head.gif"],
        ["study", "fewshot", "minilm"],
        ["study", "translation", "--help"],
        ["study", "translation", "--pair", "en-xx"],
        ["study", "translation", "--heads", "3"],
        ["study", "tiny", "--help"],
        ["study", "tiny", "--texts", "moby-dik"],
        ["study", "tiny", "--minutes", "0"],
        ["translate", "--help"],
        ["translate", "nothing-of-this-name", "a"],
        ["translate", "tiny"],
        ["study", "fewshot", "tiny", "--category", "stars"],
    ],
    ids=" ".join,
)
def test_help_and_wrong_arguments_load_nothing_heavy(words: list[str]) -> None:
    # Messages go to standard error, where the names of modules go last.
    assert not loaded_after(command(*words)) & set(HEAVY)


@pytest.mark.parametrize(
    "words",
    [
        ["report", "tiny", "--lens", "spectra,fokus"],
        ["report", "tiny", "--text", "nothing-of-this-name"],
        ["report", "tiny", "--out", "README.md"],
        ["report", "gpt2"],
        ["figures", "."],
        ["compare", "tiny"],
        ["compare", "tiny", "tiny"],
        ["compare", "tiny", "nothing-of-this-name"],
        ["compare", "tiny", "gpt2", "--lens", "fokus"],
        ["compare", "tiny", "random:tiny", "--out", "README.md"],
    ],
    ids=" ".join,
)
def test_refusals_that_look_into_folders_load_nothing_heavy_either(words: list[str]) -> None:
    assert not loaded_after(command(*words)) & set(HEAVIEST)


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
