"""What follows a token in the text: how many continuations carry 90 %, and how much entropy is left."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from math import log, nan

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.core import Vocabulary
from headscope.core.words import shown
from headscope.lenses.conditioned.pairs import Counts, Pairs
from headscope.maths.counts import carriers, corrected_entropy, drawn, plain_entropy
from headscope.maths.sampling import clustered_mean

Row = dict[str, object]
Names = Callable[[int], str]
# Previous tokens that are looked at, the most frequent ones; and those that are listed.
GROUPS, LISTED = 256, 24
DRAWS = 20
SHARE, FEW = 0.9, 5
# Ranks of continuations at which the carried share is drawn.
RANKS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987)
_COLUMNS = ("continuations_90", "few", "entropy", "corrected")


@dataclass(frozen=True)
class Followers:
    """The continuations of each previous token, most frequent first, and the same for drawn tokens.

    The columns of `measured` and `null` are the fewest continuations that carry 90 %, whether five do, the plain
    entropy and the corrected one. `carried` is the share of the r likeliest, for r in `RANKS`.
    """

    tokens: tuple[int, ...]
    after: tuple[Counts, ...]
    sizes: Float[Tensor, " groups"]
    measured: Float[Tensor, "groups columns"]
    null: Float[Tensor, "draws groups columns"]
    carried: Float[Tensor, "groups ranks"]
    carried_null: Float[Tensor, "groups ranks"]
    following: Counts

    @classmethod
    def of(cls, pairs: Pairs, least: int) -> "Followers | None":
        """Of the previous tokens with at least so many continuations; None where there is none."""
        previous = pairs.previous()
        order = sorted(zip((-previous.counts).tolist(), previous.values.tolist(), strict=True))
        tokens = tuple(token for minus, token in order if -minus >= least)[:GROUPS]
        if not tokens:
            return None
        after = pairs.after(tokens)
        sizes = [one.total for one in after]
        nulls = torch.zeros(DRAWS, len(tokens), len(_COLUMNS), dtype=torch.float64)
        carried_null = torch.zeros(len(tokens), len(RANKS), dtype=torch.float64)
        for draw in range(DRAWS):
            generator = torch.Generator().manual_seed(draw)
            for group, size in enumerate(sizes):
                uniform = torch.rand(size, generator=generator, dtype=torch.float64)
                counts = Counts.of(drawn(uniform, pairs.following.counts)).counts
                nulls[draw, group] = _numbers(counts)
                carried_null[group] += _carried(counts) / DRAWS
        return cls(
            tokens,
            tuple(after),
            torch.tensor(sizes, dtype=torch.float64),
            torch.stack([_numbers(one.counts) for one in after]),
            nulls,
            torch.stack([_carried(one.counts) for one in after]),
            carried_null,
            pairs.following,
        )

    def text_rows(self) -> Iterator[Row]:
        """Means over previous tokens, each as often as it was seen."""
        whole = self.following.counts
        everything = {"samples": self.following.total, "groups": None}
        yield _row("entropy_nats", corrected_entropy(whole), null=log(len(whole))) | everything
        yield self._row("conditional_entropy_nats", 3)
        gain = self.null[..., 2].mean(0) - self.measured[:, 2]
        told, half = paired(gain, torch.zeros_like(gain), self.sizes)
        yield _row("information_nats", told, told - half, told + half, 0.0, self._z(2, -1)) | self._counts()
        yield self._row("continuations_90", 0)
        yield self._row("five_carry_90", 1)
        types = self.null[..., 1].mean(1)
        yield _row("five_carry_90_types", float(self.measured[:, 1].mean()), null=float(types.mean())) | self._counts()

    def _row(self, quantity: str, column: int) -> Row:
        values, chance = self.measured[:, column], self.null[..., column].mean(0)
        found, half = paired(values, chance, self.sizes)
        null = float((chance * self.sizes).sum() / self.sizes.sum())
        return _row(quantity, found, found - half, found + half, null, self._z(column)) | self._counts()

    def _null(self, column: int) -> Float[Tensor, " draws"]:
        return (self.null[..., column] * self.sizes).sum(1) / self.sizes.sum()

    def _z(self, column: int, sign: int = 1) -> float | None:
        null = self._null(column)
        value = float((self.measured[:, column] * self.sizes).sum() / self.sizes.sum())
        spread = float(null.std())
        return sign * (value - float(null.mean())) / spread if spread else None

    def _counts(self) -> Row:
        return {"samples": int(self.sizes.sum()), "groups": len(self.tokens)}

    def token_rows(self, names: Names) -> Iterator[Row]:
        """The most frequent previous tokens one by one."""
        for group, token in enumerate(self.tokens[:LISTED]):
            null, spread = (f(self.null[:, group, 0]) for f in (torch.mean, torch.std))
            value, after = float(self.measured[group, 0]), self.after[group]
            order = sorted(zip((-after.counts).tolist(), after.values.tolist(), strict=True))[:3]
            yield {
                "previous": names(token),
                "value": value,
                "null": float(null),
                "z": (value - float(null)) / float(spread) if spread else None,
                "entropy_nats": float(self.measured[group, 3]),
                "entropy_null": float(self.null[:, group, 3].mean()),
                "likeliest": ", ".join(f"{names(t)} {-100 * c / after.total:.0f} %" for c, t in order),
                "continuations": len(after.values),
                "samples": after.total,
            }


def paired(
    values: Float[Tensor, " groups"], null: Float[Tensor, " groups"], sizes: Float[Tensor, " groups"]
) -> tuple[float, float]:
    """The mean over groups, and half of the 95 % interval of its distance from the null of the same groups.

    Larger groups have larger numbers whatever the text is; that difference is in the null as well and cancels.
    """
    gap = clustered_mean((values - null) * sizes, sizes)
    return float((values * sizes).sum() / sizes.sum()), (gap.high - gap.low) / 2


def spelling(vocabulary: Vocabulary | None) -> Names:
    """What a token spells, or its number where nobody says."""

    @cache
    def name(token: int) -> str:
        return f"#{token}" if vocabulary is None else shown(vocabulary.spelled([token])[0])

    return name


def _numbers(counts: Tensor) -> Float[Tensor, " columns"]:
    fewest = carriers(counts, SHARE)
    numbers = [float(fewest), float(fewest <= FEW), plain_entropy(counts), corrected_entropy(counts)]
    return torch.tensor(numbers, dtype=torch.float64)


def _carried(counts: Tensor) -> Float[Tensor, " ranks"]:
    sums = counts.sort(descending=True).values.cumsum(0).to(torch.float64) / float(counts.sum())
    return sums[torch.tensor(RANKS).clamp_max(len(sums)) - 1]


def _row(
    quantity: str,
    value: float,
    low: float = nan,
    high: float = nan,
    null: float | None = None,
    z: float | None = None,
) -> Row:
    ends = {"low": None if low != low else low, "high": None if high != high else high}
    return {"quantity": quantity, "value": value, **ends, "null": null, "z": z}
