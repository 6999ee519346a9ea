r"""How expected the reference clue is after 0, 1, … 8 shots.

The words stand in a random order on a circle. A prompt holds nine of them in a row, each with its clue, and since
attention is causal one forward scores them all: the first clue has no shot before it, the last one eight. One prompt
begins at each word, so that every word is scored with every number of shots, and the k shots before it are always its k
neighbours: the same shots and one more.

Beside it the same clues with words exchanged: each clue stands behind a word from the other side of the circle, in the
shots and in the target. What the shots still teach then is form and style; the difference is what the word itself
tells.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscope.corpora.crossword_clues import Category, Clue
from headscope.errors import UsageError
from headscope.experiments.fewshot.prompt import Part, Prompt, built
from headscope.experiments.fewshot.settings import MOST_SHOTS
from headscope.model.model import Model
from headscope.model.transformers.model_state import restored
from headscope.model.transformers.probe_inputs import forward_options

Advance = Callable[[int, int], None]


@dataclass(frozen=True)
class Circle:
    """The words of a category in a random order; behind the last one comes the first."""

    category: str
    clues: tuple[Clue, ...]

    @classmethod
    def of(cls, category: Category, words: int | None, seed: int, first: str = "") -> "Circle":
        """All words, or `words` of them drawn at random; `first` names a word that must be there and leads."""
        order = torch.randperm(len(category.clues), generator=torch.Generator().manual_seed(seed)).tolist()
        clues = [category.clues[index] for index in order]
        if first:
            lead = category.clue_of(first)
            clues = [lead, *(clue for clue in clues if clue != lead)]
        return cls(category.name, tuple(clues[:words]))

    def shots(self, index: int, count: int) -> list[Clue]:
        """The `count` entries before one; the nearest is last."""
        return [self.clues[(index - back) % len(self.clues)] for back in range(count, 0, -1)]

    def row(self, start: int, length: int) -> list[Clue]:
        """`length` entries from one on."""
        return [self.clues[(start + step) % len(self.clues)] for step in range(length)]

    def exchanged(self, most: int = 0) -> "Circle":
        """The same clues, each behind a word from the other side.

        None of the `most` shots before a target holds the word that the target's clue belongs to: the words come from
        more than `most` places away.

        Properties:
            - no shot holds the target's true word  (tested: test_exchanged_shots_do_not_hold_the_answer)
        Raises:
            UsageError: There are too few words for that.
        """
        n = len(self.clues)
        far = max(n // 2, most + 1)
        if far >= n:
            raise UsageError(
                f"{n} words are too few to exchange words with {most} shots: a shot would hold the word that is asked "
                "for",
                hint=f"use at least {most + 2} words",
            )
        pairs = zip(self.clues, (*self.clues[far:], *self.clues[:far]), strict=True)
        return Circle(self.category, tuple(Clue(exchanged.word, clue.clue) for clue, exchanged in pairs))


def most_shots(model: Model, circle: Circle, most: int = MOST_SHOTS, room: int = 0) -> int:
    """The number of shots, at most `most`, that fit the context and leave `room` for new tokens.

    Raises:
        UsageError: There are too few words, or not even one shot fits.
    """
    if len(circle.clues) <= most:
        raise UsageError(
            f"{len(circle.clues)} words are too few for {most} shots and a target", hint=f"use at least {most + 1}"
        )
    limit = model.spec.context
    longest = max(circle.clues, key=lambda clue: len(clue.word) + len(clue.clue))
    needed = 0
    for count in range(most, 0, -1):
        needed = len(built(model, circle.category, [longest] * (count + 1)).tokens) + room
        if limit is None or needed <= limit:
            return count
    raise UsageError(
        f"a prompt with one shot needs {needed} tokens, but {model.spec.name} reads at most {limit}",
        hint="use a model with a longer context",
    )


def log_probabilities(
    model: Model, circle: Circle, most: int, starts: Sequence[int], advance: Advance
) -> Float[Tensor, "starts shots"]:
    """Nats per token of the clue of the word that each start leads to, by the number of shots before it.

    Row s, column k: the clue of the word `starts[s]` after its k neighbours. Every prompt scores nine different words;
    the prompts that begin elsewhere than at a start score others in passing, and are left out where no start needs
    them.

    Properties:
        - equals one prompt per word and number of shots  (tested: test_one_forward_scores_every_number_of_shots)
    """
    n = len(circle.clues)
    needed = sorted({(start - k) % n for start in starts for k in range(most + 1)})
    score_of: dict[tuple[int, int], float] = {}
    for done, begin in enumerate(needed):
        advance(done, len(needed))
        scored = clue_scores(model, built(model, circle.category, circle.row(begin, most + 1)))
        score_of |= {((begin + k) % n, k): score for k, score in enumerate(scored)}
    advance(len(needed), len(needed))
    rows = [[score_of[start % n, k] for k in range(most + 1)] for start in starts]
    return torch.tensor(rows, dtype=torch.float64)


def clue_scores(model: Model, prompt: Prompt) -> list[float]:
    """The mean log-probability per token of each clue of a prompt, given all that stands before."""
    log_p = token_scores(model, prompt.tokens)
    labels = prompt.labels
    # Score t is that of token t + 1.
    part, shot = labels.part[1:], labels.shot[1:]
    clues = part == Part.CLUE
    return [float(log_p[clues & (shot == number)].mean()) for number in sorted(set(shot[clues].tolist()))]


def token_scores(model: Model, tokens: Int[Tensor, " tokens"]) -> Float[Tensor, " scored"]:
    """The log-probability of each token but the first, in nats."""
    with torch.no_grad(), restored(model.hf):
        logits = model.hf(input_ids=tokens[None].to(model.hf.device), **forward_options(model.hf)).logits[0, :-1].cpu()
    log_p = torch.log_softmax(logits.float(), dim=-1)
    return log_p.gather(1, tokens[1:, None])[:, 0].double()
