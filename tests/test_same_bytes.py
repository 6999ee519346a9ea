"""The same bytes whoever watches: a lens alone and in company, a run that was killed and one that was not.

The windows are longer than the largest map that is written out (`SMALL_MAP`) in one half of the tests and shorter in
the other, so that both ways of computing the model's own attention are looked at.
"""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import headscope as hs
from headscope.attention.statistics import Request
from headscope.folder_lock import NAME as LOCK
from headscope.lenses import lenses
from headscope.model.model import Model
from headscope.model.transformers.attention_hook import SMALL_MAP
from headscope.pipeline.resume import Keeper
from headscope.pipeline.text_pass import BATCH_TOKENS
from headscope.store import RunFolder
from tests.hostile import broken

LONG, SHORT = 144, 40
TEXTS = {"first_tokens": 440, "window": LONG}
# Quick ones of every kind: weights alone, statistics, captures in pieces, captures of whole batches, spelling.
QUICK = ("spectra", "focus", "preconditioning", "scores", "lowrank", "maps")
KILLED = {"lenses": QUICK, "first_tokens": 150, "window": SHORT}


def digests(folder: Path) -> dict[str, str]:
    """The sha256 of every file of a run folder but run.json, which holds times and the machine."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in ("run.json", LOCK))
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def of_lens(folder: Path, name: str) -> dict[str, str]:
    """The files of one finding: its tables, its arrays and the finding itself."""
    parts = ("findings", "tables", "arrays")
    files = {path: sha for path, sha in digests(folder).items() if path.split("/")[0] in parts}
    return {path: sha for path, sha in files.items() if path.split("/")[1].split(".")[0] == name}


def reported(folder: Path, what: object = "tiny", **options: object) -> Path:
    """A run folder with its report."""
    hs.measure(what, out=folder, **options)
    hs.report(folder)
    return folder


@pytest.fixture(scope="module")
def company(tmp_path_factory: pytest.TempPathFactory, tiny: Model) -> Path:
    folder = tmp_path_factory.mktemp("company")
    hs.measure(tiny, out=folder, **TEXTS)
    return folder


def test_both_ways_of_computing_attention_are_looked_at() -> None:
    assert SHORT**2 <= SMALL_MAP < LONG**2


@pytest.mark.parametrize("name", sorted(lenses()))
def test_a_lens_gives_the_same_bytes_alone_and_in_company(
    name: str, company: Path, tiny: Model, tmp_path: Path
) -> None:
    run = hs.measure(tiny, lenses=[name], out=tmp_path / "alone", **TEXTS)
    assert run[name].status == "ok"
    assert of_lens(tmp_path / "alone", name) == of_lens(company, name) != {}


@pytest.mark.parametrize("n_threads", [1, 3])
def test_the_number_of_threads_changes_no_byte(n_threads: int, company: Path, tiny: Model, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        hs.measure(tiny, lenses=QUICK, out=tmp_path / "threads", **TEXTS)
    finally:
        torch.set_num_threads(before)
    for name in QUICK:
        assert of_lens(tmp_path / "threads", name) == of_lens(company, name) != {}


@pytest.mark.parametrize("what", ["tiny", "a gguf file", "fresh weights"])
def test_lenses_of_weights_give_the_same_bytes_whether_or_not_a_model_is_built(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone they read the file of a model that is named; beside a lens that runs text, the built model."""
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path / "cache"))
    model = named_model(what, tmp_path)
    weights = ["spectra", "alignment", "embeddings"]
    hs.measure(model, lenses=[*weights, "focus"], out=tmp_path / "company", **TEXTS)
    for name in weights:
        hs.measure(model, lenses=[name], out=tmp_path / name, **TEXTS)
        assert of_lens(tmp_path / name, name) == of_lens(tmp_path / "company", name) != {}


def named_model(what: str, folder: Path) -> str:
    """How a model of some kind is named on the command line."""
    if what == "tiny":
        return "tiny"
    base = broken.save_llama(folder / "base")
    if what == "a gguf file":
        broken.save_gguf(folder / "m.gguf", base)
        return str(folder / "m.gguf")
    return f"random:{folder / 'base'}"


