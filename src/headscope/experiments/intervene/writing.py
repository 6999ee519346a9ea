"""What a model writes from prompts, and what that text is like: surprising, copied, repeating itself.

`surprise` is what the unchanged model thinks of the text: nats per token, given the prompt. It is near that of ordinary
text (or below: greedy text is predictable) as long as it is language, and near that of shuffled text when it is noise.
`copied` and `repeated` are shares of its tokens that lie in a run of four tokens that also stands in the prompt, or
that stood in the text before.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscope.model.language import decode, generate_tokens, predicts_next_token
from headscope.model.model import Model
from headscope.model.predictions import predict

RUN = 4
PROMPTS = (
    "Write a short crossword clue for the last word. Word: bridge. Clue: It carries a road over a river. Word: candle. "
    "Clue: It gets shorter as it gives light. Word: owl. Clue: A bird that hunts by night. Word: ant. Clue:",
    "What is a harbour for?",
    "Write one line about the sea at night.",
    "Name three things that are found in a kitchen and say what each of them is for.",
)

Tokens = Int[Tensor, " _"]


@dataclass(frozen=True)
class Writing:
    """A text written from a prompt; None where it is too short to say."""

    prompt: str
    text: str
    n_tokens: int
    surprise: float | None
    copied: float | None
    repeated: float | None


def write(model: Model, prompts: Sequence[Tokens], new_tokens: int) -> list[Tokens]:
    """The greedy continuation of each prompt (of an encoder–decoder: its answer)."""
    written = []
    for prompt in prompts:
        tokens = generate_tokens(model.hf, prompt, max_new_tokens=new_tokens, temperature=0.0, cache=True, seed=0)
        written.append(tokens if model.spec.kind == "encoder-decoder" else tokens[len(prompt) :])
    return written


def judged(model: Model, prompts: Sequence[tuple[str, Tokens]], texts: Sequence[Tokens]) -> list[Writing]:
    """Each text with its measures; the model must be the unchanged one."""
    return [_judged(model, label, tokens, text) for (label, tokens), text in zip(prompts, texts, strict=True)]


def _judged(model: Model, label: str, prompt: Tokens, text: Tokens) -> Writing:
    prompt_ids, new = prompt.tolist(), text.tolist()
    return Writing(
        prompt=label,
        text=decode(model, text),
        n_tokens=len(new),
        surprise=surprise(model, prompt, text) if predicts_next_token(model) and new else None,
        copied=share_in_runs(new, runs_of(prompt_ids)) if len(new) >= RUN else None,
        repeated=share_repeated(new) if len(new) >= RUN else None,
    )


def surprise(model: Model, prompt: Tokens, text: Tokens) -> float:
    """Nats per token of a text behind a prompt."""
    return float(surprises(model, prompt, text).mean())


def surprises(model: Model, prompt: Tokens, text: Tokens) -> Float[Tensor, " tokens"]:
    """Nats of each token of a text behind a prompt."""
    logits = predict(model, torch.cat([prompt, text])).logits[len(prompt) - 1 : -1]
    log_p = torch.log_softmax(logits.double(), dim=-1)
    return -log_p.gather(1, text[:, None])[:, 0]


def needed_tokens(ordinary: Float[Tensor, " tokens"], shuffled: Float[Tensor, " tokens"]) -> int:
    r"""How many tokens a text must have to be told from noise.

    Definition:
        Their mean surprise must be known to half the gap between ordinary and shuffled text:
        $1.96\,s/\sqrt{n} \leq g/2$, with s the larger of the two standard deviations per token; at least eight, two
        runs of four. Without a gap no text is enough.
    Properties:
        - from the gap and the spread  (tested: test_how_much_text_a_verdict_needs)
    """
    gap = float(shuffled.mean() - ordinary.mean())
    if gap <= 0 or len(ordinary) < 2:
        return sys.maxsize
    spread = max(float(part.std()) for part in (ordinary, shuffled))
    return max(2 * RUN, ceil((2 * 1.96 * spread / gap) ** 2))


def runs_of(tokens: Sequence[int]) -> set[tuple[int, ...]]:
    """Every run of four tokens."""
    return {tuple(tokens[i : i + RUN]) for i in range(len(tokens) - RUN + 1)}


def share_in_runs(tokens: Sequence[int], runs: set[tuple[int, ...]]) -> float:
    """The share of tokens that lie in one of these runs."""
    hit = [False] * len(tokens)
    for i in range(len(tokens) - RUN + 1):
        if tuple(tokens[i : i + RUN]) in runs:
            hit[i : i + RUN] = [True] * RUN
    return sum(hit) / len(tokens)


def share_repeated(tokens: Sequence[int]) -> float:
    """The share of tokens that lie in a run that has begun somewhere before."""
    hit, earlier_runs = [False] * len(tokens), set()
    for i in range(len(tokens) - RUN + 1):
        run = tuple(tokens[i : i + RUN])
        if run in earlier_runs:
            hit[i : i + RUN] = [True] * RUN
        earlier_runs.add(run)
    return sum(hit) / len(tokens)
