"""The few-shot study: crossword clues after a few examples, the maps, and the numbers that belong to them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256

import polars as pl
from torch import Tensor

from headscope.core import Finding, Selection, Site, TextSpec
from headscope.corpora.crossword_clues import category_named
from headscope.errors import UsageError
from headscope.experiments.fewshot.about import ABOUT
from headscope.experiments.fewshot.figures import figures
from headscope.experiments.fewshot.likelihood import MOST, Circle, log_probabilities, most_shots
from headscope.experiments.fewshot.prompt import built
from headscope.experiments.fewshot.sentences import headlines
from headscope.experiments.fewshot.states import (
    INITIALISED,
    ORIGINAL,
    Plan,
    Seen,
    State,
    observe,
    uniform_measures,
)
from headscope.experiments.fewshot.tables import (
    clues_table,
    heads_table,
    layers_table,
    quality_table,
    shots_table,
    states_table,
)
from headscope.experiments.fewshot.writing import NEW_TOKENS, Written, write_all
from headscope.model import Model
from headscope.model.language import has_chat_template, predicts_next_token

NAME = "fewshot"
COUNTS = (3, 5, 8)  # shots of the tables of clues
MEASURED = 12  # words whose maps are measured
FEWEST = MOST + 2  # words of a study: with fewer, an exchanged shot would hold the word that is asked for
SCORED = 12  # words that are scored in the states beside the original
LAYERS_DRAWN = 4
Step = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Setting:
    """What is asked, on how many words, and in which states of the model."""

    category: str = "animals"
    word: str = ""
    shots: int = 3
    words: int | None = None
    clues: int = 8
    alphas: tuple[str, ...] = ()
    initialised: bool = True
    layers: Selection | str | None = None
    seed: int = 0


def check(setting: Setting) -> None:
    """Whether the setting makes sense, before a model is opened.

    Raises:
        UsageError: It does not.
    """
    category = category_named(setting.category)
    if setting.word:
        category.clue_of(setting.word)
    n = len(category.clues)
    if setting.words is not None and not FEWEST <= setting.words <= n:
        raise UsageError(
            f"words={setting.words}: {category.name} has {n} words, and at least {FEWEST} are needed for {MOST} "
            "shots, a target, and a wrong word behind every clue"
        )
    if not 1 <= setting.shots <= MOST:
        raise UsageError(f"shots={setting.shots}: between 1 and {MOST} shots can be given")
    if setting.clues < 0:
        raise UsageError(f"clues={setting.clues}: a number of words cannot be negative")
    for alpha in setting.alphas:
        State.scaled(alpha)
    Selection.of(setting.layers)


def fewshot(model: Model, setting: Setting, step: Step) -> tuple[Finding, TextSpec]:
    """The whole study; the model is afterwards what it was, to the last bit.

    Raises:
        UsageError: The model does not predict a next token or reads no text, or the setting makes no sense.
    """
    check(setting)
    _check_model(model)
    category = category_named(setting.category)
    circle = Circle.of(category, setting.words, setting.seed, setting.word or category.clues[0].word)
    drawn = _drawn(model.sites, setting.layers)
    most = most_shots(model, circle, room=NEW_TOKENS)
    few = min(MEASURED, len(circle.clues))
    plan = Plan(circle, min(setting.shots, most), most, range(few), range(min(SCORED, len(circle.clues))), setting.seed)
    whole = Plan(circle, plan.shots, most, plan.measured, range(len(circle.clues)), setting.seed)
    original = observe(model, State(ORIGINAL), whole, step)
    exchanged = log_probabilities(
        model, circle.exchanged(most), most, whole.scored, lambda done, total: step("words exchanged", done, total)
    )
    written = _written(model, circle, most, setting, step)
    states = [original, *(observe(model, state, plan, step) for state in _states(setting))]
    tables = _tables(model, plan, states, exchanged, written)
    finding = Finding(
        NAME,
        ABOUT,
        tables=tables,
        # Layers that were asked for are drawn at both levels; of our own choice one is enough to see the difference.
        figures=figures(states, tables, drawn, drawn if setting.layers else [drawn[len(drawn) // 2]]),
        headlines=headlines(tables, original, plan.shots),
        method=_method(model, plan, whole, setting),
        warnings=tuple(_warnings(model, most, setting)),
        params=_params(setting, circle),
    )
    return finding, _text_spec(model, circle, most)


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


def _drawn(sites: Sequence[Site], layers: Selection | str | None) -> list[Site]:
    """The layers whose maps are drawn with their words: those that were asked for, or a few from first to last."""
    if layers is not None:
        return list(Selection.of(layers).resolve(sites))
    if len(sites) <= LAYERS_DRAWN:
        return list(sites)
    return [sites[round(i * (len(sites) - 1) / (LAYERS_DRAWN - 1))] for i in range(LAYERS_DRAWN)]


def _states(setting: Setting) -> list[State]:
    fresh = [State(INITIALISED)] if setting.initialised else []
    return [*fresh, *(State.scaled(alpha) for alpha in dict.fromkeys(setting.alphas))]


def _written(model: Model, circle: Circle, most: int, setting: Setting, step: Step) -> list[Written]:
    counts = sorted({min(count, most) for count in COUNTS if most >= 1})
    indices = range(min(setting.clues, len(circle.clues)))
    return write_all(model, circle, indices, counts, lambda done, total: step("writing clues", done, total))


def _tables(
    model: Model, plan: Plan, states: Sequence[Seen], exchanged: Tensor, written: Sequence[Written]
) -> dict[str, pl.DataFrame]:
    original = states[0]
    uniform = uniform_measures(model, plan, list(original.of))
    initialised = next((seen for seen in states if seen.state.label == INITIALISED), None)
    tables = {"shots": shots_table(original.scores, exchanged, model.spec.vocabulary, plan.seed)}
    if written:
        tables["clues"] = clues_table(plan.circle, written)
        tables["quality"] = quality_table(plan.circle, written)
    tables["states"] = states_table(_same_words(states, plan), plan.shots, plan.seed)
    tables["layers"] = layers_table(original, uniform, initialised, plan.seed)
    tables["heads"] = heads_table(original, uniform)
    return tables


def _same_words(states: Sequence[Seen], plan: Plan) -> list[Seen]:
    """The original's scores on the words that the other states were scored on, where there are others."""
    if len(states) == 1:
        return list(states)
    first = states[0]
    kept = Seen(first.state, first.written, first.prompt, first.maps, first.of, first.scores[: len(plan.scored)])
    return [kept, *states[1:]]


