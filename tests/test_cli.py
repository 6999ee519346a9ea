"""The command line: exit codes, where output goes, and what a newcomer reads after a mistake."""

import io
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest

from headscope import api
from headscope.cli import main
from headscope.cli.list_options import listed
from headscope.cli.screen import starting_line
from headscope.core import About, Curves, Finding, Headline, ModelSpec, Run, Series
from headscope.errors import CheckpointError, LensError, NumericsError, ResourceError, UsageError
from headscope.model.verify import Check

SPEC = ModelSpec("tiny", "embedded", "llama", "Llama", "decoder-only", 1, 2, 2, 8, 4, 9, 64, 100, "float32")
ABOUT = About("Spectra", "Q?", "D.", (), "R.", "nobody")


def a_run(*findings):
    return Run(SPEC, (), {finding.lens: finding for finding in findings})


def finding(lens="spectra", status="ok", reason="", rows=3):
    table = pl.DataFrame({"layer": range(rows), "value": [float("nan"), *[0.5] * (rows - 1)]})
    tables = {"heads": table, "layers": table.head(1)} if status == "ok" else {}
    return Finding(
        lens,
        ABOUT,
        status,
        reason,
        tables,
        headlines=(Headline("1 of 3 heads", "1 of 3"),) if tables else (),
        method="exact",
    )


