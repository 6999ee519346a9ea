"""The text of a search and of its judgement: three splits that share no document.

A plan is fitted to `fit` (predicted damage), chosen on `search`, and judged on `test`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headscope.core import TextSpec
from headscope.corpora import Text
from headscope.corpora.splits import SPLITS
from headscope.errors import UsageError
from headscope.experiments.text_sample import Tokens, split_parts, spread, windows_of
from headscope.model.model import Model

FEWEST = 4  # windows from which an interval says anything
DEFAULT_LENGTHS = (2048, 8192)
FITTED, FITTED_TOKENS = 2, 4096  # windows that the predicted damage is averaged over; a backward holds all of one
FEWEST_LONG = 3  # windows of a longer length, of which a text holds fewer


@dataclass(frozen=True)
class SearchPart:
    """Windows of one length from one text: a searched plan is within the budget on each part."""

    text: str
    tokens: int
    windows: tuple[Tokens, ...]


@dataclass(frozen=True)
class Material:
    """Windows for each purpose; the search's are empty where nothing is searched."""

    fit: tuple[Tokens, ...]
    search: tuple[SearchPart, ...]
    test: dict[int, tuple[Tokens, ...]]
    tested_text: Text
    searched_text: Text | None = None
    omissions: list[str] = field(default_factory=list)

    @property
    def spec(self) -> TextSpec:
        """The text that judges."""
        windows = [window for by_length in self.test.values() for window in by_length]
        text = self.tested_text
        return TextSpec(
            text.name,
            text.sha256,
            text.n_characters,
            n_tokens=sum(map(len, windows)),
            n_windows=len(windows),
            window=max(map(len, windows)),
            n_dropped=0,
        )


def gather(
    model: Model,
    texts: Sequence[Text],
    lengths: tuple[int, ...],
    *,
    tokens: int,
    windows: int,
    searches: bool,
    fits: bool = False,
) -> Material:
    """The windows of each purpose: a plan is judged on the first text, and searched on all.

    Raises:
        UsageError: The text is too short, or the model reads no text.
    """
    if not model.reads_text:
        raise UsageError(f"a plan is judged on text, and {model.spec.name} reads none")
    text = texts[0]
    is_part = text.name.rpartition(":")[2] in SPLITS
    parts = {} if is_part else split_parts(text)
    tested = text if is_part else parts["test"]
    fit: tuple[Tokens, ...] = ()
    search: list[SearchPart] = []
    by_length, omissions = _judging_windows(model, tested, lengths, windows)
    if searches:
        length = min(tokens, model.spec.context or tokens)
        for splits in (parts, *map(split_parts, texts[1:])):
            searched = _search_parts(model, splits["search"], length, windows, by_length, omissions)
            fitted_length = min(max(part.tokens for part in searched), FITTED_TOKENS)
            fit += _windows(model, splits["fit"], fitted_length, FITTED, fewest=1)
            search += searched
    elif fits:
        if is_part:
            raise UsageError(
                f"mechanisms are fitted on the split fit of a text, and {text.name} is one split already",
                hint=f"name the whole text: --text {text.name.rpartition(':')[0]}",
            )
        length = min(tokens, model.spec.context or tokens, FITTED_TOKENS)
        fit = _windows(model, parts["fit"], length, FITTED, fewest=1)
    return Material(fit, tuple(search), by_length, tested, parts.get("search"), omissions)


def _search_parts(
    model: Model, text: Text, length: int, count: int, judged: Iterable[int], omissions: list[str]
) -> list[SearchPart]:
    """The windows of a text at the length of the search, and at the longer ones at which plans are judged."""
    searched = [SearchPart(text.name, length, _windows(model, text, length, count, fewest=FEWEST))]
    for longer in (n for n in judged if n > length):
        cut = windows_of(model, text, longer)
        if len(cut.full) >= FEWEST_LONG:
            searched.append(SearchPart(text.name, longer, spread(cut, max(FEWEST, count * length // longer))))
        else:
            omissions.append(f"Not searched at {longer} tokens: {text.name} has {cut.n_tokens}.")
    return searched


def _windows(model: Model, text: Text, length: int, count: int, *, fewest: int) -> tuple[Tokens, ...]:
    cut = windows_of(model, text, length)
    if len(cut.full) < fewest:
        raise UsageError(
            f"{text.name} has {cut.n_tokens} tokens, and the search needs at least {fewest} windows of {length}: "
            f"{fewest * length} tokens",
            hint="give a longer text (--text moby-dick), or shorter windows (--tokens)",
        )
    return spread(cut, count)


def _judging_windows(
    model: Model, text: Text, lengths: tuple[int, ...], count: int
) -> tuple[dict[int, tuple[Tokens, ...]], list[str]]:
    """Windows of every length that model and text allow, and why others are missing."""
    by_length: dict[int, tuple[Tokens, ...]] = {}
    omissions = []
    context = model.spec.context
    for length in sorted(set(lengths or DEFAULT_LENGTHS)):
        if context is not None and length > context:
            omissions.append(f"Not judged at {length} tokens: the context of {model.spec.name} has {context}.")
            continue
        cut = windows_of(model, text, length)
        if not len(cut.full):
            omissions.append(f"Not judged at {length} tokens: {text.name} has {cut.n_tokens}.")
            continue
        by_length[length] = spread(cut, count)
    if not by_length and not lengths:
        room = min(context or DEFAULT_LENGTHS[0], windows_of(model, text, DEFAULT_LENGTHS[0]).n_tokens // FEWEST)
        by_length[room] = spread(windows_of(model, text, room), count)
    if not by_length:
        raise UsageError(
            f"no length of {sorted(set(lengths))} fits {model.spec.name} and {text.name}. {' '.join(omissions)}",
            hint="give shorter lengths (--lengths 256) or a longer text",
        )
    return by_length, omissions
