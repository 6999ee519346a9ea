"""`headscope.trajectory` on trainings written by hand: heads that become something at a known step, or never do."""

import json
import shutil

import polars as pl
import pytest

import headscope
from headscope.cli import main
from headscope.errors import CheckpointError, UsageError
from headscope.training.saved_steps import check_trajectory, saved_steps, step_folder
from tests.trajectories.planted_training import SHIFT, STEPS, damage_step, write_training

CHANGE = 16  # the first step at which the head looks at the previous token
PREVIOUS = {"quantities": ["previous_token"], "params": {"with_text": False, "sequences": 8, "tokens": 16}}


class Listener:
    def __init__(self):
        self.tasks = []

    def step(self, task, done, total):
        self.tasks.append(task)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("trainings")


@pytest.fixture(scope="module")
def planted(scratch):
    return write_training(scratch / "planted", lambda step: float(step >= CHANGE), scratch / "tokenizer")


@pytest.fixture(scope="module")
def measured(planted, scratch):
    """The planted training, measured once."""
    return headscope.trajectory(planted, "roles", out=scratch / "out", **PREVIOUS)


@pytest.fixture
def call(capfd, monkeypatch):
    """Run a command in this process: exit code, standard output, standard error."""
    monkeypatch.setenv("COLUMNS", "160")

    def call_main(*words):
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        out, err = capfd.readouterr()
        return ended.value.code or 0, out, err

    return call_main


def test_the_planted_step_is_found(measured):
    (row,) = measured.changes.filter(layer=0, head=0).to_dicts()
    assert (row["before"], row["after"], row["step"]) == (8, 16, 11)
    assert (row["step_low"], row["step_high"]) == (8, 16)
    assert row["detected"]
    assert row["value_before"] < 0.1
    assert row["value_after"] > 0.99
    assert measured.finding.headlines[0].short.startswith(f"{SHIFT} changes most in mass on the previous token")
    assert not measured.changes.filter((pl.col("head") > 0) & (pl.col("layer") == 0))["detected"].any()


def test_the_values_are_those_of_the_lens(measured, planted):
    run = headscope.measure(planted / step_folder(CHANGE), lenses=["roles"], params={"roles": PREVIOUS["params"]})
    rows = run["roles"].table.filter(role="previous token", source="repeated tokens").sort("layer", "head")
    values = measured.values.filter(step=CHANGE).sort("layer", "head")
    assert values["value"].to_list() == rows["value"].to_list()
    assert values["low"].to_list() == rows["low"].to_list()
    assert measured.steps == STEPS
    assert measured.values["step"].unique(maintain_order=True).to_list() == list(STEPS)


def test_a_training_that_changes_nothing_has_no_step(scratch):
    flat = write_training(scratch / "flat", lambda step: 0.0, scratch / "tokenizer")
    measured = headscope.trajectory(flat, "roles", **PREVIOUS)
    assert not measured.changes["detected"].any()
    assert measured.changes["step"].null_count() == measured.changes.height
    assert measured.finding.headlines[0].effect == 0.0
    assert "no step of steepest change was detected in any of 6 heads" in measured.sentences()[0]


def test_every_step_is_measured_once(measured, planted, scratch):
    listener = Listener()
    again = headscope.trajectory(planted, "roles", out=scratch / "out", progress=listener, **PREVIOUS)
    assert again.values.equals(measured.values)
    assert {f"step {step}: kept from an earlier run: roles" for step in STEPS} <= set(listener.tasks)
    assert not any("running" in task for task in listener.tasks)


def test_the_page_and_the_tables_are_written(measured, scratch):
    page = (scratch / "out" / "trajectory.html").read_text(encoding="utf-8")
    assert "Trajectory of the heads: " in page
    assert "planted" in page
    assert pl.read_parquet(scratch / "out" / "values.parquet").equals(measured.values)
    assert pl.read_parquet(scratch / "out" / "changes.parquet").equals(measured.changes)
    assert "trajectory of planted, lens roles, 8 saved steps" in repr(measured)


def test_a_step_that_does_not_open_is_left_out_and_said(planted, scratch):
    damaged = shutil.copytree(planted, scratch / "damaged")
    damage_step(damaged, 4)
    measured = headscope.trajectory(damaged, "roles", **PREVIOUS)
    assert measured.steps == tuple(step for step in STEPS if step != 4)
    assert measured.reasons[4].startswith("it does not open: ")
    assert any(warning.startswith("Step 4 is left out: it does not open") for warning in measured.finding.warnings)
    assert measured.changes.row(0, named=True)["step"] == 11


def test_a_training_of_which_nothing_opens_is_refused(planted, scratch):
    broken = shutil.copytree(planted, scratch / "broken")
    for step in STEPS:
        damage_step(broken, step)
    with pytest.raises(CheckpointError, match="none of 8 saved steps can be measured; step 0: it does not open"):
        headscope.trajectory(broken, "roles", **PREVIOUS)


