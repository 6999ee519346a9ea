"""Headlines with an answer in a few words, its number and its null, and the figure that shows it."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from headscope.core import Headline

UNDETECTED = "not detected"


def answered(headline: Headline, answer: str, value: str, null: str) -> Headline:
    """The headline with its answer in a few words, which is another one where nothing was detected or tested."""
    words = UNDETECTED if headline.effect == 0.0 else answer if headline.effect is not None else f"{answer} (untested)"
    return replace(headline, answer=words, value=value, null=null)


def side(value: float, null: float, below: str, above: str) -> str:
    """One of two answers, by the side of the null that a value lies on."""
    return below if value < null else above


def pictured(headlines: Iterable[Headline | None], figures: Sequence[str]) -> tuple[Headline, ...]:
    """The headlines that there are, each with the name of its figure unless it names another one."""
    pairs = zip(headlines, figures, strict=True)
    return tuple(
        replace(headline, figure=headline.figure or figure) for headline, figure in pairs if headline is not None
    )
