"""Run a model on text and made windows, once per batch and variant, for all lenses."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from headscope.attention.sparse.shared_heads import heads_shared
from headscope.attention.statistics import Request, RowStatistics
from headscope.core import Site
from headscope.corpora import Windows
from headscope.errors import CaptureError, HeadscopeError, VariantRefused
from headscope.lenses.lens import AS_IS, Batch, Needs
from headscope.lenses.shared.head_threads import mapped
from headscope.model.token_spelling import spelled_tokens
from headscope.model.transformers.linear_kernel import onednn_linear
from headscope.pipeline.fold import Fold, log
from headscope.pipeline.lens_threads import LensThreads
from headscope.pipeline.readings import Reading, readings_of
from headscope.pipeline.site_assembly import STATISTICS, SiteAssembly, expected_parts
from headscope.pipeline.stages import run_task
from headscope.pipeline.subject import Subject
from headscope.progress import Progress, Silent
from headscope.shapes import CORNER, OPENING

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

# What one batch may hold: enough for a core to be busy (more is slower), little enough for a laptop beside the model.
BATCH_TOKENS = 1024
BATCH_BYTES = 256 * 2**20

_FLOAT32_BYTES = 4


def union(needs: Sequence[Needs]) -> Needs:
    """What all of them together need; variants in the order of first mention, the model as it is first."""
    requests = [need.statistics for need in needs if need.statistics is not None]
    variants = dict.fromkeys(variant for need in needs for variant in need.variants)
    return Needs(
        weights=any(need.weights for need in needs),
        statistics=reduce(Request.union, requests) if requests else None,
        captures=frozenset().union(*(need.captures for need in needs)),
        welcome=frozenset().union(*(need.welcome for need in needs)),
        opening=frozenset().union(*(need.opening for need in needs)),
        variants=tuple(sorted(variants, key=lambda variant: variant != AS_IS)),
        pieces=all(need.pieces for need in needs),
        spelling=any(need.spelling for need in needs),
        made=tuple(dict.fromkeys(windows for need in needs for windows in need.made)),
        reads_text=any(need.reads_text for need in needs),
        tokens=None
        if any(need.tokens is None for need in needs)
        else max((need.tokens or 0 for need in needs), default=0),
    )


def observe(
    subject: Subject, windows: Windows | None, folds: Sequence[Fold], threads: LensThreads, progress: Progress
) -> None:
    """Show text and made windows to the folds in one pass.

    Folds that want what the family does not show are left out.

    Args:
        subject: The model.
        windows: The text; None where no fold reads it.
        folds: The lenses in progress.
        threads: Where the lenses work.
        progress: Told about every batch.
    """
    readings = readings_of(subject, windows, folds)
    try:
        _run(subject.model, readings, threads, progress)
    except CaptureError as error:
        seeing = [fold for fold in folds if _can_see(subject, readings, fold)] if len(folds) > 1 else []
        for fold in folds:
            fold.error = error if fold.error is None and fold not in seeing else fold.error
        if 0 < len(seeing) < len(folds):
            observe(subject, windows, [fold.started(subject, windows) for fold in seeing], threads, progress)
        elif seeing:
            raise


def _can_see(subject: Subject, readings: Sequence[Reading], fold: Fold) -> bool:
    """Whether a fold alone gets what it needs, tried on single windows.

    If not, the reason is kept in the fold.
    """
    glimpses = [reading.glimpse(fold) for reading in readings if any(member is fold for member in reading.folds)]
    try:
        _run(subject.model, glimpses, LensThreads(), Silent())
    except CaptureError as error:
        fold.error = error
        return False
    return True


def _run(model: Any, readings: Sequence[Reading], threads: LensThreads, progress: Progress) -> None:
    """One forward per batch and variant, whatever the number of folds."""
    needs = [fold.plan.needs for reading in readings for fold in reading.folds]
    for variant in union(needs).variants:
        current = [part for reading in readings if (part := reading.in_variant(variant)).folds]
        watching = list({id(fold): fold for reading in current for fold in reading.folds}.values())
        try:
            with _breaking(watching):
                _run_variant(model, variant, current, threads, progress)
        except VariantRefused as refusal:
            nothing = torch.zeros(0, 0, dtype=torch.int64)
            for fold in watching:
                fold.update(Batch(variant, nothing, nothing.bool(), refused=refusal.message))


def _run_variant(
    model: Any, variant: str, readings: Sequence[Reading], threads: LensThreads, progress: Progress
) -> None:
    if not readings:
        return
    with changed(model, variant, readings[0].folds[0].seed):
        for reading in readings:
            with _breaking(reading.folds):
                _read(model, variant, reading, threads, progress)


@contextmanager
def _breaking(folds: Sequence[Fold]) -> Iterator[None]:
    """Fail the folds that watch if the model itself breaks; the others' answers stand."""
    try:
        yield
    except (HeadscopeError, MemoryError):
        raise
    except Exception as error:
        if "can't allocate memory" in str(error):
            raise
        log.info("the model failed while it was run", exc_info=error)
        for fold in folds:
            fold.error = fold.error or error


