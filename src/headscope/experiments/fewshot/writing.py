"""The clues that a model writes, and what can be counted about them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headscope.experiments.fewshot.likelihood import Circle
from headscope.experiments.fewshot.prompt import END, built
from headscope.model.language import decode, generate_tokens
from headscope.model.model import Model

NEW_TOKENS = 28


@dataclass(frozen=True)
class Written:
    """One clue: what was written up to the mark of the end, and whether that mark was set."""

    word: str
    shots: int
    clue: str
    ended: bool
    names_word: bool
    copied: bool

    @property
    def n_words(self) -> int:
        """How long it is."""
        return len(self.clue.split())


def write_clue(model: Model, circle: Circle, index: int, shots: int, new_tokens: int = NEW_TOKENS) -> Written:
    """The greedy clue for one word of the circle after its neighbours."""
    target, shot_clues = circle.clues[index], circle.shots(index, shots)
    prompt = built(model, circle.category, shot_clues, target.word)
    tokens = generate_tokens(model.hf, prompt.tokens, max_new_tokens=new_tokens, temperature=0.0, cache=True, seed=0)
    text = decode(model, tokens[len(prompt.tokens) :])
    return judged(target.word, shots, text, [shot.clue for shot in shot_clues])


def judged(word: str, shots: int, text: str, shot_clues: Sequence[str]) -> Written:
    """The clue is what stands before the first mark of the end or the first line break.

    It is copied if a run of four of its words stands in a clue of the shots, and names its word if that is in it.
    """
    line = text.strip().split("\n")[0]
    clue, mark, _ = line.partition(END)
    clue = clue.strip()
    return Written(
        word,
        shots,
        clue,
        ended=bool(mark),
        names_word=_plain(word) in _plain(clue),
        copied=bool(_runs(clue) & {run for shot_clue in shot_clues for run in _runs(shot_clue)}),
    )


def write_all(
    model: Model, circle: Circle, indices: Sequence[int], counts: Sequence[int], advance: Callable[[int, int], None]
) -> list[Written]:
    """A clue for every word and every number of shots."""
    tasks = [(index, shots) for index in indices for shots in counts]
    clues = []
    for done, (index, shots) in enumerate(tasks):
        advance(done, len(tasks))
        clues.append(write_clue(model, circle, index, shots))
    advance(len(tasks), len(tasks))
    return clues


def _plain(text: str) -> str:
    return "".join(letter for letter in text.casefold() if letter.isalnum() or letter.isspace())


def _runs(text: str, length: int = 4) -> set[tuple[str, ...]]:
    words = _plain(text).split()
    return {tuple(words[i : i + length]) for i in range(len(words) - length + 1)}
