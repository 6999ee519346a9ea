"""Progress: the share of the whole, the time left, and how both are shown; the clock is a number in these tests."""

import io
import sys
from collections.abc import Sequence

import pytest
from rich.console import Console
from rich.progress import Progress as Bar

import headscope
from headscope.cli import progress_display
from headscope.cli.progress_display import LOADING, LineDisplay, Tracker, shown_progress
from headscope.cli.terminal_bar import TerminalBar
from headscope.pipeline import measure
from headscope.progress import Course, Planner, Progress, Silent, Stage, announce, duration, remark
from tests.prefix_matching import LENS as PREFIXES


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_the_share_grows_from_0_to_1() -> None:
    course = Course()
    course.plan([Stage("weights", 1.0), Stage("text", 3.0)])
    shares = [course.share]
    for task, done, total in [("weights", 0, 2), ("weights", 1, 2), ("text", 0, 4), ("text", 3, 4), ("text", 4, 4)]:
        course.step(task, done, total)
        shares.append(course.share)
    assert shares == [0.0, 0.0, 0.125, 0.25, 0.8125, 1.0]


def test_a_stage_that_begins_ends_those_before_it() -> None:
    course = Course()
    course.plan([Stage("a"), Stage("b"), Stage("c"), Stage("d")])
    course.step("a", 0, 3)  # and nothing more is heard of it
    course.step("c", 0, 1)
    assert course.share == 0.5
    course.step("b", 1, 1)  # over: what comes late changes nothing
    assert course.share == 0.5


def test_what_nobody_announced_has_no_part_in_the_whole() -> None:
    course = Course()
    course.plan([Stage("text", 2.0)])
    course.step("fetching smollm2", 50, 100)
    assert (course.share, course.has_begun) == (0.0, False)
    course.step("text", 1, 2)
    course.step("fetching smollm2", 99, 100)
    assert course.share == 0.5


def test_stages_come_before_those_that_were_announced_earlier() -> None:
    course = Course()
    course.plan([Stage("writing")])
    course.plan([Stage("text"), Stage("answers")])
    assert [stage.task for stage in course.stages] == ["text", "answers", "writing"]
    course.step("text", 1, 1)
    course.plan([Stage("more")])
    assert [stage.task for stage in course.stages] == ["text", "more", "answers", "writing"]


def test_time_left() -> None:
    course = Course()
    course.plan([Stage("text", 100.0)])
    course.step("text", 0, 100)
    assert course.seconds_left(0.0) == pytest.approx(100.0)  # as expected
    course.step("text", 50, 100)
    assert course.seconds_left(50.0) == pytest.approx(50.0)  # steady work is predicted exactly
    slow = course.seconds_left(200.0)  # four times as slow as expected
    assert 150.0 < slow < 200.0
    course.step("text", 100, 100)
    assert course.seconds_left(400.0) == 0.0


def test_work_announces_its_stages_to_listeners_that_want_to_know() -> None:
    class Listener(Silent):
        def __init__(self) -> None:
            self.stages: list[Stage] = []

        def plan(self, stages) -> None:
            self.stages += stages

    listener = Listener()
    assert isinstance(listener, Planner)
    assert not isinstance(Silent(), Planner)
    for progress in (listener, Silent()):
        assert isinstance(progress, Progress)
        announce(progress, [Stage("text")])
    assert listener.stages == [Stage("text")]


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (89.0, "89 s"), (90.0, "2 min"), (5400.0, "1.5 h")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_line_says_share_task_part_and_time_left() -> None:
    clock = Clock()
    tracker = Tracker(clock)
    tracker.plan([Stage("lens 1/2, spectra", 10.0), Stage("running the text, batch", 30.0)])
    tracker.step("opening tiny", 0, 1)
    assert tracker.line() == "opening tiny"  # nothing is known of the whole before its first stage
    clock.seconds = 7.0
    tracker.step("lens 1/2, spectra", 0, 1)
    assert tracker.line() == "0 %, lens 1/2, spectra, 40 s left"
    clock.seconds = 17.0
    tracker.step("running the text, batch", 0, 4)
    assert tracker.line() == "25 %, running the text, batch 1/4, 30 s left"
    tracker.step("running the text, batch", 3, 4)
    assert tracker.line().startswith("81 %, running the text, batch 4/4, ")


def test_a_remark_belongs_to_its_task() -> None:
    clock = Clock()
    tracker = Tracker(clock)
    display = LineDisplay(tracker)
    display.step("training", 3, 10)
    remark(display, "loss 2.100")
    remark(Silent(), "nobody shows this")
    clock.seconds = 6.0
    assert tracker.line() == "30 %, training 4/10, loss 2.100, 14 s left"
    display.step("training", 4, 10)
    assert "loss 2.100" in tracker.text
    display.step("writing", 0, 0)
    assert tracker.text == "writing"


def test_without_stages_the_task_itself_is_the_whole() -> None:
    clock = Clock()
    tracker = Tracker(clock)
    tracker.step("judging claim", 0, 40)
    assert tracker.line() == "0 %, judging claim 1/40"
    clock.seconds = 10.0
    tracker.step("judging claim", 10, 40)
    assert tracker.line() == "25 %, judging claim 11/40, 30 s left"
    tracker.step("fetching smollm2", 46_000_000, 92_000_000)
    assert tracker.text == "fetching smollm2, 46 of 92 MB"
    tracker.step("fetching a hub model", 0, 0)
    assert tracker.line() == "fetching a hub model"


