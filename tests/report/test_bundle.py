"""The script of the report is the one that its sources give."""

import shutil
import subprocess
from pathlib import Path

import pytest
from scripts.build_frontend import FRONTEND, INSTALL, build, npm

from headscope.report.bundle import BUNDLE, SOURCES_HASH, source_hash


def test_the_script_was_built_from_these_sources() -> None:
    assert source_hash(FRONTEND) == SOURCES_HASH.read_text().strip(), "call scripts/build_frontend.py"


def test_another_source_has_another_hash(tmp_path: Path) -> None:
    shutil.copytree(FRONTEND, tmp_path / "frontend", ignore=shutil.ignore_patterns("node_modules", "dist"))
    before = source_hash(tmp_path / "frontend")
    assert before == source_hash(FRONTEND)
    (tmp_path / "frontend/src/main.ts").write_text("// another one")
    assert source_hash(tmp_path / "frontend") != before


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not on this machine")
def test_building_again_gives_the_same_bytes(tmp_path: Path) -> None:
    frontend = tmp_path / "frontend"
    shutil.copytree(FRONTEND, frontend, ignore=shutil.ignore_patterns("node_modules", "dist"))
    try:
        npm(frontend, *INSTALL)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"npm cannot install what the lock file names: {error.stdout.decode()[-300:]}")
    assert build(frontend) == BUNDLE.read_bytes()
