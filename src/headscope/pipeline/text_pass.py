"""Run the text through the model, once per batch and variant, for every lens that wants to see it."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from headscope.attention.statistics import Request, RowStatistics
from headscope.core import Site
from headscope.corpora import Windows
from headscope.errors import (
    CaptureError,
    CheckpointError,
    HeadscopeError,
    ResourceError,
    UsageError,
    VariantRefused,
    WeightsRefused,
)
from headscope.lenses.lens import AS_IS, Batch, Needs, NotApplicable, TextLens, TextSize
from headscope.model.token_spelling import spelled_tokens
from headscope.pipeline.questions import LensPlan
from headscope.pipeline.site_assembly import STATISTICS, SiteAssembly, expected_parts
from headscope.pipeline.subject import Subject
from headscope.progress import Progress, Silent
from headscope.shapes import CORNER

Spelling = tuple[tuple[str, ...], ...]  # the texts of the first tokens of each window


def _attention_alone(edit: Any, seed: int) -> None:
    edit.skip(0.0)
    edit.without("mlp")


# What each variant of the model is, in terms of an edit; the seed is for what is drawn.
_CHANGES: dict[str, Callable[[Any, int], None]] = {
    "initialised": lambda edit, seed: edit.initialise(seed),
    "without skips": lambda edit, seed: edit.skip(0.0),
    "without mlp": lambda edit, seed: edit.without("mlp"),
    "without attention": lambda edit, seed: edit.without("attention"),
    "attention alone": _attention_alone,
}
VARIANTS = (AS_IS, *_CHANGES)

# Where a failure's traceback goes, for whoever listens (`--debug` does); its message goes into the finding.
log = logging.getLogger("headscope")

# What one batch may hold: enough for a core to be busy (more is slower), little enough for a laptop beside the model.
BATCH_TOKENS = 1024
BATCH_BYTES = 256 * 2**20

_FLOAT32_BYTES = 4


@dataclass
class Fold:
    """A lens in progress: its state, or the error that ended it."""

    plan: LensPlan
    seed: int = 0
    state: Any = None
    error: Exception | None = None

    @property
    def name(self) -> str:
        """The lens's name."""
        return self.plan.question.name

    def started(self, subject: Subject, text: TextSize) -> "Fold":
        """This fold with a fresh state.

        Raises:
            UsageError: Parameters that ask for what this model does not have, such as a layer.
        """
        question, self.error = self.plan.question, None
        with caught(self), seeded(self.seed):
            if isinstance(question.lens, TextLens):
                self.state = question.lens.start(question.params, subject.spec, subject.sites, text)
        if isinstance(self.error, UsageError):
            raise self.error
        return self

    def update(self, batch: Batch) -> None:
        """Hand a batch over; a lens that raises is left out from then on and the others go on."""
        lens = self.plan.question.lens
        if self.error is None and is_shown(batch, self.plan.needs) and isinstance(lens, TextLens):
            with caught(self), seeded(self.seed):
                self.state = lens.update(self.state, batch)


def is_shown(batch: Batch, needs: Needs) -> bool:
    """Whether a lens is shown batches of this kind."""
    return batch.variant in needs.variants


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """A lens that draws numbers draws the same ones whichever lenses run beside it."""
    torch.manual_seed(seed)
    yield


@contextmanager
def caught(fold: Fold) -> Iterator[None]:
    """Keep what a lens raises in its fold; a bad checkpoint or a full machine is not its failure."""
    try:
        yield
    except (CaptureError, NotApplicable, WeightsRefused) as error:
        fold.error = error
    except (CheckpointError, ResourceError, MemoryError):
        raise
    except Exception as error:
        log.info("lens %s failed", fold.name, exc_info=error)
        fold.error = error


