"""What the documents name exists: files, modules, attributes, targets of make; what they count is counted."""

import ast
import importlib
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from headscope.attention.mechanism import mechanisms
from headscope.corpora import shipped_text
from headscope.corpora.crossword_clues import categories
from headscope.lenses import ORDER, lenses
from headscope.model.sources.model_lists import POPULAR, read_list

PROJECT = Path(__file__).parents[2]
PACKAGE = PROJECT / "src" / "headscope"
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")

# Written when headscope runs, when it is installed, or by other programs.
WRITTEN = {"report.html", "manifest.json", "run.json", "model.safetensors", ".venv/bin", ".venv/bin/pytest"}
# Words of a user's own package or program.
NOT_OURS = {"batch", "edit", "hs", "self", "session", "torch", "dec", "enc", "text", "image"}

PATH = re.compile(r"[\w.*-]+(?:/[\w.*-]+)*/?")
ENDINGS = (".py", ".md", ".toml", ".txt", ".json", ".cpp", ".html", ".cff", ".safetensors")
DOTTED = re.compile(r"(?!L\d)([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)(?:\(.*\))?")  # L3.H7 is a head


@cache
def text_of(document: str) -> str:
    """The document as one line. Of the changes only the newest: older ones tell of what may be gone."""
    text = (PROJECT / document).read_text(encoding="utf-8")
    if document == "CHANGELOG.md":
        text = "## ".join(text.split("## ")[:2])
    return " ".join(re.sub(r"```.*?```", "", text, flags=re.DOTALL).split())


def quoted(document: str) -> Iterator[str]:
    """Everything in backticks."""
    return iter(dict.fromkeys(re.findall(r"`([^`]+)`", text_of(document))))


def paths_in(document: str) -> list[str]:
    return [
        word
        for word in quoted(document)
        if PATH.fullmatch(word) and word not in WRITTEN and ("/" in word or word.endswith(ENDINGS))
    ]


def exists(path: str) -> bool:
    """Whether a path is there, from the project or from the package; a name alone may lie anywhere.

    NAME and * stand for some name.
    """
    pattern = path.rstrip("/").replace("NAME", "*")
    places = [PROJECT.glob(pattern), PACKAGE.glob(pattern)]
    if "/" not in pattern:
        places += [(PROJECT / folder).rglob(pattern) for folder in ("src", "tests", "docs", "scripts")]
    return any(True for place in places for _ in place)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_paths_exist(document: str) -> None:
    gone = [path for path in paths_in(document) if not exists(path)]
    assert not gone, f"{document} names files that do not exist: {gone}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", text_of(document))
    gone = [target for target in targets if not (PROJECT / target).exists()]
    assert not gone, f"{document} links to files that do not exist: {gone}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_targets_of_make_exist(document: str) -> None:
    targets = set(re.findall(r"^([a-z]+):", (PROJECT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    text = (PROJECT / document).read_text(encoding="utf-8")
    named = set(re.findall(r"(?:`|^)make ([a-z]+)", text, re.MULTILINE))
    assert named <= targets, f"{document} names targets that the Makefile lacks: {sorted(named - targets)}"


@cache
def members_by_class() -> dict[str, set[str]]:
    """The fields and methods of every class of the package, by the name of the class."""
    members: dict[str, set[str]] = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                members[node.name] |= {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
                fields = (part for part in node.body if isinstance(part, ast.AnnAssign))
                members[node.name] |= {part.target.id for part in fields if isinstance(part.target, ast.Name)}
    return members


def is_there(dotted: str) -> bool:
    """Whether `part.module.name`, `Class.member` or `headscope.name` is there."""
    first, *inner = dotted.split(".")
    if first in members_by_class():
        return inner[0] in members_by_class()[first]
    value: object = importlib.import_module("headscope")
    module = PACKAGE
    for name in dotted.removeprefix("headscope.").split("."):
        module /= name
        if module.is_dir() or module.with_suffix(".py").is_file():
            value = importlib.import_module(".".join(module.relative_to(PACKAGE.parent).parts))
        elif hasattr(value, name):
            value = getattr(value, name)
        else:
            return False
    return True


@pytest.mark.parametrize("document", DOCUMENTS)
def test_names_with_points_exist(document: str) -> None:
    matches = [DOTTED.fullmatch(word) for word in quoted(document) if not word.endswith(ENDINGS)]
    names = [
        match[1] for match in matches if match and match[1].split(".")[0] not in NOT_OURS and "NAME" not in match[1]
    ]
    gone = [name for name in names if not is_there(name)]
    assert not gone, f"{document} names what the package does not have: {gone}"


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("`lenses/focus/` `focus.py` `lens.py` `docs/NAME.md`", ["focus.py"]),
        ("`theory/claim.py` `theory/chapters/*.py` `theory/claims/*.py`", ["theory/claims/*.py"]),
    ],
)
def test_a_path_that_is_not_there_is_noticed(text: str, missing: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "text_of", lambda document: text)
    assert [path for path in paths_in("README.md") if not exists(path)] == missing


@pytest.mark.parametrize("name", ["Needs.captured", "model.load.loaded_nowhere", "headscope.nothing", "modle.load"])
def test_a_name_that_is_not_there_is_noticed(name: str) -> None:
    assert not is_there(name)


README = text_of("README.md")
NUMBERS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"),
    *(f"twenty-{digit}" for digit in ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")),
)


def assert_said(sentence: str) -> None:
    assert sentence in README, f"README.md should say: {sentence}"


def test_readme_counts_the_lenses() -> None:
    """How many there are; the page of results has an answer of each."""
    assert_said(f"{NUMBERS[len(lenses())].capitalize()} questions, each with")
    results = (PROJECT / "docs" / "smollm2.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \|", results, re.MULTILINE) == list(ORDER)


def test_readme_counts_the_mechanisms() -> None:
    (names,) = re.findall(r"mechanisms, one contract\.\*\* ([^:]*):", README)
    assert_said(f"**{NUMBERS[len(mechanisms())].capitalize()} mechanisms, one contract.**")
    assert len(names.split(",")) == len(mechanisms()), f"README.md lists {names}, and there are {[*mechanisms()]}"


def test_readme_counts_what_ships() -> None:
    documents = shipped_text().documents
    words = sum(len(document.split()) for document in documents)
    assert_said(f"The shipped text has {len(documents)} documents of many kinds, {words:,} words,")
    clues = sum(len(category.clues) for category in categories())
    assert_said(f"with {clues} words and clues in {NUMBERS[len(categories())]} categories")
    assert_said(f"`headscope verify --hub popular` verifies {NUMBERS[len(read_list(POPULAR))]} published models")
