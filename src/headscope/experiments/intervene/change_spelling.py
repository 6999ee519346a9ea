"""Changes and the matrices that they change, as people write them. Loads no torch: wrong ones are refused at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite
from typing import Literal

from headscope.core.selection import Selection
from headscope.core.site import Site
from headscope.errors import UsageError
from headscope.experiments.intervene.settings import Randomise, Remove, Tie

Kind = Literal["scale", "randomise", "rank", "remove", "keep", "tie"]
_LONGEST = 80  # characters of a change as people write it
CHOICES: dict[str, tuple[str, ...]] = {"randomise": tuple(Randomise), "remove": tuple(Remove), "tie": tuple(Tie)}
DIAGONAL = "diagonal"
GRAMMAR = "scale 1/4, randomise init|v|u|permute, rank 8, remove spikes|bulk, keep diagonal, keep 25%, tie qk|kq|vk|kv"
LETTERS = "qkvo"


@dataclass(frozen=True)
class Change:
    """One change of the chosen matrices, as it is written: `scale 1/4`, `rank 8`, `remove spikes`, `randomise v`."""

    kind: Kind
    value: str

    @classmethod
    def of(cls, spelling: "Change | str") -> "Change":
        """Read a change as people write it."""
        if isinstance(spelling, Change):
            return spelling
        words = spelling.replace("=", " ").replace(" %", "%").split()
        if len(spelling) > _LONGEST or len(words) != 2 or words[0] not in ("scale", "rank", "keep", *CHOICES):
            raise UsageError(f"cannot read the change {spelling[:_LONGEST]!r}", hint=f"write one of: {GRAMMAR}")
        change = cls(words[0], words[1])  # type: ignore[arg-type]
        change.check()
        return change

    def check(self) -> None:
        """Refuse a value without sense."""
        if self.kind in CHOICES and self.value not in CHOICES[self.kind]:
            raise UsageError(f"cannot {self.kind} {self.value!r}", hint=f"one of {', '.join(CHOICES[self.kind])}")
        if self.kind == "scale" and not (isfinite(self.alpha) and self.alpha > 0):
            raise UsageError(f"a spectrum is scaled by a finite factor above 0, got {self.value}")
        if self.kind == "rank" and self.rank < 1:
            raise UsageError(f"a rank is at least 1, got {self.value}")
        if self.kind == "keep" and self.value != DIAGONAL and not 0 < self.share <= 1:
            raise UsageError(f"a share of entries is above 0 % and at most 100 %, got {self.value}")

    def check_matrices(self, matrices: str) -> None:
        """Refuse to tie a matrix that is not chosen, or to one that is not."""
        missing = [letter for letter in self.value if letter not in matrices] if self.kind == "tie" else []
        if missing:
            raise UsageError(
                f"{self.label} is about W_{missing[0].upper()}, which --matrices {matrices} does not name",
                hint=f"name both: --matrices {''.join(sorted({*matrices, *missing}, key=LETTERS.index))}",
            )

    @property
    def label(self) -> str:
        """As it is written."""
        return f"{self.kind} {self.value}"

    def __str__(self) -> str:
        return self.label

    @property
    def alpha(self) -> float:
        """The factor of `scale`."""
        try:
            return float(Fraction(self.value)) if "/" in self.value else float(self.value)
        except (ValueError, ZeroDivisionError, OverflowError) as error:
            raise UsageError(f"cannot read the factor {self.value!r}", hint="write 2, 0.25 or 1/4") from error

    @property
    def rank(self) -> int:
        """The number of singular values that `rank` keeps."""
        try:
            return int(self.value)
        except ValueError as error:
            raise UsageError(f"cannot read the rank {self.value!r}", hint="write a whole number") from error

    @property
    def share(self) -> float:
        """The share of the entries that `keep` keeps."""
        number, percent, ending = self.value.partition("%")
        try:
            if percent and not ending:
                return float(number) / 100
        except ValueError:
            pass
        raise UsageError(f"cannot read what to keep: {self.value!r}", hint=f"write {DIAGONAL}, or a share: 25%")

    @property
    def picks_directions(self) -> bool:
        """Whether the change keeps some singular directions of a matrix and drops the others."""
        return self.kind in ("rank", "remove")


@dataclass(frozen=True)
class Place:
    """Which matrices of which heads."""

    matrices: str
    at: Selection

    def heads(self, sites: Sequence[Site]) -> dict[Site, tuple[int, ...]]:
        """The selected heads; the model must have every layer and head that the selection names."""
        for term in self.at.terms:
            Selection((term,), self.at.text).resolve(sites)
            for name, named, present in (
                ("layer", term.layers, {site.layer for site in sites}),
                ("head", term.heads, set(range(max(site.n_heads for site in sites)))),
            ):
                if missing := sorted((named or frozenset()) - present):
                    raise UsageError(
                        f"selection {self.at.text!r}: this model has no {name} {missing[0]}, only 0 to {max(present)}",
                        hint="layers and heads count from zero, and ends are included",
                    )
        return self.at.resolve(sites)

    def changed_heads(self, sites: Sequence[Site]) -> dict[Site, tuple[int, ...]]:
        """The heads that read a changed matrix: the selected ones and all that share a key/value head with them."""
        selected = self.heads(sites)
        if not set(self.matrices) & set("kv"):
            return selected
        return {
            site: tuple(h for h in range(site.n_heads) if site.kv_head(h) in {site.kv_head(c) for c in heads})
            for site, heads in selected.items()
        }


def place_of(matrices: str, at: "Selection | str | None") -> Place:
    """Letters and a selection, checked."""
    letters = matrices.lower().replace(",", "").replace(" ", "")
    if not letters or set(letters) - set(LETTERS):
        raise UsageError(f"cannot change the matrices {matrices!r}", hint="name them by the letters q, k, v, o: qk")
    return Place("".join(letter for letter in LETTERS if letter in letters), Selection.of(at))
