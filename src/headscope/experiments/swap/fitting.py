"""Fits the mechanisms of a plan to the heads that get them, layer by layer.

The rule of a plan says how many columns or global positions a mechanism has; the head's own queries, keys and values
say which suit it. They are captured with the plan in place in the layers before, so that a head is fitted to what it
will be given.
"""

from collections.abc import Sequence

from headscope.attention.call import Call
from headscope.attention.mechanism import Mechanism
from headscope.attention.mechanism_spelling import spelled, spelling_of
from headscope.core import Site
from headscope.core.selection import selection_text
from headscope.experiments.swap.head_damage import call_of
from headscope.experiments.text_sample import Tokens
from headscope.model.model import Model
from headscope.model.plans.applied_plan import apply
from headscope.model.plans.plan import Plan
from headscope.progress import Step

TASK = "fitting mechanisms to their heads, site"


def fitted(model: Model, plan: Plan, windows: Sequence[Tokens], step: Step) -> Plan:
    """The plan with the parameters of every head's mechanism fitted to that head.

    Properties:
        - a planted column is found  (tested: test_a_fit_finds_a_planted_column)
        - the heads stay the same  (tested: test_a_fit_keeps_the_heads)
    """
    mechanisms = {
        (site, head): spelled(spelling)
        for spelling, heads_by_site in plan.heads(model.sites).items()
        for site, heads in heads_by_site.items()
        for head in heads
    }
    for index, site in enumerate(model.sites):
        step(TASK, index, len(model.sites))
        heads = [head for head in range(site.n_heads) if (site, head) in mechanisms]
        if heads:
            behind = model.sites[index + 1].label if index + 1 < len(model.sites) else None
            calls = _calls(model, Plan(_rules(mechanisms)), site, windows, behind)
            for head in heads:
                mechanisms[site, head] = mechanisms[site, head].fit([call.heads((head,)) for call in calls])
    step(TASK, len(model.sites), len(model.sites))
    return Plan(_rules(mechanisms), plan.model, {**plan.origin, "fitted": True})


def _rules(mechanisms: dict[tuple[Site, int], Mechanism]) -> dict[str, str]:
    heads_by_mechanism: dict[str, dict[Site, list[int]]] = {}
    for (site, head), mechanism in mechanisms.items():
        heads_by_mechanism.setdefault(spelling_of(mechanism), {}).setdefault(site, []).append(head)
    return {spelling: selection_text(heads) for spelling, heads in sorted(heads_by_mechanism.items())}


def _calls(model: Model, plan: Plan, site: Site, windows: Sequence[Tokens], behind: str | None) -> list[Call]:
    """The calls of a site, one for each window, with the plan in place; the forward ends where `behind` begins."""
    calls = []
    for tokens in windows:
        with apply(plan, model), model.session() as session:
            inputs = session.capture("q", "k", "v", "scale", at=site.label)
            session.run(tokens[None], head=False, stop_at=behind)
            calls.append(call_of(site, inputs.take()))
    return calls