@pytest.fixture
def run(capfd, monkeypatch):
    """Run a command in this process: (exit code, standard output, standard error)."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("HEADSCOPE_DEBUG", raising=False)

    def call(*words):
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        out, err = capfd.readouterr()
        return ended.value.code or 0, out, err

    return call


@pytest.fixture
def measured(monkeypatch):
    """Let every command that measures get this run instead, and note what it asked for."""
    asked = {}

    def patch(result):
        def measure(model, **options):
            asked.update(options, model=model)
            if isinstance(result, BaseException):
                raise result
            return result

        monkeypatch.setattr(api, "measure", measure)
        return asked

    return patch


def test_help_and_version(run):
    code, out, _ = run("--help")
    assert code == 0
    for command in ("report", "look", "head", "lens", "verify", "lenses", "models", "mechanisms", "figures"):
        assert command in out
    assert run("--version")[1].startswith("headscope ")


@pytest.mark.parametrize("command", ["report", "look", "head", "lens", "verify", "figures"])
def test_every_command_has_help_with_an_example(run, command):
    code, out, _ = run(command, "-h")
    assert code == 0
    assert f"headscope {command}" in out.partition("Example")[2]


def test_every_lens_is_a_command_with_its_question_and_parameters(run):
    code, out, _ = run("lens", "--help")
    assert code == 0
    for name, lens in api.lenses().items():
        assert name in out
        code, out_lens, _ = run("lens", name, "--help")
        assert code == 0
        assert lens.about.question.split()[0] in out_lens
        assert "--bins" in out_lens or name != "spectra"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("a", hint="b"), 2),
        (CheckpointError("a", hint="b"), 3),
        (LensError("a", hint="b"), 4),
        (NumericsError("a", hint="b"), 4),
        (ResourceError("a", hint="b"), 5),
        (MemoryError(), 5),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"), 5),
        (ZeroDivisionError("a"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_codes(run, measured, error, code):
    measured(error)
    got, out, err = run("lens", "spectra", "tiny")
    assert got == code
    assert out == ""
    assert "Traceback" not in err
    if isinstance(error, UsageError):
        assert err == "error: a\n hint: b\n"


def test_a_bug_is_named_with_its_line_and_debug_shows_the_traceback(run, measured, monkeypatch):
    measured(ZeroDivisionError("oh"))
    _, _, err = run("lens", "spectra", "tiny")
    assert "bug in headscope: ZeroDivisionError: oh" in err
    assert "test_cli.py:" in err
    assert "Traceback" in run("--debug", "lens", "spectra", "tiny")[2]
    assert "Traceback" in run("lens", "spectra", "tiny", "--debug")[2]
    monkeypatch.setenv("HEADSCOPE_DEBUG", "1")
    assert "Traceback" in run("lens", "spectra", "tiny")[2]


def test_interruption_tells_how_to_go_on(run, measured, tmp_path):
    measured(KeyboardInterrupt())
    code, _, err = run("report", "tiny", "--out", str(tmp_path / "out"))
    assert code == 130
    assert err.splitlines()[-1].startswith("stopped; finished findings are in")


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["lens", "spectre", "tiny"], "spectra"),
        (["lens", "focsu", "tiny"], "focus"),
        (["reprot"], "report"),
        (["lensse"], "lenses"),
        (["report", "--lens", "spectre"], "spectra"),
    ],
)
def test_unknown_names_are_answered_with_the_nearest(run, words, near):
    code, _, err = run(*words)
    assert code == 2
    assert near in err


@pytest.mark.parametrize(
    "words", [["look"], ["lens", "spectra"], ["report", "--window", "0"], ["report", "--seed", "x"]]
)
def test_wrong_arguments_are_usage_errors(run, words):
    code, out, err = run(*words)
    assert code == 2
    assert out == ""
    assert "Usage" in err


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (["report", "tiny", "--window", "x"], "'--window': expected a whole number, got 'x'."),
        (["report", "tiny", "--window", "1.5"], "'--window': expected a whole number, got '1.5'."),
        (["prune", "tiny", "--tokens", "3"], "'--tokens': expected at least 16, got 3."),
        (["study", "translation", "--precision", "int8"], "'--precision': 'int8' is not one of 'float32', 'bfloat16'."),
        (["report", "tiny", "--seed", "-1"], "'--seed': expected at least 0, got -1."),
    ],
)
def test_a_wrong_value_is_answered_with_what_was_expected(run, words, refusal):
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert f"Invalid value for {refusal}" in " ".join(err.replace("│", " ").split())


def test_wrong_text_is_told_before_anything_is_opened(run, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "binary").write_bytes(b"\0\1")
    for name in ("empty.txt", "binary", "missing.txt"):
        code, _, err = run("report", "tiny", "--text", str(tmp_path / name), "--out", str(tmp_path / "out"))
        assert code == 2
        assert name in err
    assert not (tmp_path / "out").exists()


def test_report_refuses_a_folder_that_holds_other_things(run, tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    code, _, err = run("report", "tiny", "--out", str(tmp_path))
    assert code == 2
    assert "nothing was written" in err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_failed_lens_ends_with_4_and_a_lens_that_does_not_apply_with_0(run, measured):
    measured(a_run(finding(status="failed", reason="ValueError: no")))
    code, _, err = run("lens", "spectra", "tiny")
    assert code == 4
    assert "ValueError: no" in err
    measured(a_run(finding(status="not applicable", reason="no text here")))
    code, out, err = run("lens", "spectra", "tiny")
    assert code == 0
    assert "no text here" in err
    assert out == ""


def test_lens_formats(run, measured, tmp_path):
    asked = measured(a_run(finding(rows=40)))
    (tmp_path / "x.txt").write_text("some words")
    code, out, err = run("lens", "spectra", "tiny", "--bins", "7", "--window", "64", "--text", str(tmp_path / "x.txt"))
    assert code == 0
    assert "1 of 3 heads" in out
    assert "16 more rows" in err
    assert asked["params"] == {"spectra": {"bins": 7}}
    assert (asked["window"], asked["text"].documents, asked["lenses"]) == (64, ("some words",), ["spectra"])
    _, out, _ = run("lens", "spectra", "tiny", "--format", "json")
    data = json.loads(out)
    assert data["status"] == "ok"
    assert data["tables"]["heads"][0] == {"layer": 0, "value": None}
    _, out, _ = run("lens", "spectra", "tiny", "--format", "csv")
    assert pl.read_csv(io.StringIO(out)).height == 40
    _, out, _ = run("lens", "spectra", "tiny", "--format", "csv", "--table", "layers")
    assert pl.read_csv(io.StringIO(out)).height == 1
    code, _, err = run("lens", "spectra", "tiny", "--table", "nope")
    assert code == 2
    assert "heads, layers" in err


def test_verify_disagreement_ends_with_4(run, monkeypatch):
    rows = [row("patterns", 1e-9, True), row("weights", 1.0, False)]
    monkeypatch.setattr(api, "open", lambda *_, **__: None)
    monkeypatch.setattr(api, "verify", lambda *_, **__: rows)
    code, out, err = run("verify", "tiny")
    assert code == 4
    assert "patterns" in out
    assert "1 of 2 checks" in err
    assert "weights" in err


def row(check, error, ok):
    return Check(check, error, 1e-6, ok)


@pytest.mark.parametrize("command", ["lenses", "models", "mechanisms"])
def test_lists(run, command):
    code, out, _ = run(command, "--format", "json")
    assert code == 0
    names = {next(iter(entry.values())) for entry in json.loads(out)}
    assert names >= {"lenses": {"spectra", "focus"}, "models": {"tiny", "smollm2"}, "mechanisms": {"dense"}}[command]
    code, out, _ = run(command)
    assert all(name in out for name in names)
    assert run(command, "--format", "csv")[1].count("\n") == len(names) + 1


def test_figures_of_a_stored_run(run, tmp_path):
    curve = Curves(
        "curve",
        "T",
        "C",
        "x",
        "y",
        (Series("s", pl.Series([0.0, 1]).to_numpy(), pl.Series([0.0, 1]).to_numpy()),),
    )
    kept = a_run(Finding("focus", ABOUT, figures=(curve,)))
    kept.save(tmp_path / "run")
    code, out, _ = run("figures", str(tmp_path / "run"), "--format", "png")
    assert code == 0
    written = Path(out.strip())
    assert written == tmp_path / "run" / "figures" / "focus.curve.png"
    assert written.read_bytes().startswith(b"\x89PNG")
    code, _, err = run("figures", str(tmp_path / "nothing"))
    assert code == 2
    assert "does not exist" in err


def command(*words, **options):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run([sys.executable, "-m", "headscope", *words], env=environment, check=False, **streams)


def test_report_on_tiny_end_to_end(tmp_path):
    done = command(
        "report",
        "--window",
        "64",
        "--text",
        "-",
        "--out",
        "here",
        cwd=tmp_path,
        input=b"In the beginning was the word. " * 40,
    )
    assert done.returncode == 0, done.stderr.decode()
    out = done.stdout.decode()
    page = tmp_path / "here" / "report.html"
    assert str(page) in out
    assert "report smollm2" in out
    assert page.stat().st_size > 10_000
    assert (tmp_path / "here" / "manifest.json").is_file()


# A lens that is never done with the text: the signal comes while it is at work, however busy the machine is. Where it
# works on a thread of its own, the signal comes when the main thread has begun to wait for it.
ENDLESS = """
import sys, threading
from headscope.cli import main
from headscope.lenses.focus.lens import Focus

