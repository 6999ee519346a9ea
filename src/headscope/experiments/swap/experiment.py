"""Swap: a plan by hand, from a file or by search, judged on text that nobody searched."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from headscope.core import Finding, Site, TextSpec
from headscope.corpora import text_of
from headscope.errors import UsageError
from headscope.experiments.experiment import Display, Experiment, Passage, short_table
from headscope.experiments.swap.candidates import candidates, full_pairs
from headscope.experiments.swap.figures import figures
from headscope.experiments.swap.head_damage import head_damages
from headscope.experiments.swap.ladder import ladder
from headscope.experiments.swap.leak import ModelLeak, model_leak
from headscope.experiments.swap.material import Material, gather, split_texts
from headscope.experiments.swap.quality import Quality, quality
from headscope.experiments.swap.recall import Recall, recall
from headscope.experiments.swap.repair import Repair, repair_plan, repair_windows
from headscope.experiments.swap.repair_tables import gain_table, layer_table
from headscope.experiments.swap.rules import rules_of
from headscope.experiments.swap.search import Search
from headscope.experiments.swap.sentences import headlines
from headscope.experiments.swap.settings import COMMAND, Params
from headscope.experiments.swap.speed import prefill_speed
from headscope.experiments.swap.tables import (
    frontier_table,
    head_quantities,
    heads_table,
    quality_table,
    recall_table,
    speed_table,
)
from headscope.experiments.text_sample import spread, windows_of
from headscope.model.language import predicts_next_token
from headscope.model.model import Model
from headscope.model.plans.applied_plan import apply
from headscope.model.plans.flex_export import flex_source, write_flex_module
from headscope.model.plans.plan import Plan
from headscope.progress import Step

JUDGING = "judging the plan at"
WRITING = "writing a sample, text"
TEXTS = 3  # in which each fact is hidden at each depth
LEAK = "checking for leaks, window"
SHORT_NAMES = {
    "tokens": "tokens",
    "which": "which",
    "perplexity": "perplexity",
    "ratio": "ratio",
    "ratio_low": "low",
    "ratio_high": "high",
    "speedup": "speed-up",
    "kl": "kl",
    "agreement": "same token",
}


@dataclass(frozen=True)
class Proposal:
    """A plan, and the search that found it."""

    plan: Plan
    search: Search | None = None
    repair: Repair | None = None  # whose weights the plan has
    warnings: tuple[str, ...] = ()


class Swap(Experiment[Params]):
    """Cheaper mechanisms in some heads: quality lost and speed gained.

    Properties:
        - a window that sees everything changes nothing  (tested: test_a_wide_window_costs_nothing)
        - search and judgement share no document  (tested: test_splits_share_no_document)
        - the model is as it was  (tested: test_the_model_is_as_it_was)
    """

    name = "swap"
    command = COMMAND.path
    params = Params
    keeps_threads = True

    def run(self, model: Model, params: Params, progress: Step) -> tuple[Finding, TextSpec]:
        """Make the plan, then judge it on the split `test`."""
        self.check(params)
        if not predicts_next_token(model):
            raise UsageError(f"a swap is judged by perplexity, and {model.spec.name} predicts no next token")
        ready = _ready_plan(model, params)
        if ready is not None and params.export:
            flex_source(ready, model)  # it refuses what cannot be exported, before anything is measured
        sizes = {"tokens": params.tokens, "windows": params.windows}
        material = gather(model, text_of(params.text), params.lengths, searches=bool(params.budget), **sizes)
        proposal = _searched(model, params, material, progress) if ready is None else Proposal(ready)
        proposal = _exported(model, params, _repaired(model, params, proposal, progress))
        if params.save:
            proposal.plan.write(params.save)
        return self._judged(model, params, material, proposal, progress), material.spec

    def _judged(self, model: Model, params: Params, material: Material, proposal: Proposal, progress: Step) -> Finding:
        plan, speeds = proposal.plan, []
        by_length: dict[int, Quality] = {}
        repaired: dict[int, Quality] = {}
        for length, windows in material.test.items():
            progress(f"{JUDGING} {length} tokens, part", 0, 2)
            by_length[length] = quality(model, replace(plan, repair=None) if proposal.repair else plan, windows)
            if proposal.repair:
                repaired[length] = quality(model, plan, windows)
            progress(f"{JUDGING} {length} tokens, part", 1, 2)
            speeds.append(prefill_speed(model, plan, windows[0], params.repeats, progress))
            progress(f"{JUDGING} {length} tokens, part", 2, 2)
        progress(LEAK, 0, 1)
        leak = model_leak(model, plan, material.test[min(material.test)][0], params.seed)
        progress(LEAK, 1, 1)
        target = max(material.test)
        tables = {
            "quality": quality_table(by_length, repaired),
            "speed": speed_table(speeds),
            "heads": heads_table(model.sites, plan.heads(model.sites), target),
        }
        if proposal.repair is not None:
            tables["repair"] = gain_table(by_length, repaired, proposal.repair)
            tables["repair_layers"] = layer_table(proposal.repair)
        outcomes, omissions = _recalled(model, plan, params, material, progress)
        if outcomes:
            tables["recall"] = recall_table(outcomes)
        tables["texts"] = _texts(model, plan, params, progress)
        if proposal.search is not None:
            tables["frontier"] = frontier_table(proposal.search.tried)
        return Finding(
            self.name,
            self.about,
            tables=tables,
            figures=figures(tables, model.sites, params.allowed),
            headlines=headlines(tables, leak, material.tested_text.name),
            quantities=head_quantities(),
            method=_method(params, material, proposal),
            warnings=(*material.omissions, *omissions, *proposal.warnings, *_leak_warnings(leak)),
            params=_stated_params(params, material, plan),
        )

    def show(self, finding: Finding) -> Display:
        """Quality with the speed-up, and what both write."""
        judged = finding.tables["quality"].join(finding.tables["speed"], on=["tokens", "which"], how="left")
        table = short_table(judged, SHORT_NAMES)
        texts = finding.tables["texts"]
        written = tuple(zip(texts["which"], texts["text"], strict=True))
        return Display(table, (Passage(texts["prompt"][0], written),))


EXPERIMENT = Swap()


def _ready_plan(model: Model, params: Params) -> Plan | None:
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


def _searched(model: Model, params: Params, material: Material, progress: Step) -> Proposal:
    searched, target = len(material.search[0]), max(material.test)
    by_site = {site: candidates(site, len(material.fit[0]), target) for site in model.sites}
    if not any(by_site.values()):
        raise UsageError(
            f"there is nothing to search in {model.spec.name}: every site has scores with a bias, a softcap or sinks, "
            "or a window of its own",
            hint="replace heads by hand: --replace 'L0=window(left=256)'",
        )
    full = {site: full_pairs(site, target) for site in model.sites}
    damages = head_damages(model, material.fit, by_site, params.seed, progress)
    search = Search(
        model,
        ladder(by_site, damages, full),
        material.search,
        params.allowed,
        sum(full[site] * site.n_heads for site in model.sites),
        params.minutes * 60,
    )
    steps = search.run(progress)
    origin = {
        "by": "search",
        "budget": params.budget,
        "text": f"{material.tested_text.name.removesuffix(':test')}:search",
        "tokens": searched,
        "windows": len(material.search),
    }
    plan = Plan.for_model(model, search.ladder.rules(steps), origin)
    return Proposal(plan, search, warnings=_search_warnings(search, model.sites, by_site, steps))


def _repaired(model: Model, params: Params, proposal: Proposal, progress: Step) -> Proposal:
    """The plan with repaired weights, where a repair is asked for."""
    if not params.repair:
        return proposal
    text = split_texts(text_of(params.text))["fit"]
    windows = repair_windows(model, text, params.tokens, params.repair)
    repair = repair_plan(model, proposal.plan, windows, progress)
    origin = {**proposal.plan.origin, "repair": {"text": text.name, "tokens": repair.tokens, "window": len(windows[0])}}
    return replace(proposal, plan=replace(proposal.plan, repair=repair.weights, origin=origin), repair=repair)


def _exported(model: Model, params: Params, proposal: Proposal) -> Proposal:
    """The plan, written as mask functions; a refusal does not lose the plan."""
    if not params.export:
        return proposal
    try:
        write_flex_module(proposal.plan, model, _export_file(params))
    except UsageError as refusal:
        return replace(proposal, warnings=(*proposal.warnings, f"Not exported: {refusal.message}"))
    return proposal


def _export_file(params: Params) -> Path:
    """The file for mask functions: `flex` names it after the plan, next to it."""
    plan = Path(params.save or params.plan or "plan.json")
    return plan.with_name(f"{plan.stem}_flex.py") if params.export == "flex" else Path(params.export)


def _search_warnings(
    search: Search, sites: Sequence[Site], by_site: Mapping[Site, Sequence[object]], steps: int
) -> tuple[str, ...]:
    warnings = []
    if not search.is_complete:
        warnings.append("The search ended for lack of time, with its best plan so far: --minutes gives it more.")
    left_out = sum(site.n_heads for site in sites if not by_site[site])
    if left_out:
        warnings.append(f"{left_out} heads were not searched: their scores hold more than queries and keys.")
    if steps == 0:
        narrowest = min(search.tried, key=lambda tried: tried.steps)
        ratio = narrowest.quality.ratio
        half = (ratio.high - ratio.low) / 2
        needed = len(search.windows) * (half / search.allowed) ** 2 * 4
        if half > search.allowed / 2:
            warnings.append(
                f"No plan is shown to be within the budget: the interval is ± {100 * half:.2f} % wide over "
                f"{len(search.windows)} windows. About {needed:.0f} windows would resolve the budget."
            )
    return tuple(warnings)


def _leak_warnings(leak: ModelLeak) -> tuple[str, ...]:
    return () if leak.is_clean else ("The plan looks ahead.",)


def _recalled(
    model: Model, plan: Plan, params: Params, material: Material, progress: Step
) -> tuple[list[Recall], tuple[str, ...]]:
    """Facts hidden in the text of the judgement, and at which lengths they could not be hidden."""
    outcomes: list[Recall] = []
    omissions: list[str] = []
    text, context = material.tested_text, model.spec.context
    for n in params.recall_lengths:
        windows = windows_of(model, text, n) if context is None or n <= context else None
        if windows is None:
            omissions.append(f"No recall at {n} tokens: the context of {model.spec.name} has {context}.")
        elif not len(windows.full):
            omissions.append(f"No recall at {n} tokens: {text.name} has {windows.n_tokens}.")
        else:
            outcomes += recall(model, plan, n, spread(windows, TEXTS), params.seed, progress)
    return outcomes, tuple(omissions)


def _texts(model: Model, plan: Plan, params: Params, progress: Step) -> pl.DataFrame:
    """What the model writes after the prompt, without the plan and with it."""
    progress(WRITING, 0, 2)
    original = model.generate(params.prompt, max_new_tokens=params.new_tokens)
    progress(WRITING, 1, 2)
    with apply(plan, model):
        swapped = model.generate(params.prompt, max_new_tokens=params.new_tokens)
    progress(WRITING, 2, 2)
    texts = [text.replace("\n", "↵") for text in (original, swapped)]
    return pl.DataFrame({"prompt": [params.prompt] * 2, "which": ["original", "plan"], "text": texts})


def _stated_params(params: Params, material: Material, plan: Plan) -> dict[str, str | int | float | bool | None]:
    return {
        "replace": "; ".join(f"{heads}={mechanism}" for mechanism, heads in plan.replace.items()),
        "plan": params.plan or None,
        "budget": params.budget or None,
        "repair": params.repair or None,
        "export": str(_export_file(params)) if params.export else None,
        "tokens": params.tokens,
        "windows": params.windows,
        "lengths": ",".join(map(str, material.test)),
        "seed": params.seed,
    }


def _method(params: Params, material: Material, proposal: Proposal) -> str:
    counts = ", ".join(f"{len(windows)} of {length} tokens" for length, windows in material.test.items())
    sentences = [
        f"Judged on {material.tested_text.name}: windows {counts}, evenly spread. Each token but the first of a window "
        "is scored once; ratio and KL are paired with the original, intervals are Student t over windows.",
        f"Prefills with a cache and one token's logits, original and plan in turns, {params.repeats} of each.",
    ]
    if proposal.repair is not None:
        sentences.append(
            f"Repaired on {proposal.repair.tokens} tokens of the split fit: W_Q, W_K and W_V of swapped heads by Adam, "
            "their W_O by least squares; every fourth window chose what each layer takes."
        )
    if proposal.search is not None:
        sentences.append(
            f"Searched on {len(material.search)} windows of {len(material.search[0])} tokens of the split search; "
            f"predicted damages from {len(material.fit)} windows of the split fit. "
            f"{len(proposal.search.tried)} plans were measured."
        )
    return " ".join(sentences)
