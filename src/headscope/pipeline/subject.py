"""The subject of a measurement: a model that can run, or its weights alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headscope.core import ModelSpec, Site, TextSpec, WeightSource
from headscope.corpora import Amount, Text, Windows, read_windows
from headscope.errors import UsageError
from headscope.lenses.lens import Needs
from headscope.model import model as models
from headscope.model.token_ids import check_token_ids
from headscope.model.token_pieces import SAMPLE, surroundings_of, token_pieces
from headscope.progress import Progress, Silent


@dataclass(frozen=True)
class Subject:
    """A checkpoint: its spec, its weights, and the model if a lens runs it."""

    spec: ModelSpec
    sites: tuple[Site, ...]
    weights: WeightSource
    model: Any = None

    def obstacle(self, needs: Needs) -> str:
        """Why this model cannot run what a lens needs; empty where it can."""
        if self.model is None or not needs.text:
            return ""
        this_model = f"{self.spec.name} ({self.spec.architecture})"
        if not needs.reads_text:
            reason = f"this lens runs tokens that it chooses, and {this_model} does not read tokens alone"
            return "" if self.model.reads_tokens else reason
        lacks = "comes without a tokenizer" if self.model.tokenizer is None else "does not read text"
        return "" if self.model.reads_text else f"this lens runs a text, and {this_model} {lacks}"


def is_source(model: Any) -> bool:
    """Whether `model` names a checkpoint instead of being a model."""
    return isinstance(model, (str, Path))


def open_subject(
    model: Any, *, run: bool, hub: bool, seed: int, progress: Progress, device: str | None = None
) -> Subject:
    """Open only what is needed: without `run` the model of a checkpoint is not built.

    Weights alone are read on the CPU, whatever the device.
    """
    if is_source(model) and not run:
        source = models.open_weights(model, hub=hub, seed=seed, progress=progress.step)
        return Subject(source.spec, source.sites, source)
    # A transformers model in memory has no weight source: it is opened too.
    is_open = hasattr(model, "weight_source")
    named = {} if device is None else {"device": device}
    built = model if is_open else models.open_model(model, hub=hub, seed=seed, progress=progress.step, **named)
    # A named model equals its files; a model in memory may have been edited.
    origin = built.origin if is_source(model) else None
    weights = built.weight_source() if origin is None else built.weight_source(origin.weights_method)
    return Subject(built.spec, built.sites, weights, built)


def windows_of(
    subject: Subject, text: Text, length: int, amount: Amount | None = None, progress: Progress | None = None
) -> tuple[Windows, TextSpec]:
    """Tokenise the text, and cut it into windows no longer than the model's context.

    Tokens come in pieces, so that memory does not grow with the text unless `amount` asks for all of it.
    """
    if length < 1:
        raise UsageError(f"a window of {length} tokens cannot be cut", hint="use a window of a few hundred tokens")
    tokenizer, listener = subject.model.tokenizer, progress or Silent()
    sample = next((part for parts in text.streams() for part in parts), "")[:SAMPLE]
    surroundings = surroundings_of(tokenizer, sample)

    def tokens() -> Iterator[list[int]]:
        n_documents = len(text.documents)
        for done, parts in enumerate(text.streams()):
            listener.step("tokenising the text, document", done, n_documents)
            yield from token_pieces(tokenizer, parts, surroundings)

    limit = min(length, subject.spec.context or length)
    reading_amount = amount or Amount()
    reading = read_windows(tokens, surroundings.head, surroundings.tail, limit, reading_amount)
    windows = reading.windows
    is_cut = reading.n_in_text is None
    for batch in windows.batches(max(windows.count, 1)):
        check_token_ids(batch, subject.spec)
    return windows, TextSpec(
        f"{text.name}, its first {reading_amount.first_tokens} tokens" if is_cut else text.name,
        text.sha256,
        text.n_characters,
        windows.n_tokens,
        windows.count,
        windows.length,
        windows.n_dropped,
        reading.n_in_text or 0,
        len(text.documents),
    )
