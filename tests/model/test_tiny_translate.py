"""The translator that ships with headscope: small, opened offline, and able to translate."""

import json
from importlib import resources
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import headscope as hs
from headscope.model.model import Model

NAME = "tiny-translate"
FOLDER = Path(str(resources.files("headscope.model.sources"))) / "embedded" / NAME
MOST_BYTES = 10_000_000


@pytest.fixture(scope="module")
def model() -> Model:
    return hs.open(NAME)


def test_it_is_small_and_half_precise() -> None:
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= MOST_BYTES
    with safe_open(FOLDER / "model.safetensors", "pt") as weights:
        assert {weights.get_slice(name).get_dtype() for name in weights.keys()} == {"F16"}  # noqa: SIM118  no mapping
    assert json.loads((FOLDER / "config.json").read_text())["dtype"] == "float16"


def test_it_opens_in_float32(model: Model) -> None:
    assert model.spec.kind == "encoder-decoder"
    assert {parameter.dtype for parameter in model.hf.parameters()} == {torch.float32}
    stacks = {(site.stack, site.kind) for site in model.sites}
    assert stacks == {("enc", "self"), ("dec", "self"), ("dec", "cross")}


@pytest.mark.parametrize(("sentence", "words"), [("Click the button.", "pulsante"), ("Select the cell.", "cella")])
def test_it_translates(model: Model, sentence: str, words: str) -> None:
    (answer,) = hs.translate(model, sentence)
    assert words in answer.text.lower()


def test_lenses_answer_about_it(model: Model) -> None:
    run = hs.measure(model, lenses=["focus", "maps", "spectra"], text="Click the button to open the file. " * 20)
    assert {finding.status for finding in run.findings.values()} == {"ok"}
    assert {"enc", "dec"} == set(run["spectra"].table["stack"])
