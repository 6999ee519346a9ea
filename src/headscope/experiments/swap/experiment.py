"""Swap: a plan by hand, from a file or by search, judged on text that nobody searched."""

from dataclasses import replace
from pathlib import Path

from headscope.core import Finding, TextSpec
from headscope.corpora import text_of
from headscope.corpora.text_argument import spelled_text
from headscope.errors import UsageError
from headscope.experiments.experiment import Display, Experiment, Passage, short_table
from headscope.experiments.swap.figures import figures
from headscope.experiments.swap.judgement import judged
from headscope.experiments.swap.material import Material, gather
from headscope.experiments.swap.proposal import Proposal, propose, ready_plan
from headscope.experiments.swap.settings import COMMAND, Params
from headscope.experiments.swap.tables import head_quantities
from headscope.experiments.swap.yardstick import yardstick_of
from headscope.model.model import Model
from headscope.model.plans.flex_export import flex_source, write_flex_module
from headscope.model.plans.plan import Plan
from headscope.progress import Step

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
        ready = ready_plan(model, params)
        if ready is not None and params.export:
            flex_source(ready, model)  # it refuses what cannot be exported, before anything is measured
        sizes = {"tokens": params.tokens, "windows": params.windows}
        texts = [text_of(params.text), *map(spelled_text, params.also)]
        material = gather(model, texts, params.lengths, searches=bool(params.budget), fits=params.fit, **sizes)
        proposal = _exported(model, params, propose(model, params, material, ready, yardstick, progress))
        if params.save:
            proposal.plan.write(params.save)
        judgement = judged(model, params, material, proposal, yardstick, progress)
        finding = Finding(
            self.name,
            self.about,
            tables=judgement.tables,
            figures=figures(judgement.tables, model.sites, params.allowed),
            headlines=judgement.headlines,
            quantities=head_quantities(),
            method=_method(params, material, proposal),
            warnings=(*material.omissions, *proposal.warnings, *judgement.warnings),
            params=_stated_params(params, material, proposal.plan),
        )
        return finding, material.spec

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


def _stated_params(params: Params, material: Material, plan: Plan) -> dict[str, str | int | float | bool | None]:
    return {
        "replace": "; ".join(f"{heads}={mechanism}" for mechanism, heads in plan.replace.items()),
        "plan": params.plan or None,
        "budget": params.budget or None,
        "for": params.goal.value if params.budget else None,
        "also": ",".join(params.also) or None,
        "try": "; ".join(params.mechanisms) or None,
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
        searched = ", ".join(f"{len(part.windows)} of {part.tokens} tokens of {part.text}" for part in material.search)
        n_plans = len({tried.steps for tried in proposal.search.tried})
        sentences.append(
            f"Searched on windows: {searched}; predicted damages from {len(material.fit)} windows "
            f"of the split fit. {n_plans} plans were measured."
        )
        if proposal.search.recall is not None:
            sentences.append(
                f"Recall was a second budget: {len(proposal.search.recall.trials)} facts in texts of search."
            )
    return " ".join(sentences)
