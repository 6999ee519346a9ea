"""Pictures of mechanisms: the maps are the sets that the definitions say, and the layers are shortest paths."""

import numpy as np
import pytest
import torch

import headscope.attention as attention
from headscope.attention.mechanism import mechanisms
from headscope.attention.pictures import layers_needed, pictures
from headscope.core import HeatMap, Mosaic, Network
from headscope.errors import UsageError
from headscope.report.draw.figure import encode, page_svg
from headscope.report.figure_file import FORMATS


def test_the_map_of_a_window_is_its_band() -> None:
    drawn, graph, _ = pictures(attention.window(left=2, right=1), 9)
    assert isinstance(drawn, Mosaic)
    assert isinstance(graph, Network)
    i, j = np.indices((9, 9))
    band = (i - j <= 2) & (j - i <= 1)
    assert np.array_equal(drawn.values > 0, band)
    assert len(graph.edges) == band.sum() - 9  # without the diagonal
    assert f"{100 * band.mean():.1f} %" in drawn.caption


def test_layers_needed_on_a_chain() -> None:
    """A window of one token before: j reaches i after exactly i − j layers."""
    n = 12
    chain = torch.ones(n, n).tril().triu(-1).bool()
    needed = layers_needed(chain, 5)
    i, j = np.indices((n, n))
    steps = i - j
    assert np.array_equal(needed, np.where((steps < 0) | (steps > 5), 0, np.maximum(steps, 1)))


@pytest.mark.parametrize("seed", range(3))
def test_layers_needed_are_shortest_paths(seed: int) -> None:
    """Against breadth-first search on random graphs."""
    n = 15
    pattern = torch.rand(n, n, generator=torch.Generator().manual_seed(seed)) < 0.12
    needed = layers_needed(pattern, 4)
    for i in range(n):
        depth, frontier, seen = {i: 1}, {i}, {i}
        for layer in range(1, 5):
            frontier = {int(j) for f in frontier for j in pattern[f].nonzero()[:, 0]} - seen
            seen |= frontier
            depth |= dict.fromkeys(frontier, layer)
        assert {j: int(needed[i, j]) for j in range(n) if needed[i, j]} == depth


@pytest.mark.parametrize("cls", mechanisms().values(), ids=lambda cls: cls.name)
def test_every_mechanism_can_be_drawn(cls) -> None:
    figures = pictures(cls.examples(12)[0], 12)
    assert [figure.name for figure in figures][:3] == ["map", "graph", "field"]
    for figure in figures:
        assert isinstance(figure, (Mosaic, Network, HeatMap))
        assert b"<svg" in encode(figure, "svg")


@pytest.mark.parametrize("given", [{"n": 0}, {"n": 5000}, {"n": 8, "layers": 0}])
def test_impossible_pictures_are_refused(given: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="got"):
        pictures(attention.dense(), **given)


def test_maps_and_networks_are_drawn_in_every_format() -> None:
    for figure in pictures(attention.window(left=1), 70)[:2]:
        assert all(len(encode(figure, kind)) > 1000 for kind in FORMATS)
        assert "<svg" in page_svg(figure, "x")
