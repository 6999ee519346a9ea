"""What lenses hold of a text: everything by default, and a warning where it is less."""

import pytest
import torch

from headscope.core import ModelSpec, Site
from headscope.lenses.dependence import lens as dependence
from headscope.lenses.gaussian import lens as gaussian
from headscope.lenses.lens import AS_IS, Batch
from headscope.lenses.preconditioning import lens as preconditioning
from headscope.lenses.shared.row_sample import Plan, Sample, kept_positions
from headscope.lenses.shared.window_sample import sample_warning
from headscope.lenses.transport import lens as transport
from tests.lenses.asking import begin, finish, update

WINDOWS, LENGTH = 32, 512
SMOLLM2 = ModelSpec("m", "f", "a", "A", "decoder-only", 30, 9, 3, 576, 64, 49152, 8192, 1, "float32")
SITES = tuple(Site("only", "self", layer, 9, 3, 64, 64, True) for layer in range(30))


@pytest.mark.parametrize("lens", [gaussian, preconditioning])
def test_every_row_of_32_windows_of_a_model_of_30_layers_is_held(lens):
    plan = begin(lens.LENS, lens.Params(), SMOLLM2, SITES).state.plan
    assert plan.windows >= WINDOWS
    assert len(kept_positions(plan, LENGTH, plan.room(WINDOWS))) == LENGTH - plan.skip


@pytest.mark.parametrize("lens", [dependence, transport])
def test_32_windows_of_a_model_of_30_layers_are_held(lens):
    state = begin(lens.LENS, lens.Params(), SMOLLM2, SITES).state
    assert state.room >= WINDOWS
    assert state.step == 1


def test_a_sample_counts_what_it_holds():
    site, draw = SITES[0], torch.Generator().manual_seed(0)
    sample = Sample(Plan(rows=100, windows=3, distances=(), skip=1))
    for index in range(5):
        tokens = torch.arange(50) + 100 * index
        sample = sample.add(tokens, {site: torch.randn(50, 2, generator=draw)})
    held, there = sample.counts()
    assert held == sum(len(window.streams[site].positions) for window in sample.windows) == 75
    assert there == 5 * 49


def test_the_warning_names_both_numbers():
    assert sample_warning(5, 5, "rows") == ()
    (sentence,) = sample_warning(3295, 5205, "rows")
    assert "3,295 of 5,205 rows" in sentence


def test_gaussian_warns_when_rows_do_not_fit(monkeypatch):
    site = SITES[0]
    spec = ModelSpec("m", "f", "a", "A", "decoder-only", 1, 9, 3, 4, 64, 100, 512, 1, "float32")
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 90, (4, 200), generator=draw)
    captures = {name: {site: torch.randn(4, 200, 4, generator=draw)} for name in ("resid", "final")}
    batch = Batch(AS_IS, tokens, torch.ones_like(tokens, dtype=torch.bool), captures=captures)

    def warned():
        fold = begin(gaussian.LENS, gaussian.Params(components=2, tokens=2), spec, (site,))
        finding = finish(gaussian.LENS, update(gaussian.LENS, fold, batch), None)
        return [line for line in finding.warnings if "memory" in line]

    assert warned() == []
    monkeypatch.setattr(gaussian, "SAMPLE_BYTES", 4 * 4 * 2 * 480)
    (line,) = warned()
    assert "of 796 rows of each layer" in line
