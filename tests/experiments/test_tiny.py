"""The study of the shipped model: a planted text, its phases, resumption, bands, refusals."""

import json
import math
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

import headscope as hs
from headscope.cli import main
from headscope.core import Run
from headscope.corpora import shipped_text
from headscope.corpora.byte_pair_tokenizer import BOS_ID, EOS_ID
from headscope.errors import UsageError
from headscope.experiments.tiny import training_phases
from headscope.experiments.tiny.bands import BETTER_BITS, WORSE_BITS, Band, bands_of
from headscope.experiments.tiny.experiment import EXPERIMENT, Tiny
from headscope.experiments.tiny.head_roles import MEASURE, InductionMeasure, RoleMass, role_masses
from headscope.experiments.tiny.held_out_windows import TOKENS_PER_BATCH
from headscope.experiments.tiny.kneser_ney import KneserNey
from headscope.experiments.tiny.network_seed import fresh_network
from headscope.experiments.tiny.sentences import headlines
from headscope.experiments.tiny.settings import COMMAND, TEXTS, Params
from headscope.experiments.tiny.shipped_record import read_record, shipped_record
from headscope.experiments.tiny.tables import bands_table
from headscope.experiments.tiny.text_losses import (
    ALL,
    N_GRAMS,
    NO_WINDOW,
    SHIPPED,
    TRAINED,
    UNIFORM,
    WINDOWS,
    TextLoss,
    judged_tokens,
    loss_of,
    n_gram_losses,
    network_losses,
)
from headscope.experiments.tiny.text_material import Material, gather, token_stream
from headscope.experiments.tiny.training_phases import phase_names, train_phases
from headscope.model.model import Model
from headscope.progress import Progress, Silent, silent
from headscope.training import Budget, Outcome, Recipe, Task
from headscope.training.saved_steps import check_trajectory, saved_steps
from headscope.training.state import State
from headscope.training.training_folder import TrainingFolder
from headscope.training.weights import weights_of
from tests.experiments.planted_tiny import OPTIONS, SETTINGS, planted_text

SHIPPED_FOLDER = Path(hs.__file__).parent / "model/sources/embedded/tiny"


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return planted_text(tmp_path_factory.mktemp("text") / "planted.txt")


@pytest.fixture(scope="module")
def material(text: Path) -> Material:
    return gather(Params(texts=(str(text),), vocabulary=SETTINGS["vocabulary"], judged=SETTINGS["judged"]), silent)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("study") / "out"


@pytest.fixture(scope="module")
def study(text: Path, folder: Path) -> Run:
    run: Run = hs.tiny(texts=(str(text),), out=folder, **SETTINGS)
    return run


def test_each_phase_has_its_folder(study: Run, folder: Path) -> None:
    before = weights_of(fresh_network(SETTINGS["vocabulary"], seed=0))
    for phase in phase_names():
        check_trajectory(folder / phase)
        steps = saved_steps(folder / phase)
        assert list(steps) == [0, 1, 2, 3]
        first, last = (hs.open(steps[step]) for step in (0, 3))
        assert first.spec.kind == "decoder-only"
        assert first.tokens("ba be") == last.tokens("ba be")
        weights = weights_of(first.hf)
        assert all(torch.equal(weights[name], before[name]) for name in before), phase
        before = weights_of(last.hf)
        changed = {name for name in before if not torch.equal(weights[name], before[name])}
        looks = {f"model.layers.0.self_attn.{part}_proj.weight" for part in "qk"}
        assert changed == (set(before) - looks if phase != "text" else set(before))
    model = weights_of(hs.open(folder / "model").hf)
    assert all(torch.equal(model[name], before[name]) for name in before)


