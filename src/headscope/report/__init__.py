<<<<<<< HEAD
"""Draws what a run found: figures as files, the run as one page, a finding in a notebook."""
=======
"""Draws a run: figures as files, the run as one page, a finding in a notebook."""

from headscope.report.draw.figure import FORMATS, save
from headscope.report.ledger import ledger_html, write_ledger
from headscope.report.page import finding_html, notebook_html, render, run_html, write

__all__ = [
    "FORMATS",
    "finding_html",
    "ledger_html",
    "notebook_html",
    "render",
    "run_html",
    "save",
    "write",
    "write_ledger",
]
>>>>>>> english
