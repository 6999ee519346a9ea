"""Generated documentation is what its script writes today."""

import importlib.util
from pathlib import Path

PROJECT = Path(__file__).parents[2]


def make_docs():
    spec = importlib.util.spec_from_file_location("make_docs", PROJECT / "scripts" / "make_docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_docs_are_up_to_date():
    for path, content in make_docs().pages().items():
        assert path.exists(), f"{path.name} is missing: run `make docs`"
        if isinstance(content, str):  # a picture's bytes depend on the version of matplotlib
            assert path.read_text(encoding="utf-8") == content, f"{path.name} is not what it describes: run `make docs`"
