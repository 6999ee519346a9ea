"""A lens is one folder: dropped beside the others, its command, report section, docs and contract tests appear."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import headscope
from headscope import api
from headscope.cli import main
from headscope.lenses import lenses
from headscope.lenses.lens import AS_IS
from headscope.pipeline.text_pass import VARIANTS

PROJECT = Path(__file__).parents[1]

ABOUT = r"""# Echo of the text

How many tokens were seen?

## Definition

A count of tokens, as they are and freshly initialised.

## Formulas

$$
n = \sum_i 1
$$

## How to read it

More is more.

## Reference

Nobody (never).
"""

SETTINGS = '''
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    times: int = field(default=1, metadata={"help": "how often to count each token"})
'''

ECHO = '''
"""Echo: how many tokens were seen, as they are and freshly initialised?"""

import polars as pl

from headscope.attention.statistics import Request
from headscope.core import Headline
from headscope.lenses.echo.settings import Params
from headscope.lenses.lens import AS_IS, Measurement, Needs, TextLens


class Echo(TextLens):
    name = "echo"
    params = Params

    def needs(self, params):
        return Needs(statistics=Request(), captures=frozenset({"z"}), variants=(AS_IS, "initialised"))

    def start(self, params, model, sites, text):
        return {"times": params.times, "seen": ()}

    def update(self, state, batch):
        return {**state, "seen": (*state["seen"], (batch.variant, batch.tokens.numel() * state["times"]))}

    def merge(self, a, b):
        return {**a, "seen": a["seen"] + b["seen"]}

    def finish(self, state, weights):
        rows = [{"variant": variant, "tokens": n} for variant, n in state["seen"]]
        table = pl.DataFrame(rows, schema={"variant": pl.String, "tokens": pl.Int64})
        return Measurement({"tokens": table.group_by("variant", maintain_order=True).sum()}, method="exact")

    def definition(self, params, weights, batches):
        seen = [(batch.variant, batch.tokens.numel() * params.times) for batch in batches]
        return self.finish({"seen": seen}, None).tables

    def sentences(self, tables):
        sentence = f"{tables['tokens']['tokens'][0]} tokens echoed."
        return (Headline(sentence, sentence, 0.0),)


LENS = Echo()
'''


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "more_lenses"
    echo = path / "echo"
    echo.mkdir(parents=True)
    for name, text in {"about.md": ABOUT, "settings.py": SETTINGS, "lens.py": ECHO, "__init__.py": ""}.items():
        (echo / name).write_text(text)
    return path


@pytest.fixture
def dropped(folder, monkeypatch):
    """The lenses with one folder more."""
    package = sys.modules["headscope.lenses"]
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    yield
    for name in [name for name in sys.modules if name.startswith("headscope.lenses.echo")]:
        del sys.modules[name]
    vars(package).pop("echo", None)


TEXT = "In the beginning was the word, and the word was long. " * 60


@pytest.mark.usefixtures("dropped")
def test_its_command_appears(capfd):
    with pytest.raises(SystemExit) as ended:
        main(["lens", "echo", "--help"])
    out = capfd.readouterr().out
    assert not ended.value.code
    assert "--times" in out
    assert "How many tokens were seen?" in out


@pytest.mark.usefixtures("dropped")
def test_it_is_measured_and_has_a_section_in_the_report(tiny, tmp_path):
    run = api.measure(tiny, text=TEXT, lenses=["echo"], params={"echo": {"times": 2}}, window=64)
    assert run["echo"].status == "ok", run["echo"].reason
    assert dict(run["echo"].table.iter_rows()) == {
        AS_IS: 2 * run.text.n_tokens,
        "initialised": 2 * run.text.n_tokens,
    }
    page = api.report(run, out=tmp_path / "out").read_text(encoding="utf-8")
    assert "How many tokens were seen?" in page
    assert "tokens echoed." in page


@pytest.mark.usefixtures("dropped")
def test_its_docs_entry_appears():
    spec = importlib.util.spec_from_file_location("make_docs", PROJECT / "scripts" / "make_docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert "## echo" in module.lens_page()
    assert "`--times`" in module.lens_page()


def test_its_contract_tests_appear(folder):
    plugin = f"import headscope.lenses, sys\nsys.modules['headscope.lenses'].__path__.append({str(folder)!r})\n"
    (folder.parent / "one_lens_more.py").write_text(plugin)
    options = ["-o", "addopts=--import-mode=importlib"]  # the plug-in of jaxtyping wants to come first
    paths = [str(folder.parent), *sys.path]
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "one_lens_more", *options, "tests/contract"],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    names = [line for line in listed.stdout.splitlines() if "::" in line]
    echo = [name for name in names if "echo" in name]
    focus = [name for name in names if "focus" in name]
    assert echo, listed.stdout + listed.stderr
    assert len(echo) == len(focus)


@pytest.mark.usefixtures("dropped")
def test_all_lenses_together_make_one_forward_per_batch_and_variant(tiny):
    forwards = []
    text = tiny.encode(TEXT)

    def note(module, args, kwargs):
        # How the model is built is looked up on random tokens; what is counted is the text.
        if torch.equal(kwargs["input_ids"][0], text[: kwargs["input_ids"].shape[1]]):
            forwards.append(1)

    handle = tiny.hf.base_model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        run = api.measure(tiny, text=TEXT, window=64)
    finally:
        handle.remove()
    assert {"spectra", "focus", "echo"} <= run.findings.keys()
    assert {finding.status for finding in run.findings.values()} == {"ok"}
    wanted = {variant for lens in lenses().values() for variant in lens.needs(lens.params()).variants}
    assert wanted == set(VARIANTS), "as it is, freshly initialised for echo too, and the forms that uniformity asks for"
    # All windows fit into one batch here.
    assert run.text.n_tokens % run.text.window == 0
    assert len(forwards) == len(VARIANTS)


def test_the_lens_is_gone_when_the_file_is():
    assert "echo" not in headscope.lenses()