def test_a_killed_study_ends_the_same(study: Run, folder: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "killed"
    first_steps = [out / phase / "steps/00000001" for phase in ("cycles-64", "text")]
    for folder_of_step in first_steps:
        phase = folder_of_step.relative_to(out).parts[0]
        words = [sys.executable, "-m", "tests.experiments.planted_tiny", str(text), str(out), phase, "2"]
        killed = subprocess.run(words, capture_output=True, check=False)
        assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
        shutil.rmtree(folder_of_step)
    assert not (out / "report.html").exists()
    with pytest.raises(SystemExit) as stopped:
        main(["study", "tiny", "--texts", str(text), "--out", str(out), *OPTIONS, "--format", "json"])
    assert not stopped.value.code
    assert not any(folder_of_step.exists() for folder_of_step in first_steps)  # no step was done twice
    names = ("model", "text/steps/00000003", "cycles-64/steps/00000003")
    for name in names:
        weights = [(place / name / "model.safetensors").read_bytes() for place in (out, folder)]
        assert weights[0] == weights[1], name
    again = hs.load(out)["tiny"].tables["bands"]
    assert again["value"].to_list() == study["tiny"].tables["bands"]["value"].to_list()


def test_the_model_has_the_form_of_the_shipped_one(study: Run, folder: Path) -> None:
    files = {path.name for path in (folder / "model").iterdir()}
    assert files == {path.name for path in SHIPPED_FOLDER.iterdir()}
    ours, shipped = (json.loads((place / "config.json").read_text()) for place in (folder / "model", SHIPPED_FOLDER))
    differing = {name for name in ours.keys() | shipped.keys() if ours.get(name) != shipped.get(name)}
    assert differing <= {"vocab_size", "bos_token_id", "eos_token_id", "transformers_version", "torch_dtype", "dtype"}
    record, published = (
        json.loads((place / "training.json").read_text()) for place in (folder / "model", SHIPPED_FOLDER)
    )
    for name in ("induction_best", "positional_best", "held_out_bits_per_byte", "held_out_nats_per_token"):
        assert record["results"][name].keys() == published["results"][name].keys()
    assert record["baseline_nats_per_token"].keys() == published["baseline_nats_per_token"].keys()
    assert record["curve"][-1].keys() == published["curve"][-1].keys()
    model = hs.open(folder / "model")
    assert model.tokens("ba")[0] == "<s>"
    assert model.spec.sha256 == study.model.sha256


def test_the_record_holds_what_the_tables_hold(study: Run, folder: Path) -> None:
    tables = study["tiny"].tables
    record = read_record(folder / "model")
    losses = tables["losses"].filter(pl.col("text") == ALL)
    of_network = losses.filter(system=TRAINED)
    assert record.bits_per_byte == pytest.approx(dict(of_network.select("window", "bits_per_byte").rows()), abs=5e-5)
    n_grams = losses.filter(pl.col("system").is_in(list(N_GRAMS))).select("system", "nats_per_token").rows()
    assert record.n_grams == pytest.approx(dict(n_grams), abs=5e-5)
    heads = tables["heads"].group_by("role", "windows").agg(pl.col("value").max())
    largest = {(role, windows): value for role, windows, value in heads.rows()}
    assert record.induction == pytest.approx(
        {windows: value for (role, windows), value in largest.items() if role == "induction"}, abs=5e-5
    )
    assert record.positional == pytest.approx(
        {role: value for (role, windows), value in largest.items() if windows == "text"}, abs=5e-5
    )
    sizes = dict(tables["sizes"].select("size", TRAINED).rows())
    assert (record.minutes, record.steps, record.cycle_steps, record.tokens) == (
        sizes["minutes"],
        sizes["steps"],
        sizes["steps of cycles"],
        sizes["tokens read"],
    )
    assert (record.steps, record.cycle_steps, record.tokens) == (12, 9, 3 * (3 * 1024 + 2048))


def test_the_page_holds_what_the_tables_hold(study: Run, folder: Path) -> None:
    page = (folder / "model/README.md").read_text()
    for row in study["tiny"].tables["losses"].filter(pl.col("text") == ALL).iter_rows(named=True):
        numbers = f" | {row['nats_per_token']:.3f} | {row['perplexity']:.1f} |"
        name = f"tiny, window {row['window']}" if row["system"] == TRAINED else f"Kneser–Ney {row['system']}"
        assert (f"| {name}{numbers}" in page) == (row["system"] in (TRAINED, *N_GRAMS)), row
    assert "cycles-32 3 steps (budget), cycles-64 3 steps (budget), cycles-128 3 steps (budget)" in page
    assert "`headscope study tiny`" in page


def test_the_study_holds_what_its_prose_names(study: Run) -> None:
    finding = study["tiny"]
    documented = {column for names in finding.about.columns for column in names.split(", ")}
    assert {column for table in finding.tables.values() for column in table.columns} == documented
    assert all(table.height for table in finding.tables.values())
    assert tuple(finding.tables) == COMMAND.tables


def check_sums(losses: list[TextLoss]) -> None:
    """The third loss is the sum of the first two, which are those of different texts."""
    assert [loss.text for loss in losses] == ["a", "b", ALL]
    assert len({(loss.system, loss.window) for loss in losses}) == 1
    first, second, both = losses
    for name in ("nats", "n_tokens", "n_bytes"):
        assert getattr(both, name) == pytest.approx(getattr(first, name) + getattr(second, name))
    assert first.nats_per_token != pytest.approx(second.nats_per_token)


def test_losses_add_up_over_texts(tiny: Model) -> None:
    documents = shipped_text().documents
    texts = {"a": ("\n\n".join(documents[::8]),), "b": ("\n\n".join(documents[4::8]),)}
    losses = network_losses(SHIPPED, tiny, texts, silent)
    assert [loss.window for loss in losses[::3]] == list(WINDOWS)
    for start in range(0, len(losses), 3):
        check_sums(losses[start : start + 3])


def test_losses_of_n_grams_add_up_over_texts(material: Material) -> None:
    (documents,) = material.judged.values()
    texts = {"a": documents[:1], "b": documents[1:]}
    losses = n_gram_losses(replace(material, judged=texts))
    vocabulary = material.tokenizer.get_vocab_size()
    for index, (system, order) in enumerate(N_GRAMS.items()):
        own = losses[3 * index : 3 * index + 3]
        assert {loss.system for loss in own} == {system}
        check_sums(own)
        model = KneserNey(material.train.numpy(), vocabulary, order)
        for loss in own[:2]:
            tokens = token_stream(material.tokenizer, texts[loss.text], EOS_ID)
            assert loss.nats_per_token == pytest.approx(model.nats(tokens.numpy()))
            assert loss.n_tokens == len(tokens) - (order - 1)
            n_bytes = sum(len(document.encode()) for document in texts[loss.text])
            assert loss.n_bytes == pytest.approx(n_bytes * loss.n_tokens / len(tokens))
    assert loss_of(losses, UNIFORM).nats_per_token == pytest.approx(math.log(vocabulary))


def test_a_loss_is_that_of_the_window_alone(tiny: Model) -> None:
    documents = {"plain": ("\n\n".join(shipped_text().documents[::3]),)}
    loss = next(loss for loss in network_losses(SHIPPED, tiny, documents, silent) if loss.window == 128)
    tokens = judged_tokens(tiny, documents["plain"])
    windows = tokens[: len(tokens) // 128 * 128].reshape(-1, 128)
    nats = 0.0
    for window in windows:
        inputs = torch.cat([torch.tensor([tiny.tokenizer.bos_token_id]), window[:-1]])  # type: ignore[union-attr]
        with torch.no_grad():
            log_p = tiny.hf(input_ids=inputs[None]).logits[0].double().log_softmax(-1)
        nats -= float(log_p.gather(1, window[:, None]).sum())
    assert loss.n_tokens == windows.numel() > TOKENS_PER_BATCH
    assert loss.nats == pytest.approx(nats, rel=1e-5)
    n_bytes = sum(len(document.encode()) for document in documents["plain"])
    assert loss.n_bytes == pytest.approx(n_bytes * windows.numel() / len(tokens))


def test_a_length_ends_at_its_target(
    text: Path, material: Material, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_phases, "CYCLE_VALIDATION", 1)
    monkeypatch.setattr(training_phases, "CYCLE_TARGET", 0.0)
    params = Params(texts=(str(text),), **{**SETTINGS, "steps": 1})
    network = train_phases(params, material, tmp_path, Silent())
    assert [(phase.outcome.state.ending, phase.outcome.state.step) for phase in network.cycles] == [("target", 0)] * 3
    assert network.text.outcome.state.ending == "budget"


def test_the_measure_is_that_of_the_strongest_head_now(tiny: Model) -> None:
    """It reads the weights of the network that it is given, whichever it was made with."""
    fresh = fresh_network(tiny.spec.vocabulary, seed=0).train()
    measure = InductionMeasure(fresh, BOS_ID, 48)
    assert measure(fresh)[MEASURE] < 0.1
    assert measure(tiny.hf) == InductionMeasure(tiny.hf, BOS_ID, 48)(tiny.hf)
    assert measure(tiny.hf)[MEASURE] == pytest.approx(shipped_record().induction["2x48"], abs=0.03)
    assert fresh.training


def budgets(
    params: Params, material: Material, minutes: Mapping[str, float], monkeypatch: pytest.MonkeyPatch
) -> dict[str, Budget]:
    """The budget of each phase, when the phases take these minutes instead of a training."""
    budgets_by_phase: dict[str, Budget] = {}

    def train(task: Task, recipe: Recipe, folder: Path, progress: Progress) -> Outcome:
        budgets_by_phase[folder.name] = recipe.budget
        return Outcome(TrainingFolder(folder), State(seconds=60 * minutes[folder.name]), pl.DataFrame())

    monkeypatch.setattr(training_phases, "train", train)
    train_phases(params, material, Path("unused"), Silent())
    return budgets_by_phase


@pytest.mark.parametrize(
    ("minutes", "taken", "expected"),
    [
        (36.0, (1.0, 0.5, 0.25), {"cycles-32": 4.0, "cycles-64": 3.0, "cycles-128": 2.5, "text": 34.25}),
        (6.0, (1.0, 0.5, 0.25), {"cycles-32": 3.0, "cycles-64": 2.0, "cycles-128": 1.5, "text": 4.25}),
        (6.0, (1.0, 2.5, 0.0), {"cycles-32": 3.0, "cycles-64": 2.0, "text": 2.5}),
        (36.0, (4.0, 0.0, 0.0), {"cycles-32": 4.0, "text": 32.0}),
    ],
)
def test_minutes_of_cycles_are_limited(
    minutes: float,
    taken: tuple[float, float, float],
    expected: dict[str, float],
    material: Material,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    params = Params(vocabulary=SETTINGS["vocabulary"], minutes=minutes, steps=7)
    budget_by_phase = budgets(params, material, dict(zip(phase_names(), (*taken, 0.0), strict=True)), monkeypatch)
    assert {name: budget.minutes for name, budget in budget_by_phase.items()} == expected
    assert {(budget.steps, budget.clock) for budget in budget_by_phase.values()} == {(7, "processor")}


def test_cycles_that_leave_no_minutes_are_refused(material: Material, monkeypatch: pytest.MonkeyPatch) -> None:
    params = Params(vocabulary=SETTINGS["vocabulary"], minutes=0.001)
    with pytest.raises(UsageError, match=r"the cycles took all of 0\.001 minutes"):
        budgets(params, material, {"cycles-32": 0.001}, monkeypatch)


def test_a_seed_gives_its_weights() -> None:
    state = torch.random.get_rng_state()
    first, again, other = (weights_of(fresh_network(300, seed)) for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


def test_the_first_head_begins_at_the_previous_token() -> None:
    network = fresh_network(300, seed=0).eval()
    network.set_attn_implementation("eager")
    tokens = torch.randint(3, 300, (2, 100), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        maps = network(input_ids=tokens, output_attentions=True).attentions[0]
    mass = maps.diagonal(-1, dim1=2, dim2=3)
    assert float(mass[:, 0].mean()) > 0.8
    assert float(mass[:, 1:].mean()) < 0.1


def shipped_masses(tiny: Model) -> list[RoleMass]:
    tokens = judged_tokens(tiny, shipped_text().documents)
    return role_masses(tiny, tiny.tokenizer.bos_token_id, tokens)  # type: ignore[union-attr]


def losses(change: float) -> list[TextLoss]:
    """Losses of the shipped weights of 1.5 bits per byte, and others that differ by a change."""
    systems = [(SHIPPED, window, 1.5) for window in WINDOWS] + [(TRAINED, window, 1.5 + change) for window in WINDOWS]
    systems += [("bigram", NO_WINDOW, 2.0), ("trigram", NO_WINDOW, 1.68), ("uniform", NO_WINDOW, 3.5)]
    n_bytes = 3000.0
    return [
        TextLoss(system, ALL, window, bits * n_bytes * float(torch.log(torch.tensor(2.0))), 1000, n_bytes)
        for system, window, bits in systems
    ]


def shipped_bands(tiny: Model, change: float, texts: tuple[str, ...] = TEXTS) -> tuple[Band, ...]:
    masses = shipped_masses(tiny)
    return bands_of(losses(change), {TRAINED: masses, SHIPPED: masses}, shipped_record(), texts)


def test_the_shipped_weights_lie_in_their_bands(tiny: Model) -> None:
    bands = shipped_bands(tiny, 0.0)
    assert len(bands) == 12
    assert all(band.is_inside for band in bands), [band for band in bands if not band.is_inside]
    for band in bands[6:]:
        assert band.unit == "mass"
        assert band.value == pytest.approx(band.published, abs=0.06), band.figure
        assert band.null is not None
        assert band.null < 0.1
    assert all(band.reason for band in bands)


def test_no_loss_is_given_again_with_other_texts(tiny: Model) -> None:
    assert {band.unit for band in shipped_bands(tiny, 0.0, ("notes.txt",))} == {"mass"}


@pytest.mark.parametrize(
    ("change", "is_inside"),
    [
        (WORSE_BITS - 0.001, True),
        (WORSE_BITS + 0.001, False),
        (0.001 - BETTER_BITS, True),
        (-BETTER_BITS - 0.001, False),
    ],
)
def test_limits_of_losses(tiny: Model, change: float, is_inside: bool) -> None:
    assert {band.is_inside for band in shipped_bands(tiny, change)[:4]} == {is_inside}


def test_a_figure_beyond_its_band_is_said(study: Run, tiny: Model) -> None:
    tables = dict(study["tiny"].tables)
    tables["bands"] = bands_table(shipped_bands(tiny, 0.0))
    assert "12 of 12" in headlines(tables)[0].short
    assert "all 12 figures lie in their bands." in headlines(tables)[0].full
    beyond = [
        replace(band, value=1.01, low=0.25, high=1.0)
        if band.figure == "induction, 2x100"
        else replace(band, value=0.24, low=0.25, high=1.0)
        if band.figure == "first token"
        else band
        for band in shipped_bands(tiny, 0.0)
    ]
    tables["bands"] = bands_table(beyond)
    statement = headlines(tables)[0]
    assert "10 of 12" in statement.full
    assert (
        "outside: induction, 2x100 1.010, band 0.250 to 1.000; first token 0.240, band 0.250 to 1.000."
        in statement.full
    )
    assert "10 of 12" in statement.short
    assert statement.effect == pytest.approx(10 / 12)
    outside = tables["bands"].filter(~pl.col("is_inside"))
    assert outside["figure"].to_list() == ["induction, 2x100", "first token"]


def test_a_brief_study_says_that_it_is_brief(study: Run) -> None:
    statement = study["tiny"].headlines[0].full
    assert "The shipped weights had 36 minutes." in statement
    assert "outside: induction, 2x48 0.0" in statement


@pytest.mark.parametrize(("minutes", "is_brief"), [(3.0, True), (35.6, True), (35.7, False), (36.1, False)])
def test_a_study_as_long_as_that_of_the_shipped_weights_is_not_brief(
    study: Run, minutes: float, is_brief: bool
) -> None:
    tables = dict(study["tiny"].tables)
    is_minutes = pl.col("size") == "minutes"
    tables["sizes"] = tables["sizes"].with_columns(pl.when(is_minutes).then(minutes).otherwise(TRAINED).alias(TRAINED))
    statement = headlines(tables)[0].full
    assert statement.startswith(f"After {minutes} minutes, ")
    assert ("The shipped weights had" in statement) == is_brief


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 4}, "cycles-32 holds another training: its recipe.budget.steps is 3, expected 4"),
        ({"minutes": 6.0}, "cycles-32 holds another training: its recipe.budget.minutes is 4.0, expected 3.0"),
        ({"minutes": 35.0}, "text holds another training: its recipe.budget.minutes is 3"),  # cycles take 4 in both
        ({"clock": "wall"}, "cycles-32 holds another training: its recipe.budget.clock is 'processor'"),
        ({"seed": 1}, "cycles-32 holds another training: its data.training.seed is 0, expected 1"),
        ({"vocabulary": 410}, "cycles-32 holds another training: its data.training.vocabulary is 400, expected 410"),
    ],
    ids=str,
)
def test_a_folder_of_other_settings_is_refused(
    study: Run, folder: Path, text: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        hs.tiny(texts=(str(text),), out=folder, **{**SETTINGS, **changes})
    assert hs.load(folder)["tiny"].status == "ok"  # nothing is lost


def test_a_folder_of_another_text_is_refused(study: Run, folder: Path, text: Path, tmp_path: Path) -> None:
    """The tokens of the cycles are the same; what is learnt from the text is not."""
    other = tmp_path / "other.txt"
    other.write_text(text.read_text().replace("ba", "be"))
    with pytest.raises(UsageError, match=r"text holds another training: its data\."):
        hs.tiny(texts=(str(other),), out=folder, **SETTINGS)
    assert hs.load(folder)["tiny"].status == "ok"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--texts", "moby-dik"], "neither a text file"),
        (["--texts", "moby-dick:fit"], "is one split"),
        (["--texts", "missing.txt"], "does not exist"),
        (["--texts", "bible,bible"], "named twice"),
        (["--minutes", "0"], "greater than 0"),
        (["--minutes", "nan"], "greater than 0"),
        (["--minutes", "inf"], "minutes must be greater than 0, got inf"),
        (["--steps", "0"], "expected at least 1, got"),
        (["--vocabulary", "100"], "expected at least 259, got 100"),
        (["--judged", "10"], "expected at least 1024, got 10"),
        (["--clock", "sun"], "sun"),
        (["--table", "nothing"], "nothing"),
        (["tiny"], "unexpected extra argument"),
    ],
    ids=" ".join,
)
def test_wrong_arguments_are_refused(
    options: list[str],
    message: str,
    own_cache: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(Tiny, "train")  # were they accepted, it would train for long
    with pytest.raises(SystemExit) as stopped:
        main(["study", "tiny", "--out", str(tmp_path / "out"), *options])
    assert stopped.value.code == 2
    said = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert message in said, said
    assert not own_cache.exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"texts": ()}, "needs a text"),
        ({"texts": ("bible:test",)}, "is one split"),
        ({"vocabulary": 258}, "vocabulary must be at least 259, got 258"),
        ({"judged": 1023}, "judged must be at least 1024, got 1023"),
        ({"steps": 0}, "steps must be greater than 0, got 0"),
        ({"minutes": 0.0}, "minutes must be greater than 0, got 0"),
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        EXPERIMENT.check(replace(Params(), **changes))


