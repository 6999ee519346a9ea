"""Put the model of a finished translation study into the package, as float16.

    python scripts/ship_translator.py FOLDER [TARGET]

FOLDER is that of `headscope study translation`. TARGET is by default the folder of `tiny-translate`, made with

    headscope study translation --pair en-it --width 192 --vocabulary 5000 --dropout 0.15 --precision bfloat16 \
        --batch 1600 --rate 0.0015 --warmup 800 --minutes 30 --clock processor --out FOLDER
"""

import json
import math
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

import headscope as hs
from headscope.core import Finding
from headscope.errors import NumericsError
from headscope.experiments.translation.translation_scores import Translations, score_table

MODELS = Path(__file__).parents[1] / "src" / "headscope" / "model" / "sources" / "embedded"
TARGET = MODELS / "tiny-translate"
MOST_BYTES = 10_000_000
CARD = """---
license: apache-2.0
language: [en, it]
library_name: transformers
pipeline_tag: translation
---

# {name}

An encoder–decoder that headscope carries, so that one is there offline: {network}.
It translates the sentences of an office program's help from English to Italian; of other text it knows little.
Weights are rounded to float16.

This page is written by `scripts/ship_translator.py`.

## Data

LibreOffice's help (Debian `libreoffice-help-en-us` and `libreoffice-help-it`, MPL-2.0): {train} pairs for training,
{valid} for validation, {judged} for the test; near-duplicates are never in two splits. None of the text is in this
folder.

## Training

{method}

## Measured

| system | overlap with the nearest training sentence | BLEU | chrF |
|---|---|---|---|
{rows}

With 95 % intervals over groups of near-duplicates. `{shipped}` are the weights in this folder; `greedy` and
`beam` are those before rounding, `copy` is the translation of the nearest training sentence. {signatures}.
"""
SHIPPED = "beam, float16"


def ship(folder: Path, target: Path) -> int:
    """Write weights, tokenizer and card; the size in bytes."""
    model, finding = folder / "training" / "best", hs.load(folder)["translation"]
    target.mkdir(parents=True, exist_ok=True)
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(model / name, target / name)
    config = json.loads((model / "config.json").read_text()) | {"dtype": "float16"}
    (target / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    weights = safetensors.torch.load_file(model / "model.safetensors")
    safetensors.torch.save_file(halved(weights), target / "model.safetensors", {"format": "pt"})
    scores = [*finding.tables["scores"].iter_rows(named=True), *scores_of(target, finding)]
    (target / "README.md").write_text(card(target.name, finding, scores), encoding="utf-8")
    return sum(file.stat().st_size for file in target.iterdir())


def halved(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights in float16, all of which must be in its range."""
    rounded = {name: tensor.half() for name, tensor in weights.items()}
    for name, tensor in rounded.items():
        if not tensor.isfinite().all():
            raise NumericsError(f"{name} does not fit into float16")
    return rounded


def scores_of(target: Path, finding: Finding) -> list[dict[str, Any]]:
    """The scores of the shipped model with beam search, on the pairs of the study."""
    pairs = finding.tables["translations"]
    hypotheses = [answer.text for answer in hs.translate(target, pairs["source"].to_list())]
    columns = (pairs[name].to_list() for name in ("reference", "group", "band"))
    rows = score_table(Translations(hypotheses, *columns)).iter_rows(named=True)
    return [{"system": SHIPPED, **row} for row in rows]


def card(name: str, finding: Finding, scores: list[dict[str, Any]]) -> str:
    """What the model is, and how well it translates."""
    sizes = dict(finding.tables["sizes"].iter_rows())
    return CARD.format(
        name=name,
        network=finding.tables["variants"]["network"][0],
        **{part: f"{sizes[f'{part} pairs']:,}" for part in ("train", "valid", "judged")},
        method=textwrap.fill(finding.method, 110),
        rows="\n".join(_rows(scores)),
        shipped=SHIPPED,
        signatures="; ".join(dict.fromkeys(f"{score['metric']} `{score['signature']}`" for score in scores)),
    )


def _rows(scores: list[dict[str, Any]]) -> Iterator[str]:
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for score in scores:
        interval = "" if math.isnan(score["low"]) else f" ({score['low']:.1f}–{score['high']:.1f})"
        cells.setdefault((score["system"], score["band"]), {})[score["metric"]] = f"{score['value']:.1f}{interval}"
    for (system, band), by_metric in cells.items():
        yield f"| {system} | {band} | {by_metric['BLEU']} | {by_metric['chrF']} |"


if __name__ == "__main__":
    n_bytes = ship(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else TARGET)
    print(f"{n_bytes:,} bytes")
    if n_bytes > MOST_BYTES:
        sys.exit(f"more than {MOST_BYTES:,} bytes: train a smaller network")
