"""Selection: heads and sites, in one grammar for command line and Python.

L10-19        layers 10 to 19, ends included, every head
L3.H7         one head
L3.H0-2       heads 0, 1 and 2 of layer 3
dec.cross     every cross-attention head of the decoder
enc.L0.H1     one head of the encoder
image.L0      a layer of the image tower, in a model of two towers
L0,L5.H2      a union
all           everything
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from headscope.core.site import Kind, Site, Stack
from headscope.errors import UsageError

_TERM = re.compile(r"(?:(?P<stack>enc|dec|only|text|image|sound))?(?:\.?L(?P<layers>\d+(?:-\d+)?))?"
                   r"(?:\.?(?P<kind>self|cross))?(?:\.?H(?P<heads>\d+(?:-\d+)?))?")  # fmt: skip

# No model has ten thousand layers; a range of a billion would fill the memory before any check.
_DIGITS = 4
_LONGEST = 80  # characters of a selection that a message repeats
_MOST_TERMS = 1000


@dataclass(frozen=True)
class Term:
    """One conjunction of a selection; None means no restriction."""

    stack: Stack | None = None
    kind: Kind | None = None
    layers: frozenset[int] | None = None
    heads: frozenset[int] | None = None

    def heads_of(self, site: Site) -> frozenset[int]:
        """The heads of `site` that this term selects."""
        selects_site = (
            (self.stack is None or self.stack == site.stack)
            and (self.kind is None or self.kind == site.kind)
            and (self.layers is None or site.layer in self.layers)
        )
        all_heads = frozenset(range(site.n_heads))
        if not selects_site:
            return frozenset()
        return all_heads if self.heads is None else all_heads & self.heads


@dataclass(frozen=True)
class Selection:
    """A union of terms, resolved against the sites of a model by `heads_of`."""

    terms: tuple[Term, ...]
    text: str = "all"

    @classmethod
    def parse(cls, text: str) -> "Selection":
        """Read the grammar of the command line."""
        parts = text.split(",")
        if len(parts) > _MOST_TERMS:
            raise UsageError(f"a selection of {len(parts)} parts, expected at most {_MOST_TERMS}", hint="use ranges")
        terms = tuple(_parse_term(part.strip(), text) for part in parts)
        return cls(terms, text)

    @classmethod
    def at(
        cls,
        *,
        layers: int | Iterable[int] | None = None,
        heads: int | Iterable[int] | None = None,
        stack: Stack | None = None,
        kind: Kind | None = None,
    ) -> "Selection":
        """Build a selection with Python's ranges.

        Example: `Selection.at(layers=range(10, 20), heads=7)`.
        """
        layer_set, head_set = _indices(layers), _indices(heads)
        return cls((Term(stack, kind, layer_set, head_set),), _describe(stack, kind, layer_set, head_set))

    @classmethod
    def of(cls, selector: object) -> "Selection":
        """A text, a Site or a Selection as a Selection; None selects everything.

        Raises `UsageError` where it is anything else.
        """
        if selector is None:
            return cls((Term(),))
        if isinstance(selector, Site):
            return cls.at(layers=selector.layer, stack=selector.stack, kind=selector.kind)
        if not isinstance(selector, str | Selection):
            raise UsageError(
                f"heads are selected by a text like L3.H7 or by a Selection, got {selector!r}",
                hint=f'write "L{selector}"' if isinstance(selector, int) else "",
            )
        return cls.parse(selector) if isinstance(selector, str) else selector

    def heads_of(self, site: Site) -> tuple[int, ...]:
        """The selected heads of one site, in order; empty when the site is not selected."""
        return tuple(sorted(frozenset().union(*(term.heads_of(site) for term in self.terms))))

    def resolve(self, sites: Iterable[Site]) -> dict[Site, tuple[int, ...]]:
        """The selected sites with their selected heads.

        Raises `UsageError` where the selection matches nothing.
        """
        sites = tuple(sites)
        heads_by_site = {site: heads for site in sites if (heads := self.heads_of(site))}
        if not heads_by_site:
            last = sites[-1] if sites else None
            head_range = f"{sites[0].head_label(0)} … {last.head_label(last.n_heads - 1)}" if last else "no attention"
            raise UsageError(
                f"selection {_shortened(self.text)} matches no head of this model, which has {head_range}",
                hint="layers and heads count from zero; `headscope look MODEL` lists them",
            )
        return heads_by_site

    def one_site(self, sites: Iterable[Site]) -> tuple[Site, tuple[int, ...]]:
        """The one selected site with its selected heads; `dec.L0` is the self-attention of a layer with two.

        Raises `UsageError` where several sites are selected.
        """
        heads_by_site = self.resolve(sites)
        labelled = {site: heads for site, heads in heads_by_site.items() if self._is_label(site)} or heads_by_site
        if len(labelled) > 1:
            labels = ", ".join(site.label for site in list(labelled)[:4]) + (" …" if len(labelled) > 4 else "")
            raise UsageError(
                f"{_shortened(self.text)} names {len(labelled)} sites, expected one", hint=f"one of {labels}"
            )
        return next(iter(labelled.items()))

    def _is_label(self, site: Site) -> bool:
        return self.text in (site.label, *(site.head_label(head) for head in range(site.n_heads)))


def selection_text(heads_by_site: Mapping[Site, Iterable[int]]) -> str:
    """The shortest union of terms that selects these heads and no others: `L0-3,L5.H0-2,L5.H7`.

    Properties:
        - parsed, it selects the same heads  (tested: test_selection_text_and_back)
    """
    layers_by_heads: dict[tuple[Stack, Kind, str], list[int]] = {}
    for site in sorted(heads_by_site, key=lambda site: (site.stack, site.kind, site.layer)):
        heads = sorted(set(heads_by_site[site]))
        ranges = [""] if len(heads) == site.n_heads else [f".H{text}" for text in _ranges(heads)]
        for text in ranges:
            layers_by_heads.setdefault((site.stack, site.kind, text), []).append(site.layer)
    terms = []
    for (stack, kind, heads_text), layers in layers_by_heads.items():
        where = "" if stack == "only" else f"{stack}."
        kind_text = "" if stack == "only" else f".{kind}"
        terms += [(stack, kind, layers[0], f"{where}L{text}{kind_text}{heads_text}") for text in _ranges(layers)]
    return ",".join(text for *_, text in sorted(terms))


def _ranges(numbers: Iterable[int]) -> list[str]:
    """Increasing numbers as closed ranges: 0-3, 5, 8-9."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return [str(first) if first == last else f"{first}-{last}" for first, last in ranges]