def main_thread_waits():
    frame = sys._current_frames()[threading.main_thread().ident]
    return frame.f_code.co_name == "wait"

def update(*_):
    while threading.current_thread() is not threading.main_thread() and not main_thread_waits():
        pass
    print("at work", file=sys.stderr, flush=True)
    while True:
        pass

Focus.update = update
main()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stop_keeps_what_is_finished(tmp_path, number, code):
    (tmp_path / "long.txt").write_text("In the beginning was the word. " * 500)
    lenses = ["--lens", "spectra", "--lens", "focus"]
    words = [sys.executable, "-c", ENDLESS, "report", *lenses, "--text", "long.txt", "--out", "out"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    running = subprocess.Popen(words, cwd=tmp_path, env=environment, text=True, stderr=subprocess.PIPE)
    before = []
    with running:
        for line in running.stderr:
            before.append(line)
            if line == "at work\n":
                running.send_signal(number)
                break
        said = running.stderr.read()
    assert before[0] == "opening tiny …\n"
    assert running.returncode == code, said
    *_, last = said.splitlines()  # after lines of progress, where the machine takes half a minute
    assert last == "stopped; finished findings are in out/, the same command goes on from there"
    left = {path.name for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert {"run.json", "spectra.json"} <= left
    assert not {"manifest.json", ".headscope-lock"} & left


def test_parquet_goes_to_a_pipe():
    done = command("lens", "spectra", "tiny", "--format", "parquet")
    assert done.returncode == 0, done.stderr.decode()
    assert pl.read_parquet(io.BytesIO(done.stdout)).height > 0


def test_a_reader_that_leaves_early_is_not_an_error():
    reading, writing = os.pipe()
    os.close(reading)  # it has left before anything is written, which `head` does only if it is fast
    try:
        done = command("lens", "spectra", "tiny", "--format", "csv", stdout=writing)
    finally:
        os.close(writing)
    assert done.returncode == 141
    assert "rror" not in done.stderr.decode()


def test_the_summary_of_a_report_is_the_largest_effect_of_each_lens(run, measured, monkeypatch, tmp_path):
    """The same five that the report shows first."""
    effects = [(0.1, None, 0.9), (0.5, float("nan")), (0.7,), (None,), (0.3, 0.2), (0.05,), (0.6,), (0.4,)]
    names = ("focus", "spectra", "scores", "maps", "gaussian", "angles", "lowrank", "transport")
    headlines = [
        tuple(Headline(f"in full {name}", f"in short {name} {effect}", effect) for effect in several)
        for name, several in zip(names, effects, strict=True)
    ]
    answered = [replace(finding(name), headlines=lines) for name, lines in zip(names, headlines, strict=True)]
    measured(a_run(*answered, finding("likeness", "not applicable", "no text here")))
    monkeypatch.setattr(api, "report", lambda folder: folder / "report.html")
    code, out, err = run("report", "tiny", "--out", str(tmp_path / "out"))
    assert code == 0
    points = [line for line in out.splitlines() if line.startswith("•")]
    largest = ("focus 0.9", "scores 0.7", "lowrank 0.6", "spectra 0.5", "transport 0.4")
    assert points == [f"• in short {effect}" for effect in largest]
    assert "likeness: not applicable: no text here" in err


@pytest.mark.parametrize("spelling", [["--lens", "spectra", "--lens", "focus"], ["--lens", "spectra, focus"]])
def test_repeating_and_commas_mean_the_same(run, measured, monkeypatch, tmp_path, spelling):
    asked = measured(a_run(finding()))
    monkeypatch.setattr(api, "report", lambda folder: folder / "report.html")
    assert run("report", "tiny", "--out", str(tmp_path / "out"), *spelling)[0] == 0
    assert asked["lenses"] == ["spectra", "focus"]


@pytest.mark.parametrize("spelling", [["--bands", "1,8"], ["--bands", "1", "--bands", "8"]])
def test_numbers_of_a_lens_are_a_list_like_any_other(run, measured, spelling):
    asked = measured(a_run(finding("focus")))
    assert run("lens", "focus", "tiny", *spelling)[0] == 0
    assert asked["params"] == {"focus": {"bands": "1,8"}}


def test_quick_is_handed_on_and_chooses_the_lenses_itself(run, measured, monkeypatch, tmp_path):
    asked = measured(a_run(finding()))
    monkeypatch.setattr(api, "report", lambda folder: folder / "report.html")
    assert run("report", "tiny", "--quick", "--out", str(tmp_path / "out"))[0] == 0
    assert (asked["quick"], asked["lenses"]) == (True, None)
    code, _, said = run("report", "tiny", "--quick", "--lens", "focus")
    assert code == 2
    assert "leave out either --lens or --quick" in said


def test_an_empty_value_is_not_dropped():
    assert listed([""]) == [""]
    assert listed([" , "]) == [""]
    assert listed(["a,,b", ""]) == ["a", "b", ""]


def test_commas_between_brackets_belong_to_the_value():
    assert listed(["window(left=1, right=2),dense", " bigbird "]) == ["window(left=1, right=2)", "dense", "bigbird"]
    assert listed([",a,,b,"]) == ["a", "b"]


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["--scale", "1/4", "1/2", "2"], {"scale": ("1/4", "1/2", "2")}),  # as README has always written it
        (["--scale", "1/4,1/2", "--scale", "2"], {"scale": ("1/4", "1/2", "2")}),
        (["--randomise", "init,v"], {"randomise": ("init", "v")}),
        (["--prompt", "Once, long ago", "--prompt", "A"], {"prompts": ("Once, long ago", "A")}),
    ],
)
def test_lists_of_an_experiment(run, monkeypatch, words, values):
    class Asked(Exception):
        pass

    def run_experiment(name, model, params, **_):
        raise Asked({name: getattr(params, name) for name in values})

    monkeypatch.setattr(api, "run_experiment", run_experiment)
    code, _, err = run("intervene", "tiny", *words)
    assert code == 1
    assert f"Asked: {values}" in err.replace("<Randomise.INIT: 'init'>", "'init'").replace("<Randomise.V: 'v'>", "'v'")


