"""The few-shot study: crossword clues after a few examples, the maps, and the numbers that belong to them."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256

import polars as pl
from torch import Tensor

from headscope.core import Finding, Selection, Site, TextSpec
from headscope.corpora.crossword_clues import category_named
from headscope.errors import UsageError
from headscope.experiments.experiment import Display, Experiment, Passage, short_table
from headscope.experiments.fewshot.figures import figures
from headscope.experiments.fewshot.likelihood import Circle, log_probabilities, most_shots
from headscope.experiments.fewshot.prompt import built
from headscope.experiments.fewshot.sentences import headlines
from headscope.experiments.fewshot.settings import COMMAND, MOST_SHOTS, Params
from headscope.experiments.fewshot.states import (
    INITIALISED,
    ORIGINAL,
    Plan,
    Seen,
    State,
    maps_task,
    observe,
    scores_task,
    uniform_measures,
)
from headscope.experiments.fewshot.tables import (
    clues_table,
    head_quantities,
    heads_table,
    layers_table,
    quality_table,
    shots_table,
    states_table,
)
from headscope.experiments.fewshot.writing import NEW_TOKENS, Written, write_all
from headscope.model.language import has_chat_template, predicts_next_token
from headscope.model.model import Model
from headscope.progress import Stage, Step

COUNTS = (3, 5, 8)  # shots of the tables of clues
MEASURED = 12  # words whose maps are measured
EXCHANGED, WRITING_CLUES = "scoring exchanged words, word", "writing clues, clue"  # tasks; their number follows
SCORED = 12  # words that are scored in the states beside the original
LAYERS_DRAWN = 4
# What a terminal shows of the table of shots, under short names; --format csv or json has everything.
SHORT_NAMES = {
    "shots": "shots",
    "log_probability": "log p",
    "log_probability_low": "low",
    "log_probability_high": "high",
    "gain": "gain",
    "exchanged": "exchanged",
    "word_worth": "word worth",
    "word_worth_low": "low ",
    "word_worth_high": "high ",
}


class Fewshot(Experiment[Params]):
    """Clues scored and written after 0 to 8 shots, and the maps of the prompt, in several states of the model."""

    name = "fewshot"
    command = COMMAND.path
    params = Params

    def stages(self, model: Model, params: Params) -> list[Stage]:
        """Maps and scores of the original, its exchanged words and its clues, then every other state."""
        original, *others = [State(ORIGINAL), *_other_states(params)]
        return [
            *map(Stage, (maps_task(original), scores_task(original), EXCHANGED, WRITING_CLUES)),
            *(Stage(task) for state in others for task in (maps_task(state), scores_task(state))),
        ]

    def run(self, model: Model, params: Params, progress: Step) -> tuple[Finding, TextSpec]:
        """Score and write clues with the original, then observe every other state.

        Raises:
            UsageError: The model does not predict a next token or reads no text, or the settings make no sense.
        """
        self.check(params)
        _check_model(model)
        category = category_named(params.category)
        circle = Circle.of(category, params.words, params.seed, params.word or category.clues[0].word)
        sites = _sites_with_words(model.sites, params.layers)
        most = most_shots(model, circle, room=NEW_TOKENS)
        n = len(circle.clues)
        plan = Plan(circle, min(params.shots, most), most, range(min(MEASURED, n)), range(min(SCORED, n)), params.seed)
        original_plan = replace(plan, scored=range(n))
        original = observe(model, State(ORIGINAL), original_plan, progress)
        exchanged = log_probabilities(
            model, circle.exchanged(most), most, original_plan.scored, partial(progress, EXCHANGED)
        )
        clues = _write_clues(model, circle, most, params, progress)
        observations = [original, *(observe(model, state, plan, progress) for state in _other_states(params))]
        tables = _tables(model, plan, observations, exchanged, clues)
        # Layers that were asked for are drawn at both levels; of our own choice one is enough to see the difference.
        token_sites = sites if params.layers else [sites[len(sites) // 2]]
        finding = Finding(
            self.name,
            self.about,
            tables=tables,
            figures=figures(observations, tables, sites, token_sites),
            headlines=headlines(tables, original, plan.shots),
            quantities=head_quantities,
            method=_method(model, plan, original_plan, params),
            warnings=tuple(_warnings(model, most, params)),
            params=_stated_params(params, circle),
        )
        return finding, _text_spec(model, circle, most)

    def show(self, finding: Finding) -> Display:
        """The table of shots as far as it fits, the clues of each word, and those of each state."""
        passages = []
        if "clues" in finding.tables:
            for row in finding.tables["clues"].iter_rows(named=True):
                passages.append(Passage(row.pop("word"), tuple(row.items())))
        states = finding.tables["states"]
        if states.height > 1:
            title = f"{finding.params['word']}, by the state of the model"
            passages.append(Passage(title, tuple(zip(states["state"], states["clue"], strict=True))))
        return Display(short_table(finding.tables["shots"], SHORT_NAMES), tuple(passages))


EXPERIMENT = Fewshot()


def _check_model(model: Model) -> None:
    if not model.reads_text:
        lacks = "comes without a tokenizer" if model.tokenizer is None else "does not read text alone"
        raise UsageError(
            f"the few-shot study gives the model a prompt, and {model.spec.name} ({model.spec.architecture}) {lacks}",
            hint="use a causal language model with its tokenizer, e.g. tiny or smollm2",
        )
    if not predicts_next_token(model):
        raise UsageError(
            f"the few-shot study needs a model that predicts the next token; {model.spec.name} "
            f"({model.spec.architecture}, {model.spec.kind}) does not",
            hint="use a causal language model, e.g. tiny or smollm2",
        )


def _sites_with_words(sites: Sequence[Site], layers: Selection | str | None) -> list[Site]:
    """The layers whose word maps are drawn: the chosen ones, or a few from first to last."""
    if layers is not None:
        return list(Selection.of(layers).resolve(sites))
    if len(sites) <= LAYERS_DRAWN:
        return list(sites)
    return [sites[round(i * (len(sites) - 1) / (LAYERS_DRAWN - 1))] for i in range(LAYERS_DRAWN)]


def _other_states(params: Params) -> list[State]:
    fresh = [State(INITIALISED)] if params.initialised else []
    return [*fresh, *(State.scaled(alpha) for alpha in dict.fromkeys(params.alphas))]


def _write_clues(model: Model, circle: Circle, most: int, params: Params, progress: Step) -> list[Written]:
    counts = sorted({min(count, most) for count in COUNTS if most >= 1})
    indices = range(min(params.clues, len(circle.clues)))
    return write_all(model, circle, indices, counts, partial(progress, WRITING_CLUES))


def _tables(
    model: Model, plan: Plan, states: Sequence[Seen], exchanged: Tensor, written: Sequence[Written]
) -> dict[str, pl.DataFrame]:
    original = states[0]
    uniform = uniform_measures(model, plan, list(original.of))
    initialised = next((observation for observation in states if observation.state.label == INITIALISED), None)
    tables = {"shots": shots_table(original.scores, exchanged, model.spec.vocabulary, plan.seed)}
    if written:
        tables["clues"] = clues_table(plan.circle, written)
        tables["quality"] = quality_table(plan.circle, written)
    tables["states"] = states_table(_same_words(states, plan), plan.shots, plan.seed)
    tables["layers"] = layers_table(original, uniform, initialised, plan.seed)
    tables["heads"] = heads_table(original, uniform)
    return tables


def _same_words(states: Sequence[Seen], plan: Plan) -> list[Seen]:
    """The states, the original with the scores of the words that all states have."""
    if len(states) == 1:
        return list(states)
    first = states[0]
    original = Seen(first.state, first.written, first.prompt, first.maps, first.of, first.scores[: len(plan.scored)])
    return [original, *states[1:]]


def _method(model: Model, plan: Plan, original_plan: Plan, params: Params) -> str:
    how = (
        "through the model's chat template"
        if has_chat_template(model)
        else "with [INST] marks: it has no chat template"
    )
    sentences = [
        f"{len(plan.circle.clues)} words of the category {plan.circle.category}, prompts {how}. Every word is scored "
        f"after 0 to {plan.most} shots ({len(original_plan.scored)} forwards, and as many with words exchanged).",
        f"Maps are measured on {len(plan.measured)} words after {plan.shots} shots, with the reference clue as the "
        f"answer; those drawn are of {plan.circle.clues[0].word} with the clue that the model wrote.",
        "Intervals: bootstrap over words, 2000 draws; the shots of a word are one draw, so that their choice is part "
        "of the spread between words.",
    ]
    if params.clues:
        count = min(params.clues, len(plan.circle.clues))
        sentences.append(f"Clues are written greedily, at most {NEW_TOKENS} tokens, for {count} words.")
    if params.initialised or params.alphas:
        sentences.append(
            f"Other states are scored on {len(plan.scored)} words; α multiplies every singular value of W_Q and W_K."
        )
    return " ".join(sentences)


def _warnings(model: Model, most: int, params: Params) -> list[str]:
    warnings = [model.spec.weight_warning] if model.spec.weight_warning else []
    if most < MOST_SHOTS:
        warnings.append(f"The context of {model.spec.name} has room for {most} shots, not for {MOST_SHOTS}.")
    if params.initialised and model.spec.initial_sd is None:
        warnings.append(
            "The checkpoint does not say how it was initialised: transformers' default for the family is drawn."
        )
    if params.alphas and any(model.weight_status(site).status == "normed" for site in model.sites):
        warnings.append(
            "Queries and keys are normalised after the projection: scaling W_Q and W_K does not scale scores."
        )
    clipped = [status for site in model.sites if (status := model.weight_status(site)).status == "clipped"]
    if params.alphas and clipped:
        warnings.append(f"In {len(clipped)} layers {clipped[0].reason}: scaling W_Q and W_K scales only smaller ones.")
    return warnings


def _stated_params(params: Params, circle: Circle) -> dict[str, str | int | float | bool | None]:
    return {
        "category": circle.category,
        "word": circle.clues[0].word,
        "shots": params.shots,
        "words": len(circle.clues),
        "clues": params.clues,
        "alphas": ", ".join(params.alphas),
        "initialised": params.initialised,
        "layers": Selection.of(params.layers).text if params.layers is not None else None,
        "seed": params.seed,
    }


def _text_spec(model: Model, circle: Circle, most: int) -> TextSpec:
    """What the scores were computed on."""
    lines = "\n".join(f"{clue.word}: {clue.clue}" for clue in circle.clues)
    lengths = [len(built(model, circle.category, circle.row(at, most + 1)).tokens) for at in range(len(circle.clues))]
    return TextSpec(
        f"crossword clues, {circle.category} (shipped with headscope)",
        sha256(lines.encode()).hexdigest(),
        len(lines),
        sum(lengths),
        len(lengths),
        max(lengths),
    )
