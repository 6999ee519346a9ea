"""The sentences of the experiment `why`."""

from math import isnan

from headscope.core import Headline
from headscope.experiments.why.causal_checks import PatchedRun, Sums
from headscope.experiments.why.tables import Explanation
from headscope.experiments.why.trigram_checks import LEAST_QUERIES, TrigramCheck
from headscope.experiments.why.words import percent, plural, signed
from headscope.maths.resampling.clustered_mean import Estimate


def headlines(explanation: Explanation) -> tuple[Headline, ...]:
    """The causal sentences of both sides, the effect on the logit, and what the arithmetic says of both sides."""
    sides = (explanation.keys, explanation.queries)
    lines = [
        *(_causal(explanation, sums) for sums in sides),
        _logit(explanation),
        *(_contrast(explanation, sums) for sums in sides),
        _trigrams(explanation),
    ]
    return tuple(line for line in lines if line is not None)


def _causal(explanation: Explanation, sums: Sums) -> Headline | None:
    """What the head does without its strongest writer on one side."""
    run = next((run for run in explanation.runs if run.side == sums.side), None)
    if run is None:
        return None
    label, target = explanation.terms.label, explanation.pairs.target
    side = plural(sums.side)
    wrote = "the embedding" if run.writer == "embed" else f"what {run.writer} wrote"
    lead = (
        f"Without {wrote} in its {side}, {label} puts {percent(run.mass)} instead of {percent(explanation.mass)} on "
        f"{target}"
    )
    return Headline(
        full=f"{lead}. {_means(explanation)}{_on_sequences(explanation, sums)}",
        short=f"{lead}.",
        effect=_effect(explanation, run),
        answer=f"{run.writer} → {side} of {label}",
        value=percent(run.mass),
        null=percent(explanation.mass),
        figure="circuit",
    )


def _of(writer: str) -> str:
    return "The embedding" if writer == "embed" else writer


def _effect(explanation: Explanation, run: PatchedRun) -> float:
    """The part of the mass that is gone."""
    return min(max(1 - run.mass / explanation.mass, 0.0), 1.0) if explanation.mass > 0 else 0.0


def _means(explanation: Explanation) -> str:
    """What the masses are, and that of a random key."""
    count, random = len(explanation.pairs.queries), percent(explanation.random_mass)
    if explanation.pairs.kind == "named":
        return f"This is query {int(explanation.pairs.queries[0])}; a random other key gets {random}."
    return f"These are means over {count} quer{'y' if count == 1 else 'ies'}; a random other key gets {random}."


def _on_sequences(explanation: Explanation, sums: Sums) -> str:
    """The same on further sequences, with intervals."""
    check = next((check for check in explanation.sequence_checks if check.side == sums.side), None)
    if check is None:
        return ""
    patched, unpatched = (_interval(check.interval(masses)) for masses in (check.patched, check.masses))
    return f" On {len(check.masses)} other sequences: {patched} instead of {unpatched}."


def _interval(estimate: Estimate) -> str:
    low, high = (percent(min(max(end, 0.0), 1.0)) for end in (estimate.low, estimate.high))
    return f"{percent(estimate.mean)} (95 % interval {low} to {high})"


def _contrast(explanation: Explanation, sums: Sums) -> Headline | None:
    """How much of the score the strongest writer makes, and what the pattern is without it and with it alone."""
    run = next((run for run in explanation.runs if run.side == sums.side), None)
    if run is None:
        return None
    index, label = sums.names.index(run.writer), explanation.terms.label
    other_masses = [float(mass) for number, mass in enumerate(sums.without) if number != index]
    contrast, total = signed(sums.contrast[index]), signed(sums.contrast.sum())
    lead = f"{_of(run.writer)} gives {contrast} of the {total} units of score in the {plural(sums.side)} of {label}"
    return Headline(
        full=f"{lead}: by so much this key exceeds the other keys{_left_out(explanation)}. For random earlier keys it "
        f"gives {signed(sums.null_low[index])} to {signed(sums.null_high[index])}. {_arithmetic(sums, index)}"
        f"{_others(other_masses)}",
        short=f"{lead}.",
        figure=f"{sums.side}_writers",
    )


