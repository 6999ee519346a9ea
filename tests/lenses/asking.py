"""Ask a lens as the pipeline does, without a pipeline: a finding from a state, or from weights alone."""

from typing import Any

from headscope.core import Finding, ModelSpec, Site, WeightSource
from headscope.lenses.lens import AnyLens, Batch, NotApplicable, TextLens, TextSize
from headscope.pipeline.outcome import finding_of, measurement_of, not_applicable
from headscope.pipeline.questions import Question

SIZE = TextSize(windows=32, tokens_per_window=512)


def begin(lens: AnyLens, params: Any, spec: ModelSpec, sites: tuple[Site, ...], text: TextSize = SIZE) -> Any:
    """The state before the first batch; a lens that reads weights alone has none but its parameters."""
    return lens.start(params, spec, sites, text) if isinstance(lens, TextLens) else params


def update(lens: AnyLens, state: Any, batch: Batch) -> Any:
    """The state after one more batch."""
    return lens.update(state, batch) if isinstance(lens, TextLens) else state


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
