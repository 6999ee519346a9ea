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
    module = make_docs()
    assert module.PAGE.read_text(encoding="utf-8") == module.page(), "run `make docs`"
