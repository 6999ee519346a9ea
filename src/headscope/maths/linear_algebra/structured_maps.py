r"""Random members of Conti's families of structured attention maps.

They serve planted cases, tests and pictures.

Each family is a kind of head: positional (the identity), syntactic (a band with entries dropped), rare-token (blocks of
neighbours that all look at one token). A sparse error is added and the rows are normalised. Everything is float64 and
depends on the generator alone.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.errors import UsageError
from headscope.maths.linear_algebra.supports import band

Map = Float[Tensor, "n n"]


def positional_head(n: int) -> Map:
    """Σ₁: the identity, every token looks at itself."""
    _at_least("n", n, 1)
    return torch.eye(n, dtype=torch.float64)


def syntactic_head(n: int, width: int, dropped: float, generator: torch.Generator) -> Map:
    r"""Σ₂(w): a band of half-width w with random weights and dropped entries.

    Each entry off the diagonal is dropped with a probability.

    Properties:
        - vanishes outside the band; rows sum to 1  (tested: test_families_keep_their_form)
        - `dropped` is the share of vanishing entries off the diagonal of the band  (tested: test_dropped_share)
    """
    if not 0 <= dropped <= 1:
        raise UsageError(f"the share of dropped entries lies between 0 and 1, got {dropped}")
    places = band(n, width)
    weights = 1 - torch.rand(n, n, generator=generator, dtype=torch.float64)  # in (0, 1]
    not_dropped = torch.rand(n, n, generator=generator, dtype=torch.float64) >= dropped
    # The diagonal stays, so that no row is empty.
    not_dropped |= torch.eye(n, dtype=torch.bool)
    return normalised(weights * (places & not_dropped))


def rare_token_head(n: int, width: int, positions: int, generator: torch.Generator) -> Map:
    r"""Σ₃: the identity with blocks of neighbours that look at one rare token.

    There are `positions` blocks of `width` tokens.

    The rare tokens are drawn without repetition; a block is the run of `width` rows about its token, moved inwards at
    the ends of the text. Where blocks overlap the later one wins.

    Properties:
        - every row has a single 1; every rare token is looked at by its block  (tested: test_families_keep_their_form)
    """
    _at_least("n", n, 1)
    if not 1 <= width <= n or not 0 <= positions <= n:
        raise UsageError(f"blocks of {width} rows at {positions} positions do not fit into {n} tokens")
    target = torch.arange(n)
    for token in torch.randperm(n, generator=generator)[:positions].tolist():
        first = min(max(token - width // 2, 0), n - width)
        target[first : first + width] = token
    return torch.nn.functional.one_hot(target, n).to(torch.float64)


def with_sparse_error(p: Map, entries: int, size: float, generator: torch.Generator) -> Map:
    r"""The map with up to `size` added at `entries` random places, rows normalised.

    Properties:
        - rows sum to 1  (tested: test_families_keep_their_form)
        - at most `entries` places outside the support of p are filled  (tested: test_sparse_error_is_sparse)
    """
    if p.ndim != 2 or p.shape[0] != p.shape[1]:
        raise UsageError(f"expected a square map, got the shape {tuple(p.shape)}")
    if not 0 <= entries <= p.numel() or size < 0:
        raise UsageError(f"cannot raise {entries} of {p.numel()} entries by up to {size}")
    noisy = p.to(torch.float64).flatten().clone()
    places = torch.randperm(p.numel(), generator=generator)[:entries]
    noisy[places] += size * torch.rand(entries, generator=generator, dtype=torch.float64)
    return normalised(noisy.reshape(p.shape))


def normalised(p: Float[Tensor, "*batch n keys"]) -> Float[Tensor, "*batch n keys"]:
    """Rows divided by their sums; all of them must be positive."""
    total = p.to(torch.float64).sum(-1, keepdim=True)
    if not bool((total > 0).all()):
        raise UsageError("a row sums to 0 or less, so it cannot be normalised")
    return p / total


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise UsageError(f"{name} must be at least {least}, got {value}")
