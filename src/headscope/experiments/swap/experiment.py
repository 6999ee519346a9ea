"""Swap: a plan by hand, from a file or by search, judged on text that nobody searched."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from headscope.core import Finding, Headline, Site, TextSpec
from headscope.corpora import text_of
from headscope.errors import UsageError
from headscope.experiments.experiment import Display, Experiment, Passage, short_table
from headscope.experiments.swap.aims import AIMS
from headscope.experiments.swap.decoding import Decoding, cache_warnings, decoding_speed
from headscope.experiments.swap.figures import figures
from headscope.experiments.swap.fitting import fitted
from headscope.experiments.swap.head_damage import head_damages
from headscope.experiments.swap.journal import journal_of
from headscope.experiments.swap.ladder import ladder
from headscope.experiments.swap.leak import ModelLeak, model_leak
from headscope.experiments.swap.material import Material, gather
from headscope.experiments.swap.quality import Quality, embedding_cosines, quality
from headscope.experiments.swap.recall import Recall, RecallBudget, recall, recall_budget
from headscope.experiments.swap.repair import Repair, repair_plan, repair_windows
from headscope.experiments.swap.repair_tables import gain_table, layer_table
from headscope.experiments.swap.rules import rules_of
from headscope.experiments.swap.search import Search
from headscope.experiments.swap.sentences import encoder_headlines, headlines
from headscope.experiments.swap.settings import COMMAND, Params, share_of
from headscope.experiments.swap.speed import prefill_speed
from headscope.experiments.swap.tables import (
    decoding_table,
    embedding_table,
    frontier_table,
    head_quantities,
    heads_table,
    quality_table,
    recall_table,
    speed_table,
)
from headscope.experiments.swap.yardstick import Perplexity, Yardstick, yardstick_of
from headscope.experiments.text_sample import split_parts, spread, windows_of
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
    "cosine": "cosine",
    "cosine_least": "least",
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
        yardstick = yardstick_of(model)
        ready = _ready_plan(model, params)
        if ready is not None and params.export:
            flex_source(ready, model)  # it refuses what cannot be exported, before anything is measured
        sizes = {"tokens": params.tokens, "windows": params.windows}
        text, searches = text_of(params.text), bool(params.budget)
        material = gather(model, text, params.lengths, searches=searches, fits=params.fit, **sizes)
        proposal = _searched(model, params, material, yardstick, progress) if ready is None else Proposal(ready)
        if params.fit:
            proposal = replace(proposal, plan=fitted(model, proposal.plan, material.fit, progress))
        proposal = _exported(model, params, _repaired(model, params, proposal, progress))
        if params.save:
            proposal.plan.write(params.save)
        judge = self._judged_writer if isinstance(yardstick, Perplexity) else self._judged_encoder
        return judge(model, params, material, proposal, progress), material.spec

    def _judged_writer(
        self, model: Model, params: Params, material: Material, proposal: Proposal, progress: Step
    ) -> Finding:
        """Judge by perplexity, recall and written text; nothing may leak from the future."""
        plan, speeds = proposal.plan, []
        by_length: dict[int, Quality] = {}
        repaired: dict[int, Quality] = {}
        decodings: list[Decoding | None] = []
        for length, windows in material.test.items():
            progress(f"{JUDGING} {length} tokens, part", 0, 3)
            by_length[length] = quality(model, replace(plan, repair=None) if proposal.repair else plan, windows)
            if proposal.repair:
                repaired[length] = quality(model, plan, windows)
            progress(f"{JUDGING} {length} tokens, part", 1, 3)
            speeds.append(prefill_speed(model, plan, windows[0], params.repeats, progress))
            progress(f"{JUDGING} {length} tokens, part", 2, 3)
            decodings.append(decoding_speed(model, plan, windows[0], params.repeats, progress))
            progress(f"{JUDGING} {length} tokens, part", 3, 3)
        progress(LEAK, 0, 1)
        leak = model_leak(model, plan, material.test[min(material.test)][0], params.seed)
        progress(LEAK, 1, 1)
        tables = {"quality": quality_table(by_length, repaired), "speed": speed_table(speeds)}
        if measured := [decoding for decoding in decodings if decoding is not None]:
            tables["decoding"] = decoding_table(measured)
        tables |= _plan_tables(model, material, proposal)
        if proposal.repair is not None:
            tables["repair"] = gain_table(by_length, repaired, proposal.repair)
            tables["repair_layers"] = layer_table(proposal.repair)
        outcomes, omissions = _recalled(model, plan, params, material, progress)
        if outcomes:
            tables["recall"] = recall_table(outcomes)
        tables["texts"] = _texts(model, plan, params, progress)
        sentences = headlines(tables, leak, material.tested_text.name)
        warnings = (*omissions, *cache_warnings(model, decodings), *_leak_warnings(leak))
        return self._finding(model, params, material, proposal, tables, sentences, warnings)

    def _judged_encoder(
        self, model: Model, params: Params, material: Material, proposal: Proposal, progress: Step
    ) -> Finding:
        """Judge by embeddings: an encoder predicts and writes nothing, and sees the whole text anyway."""
        plan, by_length, speeds = proposal.plan, {}, []
        for length, windows in material.test.items():
            by_length[length] = embedding_cosines(model, plan, windows, f"{JUDGING} {length} tokens, text", progress)
            speeds.append(prefill_speed(model, plan, windows[0], params.repeats, progress))
        tables = {"embeddings": embedding_table(by_length), "speed": speed_table(speeds)}
        tables |= _plan_tables(model, material, proposal)
        sentences = encoder_headlines(tables, material.tested_text.name)
        return self._finding(model, params, material, proposal, tables, sentences, ())

    def _finding(
        self,
        model: Model,
        params: Params,
        material: Material,
        proposal: Proposal,
        tables: dict[str, pl.DataFrame],
        sentences: tuple[Headline, ...],
        warnings: tuple[str, ...],
    ) -> Finding:
        return Finding(
            self.name,
            self.about,
            tables=tables,
            figures=figures(tables, model.sites, params.allowed),
            headlines=sentences,
            quantities=head_quantities(),
            method=_method(params, material, proposal),
            warnings=(*material.omissions, *proposal.warnings, *warnings),
            params=_stated_params(params, material, proposal.plan),
        )

    def show(self, finding: Finding) -> Display:
        """Quality with the speed-up, and what both write."""
        judged = finding.table.join(finding.tables["speed"], on=["tokens", "which"], how="left")
        table = short_table(judged, SHORT_NAMES)
        if "texts" not in finding.tables:
            return Display(table)
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


def _plan_tables(model: Model, material: Material, proposal: Proposal) -> dict[str, pl.DataFrame]:
    """The heads of the plan, and the plans that a search measured."""
    sites, search = model.sites, proposal.search
    tables = {"heads": heads_table(sites, proposal.plan.heads(sites), max(material.test))}
    if search is not None:
        tables["frontier"] = frontier_table(search, model)
    return tables


def _searched(model: Model, params: Params, material: Material, yardstick: Yardstick, progress: Step) -> Proposal:
    target = max(material.test)
    aim = AIMS[params.goal]
    by_site = {site: aim.candidates(site, len(material.fit[0]), target) for site in model.sites}
    if not any(by_site.values()):
        raise UsageError(
            f"there is nothing to search in {model.spec.name}: every site has scores with a bias, a softcap or sinks, "
            "or a window of its own",
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
        "text": "" if material.searched_text is None else material.searched_text.name,
        "windows": {str(length): len(windows) for length, windows in material.search.items()},
    }
    if second is not None:
        origin["recall"] = params.recall
    plan = Plan.for_model(model, search.ladder.rules(steps), origin)
    return Proposal(plan, search, warnings=_search_warnings(search, model.sites, by_site, steps))


def _repaired(model: Model, params: Params, proposal: Proposal, progress: Step) -> Proposal:
    """The plan with repaired weights, where a repair is asked for."""
    if not params.repair:
        return proposal
    text = split_parts(text_of(params.text))["fit"]
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
        warnings.append(f"{left_out} heads were not searched: their scores hold more than queries and keys.")
    if search.journal.n_known:
        warnings.append("Some plans were measured by an earlier search with the same weights and windows.")
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
        "for": params.goal.value if params.budget else None,
        "recall": params.recall or None,
        "fit": params.fit,
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
        f"Judged on {material.tested_text.name}: windows {counts}, evenly spread. Plan and original read the same "
        "ones; intervals are Student t over windows.",
        f"Prefills as in generation, or whole forwards of an encoder; original and plan in turns, {params.repeats} of "
        "each.",
    ]
    if proposal.repair is not None:
        sentences.append(
            f"Repaired on {proposal.repair.tokens} tokens of the split fit: W_Q, W_K and W_V of swapped heads by Adam, "
            "their W_O by least squares; every fourth window chose what each layer takes."
        )
    if proposal.search is not None:
        searched = " and ".join(f"{len(part)} of {length} tokens" for length, part in material.search.items())
        n_plans = len({tried.steps for tried in proposal.search.tried})
        sentences.append(
            f"Searched on windows of the split search: {searched}; predicted damages from {len(material.fit)} windows "
            f"of the split fit. {n_plans} plans were measured."
        )
        if proposal.search.recall is not None:
            sentences.append(
                f"Recall was a second budget: {len(proposal.search.recall.trials)} facts in texts of search."
            )
    return " ".join(sentences)
