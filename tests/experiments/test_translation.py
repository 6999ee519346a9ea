"""The translation study: a planted language, resumption, variants, maps, refusals."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal

import headscope as hs
from headscope.cli import main
from headscope.core import Run
from headscope.corpora.parallel.pairs import Pair
from headscope.errors import UsageError
from headscope.experiments.translation.experiment import EXPERIMENT, LENSES
from headscope.experiments.translation.head_pruning import head_pruning
from headscope.experiments.translation.judged_translations import judged_translations, searches
from headscope.experiments.translation.pair_material import Material, drawn_part, gather
from headscope.experiments.translation.pair_structure import pair_structure
from headscope.experiments.translation.pair_text import PairText
from headscope.experiments.translation.sentence_maps import sentence_maps
from headscope.experiments.translation.settings import Network, Params, Score
from headscope.experiments.translation.training_job import trained
from headscope.experiments.translation.variants import MAIN, variants_of
from headscope.progress import Silent, silent
from tests.experiments.planted_translation import OPTIONS, SETTINGS, planted_pairs

BRIEF = {**SETTINGS, "steps": 1, "judged": 2}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return planted_pairs(tmp_path_factory.mktemp("pairs") / "planted.tsv")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("study") / "out"


@pytest.fixture(scope="module")
def study(pairs: Path, folder: Path) -> Run:
    return hs.translation(pair=str(pairs), out=folder, **SETTINGS)


def score(run: Run, system: str, metric: str) -> float:
    scores = run["translation"].tables["scores"]
    return float(scores.filter(system=system, band="all", metric=metric)["value"].item())


def test_a_planted_language_is_learnt(study: Run) -> None:
    assert score(study, "beam", "chrF") > score(study, "copy", "chrF") + 30
    assert f"BLEU {score(study, 'beam', 'BLEU'):.1f}" in str(study["translation"].headlines[0])
    losses = study["translation"].tables["losses"]["validation_nats"].drop_nulls()
    assert losses[-1] < 0.3 * losses[0]


def test_the_study_holds_what_its_prose_names(study: Run) -> None:
    finding = study["translation"]
    columns = {column for names in finding.about.columns for column in names.split(", ")}
    endings = ("_low", "_high", "_change", "_change_low", "_change_high", "_least", "_most", "_next", "")
    documented = {f"{column}{ending}" for column in columns for ending in endings}
    for name, table in finding.tables.items():
        assert table.height, name
        assert set(table.columns) <= documented | {"value"}, name


def test_the_best_weights_open_as_a_model(study: Run, folder: Path) -> None:
    model = hs.open(folder / "training" / "best")
    assert model.spec.kind == "encoder-decoder"
    assert model.spec.sha256 == study.model.sha256
    assert model.tokens("a b </s>")[-1] == "</s>"
    assert [site.label for site in study.sites] == ["enc.L0", "dec.L0", "dec.L0.cross"]


def test_a_killed_study_ends_the_same(study: Run, folder: Path, pairs: Path, tmp_path: Path) -> None:
    out = tmp_path / "killed"
    words = [sys.executable, "-m", "tests.experiments.planted_translation", str(pairs), str(out)]
    killed = subprocess.run([*words, str(torch.get_num_threads()), "8"], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert not (out / "report.html").exists()
    with pytest.raises(SystemExit) as stopped:
        main(["study", "translation", "--pair", str(pairs), "--out", str(out), *OPTIONS, "--format", "json"])
    assert not stopped.value.code
    assert (out / "training/best/model.safetensors").read_bytes() == (
        folder / "training/best/model.safetensors"
    ).read_bytes()
    again = hs.load(out)["translation"]
    for name in ("scores", "translations"):
        assert_frame_equal(again.tables[name], study["translation"].tables[name])


def test_translations_of_other_weights_are_made_again(study: Run, folder: Path, pairs: Path) -> None:
    params = Params(pair=str(pairs), **SETTINGS)
    material = gather(params, silent)
    network = trained(params, material, folder / "training", Silent())
    search = searches(1)["greedy"]
    tasks: list[str] = []

    def listen(task: str, done: int, total: int) -> None:
        tasks.append(task)

    judged_translations(network, material, "greedy", search, listen)
    assert not tasks
    with torch.no_grad():
        network.network.model.encoder.embed_tokens.weight.mul_(2.0)
    stored = folder / "training/translations-greedy.json"
    before = stored.read_bytes()
    judged_translations(network, material, "greedy", search, listen)
    assert tasks
    stored.write_bytes(before)


def test_variants_have_a_row_each_and_the_same_budget(pairs: Path, tmp_path: Path) -> None:
    run = hs.translation(pair=str(pairs), out=tmp_path, variants=True, **BRIEF)
    variants = run["translation"].tables["variants"]
    assert variants["variant"].to_list() == list(variants_of(Params(**BRIEF, variants=True)))
    assert variants["variant"][0] == MAIN
    assert "1 layer" not in variants["variant"]  # it is the main network
    assert set(variants["steps"]) == {1}
    assert variants.filter(variant="identity")["parameters"].item() == variants["parameters"][0]
    assert variants.filter(pl.col("variant") != MAIN)["BLEU_change"].null_count() == 0
    for name in variants["variant"][1:]:
        assert (tmp_path / "variants" / name.replace(" ", "-") / "best/model.safetensors").is_file()


def test_a_network_without_attention_is_judged_but_not_opened(pairs: Path, tmp_path: Path) -> None:
    run = hs.translation(pair=str(pairs), out=tmp_path, network=Network.GRU, score=Score.NONE, **BRIEF)
    assert not run.sites
    assert not any(figure.name.startswith("sentence") for figure in run["translation"].figures)
    assert hs.translate(tmp_path / "training/best", "a b c")[0].source == "a b c"
    assert (tmp_path / "report.html").is_file()


def test_maps_of_sentences_are_those_of_the_network(study: Run, folder: Path) -> None:
    model = hs.open(folder / "training/best")
    maps = sentence_maps(model, "a b c", "C B A")
    assert maps.source[-1] == "</s>"
    assert maps.written[0] == "<s>"
    encoder, decoder, cross = maps.maps.values()
    assert cross.shape == (4, len(maps.written), len(maps.source))
    for patterns in (encoder, decoder, cross):
        torch.testing.assert_close(patterns.sum(-1), torch.ones(patterns.shape[:2]))
    assert not decoder.triu(1).any()
    ids = torch.tensor(model.tokenizer(["a b c", "C B A"])["input_ids"])
    read = torch.cat([torch.tensor([[1]]), ids[1:, :-1]], dim=1)
    model.hf.set_attn_implementation("eager")
    with torch.no_grad():
        answer = model.hf(input_ids=ids[:1], decoder_input_ids=read, output_attentions=True)
    torch.testing.assert_close(answer.cross_attentions[0][0], cross, atol=1e-5, rtol=0)


def pair_text(material: Material, count: int = 7) -> PairText:
    pairs = material.judged.pairs[:count]
    sides = [[material.tokenizer.encode(side).ids for side in column] for column in zip(*pairs_of(pairs), strict=True)]
    return PairText(*sides, groups=[0, 0, *range(1, count - 1)])


def pairs_of(pairs: Sequence[Pair]) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in pairs]


@pytest.fixture(scope="module")
def material(pairs: Path) -> Material:
    return gather(Params(pair=str(pairs), **SETTINGS), silent)


def test_the_nats_of_pairs_are_those_of_single_pairs(study: Run, folder: Path, material: Material) -> None:
    model, text = hs.open(folder / "training/best"), pair_text(material)
    expected = []
    for source, target in zip(text.sources, text.targets, strict=True):
        with torch.no_grad():
            logits = model.hf(
                input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([[1, *target[:-1]]])
            ).logits
        log_p = torch.log_softmax(logits[0].double(), -1)
        expected.append(-float(log_p[torch.arange(len(target)), torch.tensor(target)].sum()))
    grouped = torch.tensor([expected[0] + expected[1], *expected[2:]], dtype=torch.float64)
    torch.testing.assert_close(text.nats(model), grouped, rtol=1e-4, atol=1e-5)
    assert text.tokens.sum() == sum(map(len, text.targets))
    assert float(text.tokens[0]) == len(text.targets[0]) + len(text.targets[1])


def test_a_dead_head_of_a_translator(study: Run, folder: Path, material: Material) -> None:
    model = hs.open(folder / "training/best")
    with model.edit() as edit:
        edit.ablate("dec.L0.cross.H1")
        pruning = head_pruning(model, material, 0, silent)
    by_head = {
        (site.label, head): estimate for (site, head), estimate in zip(pruning.heads, pruning.importance, strict=True)
    }
    dead = by_head.pop(("dec.L0.cross", 1))
    assert abs(dead.mean) < 1e-7
    assert max(estimate.mean for estimate in by_head.values()) > 0.1


def test_pruning_curves_of_a_translator(study: Run) -> None:
    curve = study["translation"].tables["pruning"]
    by_importance, random = (curve.filter(order=order) for order in ("importance", "random"))
    assert by_importance["off"].to_list() == random["off"].to_list()
    assert by_importance["off"][-1] == 12  # all heads
    assert by_importance["ratio"][-1] == pytest.approx(random["ratio"][-1], rel=1e-9)
    assert random["ratio_least"][-1] == pytest.approx(random["ratio_most"][-1], rel=1e-9)
    assert by_importance["ratio"][-1] > 2.0
    assert by_importance["ratio"][0] <= random["ratio_most"][0]


def test_the_structure_of_pairs_reads_both_sides(study: Run, folder: Path, material: Material) -> None:
    assert {"structure", *LENSES} < set(study.findings)
    families = study["structure"].tables["families"]
    assert {(row["stack"], row["kind"]) for row in families.iter_rows(named=True)} == {("enc", "self"), ("dec", "self")}
    model = hs.open(folder / "training/best")
    short, long = len(model.tokenizer("a b")["input_ids"]), len(model.tokenizer("A B C D E")["input_ids"])
    first = replace(material.judged, pairs=(Pair("a b", "B A"),), groups=(0,))
    finding = pair_structure(model, replace(material, judged=first), ["A B C D E"], silent)
    # All tokens of the source; of the translation the first one sees itself alone, which leaves nothing to measure.
    assert f"on {short} to {long - 1} rows of each of 1 windows" in finding.method


def test_drawn_pairs_are_some_of_the_split(pairs: Path) -> None:
    test = gather(Params(pair=str(pairs), **SETTINGS), silent).judged
    drawn = drawn_part(test, 3, seed=1)
    assert len(drawn.pairs) == len(drawn.groups) == 3
    by_pair = dict(zip(test.pairs, test.groups, strict=True))
    assert [by_pair[pair] for pair in drawn.pairs] == list(drawn.groups)
    assert drawn_part(test, len(test.pairs), seed=1) is test


def test_a_recurrent_network_with_attention_has_its_report(pairs: Path, tmp_path: Path) -> None:
    run = hs.translation(pair=str(pairs), out=tmp_path, network=Network.LSTM, score=Score.BAHDANAU, **BRIEF)
    assert run["translation"].tables["heads"].select("stack", "kind", "layer", "head").rows() == [
        ("dec", "cross", 0, 0)
    ]
    assert "structure" not in run.findings  # its one head is cross-attention


def test_a_folder_of_other_settings_is_refused(study: Run, folder: Path, pairs: Path) -> None:
    with pytest.raises(UsageError, match="holds another training"):
        hs.translation(pair=str(pairs), out=folder, **{**SETTINGS, "rate": 0.02})
    assert hs.load(folder)["translation"].status == "ok"  # nothing is lost


def test_a_sentence_longer_than_the_model_is_named(pairs: Path, tmp_path: Path) -> None:
    long_pairs = tmp_path / "long.tsv"
    long_pairs.write_text(pairs.read_text() + f"{'a ' * 40}b\t{'A ' * 40}B\n")
    with pytest.raises(UsageError, match=r"its source has \d+ tokens, and the model reads 16.*--longest"):
        try:
            hs.translation(pair=str(long_pairs), out=tmp_path / "out", **BRIEF)
        except UsageError as error:
            raise UsageError(f"{error.message} {error.hint}") from error


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pair": "en-xx"}, "no parallel text"),
        ({"pair": "en-it:test"}, "is one split"),
        ({"pair": "missing.tsv"}, "does not exist"),
        ({"heads": 3}, "heads evenly"),
        ({"network": Network.LSTM, "heads": 3, "variants": True}, "heads evenly"),
        ({"width": 12, "heads": 4, "variants": True}, "8 heads evenly"),
        ({"minutes": 0.0}, "greater than 0"),
        ({"minutes": float("inf")}, "minutes must be greater than 0"),
        ({"steps": 0}, "steps"),
        ({"dropout": 1.0}, "dropout"),
        ({"rate": -1.0}, "learning rate"),
        ({"agreement": -1.0}, "agreement must be at least 0"),
        ({"batch": 100}, "no room for two sentences"),
        ({"vocabulary": 100}, "vocabulary is at least 260"),
        ({"judged": 1}, "judged is at least 2"),
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        EXPERIMENT.check(replace(Params(), **changes))


def test_the_experiment_takes_no_model(tiny: object) -> None:
    with pytest.raises(UsageError, match="trains its own model"):
        EXPERIMENT.run(tiny, Params(), silent)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        hs.translation("tiny", hub=True)