def _read(model: Any, variant: str, reading: Reading, threads: LensThreads, progress: Progress) -> None:
    """One forward per batch of a reading."""
    # The batches are the same whoever watches and however much of the text: other shapes would round otherwise.
    batches = reading.windows.batches(batch_size(model.sites, reading.windows.length))
    ends = [_batches_needed(batches, variant, reading.made_name, fold.plan.needs) for fold in reading.folds]
    needs = union([fold.plan.needs for fold in reading.folds])
    label = _label(variant, reading.made_name)
    progress.step(label, 0, max(ends))
    for indices in _sittings(max(ends), needs):
        # A session of its own: what only the lenses of another reading ask for is not recorded.
        with model.session() as session:
            recorder = _Recorder(model, session, needs.of_batch(indices.start))
            for index in indices:
                viewers = [fold for fold, end in zip(reading.folds, ends, strict=True) if index < end]
                blank = _blank(model, variant, reading.made_name, batches[index], index, spells=needs.spelling)
                _show(recorder, blank, [(fold, fold.plan.needs.of_batch(index)) for fold in viewers], threads)
                progress.step(label, index + 1, max(ends))
                if all(fold.error is not None for fold in reading.folds):
                    return


def _sittings(n_batches: int, needs: Needs) -> tuple[range, ...]:
    """The batches that share a session: the first is alone where it needs more than the others."""
    return (range(1), range(1, n_batches)) if needs.opening and n_batches > 1 else (range(n_batches),)


def _blank(
    model: Any, variant: str, made_name: str, tokens: Int[Tensor, "batch tokens"], index: int, *, spells: bool
) -> Batch:
    """A batch with its tokens and their spelling, before the forward."""
    size = CORNER if index else OPENING
    spelling = _spelling(model, tokens[:, :size]) if spells and model.tokenizer is not None else ()
    real = torch.ones_like(tokens, dtype=torch.bool)
    return Batch(variant, tokens, real, spelling=spelling, made=made_name)


def _label(variant: str, made_name: str) -> str:
    """What is being done, for whoever waits."""
    return run_task(variant, made_name)


def _batches_needed(batches: Sequence[Int[Tensor, "_ _"]], variant: str, made_name: str, needs: Needs) -> int:
    """How many batches a lens sees: all, or of the text in a changed form the first."""
    if variant == AS_IS or made_name or needs.tokens is None:
        return len(batches)
    ends = accumulate(tokens.numel() for tokens in batches)
    return min(len(batches), 1 + sum(end < needs.tokens for end in ends))


class _Recorder:
    """What a session records for the lenses."""

    def __init__(self, model: Any, session: Any, needs: Needs) -> None:
        self._sites, self._body, self.session = model.sites, model.hf.base_model, session
        self._stream = None if needs.statistics is None else session.stream(needs.statistics)
        captures = self._captures(needs)
        self._capture = session.capture(*sorted(captures)) if captures else None

    def run(self, tokens: Int[Tensor, "batch tokens"], after_call: Callable[[], None] | None) -> None:
        """One forward of the body, and `after_call` after every attention call."""
        with onednn_linear(self._body, mapped), heads_shared(mapped):
            self.session.run(tokens, head=False, each=after_call)

    def assembly(self, needs: Needs) -> SiteAssembly:
        """What waits, in one forward, until the sites are complete for a lens."""
        names = self._captures(needs) | ({STATISTICS} if needs.statistics is not None else set())
        places = {} if self._capture is None else self._capture.sites_by_quantity
        return SiteAssembly(expected_parts(self._sites, names, places), piecewise=needs.pieces)

    def _captures(self, needs: Needs) -> frozenset[str]:
        shown_places = self.session.shown
        return needs.captures | {name for name in needs.welcome if name.partition(":")[0] in shown_places}

    def piece(self, blank: Batch, *, over: bool) -> Batch:
        """The batch with what the forward has shown since the last piece."""
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
        return replace(blank, statistics=statistics, uniform=uniform, captures=captures)


def _show(recorder: _Recorder, blank: Batch, viewers: Sequence[tuple[Fold, Needs]], threads: LensThreads) -> None:
    """One forward: site by site for those who take pieces, the whole for the others.

    A lens is handed what it needs and nothing that only others need: it cannot tell whether it is alone.
    """
    assemblies = [(fold, needs, recorder.assembly(needs)) for fold, needs in viewers if fold.error is None]

    def hand_over(*, over: bool = False) -> None:
        piece = recorder.piece(blank, over=over)
        batches = [(fold, assembly.add(restricted(piece, needs), over=over)) for fold, needs, assembly in assemblies]
        threads.update([(fold, batch) for fold, batch in batches if batch is not None])

    try:
        with threads.helping():
            recorder.run(blank.tokens, hand_over if any(needs.pieces for _, needs in viewers) else None)
        hand_over(over=True)
    except Exception:
        # The lenses may begin again without the batch; after Ctrl-C they are not waited for.
        threads.wait()
        raise
    threads.wait()


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
    return tuple(spelled_tokens(model.tokenizer, window.tolist()) for window in tokens)


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
