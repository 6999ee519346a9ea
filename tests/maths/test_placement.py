"""Laws and known answers of `headscope.maths.attention.shuffled_map`."""

import math

import pytest
import torch

from headscope.maths.attention import shuffled_map
from headscope.maths.attention.shuffled_map import ROUNDS, falling_order, gumbel, popular_placement
from headscope.maths.linear_algebra.spectrum import energy_beyond, singular_values

N = 64
SEEN = torch.ones(N, N, dtype=torch.bool).tril()


def noise(generator: torch.Generator) -> torch.Tensor:
    return gumbel(torch.rand(N, N, generator=generator, dtype=torch.float64))


def sink(generator: torch.Generator, share: float) -> torch.Tensor:
    """A share of each row on the first key, the rest unevenly and at random."""
    rest = torch.rand(N, N, generator=generator, dtype=torch.float64).pow(8).tril()
    pattern = (1 - share) * rest / rest.sum(-1, keepdim=True)
    pattern[:, 0] += share
    return pattern


def test_placement_has_the_margins():
    generator = torch.Generator().manual_seed(0)
    pattern = sink(generator, 0.3)
    placed = popular_placement(pattern, SEEN, noise(generator))
    torch.testing.assert_close(placed.matrix.sum(-1), pattern.sum(-1), rtol=1e-12, atol=0)
    assert float((placed.matrix.sum(0) - pattern.sum(0)).abs().sum()) / 2 <= 1e-3 * N
    assert float(placed.misplaced) <= 1e-3
    assert bool((placed.matrix[~SEEN] == 0).all())


def test_a_sink_stays_a_sink():
    generator = torch.Generator().manual_seed(1)
    pattern = sink(generator, 0.8)
    placed = popular_placement(pattern, SEEN, noise(generator)).matrix
    assert bool((placed[8:].argmax(-1) == 0).all())
    assert float((placed[8:, 0] - pattern[8:, 0]).abs().max()) < 0.1


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8])
def test_rounds_bring_the_weights_nearer_to_those_of_the_rows(share, monkeypatch):
    """The nearer the column sums of a placement are, the less scaling changes its weights."""
    changes = []
    for rounds in (1, ROUNDS):
        monkeypatch.setattr(shuffled_map, "ROUNDS", rounds)
        generator = torch.Generator().manual_seed(5)
        patterns = [(sink(generator, share), noise(generator)) for _ in range(6)]
        placed = [(popular_placement(pattern, SEEN, draw).matrix, pattern) for pattern, draw in patterns]
        changes.append(sum(float((x.sort(-1).values - y.sort(-1).values).abs().mean()) for x, y in placed))
    assert changes[1] < 0.6 * changes[0]


@pytest.mark.parametrize("share", [0.0, 0.5, 0.8])
def test_a_sink_has_the_spectrum_of_its_placement(share):
    """Rows that share nothing but the sink: the null is calibrated, which that of weights anywhere is not."""
    generator = torch.Generator().manual_seed(2)
    pairs = []
    for _ in range(12):
        pattern = sink(generator, share)
        placed = popular_placement(pattern, SEEN, noise(generator)).matrix
        pairs.append([float(energy_beyond(singular_values(x), 5)) for x in (pattern, placed)])
    values, nulls = torch.tensor(pairs, dtype=torch.float64).T
    assert float(nulls.mean() / values.mean()) == pytest.approx(1.0, abs=0.15)


def test_placements_do_not_mix():
    """Patterns that need different rounds are placed together as each alone."""
    generator = torch.Generator().manual_seed(3)
    patterns = torch.stack([sink(generator, share) for share in (0.0, 0.3, 0.9)])
    draw = noise(generator)
    together = popular_placement(patterns, SEEN, draw)
    for index, pattern in enumerate(patterns):
        alone = popular_placement(pattern, SEEN, draw)
        torch.testing.assert_close(together.matrix[index], alone.matrix, rtol=1e-12, atol=0)
        assert float(together.misplaced[index]) == pytest.approx(float(alone.misplaced), rel=1e-9)


@pytest.mark.parametrize("n", [1, 2, 7, 256, 1000])
def test_falling_order(n):
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(3, 5, n, generator=generator, dtype=torch.float64) * 1e3
    x[0, :, ::3] = -torch.inf
    x[1, :, : n // 2] = 1.0
    x[2, 0, n // 2] = torch.inf
    assert torch.equal(falling_order(x), x.argsort(dim=-1, descending=True, stable=True))


@pytest.mark.parametrize("n", [2, 256, 1000, 1024])
def test_falling_order_keeps_all_bits_but_those_of_the_index(n):
    """Of 52 bits ⌈log₂ n⌉ go to the index; numbers that differ in the last of the others are told apart."""
    x = torch.zeros(n, dtype=torch.float64)
    x[0], x[1] = 1.0, 1.0 + 2.0 ** (math.ceil(math.log2(n)) - 52)
    assert falling_order(x)[:2].tolist() == [1, 0]
