"""The example run and its page, made once: drawing is the slow part."""

import pytest

from headscope.core import Run
from headscope.report.page import render
from tests.report.example import example_run


@pytest.fixture(scope="session")
def run() -> Run:
    return example_run()


@pytest.fixture(scope="session")
def text(run: Run) -> str:
    return render(run)
