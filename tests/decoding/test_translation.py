"""Sentences translated by a model: alone and together, n best, files, refusals."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer

import headscope as hs
from headscope.cli import main
from headscope.corpora.text_lines import sentence_lines
from headscope.errors import CheckpointError, HeadscopeError, UsageError
from headscope.experiments.translation.network_choice import network_of
from headscope.experiments.translation.pair_material import gather
from headscope.experiments.translation.settings import Network, Params, Score
from headscope.progress import silent
from tests.experiments.planted_translation import SETTINGS, planted_pairs

SENTENCES = ["a b c", "d", "e f g h i", "b a"]


def saved(params: Params, folder: Path) -> Path:
    """A network with fresh weights and its tokenizer, saved as the study saves them."""
    network_of(params).save_pretrained(folder)
    for name, content in gather(params, silent).companions.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture(scope="module")
def params(tmp_path_factory: pytest.TempPathFactory) -> Params:
    pairs = planted_pairs(tmp_path_factory.mktemp("pairs") / "planted.tsv")
    return Params(pair=str(pairs), **{**SETTINGS, "width": 16})


@pytest.fixture(scope="module")
def folder(params: Params, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(params, tmp_path_factory.mktemp("model"))


def run(*words: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["translate", *words])
    assert not stopped.value.code


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as stopped:
        main(["translate", *words])
    return int(stopped.value.code or 0), " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("beam", [1, 3])
def test_a_sentence_is_translated_as_if_alone(folder: Path, beam: int) -> None:
    together = hs.translate(folder, SENTENCES, beam=beam)
    assert [answer.source for answer in together] == SENTENCES
    for sentence, answer in zip(SENTENCES, together, strict=True):
        (alone,) = hs.translate(folder, sentence, beam=beam)
        assert alone.text == answer.text
        assert alone.translations[0].score == pytest.approx(answer.translations[0].score, abs=1e-4)


@pytest.mark.parametrize("score", [Score.NONE, Score.LUONG_GENERAL])
def test_recurrent_networks_translate(params: Params, tmp_path: Path, score: Score) -> None:
    folder = saved(replace(params, network=Network.GRU, score=score), tmp_path)
    (answer,) = hs.translate(folder, "a b c", beam=2, n_best=2)
    first, second = answer.translations
    assert first.score >= second.score
    assert (first.text, first.has_ended) != (second.text, second.has_ended)


def test_a_model_that_is_open_translates_the_same(folder: Path) -> None:
    assert hs.translate(hs.open(folder), "a b c")[0] == hs.translate(folder, "a b c")[0]


def test_the_command_writes_lines_rows_and_files(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [" ".join(answer.text.splitlines()) for answer in hs.translate(folder, SENTENCES)]
    run(str(folder), *SENTENCES)
    assert capsys.readouterr().out.splitlines() == texts
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    run(str(folder), "--file", str(source), "--out", str(target))
    assert target.read_text().splitlines() == texts
    assert capsys.readouterr().out.strip() == str(target)
    run(str(folder), "a b c", "--n-best", "2", "--format", "json")
    rows = json.loads(capsys.readouterr().out)
    assert [row["rank"] for row in rows] == [1, 2]
    assert rows[0]["score"] >= rows[1]["score"]
    assert " ".join(rows[0]["translation"].splitlines()) == texts[0]


def test_what_cannot_be_translated_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="sentence 2 is empty"):
        hs.translate(folder, ["a", " "])
    with pytest.raises(UsageError, match=r"sentence 1 has 32 tokens, and .* reads at most 16"):
        hs.translate(folder, "a " * 30 + "a")
    with pytest.raises(UsageError, match="cannot give 5 hypotheses"):
        hs.translate(folder, "a", n_best=5)


def test_models_that_do_not_translate_are_refused(tiny: object) -> None:
    with pytest.raises(UsageError, match="is no encoder–decoder"):
        hs.translate(tiny, "a")


def test_a_model_without_a_tokenizer_is_refused(params: Params, tmp_path: Path) -> None:
    network_of(params).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="has no tokenizer"):
        hs.translate(tmp_path, "a")


def test_a_tokenizer_of_another_model_is_refused(params: Params, tmp_path: Path) -> None:
    folder = saved(params, tmp_path)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens(["abc"])
    tokenizer.save(str(folder / "tokenizer.json"))
    with pytest.raises(CheckpointError, match=r"numbers its tokens up to 283, and the network has 283"):
        hs.translate(folder, "a")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["tiny"], 2, "give sentences or --file"),
        (["tiny", "a", "--file", "b.txt"], 2, "not both"),
        (["tiny", "--file", "missing.txt"], 2, "missing.txt"),
        (["nothing-of-this-name", "a"], 2, "no model is called"),
        (["tiny", "a", "--out", "missing/out.txt"], 5, "there is no folder"),
        (["tiny", "a", "--beam", "0"], 2, "beam"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(
    words: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    exit_code, complaint = refusal(capsys, *words)
    assert exit_code == code
    assert message in complaint


@pytest.mark.parametrize(
    ("content", "message"), [("", "is empty"), ("a\n\nb\n", "line 2: it is blank"), (b"\xff\xfe\xff", "UTF-8")]
)
def test_files_that_hold_no_sentences_are_refused(tmp_path: Path, content: str | bytes, message: str) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(HeadscopeError, match=message):
        sentence_lines(str(path))


def test_lines_are_sentences(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes("\ufeffa b\r\nc\n d".encode())
    assert sentence_lines(str(path)) == ["a b", "c", "d"]