def test_a_text_without_enough_tokens_is_named(text: Path, tmp_path: Path) -> None:
    """Before the training, although it is judged after it."""
    brief = planted_text(tmp_path / "brief.txt", documents=24, words=40)
    expected = r"judged documents of \S+brief.txt have \d+ tokens, expected at least the 1024 of the longest window"
    with pytest.raises(UsageError, match=expected):
        hs.tiny(texts=(str(text), str(brief)), out=tmp_path / "out", **SETTINGS)
    assert not any((tmp_path / "out" / phase).exists() for phase in phase_names())


@pytest.mark.parametrize(
    ("part", "n_tokens", "message"),
    [
        ("train", 3 * 1024 - 1, "a text of 3071 tokens is too short for batches of 2 windows of 1024 tokens"),
        ("watched", 127, "the held-out text has 127 tokens, expected at least the 128 of a window"),
    ],
)
def test_a_text_too_short_to_learn_from_is_refused_before_the_cycles(
    part: str, n_tokens: int, message: str, material: Material, tmp_path: Path
) -> None:
    brief = replace(material, **{part: getattr(material, part)[:n_tokens]})
    with pytest.raises(UsageError, match=message):
        train_phases(Params(**SETTINGS), brief, tmp_path, Silent())
    assert not list(tmp_path.iterdir())
