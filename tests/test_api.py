"""The public face on the embedded model: what README promises, run as a user would run it."""

import re
import shlex
from pathlib import Path

import pytest
import typer

import headscope as hs
from headscope import api
from headscope.cli.app import app
from headscope.core import Curves, HeatMap, Histogram, Run
from headscope.errors import UsageError
from headscope.model import model

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
TEXT = "In the beginning was the word, and the word was long. " * 30


@pytest.fixture(scope="module")
def folder(tiny, tmp_path_factory):
    """A run of every lens on a short text, kept."""
    path = tmp_path_factory.mktemp("run") / "out"
    api.measure(tiny, text=TEXT, window=64, out=path)
    return path


@pytest.fixture(scope="module")
def drawn_folder(tiny, tmp_path_factory):
    """A run with each type of figure that lenses make; those of all lenses take half a minute to draw."""
    path = tmp_path_factory.mktemp("drawn") / "out"
    run = api.measure(tiny, text=TEXT, window=64, lenses=["spectra", "focus", "maps"], out=path)
    figures = [figure for finding in run.findings.values() for figure in finding.figures]
    assert {type(figure) for figure in figures} == {Curves, HeatMap, Histogram}
    return path


def test_every_lens_answers(folder):
    assert {finding.status for finding in hs.load(folder).findings.values()} == {"ok"}


def test_a_stored_run_gives_the_same_report_as_the_run(drawn_folder, tmp_path):
    stored = hs.load(drawn_folder)
    assert isinstance(stored, Run)
    first = hs.report(drawn_folder, out=tmp_path / "page")
    second = hs.report(stored, out=tmp_path / "saved")
    assert first.read_bytes() == second.read_bytes()


def test_the_same_run_twice_gives_the_same_bytes(tiny, folder, tmp_path):
    api.measure(tiny, text=TEXT, window=64, out=tmp_path / "again")
    assert (folder / "manifest.json").read_bytes() == (tmp_path / "again" / "manifest.json").read_bytes()


def test_the_model_is_untouched_by_a_run(tiny):
    before = {name: parameter.clone() for name, parameter in tiny.hf.named_parameters()}
    hs.measure(tiny, text=TEXT, window=64, lenses=["focus"])
    assert all(before[name].equal(parameter) for name, parameter in tiny.hf.named_parameters())


def test_findings_and_runs_show_themselves_in_a_notebook(drawn_folder, tmp_path):
    run = hs.load(drawn_folder)
    assert run["focus"].headlines[0].short.split(";")[0] in run._repr_html_()
    assert f"Stored in {drawn_folder}" in repr(run)
    report = hs.report(run, out=tmp_path / "out")
    assert f"Report: {report}" in repr(run)
    assert run["focus"].about.question in run["focus"]._repr_html_()


def test_lenses_on_weights_never_build_the_model(monkeypatch):
    def build(*_, **__):
        raise AssertionError("the model was built")

    monkeypatch.setattr(model, "open_model", build)
    run = hs.measure("tiny", lenses=["spectra"])
    assert run["spectra"].status == "ok"
    assert run.text is None


def test_a_transformers_model_in_memory_has_no_tokenizer_of_its_own(tiny):
    run = hs.measure(tiny.hf, text=TEXT, lenses=["focus"])
    assert run["focus"].status == "not applicable"
    assert "tokenizer" in run["focus"].reason


def test_reporting_on_a_path_that_is_nothing():
    with pytest.raises(UsageError):
        hs.report("no-such-run")


def test_the_python_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    assert (tmp_path / "out" / "python" / "report.html").is_file()


SHELL = "\n".join(re.findall(r"```sh\n(.*?)```", README, re.DOTALL))
COMMANDS = re.findall(r"^headscope (.+?)(?:\s+#.*)?$", SHELL, re.MULTILINE)


@pytest.mark.parametrize("line", COMMANDS)
def test_the_commands_of_the_readme_exist(line):
    """Every word of a command line is understood, without running it."""
    command = typer.main.get_command(app)
    words = shlex.split(line)
    context = command.make_context("headscope", words, resilient_parsing=False)
    while hasattr(command, "resolve_command"):
        name, command, words = command.resolve_command(context, words)
        context = command.make_context(name, words, parent=context)
    assert context.params


def test_the_readme_has_commands():
    assert len(COMMANDS) > 5