def test_a_pipe_gets_the_first_task_and_a_line_at_every_tick(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    display = LineDisplay(Tracker(clock))
    display.tick()
    assert capsys.readouterr().err == ""  # nothing to say yet
    display.step(LOADING, 0, 0)
    assert capsys.readouterr().err == "loading torch …\n"
    display.plan([Stage("text", 60.0)])
    display.step("text", 0, 10)
    display.step("text", 5, 10)
    assert capsys.readouterr().err == ""
    clock.seconds = 30.0
    display.tick()
    assert capsys.readouterr().err == "50 %, text 6/10, 30 s left\n"


def test_lines_are_written_while_the_work_goes_on(monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    # The thread that writes is asked to do so at once and again and again, instead of every half minute.
    monkeypatch.setattr(progress_display, "LINE_SECONDS", 0.001)
    lines = ""
    with shown_progress() as display:
        display.step("text", 1, 4)
        while lines.count("text 2/4") < 2:
            lines += capsys.readouterr().err
    assert "25 %, text 2/4" in lines


def test_the_loading_of_torch_is_said_where_it_is_to_come(monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    with shown_progress():
        pass
    assert capsys.readouterr().err == "loading torch …\n"
    with shown_progress(loads_torch=False):
        pass
    monkeypatch.undo()
    with shown_progress():
        pass
    assert capsys.readouterr().err == ""


def test_a_terminal_has_one_bar_and_lines_of_what_took_long() -> None:
    clock, screen = Clock(), io.StringIO()
    bar = Bar(console=Console(file=screen, force_terminal=False), auto_refresh=False)
    display = TerminalBar(Tracker(clock), bar)
    display.plan([Stage("text", 3.0), Stage("writing", 1.0)])
    display.step("opening tiny", 0, 1)
    clock.seconds = 4.0
    display.step("text", 0, 2)
    assert "done: opening tiny (4 s)" in screen.getvalue()
    (row,) = bar.tasks
    assert (row.completed, row.total) == (0.0, 1.0)
    display.step("text", 2, 2)
    assert row.completed == 0.75
    clock.seconds = 4.5
    display.step("writing", 0, 1)
    assert "done: text" not in screen.getvalue()  # half a second is not worth a line
    display.step("writing", 1, 1)
    assert len(bar.tasks) == 1
    assert row.completed == 1.0


class Notebook:
    """Writes down what was announced, and every step."""

    def __init__(self) -> None:
        self.course = Course()
        self.steps: list[tuple[str, int, int]] = []

    def plan(self, stages: Sequence[Stage]) -> None:
        self.course.plan(stages)

    def step(self, task: str, done: int, total: int) -> None:
        self.steps.append((task, done, total))
        self.course.step(task, done, total)

    def assert_all_stages_were_finished(self) -> None:
        tasks = [stage.task for stage in self.course.stages]
        last_steps = {task: done == total for task, done, total in self.steps}
        assert [task for task in last_steps if task in tasks] == tasks
        assert [task for task in tasks if not last_steps[task]] == []
        assert self.course.share == 1.0


def test_a_measurement_announces_the_stages_that_come(tiny, tmp_path) -> None:
    notebook = Notebook()
    words = "In the beginning was the word, and the word was short. " * 20
    lenses = ["maps", "spectra", "focus", "alignment", "uniformity"]
    measure(tiny, text=words, lenses=lenses, window=32, first_tokens=64, progress=notebook)
    notebook.assert_all_stages_were_finished()
    tasks = [stage.task for stage in notebook.course.stages]
    assert tasks[:3] == ["lens 1/5, spectra", "lens 2/5, alignment", "running the text, batch"]
    assert tasks[-3:] == ["lens 3/5, focus", "lens 4/5, uniformity", "lens 5/5, maps"]
    assert "running the text (model without skips), batch" in tasks


def test_made_windows_are_stages(tiny) -> None:
    notebook = Notebook()
    measure(tiny, lenses=[PREFIXES], progress=notebook)
    notebook.assert_all_stages_were_finished()
    assert notebook.course.stages[0].task.startswith("running the windows ")


def test_experiments_announce_the_stages_that_come(tiny) -> None:
    sizes = {"window": 16, "windows": 1, "new_tokens": 1, "prompts": ["A"], "draws": 2}
    notebook = Notebook()
    headscope.intervene(tiny, "scale 2", text="A word, and one more word. " * 5, progress=notebook, **sizes)
    notebook.assert_all_stages_were_finished()
    names = ("original", "scale 2", "scale 2, control 1", "scale 2, control 2")
    assert [stage.task for stage in notebook.course.stages] == [f"measuring {name}, part" for name in names]
    notebook = Notebook()
    headscope.fewshot(tiny, words=10, clues=1, alphas=["2"], initialised=False, progress=notebook)
    notebook.assert_all_stages_were_finished()
