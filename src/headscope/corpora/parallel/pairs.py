"""Parallel text: aligned sentences of two languages, each with its split and its group of near-duplicates."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

from headscope.errors import UsageError

PairSplit = Literal["train", "valid", "test"]
PAIR_SPLITS: tuple[PairSplit, ...] = get_args(PairSplit)


@dataclass(frozen=True, order=True)
class Pair:
    """A sentence and its translation."""

    source: str
    target: str

    @property
    def swapped(self) -> "Pair":
        """The pair in the other direction."""
        return Pair(self.target, self.source)


@dataclass(frozen=True)
class PairCounts:
    """What became of the aligned pairs: all, the different ones, and those dropped by reason."""

    aligned: int
    unique: int
    dropped: Mapping[str, int]


@dataclass(frozen=True)
class PairPart:
    """The pairs of one split, in their order; pairs of the same group are near-duplicates."""

    name: str
    languages: tuple[str, str]
    pairs: tuple[Pair, ...]
    groups: tuple[int, ...]

    @property
    def sources(self) -> tuple[str, ...]:
        """The sentences to translate."""
        return tuple(pair.source for pair in self.pairs)

    @property
    def targets(self) -> tuple[str, ...]:
        """Their translations."""
        return tuple(pair.target for pair in self.pairs)

    @property
    def sha256(self) -> str:
        """The hash of the pairs; numbers depend on them alone."""
        return hashlib.sha256(tab_separated(self.pairs).encode()).hexdigest()


@dataclass(frozen=True)
class ParallelText:
    """All pairs of a parallel text, with the split and the group of each."""

    name: str
    languages: tuple[str, str]
    pairs: tuple[Pair, ...]
    splits: tuple[PairSplit, ...]
    groups: tuple[int, ...]
    counts: PairCounts

    def part(self, split: PairSplit | None = None) -> PairPart:
        """The pairs of one split, or all of them."""
        positions = [index for index, pair_split in enumerate(self.splits) if split in (None, pair_split)]
        return PairPart(
            self.name if split is None else f"{self.name}:{split}",
            self.languages,
            tuple(self.pairs[index] for index in positions),
            tuple(self.groups[index] for index in positions),
        )

    def swapped(self, name: str) -> "ParallelText":
        """The same text in the other direction; splits and groups stay."""
        first, second = self.languages
        return replace(self, name=name, languages=(second, first), pairs=tuple(pair.swapped for pair in self.pairs))


def tab_separated(pairs: tuple[Pair, ...]) -> str:
    """One pair a line, its two sentences separated by a tab."""
    return "".join(f"{pair.source}\t{pair.target}\n" for pair in pairs)


def checked_pair_split(name: str) -> PairSplit:
    """Check the name of a split; the error lists all of them."""
    if name not in PAIR_SPLITS:
        raise UsageError(
            f"there is no split {name!r} of a parallel text", hint=f"the splits are {', '.join(PAIR_SPLITS)}"
        )
    return name