def test_steps_are_in_the_order_of_numbers(tmp_path):
    for name in ("00000010", "2", "000000009", "last"):
        (tmp_path / "steps" / name).mkdir(parents=True)
        (tmp_path / "steps" / name / "model.safetensors").touch()
    assert list(saved_steps(tmp_path)) == [2, 9, 10]


@pytest.mark.parametrize(
    ("steps", "words"), [((), "no step was saved"), ((8,), "only step 8 was saved, expected at least 2")]
)
def test_a_training_without_saved_steps_is_refused(tmp_path, steps, words):
    (tmp_path / "training.json").write_text("{}")
    for step in steps:
        (tmp_path / step_folder(step)).mkdir(parents=True)
        (tmp_path / step_folder(step) / "model.safetensors").touch()
    with pytest.raises(UsageError, match=words):
        check_trajectory(tmp_path)


def test_a_folder_without_a_training_is_refused(tmp_path, call):
    code, _, complaint = call("trajectory", tmp_path, "--lens", "roles")
    assert code == 2
    assert f"{tmp_path} is no folder of a training: it holds no training.json" in complaint
    code, _, complaint = call("trajectory", tmp_path / "nothing", "--lens", "roles")
    assert (code, "there is no such folder" in complaint) == (2, True)


def test_unknown_quantities_are_refused_at_the_first_step(planted):
    listener = Listener()
    with pytest.raises(UsageError, match="the lens 'roles' has no quantity 'previous'") as refused:
        headscope.trajectory(planted, "roles", quantities=["previous"], params=PREVIOUS["params"], progress=listener)
    assert "induction, " in refused.value.hint
    assert not any(task.startswith("step 1") for task in listener.tasks)


def test_a_lens_without_numbers_of_heads_is_refused(planted, call, scratch):
    code, _, complaint = call(
        "trajectory", planted, "--lens", "uniformity", "--first-tokens", 300, "--out", scratch / "none"
    )
    assert code == 2
    assert "the lens 'uniformity' offers no number of single heads to follow" in complaint


def test_a_lens_that_does_not_apply_says_why(planted, scratch, call):
    bare = shutil.copytree(planted, scratch / "bare")
    for path in bare.glob("steps/*/*token*"):
        path.unlink()
    code, said, complaints = call("trajectory", bare, "--lens", "focus", "--out", scratch / "not-applicable")
    assert code == 0
    assert complaints.count("not applicable: this lens runs a text, and ") == 1
    assert complaints.count("comes without a tokenizer") == 1
    assert "The page: " in said


def test_settings_of_the_lens_are_taken(planted, measured, scratch, call):
    sets = (word for entry in ("with_text=no", "sequences=8", "tokens=16") for word in ("--set", entry))
    words = ("--lens", "roles", "--quantity", "previous_token", *sets, "--out", scratch / "out", "--format", "json")
    code, said, complaints = call("trajectory", planted, *words)
    assert code == 0
    assert json.loads(said)["changes"] == measured.changes.to_dicts()  # from the runs that are there already
    assert "running" not in complaints


@pytest.mark.parametrize(
    ("assignment", "complaint"),
    [
        ("sequences", "'sequences' has no ="),
        ("sequence=8", "lens 'roles' has no setting 'sequence'"),
        ("sequences=many", "--set sequences=many: cannot read 'many', expected: int"),
        ("with_text=perhaps", "--set with_text=perhaps: expected yes or no"),
        ("sequences=1", "expected at least 6 tokens, 2 sequences"),
    ],
)
def test_settings_that_cannot_be_are_refused(planted, call, assignment, complaint):
    code, _, complaints = call("trajectory", planted, "--lens", "roles", "--set", assignment)
    assert (code, complaint in complaints) == (2, True), complaints


@pytest.mark.parametrize("table", ["changes", "values"])
def test_tables_go_to_standard_output(planted, scratch, call, table):
    words = ("--lens", "spectra", "--quantity", "qk_effective_rank", "--out", scratch / "spectra", "--table", table)
    _, said, complaints = call("trajectory", planted, *words, "--format", "csv")
    frame = pl.read_csv(said.encode())
    assert frame.height == (6 + 1 if table == "changes" else 6 * len(STEPS))
    assert "the page: " in complaints


def test_json_holds_everything(planted, scratch, call):
    words = ("--lens", "spectra", "--quantity", "qk_effective_rank", "--out", scratch / "spectra", "--format", "json")
    code, said, _ = call("trajectory", planted, *words)
    answer = json.loads(said)
    assert code == 0
    assert answer["steps"] == list(STEPS)
    assert {row["certainty"] for row in answer["changes"]} == {"exact"}
    assert len(answer["values"]) == 6 * len(STEPS)


def test_a_summary_names_the_step(planted, scratch, call):
    words = ("--lens", "spectra", "--quantity", "qk_effective_rank", "--out", scratch / "spectra")
    code, said, _ = call("trajectory", planted, *words)
    assert code == 0
    assert said.startswith("• ")
    assert f"{SHIFT} changes most steeply, at step 11 (from weights alone, between saved steps: 8 to 16)" in said
    assert said.rstrip().endswith(f"The page: {scratch / 'spectra' / 'trajectory.html'}")
