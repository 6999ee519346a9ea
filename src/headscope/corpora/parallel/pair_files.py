"""Reads parallel text from files: one with two columns, or two with a sentence a line as Moses has them."""

from pathlib import Path

from headscope.corpora.parallel.pair_cleaning import tidy
from headscope.corpora.parallel.pairs import Pair
from headscope.corpora.text_lines import file_lines
from headscope.errors import UsageError


def tsv_pairs(path: Path) -> list[Pair]:
    """The pairs of a file with two columns, separated by a tab; blank lines are left out.

    Raises:
        UsageError: The file cannot be read, a line has not two columns, or a column is empty.
    """
    pairs = []
    for number, line in enumerate(file_lines(path), start=1):
        if not line.strip():
            continue
        columns = line.split("\t")
        if len(columns) != 2:
            raise UsageError(
                f"{path}, line {number}: {len(columns)} column{'s' * (len(columns) != 1)}, expected 2",
                hint="a line holds a sentence, a tab and its translation, without a header",
            )
        pair = Pair(tidy(columns[0]), tidy(columns[1]))
        pairs.append(_whole(pair, f"{path}, line {number}", ("the first column", "the second column")))
    return _checked(pairs, str(path))


def moses_pairs(source: Path, target: Path) -> list[Pair]:
    """The pairs of two files, line by line; lines that are blank in both are left out.

    Raises:
        UsageError: A file cannot be read, their lines differ in number, or a line is blank in one of them alone.
    """
    source_lines, target_lines = file_lines(source), file_lines(target)
    if len(source_lines) != len(target_lines):
        raise UsageError(
            f"{source} has {len(source_lines)} lines and {target} has {len(target_lines)}, expected the same number",
            hint="line n of one file is the translation of line n of the other",
        )
    pairs = [
        _whole(Pair(tidy(first), tidy(second)), f"line {number}", (str(source), str(target)))
        for number, (first, second) in enumerate(zip(source_lines, target_lines, strict=True), start=1)
        if first.strip() or second.strip()
    ]
    return _checked(pairs, f"{source} and {target}")


def _whole(pair: Pair, place: str, sides: tuple[str, str]) -> Pair:
    """The pair; refused where a side is empty."""
    for text, side in zip((pair.source, pair.target), sides, strict=True):
        if not text:
            raise UsageError(f"{place}: {side} is empty", hint="remove the pair, or add the missing sentence")
    return pair


def _checked(pairs: list[Pair], name: str) -> list[Pair]:
    if not pairs:
        raise UsageError(f"{name}: no pair of sentences", hint="give a parallel text of a few hundred pairs at least")
    return pairs
