"""What follows a token in the text: how many continuations carry 90 %, and how much entropy is left."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import log, nan

import torch
from jaxtyping import Float, Int
from scipy import special, stats
from torch import Tensor

from headscope.core import Vocabulary
from headscope.core.token_words import display_text
from headscope.lenses.preconditioning.pairs import Counts, Pairs, grouped_counts, pair_key
from headscope.lenses.shared.table import Row
from headscope.maths.resampling.clustered_mean import clustered_mean
from headscope.maths.resampling.counts import coverage_entropy, drawn
from headscope.maths.resampling.grouped_counts import GroupedCounts
from headscope.maths.resampling.jackknife import jackknife

Names = Callable[[int], str]
# Previous tokens that are looked at, the most frequent ones; and those that are listed.
GROUPS, LISTED = 256, 24
DRAWS = 20
SHARE, FEW = 0.9, 5
# The share of false discoveries among previous tokens after which five continuations are excluded.
LEVEL = 0.05
# Ranks of continuations at which the carried share is drawn.
RANKS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987)
# Columns of the numbers of a group.
CARRIERS, IS_FEW, ENTROPY, CHANCE_OF_FEW = range(4)
COLUMNS = 4


@dataclass(frozen=True)
class TextWindow:
    """The tokens of one window, with the hash by which windows are drawn."""

    priority: int
    tokens: Int[Tensor, " n"]


@dataclass(frozen=True)
class Followers:
    """The continuations of each previous token, most frequent first, and the same for drawn tokens.

    The columns of `measured` and `null` are the fewest continuations that carry 90 %, whether five do, the entropy, and
    the p-value of five carrying 90 %. `left_out` has the same numbers and the sizes of the groups without each sampled
    window, of `windows` in all. `carried` is the share of the r likeliest, for r in `RANKS`.
    """

    tokens: tuple[int, ...]
    after: tuple[Counts, ...]
    sizes: Float[Tensor, " groups"]
    measured: Float[Tensor, "groups columns"]
    null: Float[Tensor, "draws groups columns"]
    left_out: Float[Tensor, "sampled groups columns"]
    left_sizes: Float[Tensor, "sampled groups"]
    carried: Float[Tensor, "groups ranks"]
    carried_null: Float[Tensor, "groups ranks"]
    following: Counts
    pairs: int
    windows: int

    @classmethod
    def of(
        cls, pairs: Pairs, least: int, sampled: Sequence[TextWindow] = (), skip: int = 0, windows: int = 0
    ) -> "Followers | None":
        """From previous tokens with at least `least` continuations; None without any."""
        previous = pairs.previous()
        order = sorted(zip((-previous.counts).tolist(), previous.values.tolist(), strict=True))
        tokens = tuple(token for minus, token in order if -minus >= least)[:GROUPS]
        if not tokens:
            return None
        after = pairs.after(tokens)
        sizes = [group.total for group in after]
        nulls = torch.zeros(DRAWS, len(tokens), COLUMNS, dtype=torch.float64)
        carried_null = torch.zeros(len(tokens), len(RANKS), dtype=torch.float64)
        group = torch.arange(len(tokens)).repeat_interleave(torch.tensor(sizes))
        for draw in range(DRAWS):
            generator = torch.Generator().manual_seed(draw)
            uniform = torch.rand(len(group), generator=generator, dtype=torch.float64)
            values = drawn(uniform, pairs.following.counts)
            counts = grouped_counts(Counts.of(pair_key(group, values)), len(tokens))
            nulls[draw] = _numbers(counts)
            carried_null += counts.carried(RANKS) / DRAWS
        together = pairs.grouped(tokens)
        counts = grouped_counts(together, len(tokens))
        left_out, left_sizes = _without_windows(together, tokens, sampled, skip)
        return cls(
            tokens,
            tuple(after),
            torch.tensor(sizes, dtype=torch.float64),
            _numbers(counts),
            nulls,
            left_out,
            left_sizes,
            counts.carried(RANKS),
            carried_null,
            pairs.following,
            previous.total,
            windows,
        )

    def text_rows(self) -> Iterator[Row]:
        """Means over previous tokens, weighted by how often they occur.

        The entropy given the previous token is too small by a bias that no one knows. It lies between nothing and the
        bias of as many drawn tokens, whose entropy is that of the text: the intervals allow for both.
        """
        entropy = coverage_entropy(self.following.counts)
        everything = {"samples": self.following.total, "groups": None, "windows": self.windows}
        yield _row("entropy_nats", entropy, null=log(len(self.following.counts))) | everything
        left, half, null = self._mean(ENTROPY), self._half_width(ENTROPY), self._null(ENTROPY)
        bias = max(entropy - null, 0.0)
        ends = max(left - half, 0.0), left + half + bias
        yield _row("conditional_entropy_nats", left, ends, null) | self._counts()
        yield (
            _row("information_nats", null - left, (null - left - half, null - left + half + bias), 0.0) | self._counts()
        )
        value, half = self._mean(CARRIERS), self._half_width(CARRIERS)
        ends = max(value - half, 1.0), value + half
        yield _row("continuations_90", value, ends, self._null(CARRIERS)) | self._counts()
        value, half = self._mean(IS_FEW), self._half_width(IS_FEW)
        ends = max(value - half, 0.0), min(value + half, 1.0)
        yield _row("five_carry_90", value, ends, self._null(IS_FEW)) | self._counts()
        types = float(self.measured[:, IS_FEW].mean())
        yield _row("five_carry_90_types", types, null=float(self.null[..., IS_FEW].mean())) | self._counts()
        chance = sum(self._excluded(draw) for draw in self.null) / DRAWS
        yield _row("five_excluded_90", self._excluded(self.measured), null=chance) | self._counts()
        yield _row("counted_share", float(self.sizes.sum()) / self.pairs) | self._counts()

    def _excluded(self, numbers: Float[Tensor, "groups columns"]) -> float:
        """The share of all pairs after whose previous token five continuations cannot carry 90 %."""
        p = stats.false_discovery_control(numbers[:, CHANCE_OF_FEW].numpy())
        return float(self.sizes[torch.from_numpy(p) < LEVEL].sum()) / self.pairs

    def _mean(self, column: int) -> float:
        return float((self.measured[:, column] * self.sizes).sum() / self.sizes.sum())

    def _null(self, column: int) -> float:
        return float(((self.null[..., column] * self.sizes).sum(1) / self.sizes.sum()).mean())

    def _half_width(self, column: int) -> float:
        """Half of the 95 % interval by leaving out windows of text; NaN for a single window."""
        means = (self.left_out[..., column] * self.left_sizes).sum(1) / self.left_sizes.sum(1)
        estimates = torch.cat((torch.tensor([self._mean(column)], dtype=torch.float64), means))
        return float(jackknife(estimates, self.windows)[1])

    def _counts(self) -> Row:
        return {"samples": int(self.sizes.sum()), "groups": len(self.tokens), "windows": self.windows}

    def token_rows(self, names: Names) -> Iterator[Row]:
        """The most frequent previous tokens one by one."""
        for group, token in enumerate(self.tokens[:LISTED]):
            after = self.after[group]
            order = sorted(zip((-after.counts).tolist(), after.values.tolist(), strict=True))[:3]
            yield {
                "previous": names(token),
                "value": float(self.measured[group, CARRIERS]),
                "null": float(self.null[:, group, CARRIERS].mean()),
                "entropy_nats": float(self.measured[group, ENTROPY]),
                "entropy_null": float(self.null[:, group, ENTROPY].mean()),
                "likeliest": ", ".join(f"{names(t)} {-100 * c / after.total:.0f} %" for c, t in order),
                "continuations": len(after.values),
                "samples": after.total,
            }


def _without_windows(
    together: Counts, tokens: Sequence[int], sampled: Sequence[TextWindow], skip: int
) -> tuple[Float[Tensor, "sampled groups columns"], Float[Tensor, "sampled groups"]]:
    """The numbers and the sizes of the groups without each sampled window."""
    numbers = torch.zeros(len(sampled), len(tokens), COLUMNS, dtype=torch.float64)
    sizes = torch.zeros(len(sampled), len(tokens), dtype=torch.float64)
    for index, window in enumerate(sampled):
        part = Pairs.empty().add(window.tokens[skip:-1], window.tokens[skip + 1 :]).grouped(tokens)
        left = together.counts.clone()
        left[torch.searchsorted(together.values, part.values)] -= part.counts
        counts = grouped_counts(Counts(together.values, left), len(tokens))
        numbers[index], sizes[index] = _numbers(counts), counts.totals
    return numbers, sizes


def paired(
    values: Float[Tensor, " groups"], null: Float[Tensor, " groups"], sizes: Float[Tensor, " groups"]
) -> tuple[float, float]:
    """The mean over groups, and half of the 95 % interval of its distance from the null of the same groups.

    Larger groups have larger numbers whatever the text is; that difference is in the null as well and cancels.
    """
    gap = clustered_mean((values - null) * sizes, sizes)
    return float((values * sizes).sum() / sizes.sum()), (gap.high - gap.low) / 2


def spelling(vocabulary: Vocabulary | None) -> Names:
    """What a token spells, or its number without a vocabulary."""

    @cache
    def name(token: int) -> str:
        return f"#{token}" if vocabulary is None else display_text(vocabulary.spelled([token])[0])

    return name


def _numbers(counts: GroupedCounts) -> Float[Tensor, "groups columns"]:
    """The columns of each group; the likeliest five of a sample carry no less than the true five do in it."""
    fewest = counts.carriers(SHARE)
    chance = special.bdtr(counts.largest(FEW).numpy(), counts.totals.to(torch.int64).numpy(), SHARE)
    columns = (fewest, (fewest <= FEW).to(torch.float64), counts.coverage_entropy(), torch.from_numpy(chance))
    return torch.where(counts.totals[:, None] > 0, torch.stack(columns, 1), 0.0)


def _row(quantity: str, value: float, ends: tuple[float, float] = (nan, nan), null: float | None = None) -> Row:
    low, high = (None if end != end else end for end in ends)
    return {"quantity": quantity, "value": value, "low": low, "high": high, "null": null}
