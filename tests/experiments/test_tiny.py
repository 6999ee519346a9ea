"""The study of the shipped model: a planted text, its phases, resumption, bands, refusals."""

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import torch

import headscope as hs
from headscope.cli import main
from headscope.core import Run
from headscope.corpora import shipped_text
from headscope.errors import UsageError
from headscope.experiments.tiny import training_phases
from headscope.experiments.tiny.bands import BETTER_BITS, WORSE_BITS, Band, bands_of
from headscope.experiments.tiny.experiment import EXPERIMENT
from headscope.experiments.tiny.head_roles import RoleMass, role_masses
from headscope.experiments.tiny.network_seed import fresh_network
from headscope.experiments.tiny.sentences import headlines
from headscope.experiments.tiny.settings import TEXTS, Params
from headscope.experiments.tiny.shipped_record import shipped_record
from headscope.experiments.tiny.tables import bands_table
from headscope.experiments.tiny.text_losses import (
    ALL,
    NO_WINDOW,
    SHIPPED,
    TRAINED,
    WINDOWS,
    TextLoss,
    judged_tokens,
    network_losses,
)
from headscope.experiments.tiny.text_material import gather
from headscope.experiments.tiny.training_phases import phase_names, trained
from headscope.model.model import Model
from headscope.progress import Silent, silent
from headscope.training.saved_steps import check_trajectory, saved_steps
from headscope.training.weights import weights_of
from tests.experiments.planted_tiny import OPTIONS, SETTINGS, planted_text

SHIPPED_FOLDER = Path(hs.__file__).parent / "model/sources/embedded/tiny"


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return planted_text(tmp_path_factory.mktemp("text") / "planted.txt")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("study") / "out"


@pytest.fixture(scope="module")
def study(text: Path, folder: Path) -> Run:
    return hs.tiny(texts=(str(text),), out=folder, **SETTINGS)


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
    for phase in ("cycles-64", "text"):
        words = [sys.executable, "-m", "tests.experiments.planted_tiny", str(text), str(out), phase, "2"]
        killed = subprocess.run(words, capture_output=True, check=False)
        assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert not (out / "report.html").exists()
    with pytest.raises(SystemExit) as stopped:
        main(["study", "tiny", "--texts", str(text), "--out", str(out), *OPTIONS, "--format", "json"])
    assert not stopped.value.code
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
    assert "`headscope study tiny`" in (folder / "model/README.md").read_text()
    model = hs.open(folder / "model")
    assert model.tokens("ba")[0] == "<s>"
    assert model.spec.sha256 == study.model.sha256


def test_the_study_holds_what_its_prose_names(study: Run) -> None:
    finding = study["tiny"]
    documented = {column for names in finding.about.columns for column in names.split(", ")}
    for name, table in finding.tables.items():
        assert table.height, name
        assert set(table.columns) <= documented, name
    assert list(finding.tables) == ["bands", "losses", "heads", "course", "sizes"]


def test_losses_add_up_over_texts(tiny: Model) -> None:
    documents = shipped_text().documents
    first, second = "\n\n".join(documents[::2]), "\n\n".join(documents[1::2])
    texts = {"a": (first,), "b": (second,)}
    sums = {loss.text: loss for loss in network_losses(SHIPPED, tiny, texts, silent) if loss.window == 128}
    assert list(sums) == ["a", "b", ALL]
    for name in ("nats", "n_tokens", "n_bytes"):
        assert getattr(sums[ALL], name) == pytest.approx(getattr(sums["a"], name) + getattr(sums["b"], name))
    assert sums["a"].nats_per_token != pytest.approx(sums["b"].nats_per_token)


