"""Ask a lens as the pipeline does, without a pipeline: a finding from a state, or from weights alone."""

from collections.abc import Iterable, Sequence
from typing import Any

from headscope.core import Finding, ModelSpec, Site, WeightSource
from headscope.lenses.lens import AnyLens, Batch, NotApplicable, TextLens, TextSize
from headscope.pipeline.fold import is_shown
from headscope.pipeline.outcome import finding_of, measurement_of, not_applicable
from headscope.pipeline.questions import Question
from headscope.pipeline.site_assembly import STATISTICS, SiteAssembly, expected_parts
from headscope.pipeline.text_pass import restricted

SIZE = TextSize(windows=32, tokens_per_window=512)


def begin(lens: AnyLens, params: Any, spec: ModelSpec, sites: tuple[Site, ...], text: TextSize = SIZE) -> Any:
    """The state before the first batch; a lens that reads weights alone has none but its parameters."""
    return lens.start(params, spec, sites, text) if isinstance(lens, TextLens) else params


def update(lens: AnyLens, state: Any, batch: Batch) -> Any:
    """The state after one more batch, if the lens is shown batches of this kind."""
    if not isinstance(lens, TextLens) or not is_shown(batch, lens.needs(state.params)):
        return state
    return lens.update(state, batch)


def assembled(lens: AnyLens, params: Any, sites: Sequence[Site], pieces: Sequence[Batch]) -> Iterable[Batch]:
    """What the pipeline hands over of the pieces of one forward: whole sites."""
    needs = lens.needs(params)
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


def merge(lens: AnyLens, a: Any, b: Any) -> Any:
    """The state after the text of both."""
    return lens.merge(a, b) if isinstance(lens, TextLens) else a


def finish(lens: AnyLens, state: Any, weights: WeightSource | None) -> Finding:
    """The finding, as the pipeline makes it."""
    params = state.params if isinstance(lens, TextLens) else state
    question = Question(lens, params)
    try:
        return finding_of(question, measurement_of(question, state, weights))
    except NotApplicable as reason:
        return not_applicable(question, reason.message, reason.warnings)


def defined(lens: AnyLens, params: Any, weights: WeightSource | None, batches: Any) -> dict[str, Any]:
    """The tables of the definition."""
    if isinstance(lens, TextLens):
        return lens.definition(params, weights, batches)
    return lens.definition(params, weights)
