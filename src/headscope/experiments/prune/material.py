"""The windows of pruning: three splits of a text that share no document.

Mean outputs of heads come from `fit`, importance from `search`; `test` judges what is switched off.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headscope.core import TextSpec
from headscope.corpora import Text
from headscope.corpora.splits import Split
from headscope.errors import UsageError
from headscope.experiments.text_sample import Tokens, split_parts, spread, windows_of
from headscope.model.model import Model

FEWEST = 4  # windows from which an interval says anything
FITTED = 8  # windows that the mean outputs of heads come from


@dataclass(frozen=True)
class Material:
    """Windows of equal length for each purpose, and the text that judges."""

    fit: Sequence[Tokens]
    search: Sequence[Tokens]
    test: Sequence[Tokens]
    tested_text: Text

    @property
    def spec(self) -> TextSpec:
        """The text that judges."""
        text, tokens = self.tested_text, sum(map(len, self.test))
        sizes = {"n_tokens": tokens, "n_windows": len(self.test), "window": len(self.test[0])}
        return TextSpec(text.name, text.sha256, text.n_characters, **sizes, n_dropped=0)


def gather(model: Model, text: Text, *, tokens: int, windows: int, test_windows: int) -> Material:
    """The windows of each split.

    Raises:
        UsageError: The text is too short, or the model reads no text.
    """
    if not model.reads_text:
        raise UsageError(f"pruning is measured on text, and {model.spec.name} reads none")
    length = min(tokens, model.spec.context or tokens)
    parts = split_parts(text)
    counts: dict[Split, int] = {"fit": FITTED, "search": windows, "test": test_windows}
    by_split = {split: _windows(model, parts[split], length, count) for split, count in counts.items()}
    return Material(by_split["fit"], by_split["search"], by_split["test"], parts["test"])


def _windows(model: Model, text: Text, length: int, count: int) -> tuple[Tokens, ...]:
    cut = windows_of(model, text, length)
    if len(cut.full) < FEWEST:
        raise UsageError(
            f"{text.name} has {cut.n_tokens} tokens, and pruning needs at least {FEWEST} windows of {length}: "
            f"{FEWEST * length} tokens",
            hint="give a longer text (--text moby-dick), or shorter windows (--tokens)",
        )
    return spread(cut, count)