def union(needs: Sequence[Needs]) -> Needs:
    """What all of them together need; variants in the order of first mention, the model as it is first."""
    requests = [need.statistics for need in needs if need.statistics is not None]
    variants = dict.fromkeys(variant for need in needs for variant in need.variants)
    return Needs(
        weights=any(need.weights for need in needs),
        statistics=reduce(Request.union, requests) if requests else None,
        captures=frozenset().union(*(need.captures for need in needs)),
        welcome=frozenset().union(*(need.welcome for need in needs)),
        variants=tuple(sorted(variants, key=lambda variant: variant != AS_IS)),
        pieces=all(need.pieces for need in needs),
        spelling=any(need.spelling for need in needs),
        tokens=None
        if any(need.tokens is None for need in needs)
        else max((need.tokens or 0 for need in needs), default=0),
    )


def observe(subject: Subject, windows: Windows, folds: Sequence[Fold], progress: Progress) -> None:
    """Show the text to every fold in one pass; folds that want what the family does not show are left out."""
    try:
        _run_text(subject.model, windows, folds, progress)
    except CaptureError as error:
        seeing = [fold for fold in folds if _can_see(subject, windows, fold)] if len(folds) > 1 else []
        for fold in folds:
            fold.error = error if fold.error is None and fold not in seeing else fold.error
        if 0 < len(seeing) < len(folds):
            size = TextSize(windows.count, windows.length)
            observe(subject, windows, [fold.started(subject, size) for fold in seeing], progress)
        elif seeing:
            raise
    except (HeadscopeError, MemoryError):
        raise
    except Exception as error:
        if "can't allocate memory" in str(error):
            raise
        # The model itself broke on this text: those who watched have failed, the others' answers stand.
        log.info("the model failed while the text was run", exc_info=error)
        for fold in folds:
            fold.error = fold.error or error


def _can_see(subject: Subject, windows: Windows, fold: Fold) -> bool:
    """Whether a fold alone gets what it needs, tried on one short window; the reason is kept in the fold."""
    glimpse = next(iter(windows.batches(1)))[:, : min(8, windows.length)]
    try:
        _run_text(subject.model, Windows(glimpse, None, 0), [replace(fold, error=None)], Silent())
    except CaptureError as error:
        fold.error = error
        return False
    return True


def _run_text(model: Any, windows: Windows, folds: Sequence[Fold], progress: Progress) -> None:
    """One forward per batch and variant, whatever the number of folds."""
    # The batches are the same whoever watches and however much of the text: other shapes would round otherwise.
    batches = windows.batches(batch_size(model.sites, windows.length))
    for variant in union([fold.plan.needs for fold in folds]).variants:
        watching = [fold for fold in folds if variant in fold.plan.needs.variants]
        needs = union([fold.plan.needs for fold in watching])
        ends = [_batches_needed(batches, variant, fold.plan.needs) for fold in watching]
        batches_to_run = batches[: max(ends)]
        label = "running the text" if variant == AS_IS else f"running the text, model {variant}"
        try:
            with changed(model, variant, folds[0].seed), model.session() as session:
                recorder = _Recorder(model, session, needs)
                progress.step(label, 0, len(batches_to_run))
                for done, tokens in enumerate(batches_to_run):
                    spelling = _spelling(model, tokens) if needs.spelling else ()
                    viewers = [fold for fold, end in zip(watching, ends, strict=True) if done < end]
                    _show(recorder, variant, tokens, viewers, spelling)
                    progress.step(label, done + 1, len(batches_to_run))
                    if all(fold.error is not None for fold in watching):
                        break
        except VariantRefused as refusal:
            nothing = windows.full[:0]
            for fold in watching:
                fold.update(Batch(variant, nothing, nothing.bool(), refused=refusal.message))


def _batches_needed(batches: Sequence[Int[Tensor, "_ _"]], variant: str, needs: Needs) -> int:
    """How many of the first batches a lens sees: all of the model as it is, of a changed form as many as it needs."""
    if variant == AS_IS or needs.tokens is None:
        return len(batches)
    ends = accumulate(tokens.numel() for tokens in batches)
    return min(len(batches), 1 + sum(end < needs.tokens for end in ends))


