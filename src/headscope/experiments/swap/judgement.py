"""Judges a plan next to the original, on the split `test`: quality, time, memory, and what may not happen."""

from dataclasses import dataclass, replace

import polars as pl

from headscope.core import Headline
from headscope.experiments.swap.decoding import Decoding, cache_warnings, decoding_speed
from headscope.experiments.swap.leak import ModelLeak, model_leak
from headscope.experiments.swap.material import Material
from headscope.experiments.swap.proposal import Proposal
from headscope.experiments.swap.quality import Quality, embedding_cosines, quality
from headscope.experiments.swap.recall import TEXTS, Recall, recall
from headscope.experiments.swap.repair_tables import gain_table, layer_table
from headscope.experiments.swap.sentences import encoder_headlines, headlines
from headscope.experiments.swap.settings import Params
from headscope.experiments.swap.speed import prefill_speed
from headscope.experiments.swap.tables import (
    decoding_table,
    embedding_table,
    frontier_table,
    heads_table,
    quality_table,
    recall_table,
    speed_table,
)
from headscope.experiments.swap.yardstick import Perplexity, Yardstick
from headscope.experiments.text_sample import spread, windows_of
from headscope.model.model import Model
from headscope.model.plans.applied_plan import apply
from headscope.model.plans.plan import Plan
from headscope.progress import Step

JUDGING = "judging the plan at"
WRITING = "writing a sample, text"
LEAK = "checking for leaks, window"


@dataclass(frozen=True)
class Judgement:
    """What was measured of a plan, and the sentences that say so."""

    tables: dict[str, pl.DataFrame]
    headlines: tuple[Headline, ...]
    warnings: tuple[str, ...] = ()


def judged(
    model: Model, params: Params, material: Material, proposal: Proposal, yardstick: Yardstick, progress: Step
) -> Judgement:
    """Judge a plan by the yardstick of its model; the main table comes first."""
    judge = _judged_writer if isinstance(yardstick, Perplexity) else _judged_encoder
    return judge(model, params, material, proposal, progress)


def _judged_writer(model: Model, params: Params, material: Material, proposal: Proposal, progress: Step) -> Judgement:
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
    return Judgement(tables, sentences, warnings)


def _judged_encoder(model: Model, params: Params, material: Material, proposal: Proposal, progress: Step) -> Judgement:
    """Judge by embeddings: an encoder predicts and writes nothing, and sees the whole text anyway."""
    plan, by_length, speeds = proposal.plan, {}, []
    for length, windows in material.test.items():
        by_length[length] = embedding_cosines(model, plan, windows, f"{JUDGING} {length} tokens, text", progress)
        speeds.append(prefill_speed(model, plan, windows[0], params.repeats, progress))
    tables = {"embeddings": embedding_table(by_length), "speed": speed_table(speeds)}
    tables |= _plan_tables(model, material, proposal)
    sentences = encoder_headlines(tables, material.tested_text.name)
    return Judgement(tables, sentences)


def _plan_tables(model: Model, material: Material, proposal: Proposal) -> dict[str, pl.DataFrame]:
    """The heads of the plan, and the plans that a search measured."""
    sites, search = model.sites, proposal.search
    tables = {"heads": heads_table(sites, proposal.plan.heads(sites), max(material.test))}
    if search is not None:
        tables["frontier"] = frontier_table(search, model)
    return tables


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
