"""The spelling of tokens: the text that each stands for, with a blank in front where a word begins."""

from collections.abc import Sequence
from typing import Any

from headscope.model.quiet import quiet

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"


def spelled_tokens(tokenizer: Any, tokens: Sequence[int]) -> tuple[str, ...]:
    """What each token adds to the text, found by decoding one token more each time, whatever the tokenizer.

    A special token is a word of its own, and so is what follows it. Of a character that is spread over several tokens
    the last one has it, and the others have nothing.
    """
    special = set(tokenizer.all_special_ids)
    found: list[str] = []
    text = ""
    with quiet():
        for count in range(1, len(tokens) + 1):
            longer = str(tokenizer.decode(list(tokens[:count]), clean_up_tokenization_spaces=False)).rstrip(_UNFINISHED)
            piece = longer[_shared(text, longer) :]
            alone = tokens[count - 1] in special or (count > 1 and tokens[count - 2] in special)
            found.append(f" {piece}" if alone and not piece[:1].isspace() else piece)
            text = longer
    return tuple(found)


def _shared(a: str, b: str) -> int:
    """How many characters two texts begin with in common."""
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
