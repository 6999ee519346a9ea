"""What every state of the model is run on: the same windows, short windows for maps, sentences, prompts."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from headscope.core import Site, TextSpec
from headscope.corpora import Text
from headscope.errors import UsageError
from headscope.experiments.intervene.writing import PROMPTS
from headscope.experiments.text_sample import Tokens, spread, windows_of
from headscope.model.language import predicts_next_token, prompt_tokens
from headscope.model.model import Model

MAPPED = 128  # tokens of the windows whose maps are kept to be compared
MAP_BYTES = 128 * 2**20  # what the kept maps may take
SHOWN = 24  # tokens of the maps that are drawn
SENTENCES = 64
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"”']?\s+")
_FEWEST = 4  # tokens that make a sentence


@dataclass(frozen=True)
class Material:
    """Windows, sentences and prompts that every state of the model is run on."""

    windows: tuple[Tokens, ...]
    mapped: tuple[Tokens, ...]
    drawn_window: Tokens
    sentences: tuple[Tokens, ...]
    prompts: tuple[tuple[str, Tokens], ...]
    text: TextSpec


def gather(
    model: Model, text: Text, prompts: Sequence[str] | None, *, window: int, windows: int, new_tokens: int
) -> Material:
    """Windows evenly spread over the text, and for a model without next-token predictions sentences from it."""
    if not model.reads_text:
        lacks = "comes without a tokenizer" if model.tokenizer is None else "does not read text alone"
        raise UsageError(f"an intervention is measured on text, and {model.spec.name} {lacks}")
    if window < 2 or windows < 1 or new_tokens < 1:
        raise UsageError(f"needed: window ≥ 2, windows ≥ 1, new tokens ≥ 1; got {window}, {windows}, {new_tokens}")
    encoded_prompts = _prompts(model, prompts, new_tokens)
    limit = min(window, model.spec.context or window)
    every = windows_of(model, text, limit)
    spread_windows = spread(every, windows)
    if max(map(len, spread_windows)) < 2:
        raise UsageError("the text has a single token, so that there is nothing to attend to", hint="give more text")
    maps = spread(windows_of(model, text, min(MAPPED, limit)), _map_count(model.sites, min(MAPPED, limit)))
    return Material(
        windows=spread_windows,
        mapped=maps,
        drawn_window=spread(windows_of(model, text, min(SHOWN, limit)), 1)[0],
        sentences=() if predicts_next_token(model) else _sentences(model, text),
        prompts=encoded_prompts,
        text=TextSpec(
            text.name,
            text.sha256,
            text.n_characters,
            n_tokens=sum(map(len, spread_windows)),
            n_windows=len(spread_windows),
            window=max(map(len, spread_windows)),
            n_dropped=every.n_tokens + every.n_dropped - sum(map(len, spread_windows)),
        ),
    )


def _prompts(model: Model, prompts: Sequence[str] | None, new_tokens: int) -> tuple[tuple[str, Tokens], ...]:
    if prompts is None:
        prompts = PROMPTS if model.hf.can_generate() else ()
    return tuple((prompt, prompt_tokens(model, prompt, max_new_tokens=new_tokens, chat=True)) for prompt in prompts)


def _map_count(sites: Sequence[Site], length: int) -> int:
    bytes_per_window = sum(site.n_heads for site in sites) * length * length * torch.float32.itemsize
    return max(1, min(8, MAP_BYTES // bytes_per_window))


def _sentences(model: Model, text: Text) -> tuple[Tokens, ...]:
    parts = [part for document in text.documents for part in _SENTENCE_END.split(document) if part.strip()]
    limit = model.spec.context or MAPPED
    tokens = [ids for part in parts if _FEWEST <= len(ids := model.encode(part)) <= limit]
    if len(tokens) < 2:
        raise UsageError(
            f"the text has {len(tokens)} sentences that {model.spec.name} can embed, needed are at least 2",
            hint="give a text with several sentences",
        )
    count = min(SENTENCES, len(tokens))
    return tuple(tokens[i * len(tokens) // count] for i in range(count))