def _method(model: Model, plan: Plan, whole: Plan, setting: Setting) -> str:
    how = (
        "through the model's chat template"
        if has_chat_template(model)
        else "with [INST] marks: it has no chat template"
    )
    told = [
        f"{len(plan.circle.clues)} words of the category {plan.circle.category}, prompts {how}. Every word is scored "
        f"after 0 to {plan.most} shots ({len(whole.scored)} forwards, and as many with words exchanged).",
        f"Maps are measured on {len(plan.measured)} words after {plan.shots} shots, with the reference clue as the "
        f"answer; those drawn are of {plan.circle.clues[0].word} with the clue that the model wrote.",
        "Intervals: bootstrap over words, 2000 draws; the shots of a word are one draw, so that their choice is part "
        "of the spread between words.",
    ]
    if setting.clues:
        count = min(setting.clues, len(plan.circle.clues))
        told.append(f"Clues are written greedily, at most {NEW_TOKENS} tokens, for {count} words.")
    if setting.initialised or setting.alphas:
        told.append(
            f"Other states are scored on {len(plan.scored)} words; α multiplies every singular value of W_Q and W_K."
        )
    return " ".join(told)


def _warnings(model: Model, most: int, setting: Setting) -> list[str]:
    found = [model.spec.weight_warning] if model.spec.weight_warning else []
    if most < MOST:
        found.append(f"The context of {model.spec.name} has room for {most} shots, not for {MOST}.")
    if setting.initialised and model.spec.initial_sd is None:
        found.append(
            "The checkpoint does not say how it was initialised: transformers' default for the family is drawn."
        )
    if setting.alphas and any(model.weight_status(site).status == "normed" for site in model.sites):
        found.append("Queries and keys are normalised after the projection: scaling W_Q and W_K does not scale scores.")
    clipped = [status for site in model.sites if (status := model.weight_status(site)).status == "clipped"]
    if setting.alphas and clipped:
        found.append(f"In {len(clipped)} layers {clipped[0].reason}: scaling W_Q and W_K scales only smaller ones.")
    return found


def _params(setting: Setting, circle: Circle) -> dict[str, str | int | float | bool | None]:
    return {
        "category": circle.category,
        "word": circle.clues[0].word,
        "shots": setting.shots,
        "words": len(circle.clues),
        "clues": setting.clues,
        "alphas": ", ".join(setting.alphas),
        "initialised": setting.initialised,
        "layers": Selection.of(setting.layers).text if setting.layers is not None else None,
        "seed": setting.seed,
    }


def _text_spec(model: Model, circle: Circle, most: int) -> TextSpec:
    """What the scores were computed on."""
    lines = "\n".join(f"{one.word}: {one.clue}" for one in circle.clues)
    lengths = [len(built(model, circle.category, circle.row(at, most + 1)).tokens) for at in range(len(circle.clues))]
    return TextSpec(
        f"crossword clues, {circle.category} (shipped with headscope)",
        sha256(lines.encode()).hexdigest(),
        len(lines),
        sum(lengths),
        len(lengths),
        max(lengths),
    )