def _parse_term(part: str, selection: str) -> Term:
    if part in ("all", "*"):
        return Term()
    match = _TERM.fullmatch(part)
    if not part or match is None:
        raise UsageError(
            f"selection {_shortened(selection)}: cannot read {_shortened(part)}",
            hint="write L10-19, L3.H7, L3.H0-2, dec.cross, enc.L0.H1, a comma-separated union of these, or all",
        )
    return Term(
        cast(Stack | None, match["stack"]),
        cast(Kind | None, match["kind"]),
        _closed_range(match["layers"], selection),
        _closed_range(match["heads"], selection),
    )


def _closed_range(text: str | None, selection: str) -> frozenset[int] | None:
    if text is None:
        return None
    first, _, last = text.partition("-")
    if max(len(first), len(last)) > _DIGITS:
        raise UsageError(
            f"selection {_shortened(selection)}: a number has more than {_DIGITS} digits",
            hint="`headscope look MODEL` lists the layers and heads of a model",
        )
    low, high = int(first), int(last or first)
    if high < low:
        raise UsageError(
            f"selection {_shortened(selection)}: the range {text} runs backwards", hint=f"write {high}-{low}"
        )
    return frozenset(range(low, high + 1))


def _shortened(text: str) -> str:
    return repr(text) if len(text) <= _LONGEST else f"{text[:_LONGEST]!r} …"


def _indices(numbers: int | Iterable[int] | None) -> frozenset[int] | None:
    if numbers is None:
        return None
    return frozenset([numbers]) if isinstance(numbers, int) else frozenset(numbers)


def _describe(
    stack: Stack | None, kind: Kind | None, layers: frozenset[int] | None, heads: frozenset[int] | None
) -> str:
    parts = [stack or "", f"layers {sorted(layers)}" if layers is not None else "", kind or ""]
    parts.append(f"heads {sorted(heads)}" if heads is not None else "")
    return " ".join(part for part in parts if part) or "all"
