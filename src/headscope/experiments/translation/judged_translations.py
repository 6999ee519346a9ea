"""The translations of the judged pairs by one network, kept in the folder of its training."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headscope.decoding import Beam, Greedy, Search, SentenceTranslator
from headscope.experiments.translation.pair_material import Material
from headscope.experiments.translation.training_job import TrainedNetwork
from headscope.experiments.translation.translation_scores import Translations
from headscope.files import write_file
from headscope.model.tokenizer import open_tokenizer
from headscope.progress import Step
from headscope.training.training_folder import WRITING
from headscope.training.weights import digest, weights_of

GREEDY, BEAM, COPY = SYSTEMS = ("greedy", "beam", "copy")


def task_of(system: str) -> str:
    """The task that translating with a system is reported as."""
    return f"translating, {system}"


def searches(width: int) -> dict[str, Search]:
    """Both ways to decode, by name."""
    return {GREEDY: Greedy(), BEAM: Beam(width)}


def translator_of(trained: TrainedNetwork) -> SentenceTranslator:
    """The network with the tokenizer of its folder."""
    network: Any = trained.network
    tokenizer, _ = open_tokenizer(trained.folder, network.config)
    return SentenceTranslator(network, tokenizer, str(trained.folder))


def judged_translations(
    trained: TrainedNetwork, material: Material, system: str, search: Search, progress: Step
) -> Translations:
    """The translations of the judged pairs; those of an earlier study in the folder are read again.

    Properties:
        - they are made again for other weights  (tested: test_translations_of_other_weights_are_made_again)
    """
    path = trained.outcome.folder.path / f"translations-{system}.json"
    key = _key(trained, material, search)
    hypotheses = _stored(path, key)
    if hypotheses is None:
        answers = translator_of(trained).translate(
            material.judged.sources, search, lambda done, total: progress(task_of(system), done, total)
        )
        hypotheses = [answer.text for answer in answers]
        write_file(path, json.dumps({"key": key, "translations": hypotheses}, ensure_ascii=False).encode(), WRITING)
    return material_translations(material, hypotheses)


def material_translations(material: Material, hypotheses: Sequence[str]) -> Translations:
    """Translations of the judged pairs, with what is known about each pair."""
    judged = material.judged
    return Translations(hypotheses, judged.targets, judged.groups, material.nearest.bands)


def _key(trained: TrainedNetwork, material: Material, search: Search) -> str:
    """What the translations depend on."""
    parts = (digest(weights_of(trained.network)), material.judged.sha256, type(search).__name__, str(asdict(search)))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _stored(path: Path, key: str) -> list[str] | None:
    """The translations under a key; None where there are none, or others."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return list(map(str, content["translations"])) if content["key"] == key else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
