"""The prompt of the few-shot study, and which of its tokens are what.

A context tells the task, then come the shots (a word, its clue) and the target word. With a chat template each word is
a turn of the user and each clue an answer; without one the turns are marked by [INST] and [/INST], as in the thesis.

    context     Ok     [INST] Word: Parrot [/INST] It says what you said.# [INST] Word: Ant [/INST]
    ──── context ───── ─ separator ─ word  separat ─────── clue ───────  separator    word separator
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from headscope.corpora.crossword_clues import Clue
from headscope.errors import UsageError
from headscope.model.language import has_chat_template
from headscope.model.model import Model
from headscope.model.transformers.library_messages import quiet

END = "#"
LABEL = "Word: "
CONTEXT = (
    "You are a crossword clue generator and have to generate a short clue for each input word from the category "
    "{category}. I will give you a word, and you have to output a brief description of the word, which will be "
    "engaging and challenging. Just give one answer, marking the end with a " + END + "."
)
AGREED = "Ok"


class Part(IntEnum):
    """What a token belongs to. Separators: all marks of the template, the label before a word, the mark of the end."""

    CONTEXT = 0
    SEPARATOR = 1
    WORD = 2
    CLUE = 3


@dataclass(frozen=True)
class Labels:
    """Of each token: its part, its shot (−1 in the context; the target comes last), and its word of the text.

    Words are what stands between blanks, numbered through the words and clues of all shots; −1 elsewhere.
    """

    part: Int[Tensor, " tokens"]
    shot: Int[Tensor, " tokens"]
    word: Int[Tensor, " tokens"]

    @property
    def content(self) -> Tensor:
        """Whether each token belongs to a word or a clue; the maps show these tokens."""
        return self.part >= Part.WORD


@dataclass(frozen=True)
class Prompt:
    """The tokens with their labels, their text, and the words that they make."""

    text: str
    tokens: Int[Tensor, " tokens"]
    labels: Labels
    pieces: tuple[str, ...]
    words: tuple[str, ...]


def built(model: Model, category: str, shots: Sequence[Clue], target: str = "", answer: str = "") -> Prompt:
    """The prompt for a target word; with an answer its clue follows; without a target it ends with the last shot."""
    text, spans = written(model.tokenizer if has_chat_template(model) else None, category, shots, target, answer)
    tokens, offsets = encoded(model, text)
    labels = labelled(text, spans, offsets)
    pieces = tuple(text[start:end].strip() or text[start:end] for start, end in offsets)
    return Prompt(text, tokens, labels, pieces, _words(text, offsets, labels))


Span = tuple[int, int, Part, int]  # start, end, part, number of the shot


def written(
    tokenizer: Any | None, category: str, shots: Sequence[Clue], target: str = "", answer: str = ""
) -> tuple[str, list[Span]]:
    """The text of a prompt (as a conversation, if a tokenizer with a template is given) and where its parts are."""
    words = [shot.word for shot in shots] + ([target] if target else [])
    clues = [shot.clue + END for shot in shots] + ([answer] if answer else [])
    turns = [CONTEXT.format(category=category), AGREED]
    for number, word in enumerate(words):
        turns += [LABEL + word, *clues[number : number + 1]]
    text = _plain(turns) if tokenizer is None else _conversation(tokenizer, turns)
    return text, _spans(text, turns, len(answer) if answer else None)


def _plain(turns: Sequence[str]) -> str:
    parts = [f"[INST] {turn} [/INST]" if number % 2 == 0 else turn for number, turn in enumerate(turns)]
    return " ".join(parts)


def _conversation(tokenizer: Any, turns: Sequence[str]) -> str:
    messages = [{"role": ("user", "assistant")[number % 2], "content": turn} for number, turn in enumerate(turns)]
    ask = len(turns) % 2 == 1
    try:
        with quiet():
            text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=ask)
    except Exception as error:
        # A template is a program of the checkpoint and raises what it likes.
        raise UsageError(
            f"the chat template of this model refuses a conversation of {len(turns)} turns: {error}",
            hint="the few-shot study needs a template for turns of a user and an assistant",
        ) from error
    return text


def _spans(text: str, turns: Sequence[str], answer: int | None) -> list[Span]:
    """The place of each turn in the text; a template may add to a turn but must keep it."""
    spans: list[Span] = []
    at = 0
    for number, turn in enumerate(turns):
        start = text.find(turn, at)
        if start < 0:
            raise UsageError(
                f"the chat template of this model does not write the turn {turn[:40]!r} as it was given",
                hint="the few-shot study needs a template that keeps every turn in order",
            )
        at = start + len(turn)
        if number < 2:
            if number == 1:
                spans.append((0, at, Part.CONTEXT, -1))
            continue
        shot = number // 2 - 1
        if number % 2 == 0:
            spans.append((start + len(LABEL), at, Part.WORD, shot))
        else:
            is_answer = answer is not None and number == len(turns) - 1
            spans.append((start, at if is_answer else at - len(END), Part.CLUE, shot))
    return spans


def encoded(model: Model, text: str) -> tuple[Int[Tensor, " tokens"], list[tuple[int, int]]]:
    """The tokens of a prompt and the characters that each stands for."""
    tokenizer: Any = model.tokenizer
    if not getattr(tokenizer, "is_fast", False):
        raise UsageError(
            f"the tokenizer of {model.spec.name} does not tell which characters a token stands for",
            hint="put the model's tokenizer.json beside config.json",
        )
    with quiet():
        # A template writes the special tokens itself.
        encoding = tokenizer(text, return_offsets_mapping=True, add_special_tokens=not has_chat_template(model))
    return torch.tensor(encoding["input_ids"]), [(int(start), int(end)) for start, end in encoding["offset_mapping"]]


def labelled(text: str, spans: Sequence[Span], offsets: Sequence[tuple[int, int]]) -> Labels:
    """A token belongs where its first visible character does; what lies between the parts is a separator."""
    parts, shots, words = [], [], []
    number, last = -1, (-1, -1)  # the running word: its number, and (where it begins, its span)
    for start, end in offsets:
        first = next((at for at in range(start, end) if not text[at].isspace()), start)
        span_index = next((index for index, span in enumerate(spans) if span[0] <= first < span[1]), None)
        if span_index is None or end == start:
            context = first < spans[0][1]
            parts.append(Part.CONTEXT if context else Part.SEPARATOR)
            shots.append(-1 if context else max((span[3] for span in spans if span[0] <= first), default=-1))
            words.append(-1)
            continue
        _, _, part, shot = spans[span_index]
        parts.append(part)
        shots.append(shot)
        if part is Part.CONTEXT:
            words.append(-1)
            continue
        begins = (span_index, _word_start(text, spans[span_index][0], first))
        number += begins != last
        last = begins
        words.append(number)
    return Labels(torch.tensor(parts), torch.tensor(shots), torch.tensor(words))


def _word_start(text: str, floor: int, at: int) -> int:
    while at > floor and not text[at - 1].isspace():
        at -= 1
    return at


def _words(text: str, offsets: Sequence[tuple[int, int]], labels: Labels) -> tuple[str, ...]:
    ends_of_word: dict[int, list[int]] = {}
    for (start, end), word in zip(offsets, labels.word.tolist(), strict=True):
        if word >= 0:
            ends = ends_of_word.setdefault(word, [start, end])
            ends[1] = max(ends[1], end)
    return tuple(text[start:end].strip() for start, end in ends_of_word.values())