class _Recorder:
    """What a session records for the lenses."""

    def __init__(self, model: Any, session: Any, needs: Needs) -> None:
        self._model, self.session = model, session
        self._stream = None if needs.statistics is None else session.stream(needs.statistics)
        captures = self._captures(needs)
        self._capture = session.capture(*sorted(captures)) if captures else None

    def assembly(self, needs: Needs) -> SiteAssembly:
        """What waits, in one forward, until the sites are complete for a lens."""
        names = self._captures(needs) | ({STATISTICS} if needs.statistics is not None else set())
        sites = self._model.sites
        projected = [site for site in sites if "x" in names and self._model.plan(site).projections is not None]
        return SiteAssembly(expected_parts(sites, names, projected), piecewise=needs.pieces)

    def _captures(self, needs: Needs) -> frozenset[str]:
        return needs.captures | needs.welcome.intersection(self.session.shown)

    def batch(self, variant: str, tokens: Int[Tensor, "batch tokens"], *, over: bool) -> Batch:
        """What the forward has shown since the last time; `over` says that it has ended."""
        rows, tensors = (
            None if record is None else record.take() if over else record.drain()
            for record in (self._stream, self._capture)
        )
        # The model may be on another device: lenses compute on the CPU, in float64, which not every device has.
        measured, uniform_rows = rows or ({}, {})
        statistics = {site: row.cpu() for site, row in measured.items()}
        uniform = {site: row.cpu() for site, row in uniform_rows.items()}
        captures = {
            name: {site: tensor.cpu() for site, tensor in by_site.items()} for name, by_site in (tensors or {}).items()
        }
        real = torch.ones_like(tokens, dtype=torch.bool)
        return Batch(variant, tokens, real, statistics, uniform, captures)


def _show(
    recorder: _Recorder, variant: str, tokens: Int[Tensor, "batch tokens"], viewers: Sequence[Fold], spelling: Spelling
) -> None:
    """One forward: site by site for those who take pieces, the whole for the others.

    A lens is handed what it needs and nothing that only others need: it cannot tell whether it is alone.
    """
    assemblies = [(fold, recorder.assembly(fold.plan.needs)) for fold in viewers if fold.error is None]

    def hand_over(*, over: bool = False) -> None:
        piece = replace(recorder.batch(variant, tokens, over=over), spelling=spelling)
        for fold, assembly in assemblies:
            batch = assembly.add(restricted(piece, fold.plan.needs), over=over)
            if batch is not None:
                fold.update(batch)

    if any(fold.plan.needs.pieces for fold in viewers):
        recorder.session.run(tokens, each=hand_over)
    else:
        recorder.session.run(tokens)
    hand_over(over=True)


def restricted(batch: Batch, needs: Needs) -> Batch:
    """What a lens needs of a piece: nothing else is held until its sites are complete."""
    captures = {name: by_site for name, by_site in batch.captures.items() if name in needs.captures | needs.welcome}
    rows = [_requested(by_site, needs.statistics) for by_site in (batch.statistics, batch.uniform)]
    spelling = batch.spelling if needs.spelling else ()
    return replace(batch, statistics=rows[0], uniform=rows[1], captures=captures, spelling=spelling)


def _requested(rows: Mapping[Site, RowStatistics], request: Request | None) -> dict[Site, RowStatistics]:
    """The statistics with the bands that were requested, and no others."""
    if request is None:
        return {}
    return {
        site: replace(statistics, bands={width: statistics.bands[width] for width in request.bands})
        for site, statistics in rows.items()
    }


def _spelling(model: Any, tokens: Int[Tensor, "batch tokens"]) -> Spelling:
    return tuple(spelled_tokens(model.tokenizer, window[:CORNER].tolist()) for window in tokens)


@contextmanager
def changed(model: Any, variant: str, seed: int) -> Iterator[None]:
    """The model in the asked variant, for as long as the context lasts."""
    if variant == AS_IS:
        yield
    else:
        with model.edit() as edit:
            _CHANGES[variant](edit, seed)
            yield


def batch_size(sites: Sequence[Site], length: int) -> int:
    """Windows per batch, by the sizes of model and window alone: the same on every machine and whoever watches.

    So many that every map of a batch would fit BATCH_BYTES, the most that a lens can ask to be handed at once.
    """
    maps = sum(site.n_heads for site in sites) * length**2 * _FLOAT32_BYTES
    return max(1, min(BATCH_TOKENS // length, BATCH_BYTES // maps))
