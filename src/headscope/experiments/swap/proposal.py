"""Where a plan comes from: written by hand, read from a file or searched; then fitted to its heads and repaired."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headscope.core import Site
from headscope.corpora import text_of
from headscope.errors import UsageError
from headscope.experiments.swap.aims import AIMS
from headscope.experiments.swap.fitting import fitted
from headscope.experiments.swap.head_damage import head_damages
from headscope.experiments.swap.journal import journal_of
from headscope.experiments.swap.ladder import ladder
from headscope.experiments.swap.material import Material
from headscope.experiments.swap.recall import TEXTS, RecallBudget, recall_budget
from headscope.experiments.swap.repair import Repair, repair_plan, repair_windows
from headscope.experiments.swap.rules import rules_of
from headscope.experiments.swap.search import Search
from headscope.experiments.swap.settings import Params, share_of
from headscope.experiments.swap.yardstick import Yardstick
from headscope.experiments.text_sample import split_parts, spread, windows_of
from headscope.model.built_in_mechanisms import heads_by_built_in_mechanism
from headscope.model.language import predicts_next_token
from headscope.model.model import Model
from headscope.model.plans.plan import Plan
from headscope.progress import Step


@dataclass(frozen=True)
class Proposal:
    """A plan, and the search that found it."""

    plan: Plan
    search: Search | None = None
    repair: Repair | None = None  # whose weights the plan has
    warnings: tuple[str, ...] = ()


def ready_plan(model: Model, params: Params) -> Plan | None:
    """The plan by hand or from a file; None where one is searched.

    Raises:
        UsageError: It does not fit the model.
    """
    if params.replace:
        return Plan.for_model(model, rules_of(params.replace), {"by": "hand"})
    if not params.plan:
        return None
    plan = Plan.read(params.plan)
    plan.check_model(model)
    plan.heads(model.sites)
    return plan


def propose(
    model: Model, params: Params, material: Material, ready: Plan | None, yardstick: Yardstick, progress: Step
) -> Proposal:
    """The plan that will be judged: the ready one or a searched one, fitted and repaired where that is asked for."""
    proposal = _searched(model, params, material, yardstick, progress) if ready is None else Proposal(ready)
    if params.fit:
        proposal = replace(proposal, plan=fitted(model, proposal.plan, material.fit, progress))
    return _repaired(model, params, proposal, progress)


def _searched(model: Model, params: Params, material: Material, yardstick: Yardstick, progress: Step) -> Proposal:
    target = max(material.test)
    aim = AIMS[params.goal]
    searched = max(map(len, material.fit))
    # Damages are those of dense heads: a site that was built with mechanisms stays as it is.
    dense = heads_by_built_in_mechanism(model.hf, model.sites).get(None, {})
    by_site = {
        site: aim.candidates(site, searched, target, params.mechanisms)
        if len(dense.get(site, ())) == site.n_heads
        else ()
        for site in model.sites
    }
    if not any(by_site.values()):
        raise UsageError(
            f"there is nothing to search in {model.spec.name}: every site has scores with a bias, a softcap or sinks, "
            "a window of its own, or mechanisms that the network was built with",
            hint="replace heads by hand: --replace 'L0=window(left=256)'",
        )
    full = {site: aim.full(site, target) for site in model.sites}
    units = {site: aim.units(site) for site in model.sites}
    second = _recall_budget(model, params, material, progress)
    damages = head_damages(model, material.fit, by_site, yardstick, params.seed, progress)
    search = Search(
        model,
        ladder(by_site, damages, full, units),
        material.search,
        params.allowed,
        yardstick,
        params.minutes * 60,
        journal_of(model, yardstick.name),
        second,
    )
    steps = search.run(progress)
    origin = {
        "by": "search",
        "budget": params.budget,
        "for": params.goal.value,
        "parts": [{"text": part.text, "tokens": part.tokens, "windows": len(part.windows)} for part in material.search],
    }
    if second is not None:
        origin["recall"] = params.recall
    plan = Plan.for_model(model, search.ladder.rules(steps), origin)
    return Proposal(plan, search, warnings=_search_warnings(search, model.sites, by_site, steps))


def _repaired(model: Model, params: Params, proposal: Proposal, progress: Step) -> Proposal:
    """The plan with repaired weights, where a repair is asked for."""
    if not params.repair:
        return proposal
    if not predicts_next_token(model):
        raise UsageError(f"a repair is judged by perplexity, and {model.spec.name} predicts no next token")
    text = split_parts(text_of(params.text))["fit"]
    windows = repair_windows(model, text, params.tokens, params.repair)
    repair = repair_plan(model, proposal.plan, windows, progress)
    origin = {**proposal.plan.origin, "repair": {"text": text.name, "tokens": repair.tokens, "window": len(windows[0])}}
    return replace(proposal, plan=replace(proposal.plan, repair=repair.weights, origin=origin), repair=repair)


def _recall_budget(model: Model, params: Params, material: Material, progress: Step) -> RecallBudget | None:
    """The second budget, asked in texts of the split `search`; None where there is none."""
    if not params.recall:
        return None
    if material.searched_text is None or not predicts_next_token(model):
        raise UsageError(f"recall is asked of models that predict the next token, which {model.spec.name} does not")
    cuts = {n: windows_of(model, material.searched_text, n) for n in params.recall_lengths}
    fillers = {n: spread(cut, TEXTS) for n, cut in cuts.items() if len(cut.full)}
    return recall_budget(model, fillers, share_of(params.recall), params.seed, progress)


def _search_warnings(
    search: Search, sites: Sequence[Site], by_site: Mapping[Site, Sequence[object]], steps: int
) -> tuple[str, ...]:
    warnings = []
    if not search.is_complete:
        warnings.append("The search ended for lack of time, with its best plan so far: --minutes gives it more.")
    left_out = sum(site.n_heads for site in sites if not by_site[site])
    if left_out:
        warnings.append(
            f"{left_out} heads were not searched: their scores hold more than queries and keys, or the network was "
            "built with mechanisms in their layer."
        )
    if search.journal.n_known:
        warnings.append(
            "Earlier searches left measurements of these weights: plans were not measured twice on a window."
        )
    if steps == 0 and search.tried:
        narrowest = min(search.tried, key=lambda tried: tried.steps)
        half = (narrowest.loss.high - narrowest.loss.low) / 2
        needed = narrowest.windows * (half / search.allowed) ** 2 * 4
        if half > search.allowed / 2:
            warnings.append(
                f"No plan is shown to be within the budget: the interval is ± {100 * half:.2f} % wide over "
                f"{narrowest.windows} windows of {narrowest.tokens} tokens. About {needed:.0f} windows would resolve "
                "the budget."
            )
    return tuple(warnings)