def _left_out(explanation: Explanation) -> str:
    if not explanation.pairs.leaves_out_first:
        return ""
    return f" (without the first key, a sink with {percent(explanation.pairs.sink_mass)} of the mass)"


def _arithmetic(sums: Sums, index: int) -> str:
    return (
        f"Rebuilt at the scale of the text, the pattern puts {percent(float(sums.without[index]))} there without this "
        f"writer, and {percent(float(sums.alone[index]))} with it alone."
    )


def _others(masses: list[float]) -> str:
    if not masses:
        return ""
    return (
        f" Without any one of the {len(masses)} other writers it puts {percent(min(masses))} to "
        f"{percent(max(masses))} there."
    )


def _trigrams(explanation: Explanation) -> Headline | None:
    """How many of the trigrams of the weights occur, and in how many the head raises the target."""
    trigrams, label = explanation.trigrams, explanation.terms.label
    if trigrams is None or not trigrams.checks:
        return None
    checks = list(zip(trigrams.checks, explanation.trigram_pieces, strict=True))
    listed = [check for check, _ in checks if not check.occurs]
    occurring = [(check, pieces) for check, pieces in checks if check.occurs]
    absent = sum(not len(check.after_source) for check in listed)
    raised = sum(check.effect().low > 0 for check, _ in occurring)
    lead = f"Of {len(occurring)} skip trigrams of the text {label} raises the target of {raised} after their source"
    return Headline(
        full=f"{lead} (95 % interval over the queries above 0, against the mean output of the head). They are the "
        f"strongest by weights that have at least {LEAST_QUERIES} queries in {trigrams.text}, "
        f"{trigrams.windows.numel()} tokens. Of the {len(listed)} strongest of all pairs of its tokens that are not "
        f"among them, {absent} do not occur.{_example(occurring)}",
        short=f"{lead}.",
    )


def _example(checks: list[tuple[TrigramCheck, tuple[str, str, str]]]) -> str:
    """The trigram with the most queries, in numbers."""
    if not checks:
        return ""
    check, (source, query, target) = max(checks, key=lambda entry: len(entry[0].after_source))
    effect, elsewhere = check.effect(), check.effect_elsewhere()
    ends = "" if isnan(effect.low) else f" (95 % interval {signed(effect.low, 3)} to {signed(effect.high, 3)})"
    comparison = (
        "" if isnan(elsewhere.mean) else f", and {signed(elsewhere.mean, 3)} where the source did not come before"
    )
    return (
        f" The most frequent is {source!r} … {query!r} → {target!r}: over {len(check.after_source)} "
        f"quer{'y' if len(check.after_source) == 1 else 'ies'} the head changes the log-probability by "
        f"{signed(effect.mean, 3)} nats{ends}{comparison}."
    )


def _logit(explanation: Explanation) -> Headline | None:
    """What the head adds to the logit of the token at the key."""
    effect, label = explanation.effect, explanation.terms.label
    if effect is None:
        return None
    total = effect.logit - effect.ablated
    verb, change = ("falls", total) if total >= 0 else ("rises", -total)
    direct, on_others = signed(effect.direct, 2), signed(effect.on_other_tokens, 2)
    return Headline(
        full=f"{label} adds {direct} directly to the logit of the token at this key, and {on_others} on average to the "
        f"logits of the tokens at the other keys. Without the head, the logit of the token at this key {verb} by "
        f"{signed(change, 2)} to {signed(effect.ablated)}, with all that follows from it (logits minus their mean "
        "over all tokens).",
        short=f"{label} adds {direct} directly to the logit of the token it attends to; other tokens get {on_others}.",
        effect=None,
        answer=f"{label} → logit",
        value=direct,
        null=on_others,
        figure="circuit",
    )
