"""How well models predict the judged documents: networks by the length of the window, and n-gram models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from typing import Any

from headscope.corpora.byte_pair_tokenizer import EOS_ID
from headscope.errors import UsageError
from headscope.experiments.tiny.held_out_windows import HeldOutWindows, summed_nats
from headscope.experiments.tiny.kneser_ney import KneserNey
from headscope.experiments.tiny.text_material import Documents, Material, Tokens, token_stream
from headscope.model.model import Model
from headscope.progress import Step

TRAINED, SHIPPED = "trained", "shipped"
N_GRAMS = {"bigram": 2, "trigram": 3}
UNIFORM = "uniform"  # every token equally likely
WINDOWS = (128, 256, 512, 1024)
ALL = "all"
NO_WINDOW = 0  # an n-gram model reads the text without windows


@dataclass(frozen=True)
class TextLoss:
    """The sums of a system over a text; two of them add up to those of both texts."""

    system: str
    text: str
    window: int
    nats: float
    n_tokens: int
    n_bytes: float

    @property
    def nats_per_token(self) -> float:
        """The mean negative log-likelihood."""
        return self.nats / self.n_tokens

    @property
    def perplexity(self) -> float:
        """Its exponential."""
        return exp(self.nats_per_token)

    @property
    def bits_per_byte(self) -> float:
        """The mean in bits, by bytes of the text: comparable between tokenizers."""
        return self.nats / log(2.0) / self.n_bytes


def network_losses(system: str, model: Model, judged: Mapping[str, Documents], progress: Step) -> list[TextLoss]:
    """The losses of a model on each text and on all, by the length of the window."""
    task = judging_task(system)
    losses = list[TextLoss]()
    for number, window in enumerate(WINDOWS):
        progress(task, number, len(WINDOWS))
        parts = [_window_loss(system, model, name, documents, window) for name, documents in judged.items()]
        losses += [*parts, _sum(parts)]
    progress(task, len(WINDOWS), len(WINDOWS))
    return losses


def check_judged(material: Material, shipped: Model) -> None:
    """Refuse a text whose judged documents do not fill the longest window, before anything is trained.

    Raises:
        UsageError: A text is too short for the tokenizer of the study or of the shipped weights.
    """
    for name, documents in material.judged.items():
        streams = (token_stream(material.tokenizer, documents, EOS_ID), judged_tokens(shipped, documents))
        n_tokens = min(map(len, streams))
        if n_tokens < WINDOWS[-1]:
            raise UsageError(
                f"the judged documents of {name} have {n_tokens} tokens, expected at least the {WINDOWS[-1]} of the "
                "longest window",
                hint="judge more tokens, or give more text",
            )


def judging_task(system: str) -> str:
    """The task that judging a system is reported as."""
    return f"judging the {system} weights"


def n_gram_losses(material: Material) -> list[TextLoss]:
    """The losses of Kneser–Ney models that are fitted to the tokens that the network learns from, and their null."""
    vocabulary = material.tokenizer.get_vocab_size()
    losses = list[TextLoss]()
    for system, order in N_GRAMS.items():
        fitted = KneserNey(material.train.numpy(), vocabulary, order)
        parts = [
            _n_gram_loss(system, fitted, order, name, token_stream(material.tokenizer, documents, EOS_ID), documents)
            for name, documents in material.judged.items()
        ]
        losses += [*parts, _sum(parts)]
    return [*losses, replace(losses[-1], system=UNIFORM, nats=losses[-1].n_tokens * log(vocabulary))]


def loss_of(losses: Sequence[TextLoss], system: str, window: int = NO_WINDOW) -> TextLoss:
    """The loss of a system on all texts."""
    return next(loss for loss in losses if (loss.system, loss.text, loss.window) == (system, ALL, window))


def judged_tokens(model: Model, documents: Documents) -> Tokens:
    """The documents as tokens of a model."""
    tokenizer: Any = model.tokenizer
    return token_stream(tokenizer.backend_tokenizer, documents, tokenizer.eos_token_id)


def _window_loss(system: str, model: Model, name: str, documents: Documents, window: int) -> TextLoss:
    tokenizer: Any = model.tokenizer
    tokens = judged_tokens(model, documents)
    nats, n_tokens = summed_nats(model.hf, HeldOutWindows(tokens, length=window, start=tokenizer.bos_token_id))
    return TextLoss(system, name, window, nats, n_tokens, _bytes_of(documents) * n_tokens / len(tokens))


def _n_gram_loss(
    system: str, fitted: KneserNey, order: int, name: str, tokens: Tokens, documents: Documents
) -> TextLoss:
    n_tokens = len(tokens) - order + 1
    nats = fitted.nats(tokens.numpy()) * n_tokens
    return TextLoss(system, name, NO_WINDOW, nats, n_tokens, _bytes_of(documents) * n_tokens / len(tokens))


def _bytes_of(documents: Documents) -> int:
    return sum(len(document.encode()) for document in documents)


def _sum(parts: Sequence[TextLoss]) -> TextLoss:
    first = parts[0]
    sums = (sum(getattr(part, name) for part in parts) for name in ("nats", "n_tokens", "n_bytes"))
    return TextLoss(first.system, ALL, first.window, *sums)
