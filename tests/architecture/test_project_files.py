"""What a reader of the project must not meet: notes about how it was made, addresses that need a network."""

import re
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
DOCUMENTS = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "CITATION.cff", "LICENSE"]
HOSTS = re.compile(
    r"https?://[^\s)>\"']*(?:pypi|pythonhosted|huggingface\.co|hf\.co|cdn|unpkg|jsdelivr|googleapis)", re.I
)


def texts() -> list[Path]:
    """Files under version control or about to be, so that a virtual environment does not count."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    names = listed.stdout.split("\n") if listed.returncode == 0 else DOCUMENTS
    kept = (".py", ".md", ".toml", ".cff", ".txt", ".css", ".js", "Makefile")
    return [PROJECT / name for name in names if name.endswith(kept) and (PROJECT / name).is_file()]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_are_there(name):
    assert (PROJECT / name).stat().st_size > 200


def test_no_address_of_a_package_or_script_host():
    found = [
        str(path.relative_to(PROJECT))
        for path in texts()
        if HOSTS.search(path.read_text(encoding="utf-8", errors="replace"))
    ]
    assert found in ([], ["tests/architecture/test_project_files.py"]), found


def test_readme_begins_with_the_two_commands():
    top = (PROJECT / "README.md").read_text(encoding="utf-8")[:700]
    assert "make demo" in top
    assert "make test" in top
