"""Ask a lens as the pipeline does, without a pipeline: a finding from a fold over batches, or from weights alone."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headscope.core import Finding, ModelSpec, Site, WeightSource
from headscope.lenses.lens import AnyLens, Batch, NotApplicable, TextLens, TextSize
from headscope.pipeline.fold import is_shown
from headscope.pipeline.outcome import finding_of, measurement_of, not_applicable
from headscope.pipeline.questions import Question
from headscope.pipeline.site_assembly import STATISTICS, SiteAssembly, expected_parts
from headscope.pipeline.text_pass import restricted

SIZE = TextSize(windows=32, tokens_per_window=512)


@dataclass(frozen=True)
class Fold:
    """The settings of a lens, and its state so far: None for a lens that reads weights alone."""

    params: Any
    state: Any = None


def begin(lens: AnyLens, params: Any, spec: ModelSpec, sites: tuple[Site, ...], text: TextSize = SIZE) -> Fold:
    """The fold before the first batch."""
    return Fold(params, lens.start(params, spec, sites, text) if isinstance(lens, TextLens) else None)


def update(lens: AnyLens, fold: Fold, batch: Batch) -> Fold:
    """The fold after one more batch, if the lens is shown batches of this kind."""
    if not isinstance(lens, TextLens) or not is_shown(batch, lens.needs(fold.params)):
        return fold
    return replace(fold, state=lens.update(fold.state, batch))


def assembled(lens: AnyLens, params: Any, sites: Sequence[Site], pieces: Sequence[Batch]) -> Iterable[Batch]:
    """What the pipeline hands over of the pieces of one forward: whole sites."""
    needs = lens.needs(params).of_batch(0)
    shown_at = {name: set[Site]() for name in needs.captures | needs.welcome}
    for piece in pieces:
        for name in shown_at.keys() & piece.captures.keys():
            shown_at[name].update(piece.captures[name])
    names = {name for name in shown_at if shown_at[name]} | ({STATISTICS} if needs.statistics is not None else set())
    assembly = SiteAssembly(expected_parts(sites, names, shown_at), piecewise=needs.pieces)
    for place, piece in enumerate(pieces, start=1):
        batch = assembly.add(restricted(piece, needs), over=place == len(pieces))
        if batch is not None:
            yield batch


def merge(lens: AnyLens, a: Fold, b: Fold) -> Fold:
    """The fold after the text of both."""
    return replace(a, state=lens.merge(a.state, b.state)) if isinstance(lens, TextLens) else a


def finish(lens: AnyLens, fold: Fold, weights: WeightSource | None) -> Finding:
    """The finding, as the pipeline makes it."""
    question = Question(lens, fold.params)
    try:
        return finding_of(question, measurement_of(question, fold.state, weights))
    except NotApplicable as reason:
        return not_applicable(question, reason.message, reason.warnings)


def defined(lens: AnyLens, params: Any, weights: WeightSource | None, batches: Any) -> dict[str, Any]:
    """The tables of the definition."""
    if isinstance(lens, TextLens):
        return lens.definition(params, weights, batches)
    return lens.definition(params, weights)
