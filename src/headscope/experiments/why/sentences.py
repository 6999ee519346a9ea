"""The sentences of the experiment `why`."""

from torch import Tensor

from headscope.core import Headline
from headscope.experiments.why.causal_checks import PatchedRun, Sums
from headscope.experiments.why.tables import Explanation


def headlines(explanation: Explanation) -> tuple[Headline, ...]:
    """The causal sentence of the key side, that of the query side, and the effect on the logit."""
    lines = [_causal(explanation, explanation.keys), _causal(explanation, explanation.queries), _logit(explanation)]
    return tuple(line for line in lines if line is not None)


def _causal(explanation: Explanation, sums: Sums) -> Headline | None:
    """What the head does without its strongest writer on one side."""
    run = next((run for run in explanation.runs if run.side == sums.side), None)
    if run is None:
        return None
    index, label, target = sums.names.index(run.writer), explanation.terms.label, explanation.pairs.target
    side = "keys" if sums.side == "key" else "queries"
    wrote = "the embedding" if run.writer == "embed" else f"what {run.writer} wrote"
    other_masses = [float(mass) for number, mass in enumerate(sums.without) if number != index]
    lead = (
        f"Without {wrote} in its {side}, {label} puts {_percent(run.mass)} instead of {_percent(explanation.mass)} on "
        f"{target}"
    )
    full = (
        f"{lead}{_queries(explanation)}; a random other key gets {_percent(explanation.random_mass)}. "
        f"{_of(run.writer)} gives {_rounded(sums.contrast[index])} of the {_rounded(sums.contrast.sum())} units of "
        f"score by which this key exceeds the other keys{_left_out(explanation)}; for random earlier keys it gives "
        f"{_rounded(sums.null_low[index])} to {_rounded(sums.null_high[index])}. {_arithmetic(sums, index)}"
        f"{_others(other_masses)}"
    )
    return Headline(
        full=full,
        short=f"{lead}.",
        effect=_effect(explanation, run),
        answer=f"{run.writer} → {side} of {label}",
        value=_percent(run.mass),
        null=_percent(explanation.mass),
        figure="checks",
    )


def _of(writer: str) -> str:
    return "The embedding" if writer == "embed" else writer


def _rounded(value: float | Tensor, digits: int = 1) -> str:
    """A number with few decimals and a true minus sign; never minus zero."""
    return f"{round(float(value), digits) + 0.0:.{digits}f}".replace("-", "−")


def _effect(explanation: Explanation, run: PatchedRun) -> float:
    """The part of the mass that is gone."""
    return min(max(1 - run.mass / explanation.mass, 0.0), 1.0) if explanation.mass > 0 else 0.0


def _queries(explanation: Explanation) -> str:
    count = len(explanation.pairs.queries)
    if explanation.pairs.kind == "named":
        return f" from query {int(explanation.pairs.queries[0])}"
    return f" (mean over {count} quer{'y' if count == 1 else 'ies'})"


def _left_out(explanation: Explanation) -> str:
    if not explanation.pairs.leaves_out_first:
        return ""
    return f" (without the first key, a sink with {_percent(explanation.pairs.sink_mass)} of the mass)"


def _arithmetic(sums: Sums, index: int) -> str:
    return (
        f"Rebuilt at the scale of the text, the pattern puts {_percent(float(sums.without[index]))} there without this "
        f"writer, and {_percent(float(sums.alone[index]))} with it alone."
    )


def _others(masses: list[float]) -> str:
    if not masses:
        return ""
    return (
        f" Without any one of the {len(masses)} other writers it puts {_percent(min(masses))} to "
        f"{_percent(max(masses))} there."
    )


def _logit(explanation: Explanation) -> Headline | None:
    """What the head adds to the logit of the token at the key."""
    effect, label = explanation.effect, explanation.terms.label
    if effect is None:
        return None
    total = effect.logit - effect.ablated
    verb, change = ("falls", total) if total >= 0 else ("rises", -total)
    direct, on_others = _rounded(effect.direct, 2), _rounded(effect.on_other_tokens, 2)
    return Headline(
        full=f"{label} adds {direct} directly to the logit of the token at this key, and {on_others} on average to the "
        f"logits of the tokens at the other keys. Without the head, the logit of the token at this key {verb} by "
        f"{_rounded(change, 2)} to {_rounded(effect.ablated)}, with all that follows from it (logits minus their mean "
        "over all tokens).",
        short=f"{label} adds {direct} directly to the logit of the token it attends to; other tokens get {on_others}.",
        effect=None,
        answer=f"{label} → logit",
        value=direct,
        null=on_others,
        figure="checks",
    )


def _percent(mass: float) -> str:
    percent = 100 * mass
    return f"{percent:.0f} %" if percent >= 9.95 else f"{percent:.1f} %" if percent >= 0.05 else "less than 0.1 %"