def test_what_can_be_refused_is_refused_before_anything_is_fetched(run, monkeypatch, tmp_path):
    def fetch(*_, **__):
        raise AssertionError("something was fetched")

    monkeypatch.setattr("headscope.fetch.package_clients.bring", fetch)
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "file").write_text("x")
    for words in (
        ["lens", "focus", "minilm", "--table", "nothing"],
        ["lens", "focus", "minilm", "--bands", "x"],
        ["lens", "focus", "minilm", "--text", "moby-dick", "--out", str(tmp_path / "file")],
        ["report", "minilm", "--lens", "fokus"],
        ["report", "nothing", "--text", "moby-dick", "--out", str(tmp_path / "out")],
        ["report", "minilm", "--text", "moby-dick:nothing", "--out", str(tmp_path / "out")],
        ["report", "minilm", "--device", "nothing", "--text", "moby-dick", "--out", str(tmp_path / "out")],
        ["study", "fewshot", "minilm"],
        ["intervene", "minilm", "--text", "moby-dick", "--rank", "x"],
        ["intervene", "nothing", "--text", "moby-dick"],
        ["data", "moby-dick", "--from", str(tmp_path / "nothing")],
        ["claims", "W-5.1z", "--model", "minilm"],
        ["index", "wertich:A.20", "--model", "nothing", "--text", "moby-dick"],
    ):
        code, out, err = run(*words)
        assert (code, out) == (2, ""), words
        assert "error: " in err, words
    assert not (tmp_path / "out").exists()
    assert run("data", "moby-dick", "--out", str(tmp_path / "no" / "file"))[0] == 5


def test_a_terminal_sees_a_line_at_once_that_is_gone_when_the_program_has_started(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with starting_line():
        assert screen.getvalue() == "headscope is starting …"
    assert screen.getvalue().endswith("\r\x1b[2K")


def test_help_is_not_wrapped_twice(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    for command in ("claims", "data", "index", "mechanisms", "verify", "intervene"):
        lines = [line.strip() for line in run(command, "--help")[1].partition("╭")[0].splitlines()]
        for line, following in pairwise(lines):
            # A line of a paragraph ends early only where the next word does not fit.
            if line and following:
                assert len(line) + 1 + len(following.split()[0]) > 60, (command, line)