def needing(lens: Any, name: str, **needs: Any) -> Any:
    """The lens under another name, with other needs."""
    other = copy(lens)
    other.name = name
    other.needs = lambda params: replace(lens.needs(params), **needs)
    return other


def test_parameters_of_another_lens_change_nothing(tiny: Model) -> None:
    """Bands that only another lens asks for, and more text of a changed model than this lens needs."""
    focus, uniformity = lenses()["focus"], lenses()["uniformity"]
    texts = {"first_tokens": 2 * BATCH_TOKENS, "window": LONG}  # several batches: changed forms see whole ones
    nosy = needing(focus, "nosy", statistics=Request((2, 5)))
    hungry = needing(uniformity, "hungry", tokens=None)
    modest = needing(uniformity, "modest", tokens=LONG)
    together = hs.measure(tiny, lenses=[focus, nosy, modest, hungry], **texts)
    assert together["modest"].tables["layers"].shape[0] > 0
    alone = {
        name: hs.measure(tiny, lenses=[lens], **texts)[name] for name, lens in (("focus", focus), ("modest", modest))
    }
    for name, finding in alone.items():
        assert all(table.equals(together[name].tables[key]) for key, table in finding.tables.items())
    assert not together["hungry"].table.equals(together["modest"].table)  # more text does make a difference


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], list[Path]]:
    """The files of a run, and copies of its folder as they were after each finding.

    Whoever is killed leaves behind what is on the disk at that moment: a copy of the folder is just that.
    """
    folder, copies = tmp_path_factory.mktemp("whole") / "run", []
    keep = Keeper.keep

    def copied(keeper: Keeper, *finding: object) -> object:
        kept = keep(keeper, *finding)  # type: ignore[arg-type]
        copies.append(folder.parent / f"after {len(copies) + 1}")
        shutil.copytree(folder, copies[-1])
        return kept

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Keeper, "keep", copied)
        reported(folder, **KILLED)
    return digests(folder), copies


@pytest.mark.parametrize("findings", range(1, len(QUICK) + 1))
def test_a_run_killed_after_any_finding_gives_the_same_bytes(
    findings: int, uninterrupted: tuple[dict[str, str], list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, copies = uninterrupted
    made: list[str] = []
    keep = RunFolder.keep
    monkeypatch.setattr(
        RunFolder, "keep", lambda folder, finding, key="": (made.append(finding.lens), keep(folder, finding, key))[1]
    )
    assert digests(reported(copies[findings - 1], **KILLED)) == whole
    assert len(made) == len(QUICK) - findings  # the others were taken from the folder
    assert "report.html" in whole


KILL = """
import os, signal, sys
import headscope as hs
from headscope.store import RunFolder

keep = RunFolder.keep
def kept(folder, finding, key=""):
    keep(folder, finding, key)
    if len(folder.hashes) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
RunFolder.keep = kept
hs.measure("tiny", out=sys.argv[1], lenses=sys.argv[2].split(), first_tokens=int(sys.argv[3]), window=int(sys.argv[4]))
"""


def test_a_process_that_was_killed_is_resumed_to_the_same_bytes(
    uninterrupted: tuple[dict[str, str], list[Path]], tmp_path: Path
) -> None:
    folder = tmp_path / "killed"
    words = [str(folder), " ".join(QUICK), str(KILLED["first_tokens"]), str(KILLED["window"])]
    # As many threads as here: sums are split among them.
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    done = subprocess.run([sys.executable, "-c", KILL, *words], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (folder / "manifest.json").exists()
    assert len(list((folder / "findings").iterdir())) == 3
    assert digests(reported(folder, **KILLED)) == uninterrupted[0]


def test_the_order_of_the_lenses_changes_nothing(
    uninterrupted: tuple[dict[str, str], list[Path]], tmp_path: Path
) -> None:
    backwards = {**KILLED, "lenses": QUICK[::-1]}
    assert digests(reported(tmp_path / "backwards", **backwards)) == uninterrupted[0]