def test_a_loss_is_that_of_the_window_alone(tiny: Model) -> None:
    documents = {"plain": ("\n\n".join(shipped_text().documents),)}
    loss = next(loss for loss in network_losses(SHIPPED, tiny, documents, silent) if loss.window == 128)
    tokens = judged_tokens(tiny, documents["plain"])
    windows = tokens[: len(tokens) // 128 * 128].reshape(-1, 128)
    nats = 0.0
    for window in windows:
        inputs = torch.cat([torch.tensor([tiny.tokenizer.bos_token_id]), window[:-1]])  # type: ignore[union-attr]
        with torch.no_grad():
            log_p = tiny.hf(input_ids=inputs[None]).logits[0].double().log_softmax(-1)
        nats -= float(log_p.gather(1, window[:, None]).sum())
    assert loss.n_tokens == windows.numel()
    assert loss.nats == pytest.approx(nats, rel=1e-5)
    n_bytes = sum(len(document.encode()) for document in documents["plain"])
    assert loss.n_bytes == pytest.approx(n_bytes * windows.numel() / len(tokens))


def test_a_length_ends_at_its_target(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_phases, "CYCLE_VALIDATION", 1)
    monkeypatch.setattr(training_phases, "CYCLE_TARGET", 0.0)
    params = Params(texts=(str(text),), **{**SETTINGS, "steps": 1})
    network = trained(params, gather(params, silent), tmp_path, Silent())
    assert [(phase.outcome.state.ending, phase.outcome.state.step) for phase in network.cycles] == [("target", 0)] * 3
    assert network.text.outcome.state.ending == "budget"


def test_minutes_of_cycles_are_limited(text: Path, tmp_path: Path) -> None:
    params = Params(texts=(str(text),), vocabulary=400, minutes=0.04)
    network = trained(params, gather(params, silent), tmp_path, Silent())
    assert [phase.name for phase in network.phases] == ["cycles-32", "text"]  # no minute is left for longer rows
    (cycles,) = network.cycles
    assert cycles.outcome.state.ending == "budget"
    longest_step = 60 * cycles.minutes / cycles.outcome.state.step
    assert 1.2 <= 60 * cycles.minutes <= 1.2 + 20 * longest_step
    assert network.minutes >= 0.04


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
    assert "12 of 12" in headlines(tables)[0].full
    assert "all lie inside" in headlines(tables)[0].full
    beyond = [
        replace(band, value=band.high + 0.01) if band.figure == "induction, 2x100" else band
        for band in shipped_bands(tiny, 0.0)
    ]
    tables["bands"] = bands_table(beyond)
    statement = headlines(tables)[0]
    assert "11 of 12" in statement.full
    assert "outside: induction, 2x100" in statement.full
    assert statement.effect == pytest.approx(11 / 12)
    assert tables["bands"].filter(~pl.col("is_inside"))["figure"].to_list() == ["induction, 2x100"]


def test_a_brief_study_says_that_it_is_brief(study: Run) -> None:
    statement = study["tiny"].headlines[0].full
    assert "The shipped weights had 36 minutes." in statement
    assert "outside: induction, 2x48 0.0" in statement


def test_a_folder_of_other_settings_is_refused(study: Run, folder: Path, text: Path) -> None:
    with pytest.raises(UsageError, match="holds another training"):
        hs.tiny(texts=(str(text),), out=folder, **{**SETTINGS, "steps": 4})
    assert hs.load(folder)["tiny"].status == "ok"  # nothing is lost


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--texts", "moby-dik"], "neither a text file"),
        (["--texts", "moby-dick:fit"], "is one split"),
        (["--texts", "missing.txt"], "does not exist"),
        (["--texts", "bible,bible"], "named twice"),
        (["--minutes", "0"], "greater than 0"),
        (["--minutes", "nan"], "greater than 0"),
        (["--steps", "0"], "greater than or equal to 1"),
        (["--vocabulary", "100"], "greater than or equal to 259"),
        (["--judged", "10"], "greater than or equal to 1024"),
        (["--clock", "sun"], "sun"),
        (["--table", "nothing"], "nothing"),
        (["tiny"], "unexpected extra argument"),
    ],
    ids=" ".join,
)
def test_wrong_arguments_are_refused(
    options: list[str], message: str, own_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
        ({"vocabulary": 100}, "vocabulary"),
        ({"judged": 10}, "judged"),
        ({"steps": 0}, "steps"),
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        EXPERIMENT.check(replace(Params(), **changes))


def test_a_text_without_enough_tokens_is_named(tmp_path: Path) -> None:
    brief = planted_text(tmp_path / "brief.txt", documents=24, words=40)
    with pytest.raises(UsageError, match=r"held-out text has \d+ tokens|too short for batches"):
        hs.tiny(texts=(str(brief),), out=tmp_path / "out", **SETTINGS)
