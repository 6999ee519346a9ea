"""What is measured: a model that can run, or its weights alone."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headscope import model as models
from headscope.core import ModelSpec, Site, TextSpec, WeightSource
from headscope.corpora import Text, Windows, cut
from headscope.errors import UsageError
from headscope.model.token_ids import check_token_ids
from headscope.pipeline.progress import Progress


@dataclass(frozen=True)
class Subject:
    """A checkpoint: its card, its weights, and the model where a lens wants it run."""

    spec: ModelSpec
    sites: tuple[Site, ...]
    weights: WeightSource
    model: Any = None

    @property
    def mute(self) -> str:
        """Why no text can be run; empty when it can."""
        if self.model is None or self.model.reads_text:
            return ""
        lacks = "comes without a tokenizer" if self.model.tokenizer is None else "does not read text"
        return f"this lens runs a text, and {self.spec.name} ({self.spec.architecture}) {lacks}"


def is_source(what: Any) -> bool:
    """Whether `what` names a checkpoint rather than being a model."""
    return isinstance(what, (str, Path))


def open_subject(what: Any, *, run: bool, hub: bool, seed: int, progress: Progress) -> Subject:
    """Open what is needed and no more: without `run`, a named checkpoint's model is never built."""
    if is_source(what) and not run:
        source = models.open_weights(what, hub=hub, seed=seed, progress=progress.step)
        return Subject(source.spec, source.sites, source)
    # A transformers model in memory has no weight source of its own: it is opened too.
    is_open = hasattr(what, "weight_source")
    built = what if is_open else models.open_model(what, hub=hub, seed=seed, progress=progress.step)
    return Subject(built.spec, built.sites, built.weight_source(), built)


def windows_of(subject: Subject, text: Text, length: int, most: int | None = None) -> tuple[Windows, TextSpec]:
    """The text as the model's tokens, cut into windows no longer than its context; at most so many tokens of it."""
    if length < 1:
        raise UsageError(f"a window of {length} tokens cannot be cut", hint="use a window of a few hundred tokens")
    if most is not None and most < 1:
        raise UsageError(f"the first {most} tokens of a text are no text", hint="use a few thousand tokens")
    limit = min(length, subject.spec.context or length)
    specials = list(subject.model.tokenizer("")["input_ids"])
    documents, left = list[list[int]](), most
    for document in text.documents:
        documents.append(subject.model.encode(document).tolist())
        if left is not None:
            left -= len(documents[-1]) - len(specials)
            if left <= 0:
                break
    whole = left is None or (left >= 0 and len(documents) == len(text.documents))
    windows = cut(documents, specials, limit, most)
    for batch in windows.batches(max(windows.count, 1)):
        check_token_ids(batch, subject.spec)
    return windows, TextSpec(
        text.name if whole else f"{text.name}, its first {most} tokens",
        text.sha256,
        text.n_characters,
        windows.n_tokens,
        windows.count,
        windows.length,
        windows.n_dropped,
    )
