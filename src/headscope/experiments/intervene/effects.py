r"""What is measured on each state of the model: the original, every change, every control.

Predictions   nats per token, and $\mathrm{KL}(p_{\mathrm{original}} \| p) $ of the next-token distribution
Maps          $\frac12 \sum_j |p_{ij} - p'_{ij}|$: the share of a row's mass that moved, and streamed row statistics
Text          the greedy continuation of each prompt
Embeddings    cosine with the original's embedding of the same sentence, for a model without next-token predictions

Everything is kept per window (or sentence), so that differences are paired and intervals can be made. Of the original
only the states before its output head, a few short maps and its embeddings are kept: memory does not grow with the
vocabulary, nor with the number of changes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscope.attention.statistics import Request
from headscope.core import Site
from headscope.experiments.intervene.material import Material
from headscope.experiments.intervene.writing import write
from headscope.lenses.focus.lens import LENS as FOCUS
from headscope.lenses.focus.lens import State as FocusState
from headscope.lenses.focus.settings import Params as FocusParams
from headscope.lenses.lens import AS_IS, Batch, TextSize
from headscope.maths.resampling.clustered_mean import total_variation
from headscope.model.language import predicts_next_token
from headscope.model.model import Model
from headscope.model.predictions import Prediction, States, embedding, predict
from headscope.model.session.session import Session

_ROWS = 64  # rows of logits that are turned into float64 at a time
Heads = Mapping[Site, tuple[int, ...]]
Maps = dict[Site, Float[Tensor, "heads queries keys"]]
Tokens = Int[Tensor, " _"]


@dataclass(frozen=True)
class Predictions:
    """Sums over the scored tokens of each window."""

    nats: Float[Tensor, " windows"]
    kl: Float[Tensor, " windows"]
    tokens: Float[Tensor, " windows"]


@dataclass(frozen=True)
class Embedded:
    """Cosine of each sentence with its original embedding, and whether that one is the nearest of all originals."""

    cosine: Float[Tensor, " sentences"]
    is_nearest: Float[Tensor, " sentences"]


@dataclass(frozen=True)
class Effects:
    """What one state of the model showed."""

    rows: FocusState
    moved: Mapping[Site, Float[Tensor, "windows heads"]]
    maps: Mapping[Site, Float[Tensor, "queries keys"]]
    predictions: Predictions | None = None
    embedded: Embedded | None = None
    texts: Sequence[Tokens] = ()


@dataclass
class Original:
    """What is kept of the unchanged model to compare with; filled by the first observation."""

    states: list[States] = field(default_factory=list)
    maps: list[Maps] = field(default_factory=list)
    embeddings: Float[Tensor, "sentences d_model"] | None = None


@dataclass(frozen=True)
class Observer:
    """Runs a state of the model on the material. The first state that it sees is the original."""

    model: Model
    material: Material
    heads: Heads  # averaged in the maps that are drawn
    new_tokens: int
    original: Original = field(default_factory=Original)

    def __call__(self, step: Callable[[int, int], None], *, write_texts: bool = True) -> Effects:
        """Everything about the model as it is now; `step` hears how far it is."""
        parts = len(self.material.windows) + 2
        predicts = predicts_next_token(self.model)
        rows, predictions = self._streamed(predicts, lambda done: step(done, parts))
        moved = self._moved()
        step(parts - 1, parts)
        effects = Effects(
            rows=rows,
            moved=moved,
            maps=self._shown(),
            predictions=predictions,
            embedded=None if predicts else self._embedded(),
            texts=write(self.model, [tokens for _, tokens in self.material.prompts], self.new_tokens)
            if write_texts
            else (),
        )
        step(parts, parts)
        return effects

    def _streamed(self, predicts: bool, step: Callable[[int], None]) -> tuple[FocusState, Predictions | None]:
        windows = self.material.windows
        size = TextSize(len(windows), max(map(len, windows), default=0))
        state = FOCUS.start(FocusParams(bands=""), self.model.spec, self.model.sites, size)
        sums: list[tuple[float, float, float]] = []
        with self.model.session() as session:
            stream = session.stream(Request())
            for index, tokens in enumerate(windows):
                step(index)
                if predicts:
                    sums.append(self._predicted(index, tokens))
                else:
                    session.run(tokens[None], head=False)
                measured, uniform = stream.take()
                everything = torch.ones(1, len(tokens), dtype=torch.bool)
                state = FOCUS.update(state, Batch(AS_IS, tokens[None], everything, measured, uniform))
        if not predicts:
            return state, None
        nats, kl, count = torch.tensor(sums, dtype=torch.float64).T
        return state, Predictions(nats, kl, count)

    def _predicted(self, index: int, tokens: Tokens) -> tuple[float, float, float]:
        states = self.original.states
        prediction = predict(self.model, tokens, states[index] if index < len(states) else None)
        if prediction.other_logits is None:
            states.append(prediction.states)
        nats = kl = 0.0
        for log_p, log_q, following in _scored(prediction, tokens):
            nats -= float(log_q.gather(1, following[:, None]).sum())
            kl += float((log_p.exp() * (log_p - log_q)).sum())
        return nats, kl, float(len(tokens) - 1)

    def _moved(self) -> dict[Site, Float[Tensor, "windows heads"]]:
        moved_by_site: dict[Site, list[Tensor]] = {site: [] for site in self.model.sites}
        first = not self.original.maps
        with self.model.session() as session:
            for index, maps in enumerate(_maps(session, self.material.mapped)):
                if first:
                    self.original.maps.append(maps)
                for site, after in maps.items():
                    # The first row of a causal map sees one key: nothing can move.
                    rows = slice(1 if site.causal and after.shape[1] > 1 else 0, None)
                    distances = total_variation(self.original.maps[index][site][:, rows], after[:, rows])
                    moved_by_site[site].append(distances.mean(-1))
        return {site: torch.stack(parts) for site, parts in moved_by_site.items() if parts}

    def _shown(self) -> dict[Site, Float[Tensor, "queries keys"]]:
        with self.model.session() as session:
            maps = next(_maps(session, [self.material.drawn_window]))
        return {site: maps[site][list(heads)].double().mean(0) for site, heads in self.heads.items() if site in maps}

    def _embedded(self) -> Embedded:
        now = torch.stack([embedding(self.model, tokens) for tokens in self.material.sentences])
        if self.original.embeddings is None:
            self.original.embeddings = now
        unit = torch.nn.functional.normalize(self.original.embeddings, dim=-1)
        cosines = torch.nn.functional.normalize(now, dim=-1) @ unit.T
        return Embedded(cosines.diagonal().clone(), (cosines.argmax(-1) == torch.arange(len(cosines))).double())


def mean_effects(draws: Sequence[Effects]) -> Effects:
    """Window by window the mean over draws of nats, KL, embeddings and moved mass; rows, maps and text of the first.

    The mean of nats makes the perplexity a geometric mean.
    """
    first = draws[0]

    def mean(parts: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(parts)).mean(0)

    predictions, embedded = first.predictions, first.embedded
    if predictions is not None:
        every = [draw.predictions for draw in draws if draw.predictions is not None]
        predictions = Predictions(
            mean([part.nats for part in every]), mean([part.kl for part in every]), predictions.tokens
        )
    if embedded is not None:
        embeddings = [draw.embedded for draw in draws if draw.embedded is not None]
        embedded = Embedded(mean([part.cosine for part in embeddings]), mean([part.is_nearest for part in embeddings]))
    moved = {site: mean([draw.moved[site] for draw in draws]) for site in first.moved}
    return replace(first, predictions=predictions, embedded=embedded, moved=moved)


def _maps(session: Session, windows: Sequence[Tokens]) -> Iterator[Maps]:
    capture = session.capture("pattern")
    for tokens in windows:
        session.run(tokens[None], head=False)
        yield {site: maps[0] for site, maps in capture.take()["pattern"].items()}


def _scored(prediction: Prediction, tokens: Tokens) -> Iterator[tuple[Tensor, Tensor, Tokens]]:
    """Log-probabilities of the original and of the state at hand, and the token that really follows, in parts."""
    for start in range(0, len(tokens) - 1, _ROWS):
        part = slice(start, min(start + _ROWS, len(tokens) - 1))
        log_q = torch.log_softmax(prediction.logits[part].double(), dim=-1)
        other_logits = prediction.other_logits
        log_p = log_q if other_logits is None else torch.log_softmax(other_logits[part].double(), dim=-1)
        yield log_p, log_q, tokens[1:][part]
