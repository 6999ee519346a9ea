"""The states of the model that are compared, and what is seen in each: maps, measures, scores and a clue."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.core import Site
from headscope.experiments.fewshot.likelihood import Circle, log_probabilities
from headscope.experiments.fewshot.measures import (
    Measured,
    masses,
    measured,
    shapes,
    uniform_pattern,
)
from headscope.experiments.fewshot.prompt import Prompt, built
from headscope.experiments.fewshot.writing import Written, write_clue
from headscope.experiments.intervene.change_spelling import Change
from headscope.model.model import Model
from headscope.progress import Step

ORIGINAL, INITIALISED = "original", "initialised"


@dataclass(frozen=True)
class State:
    """The model as it is, freshly initialised, or with the spectra of W_Q and W_K scaled by α."""

    label: str
    change: Change | None = None

    @classmethod
    def scaled(cls, alpha: str) -> "State":
        """α as it is written: 2, 0.25, 1/4."""
        return cls(f"α = {alpha.strip()}", Change.of(f"scale {alpha}"))


@contextmanager
def put(model: Model, state: State, seed: int) -> Iterator[None]:
    """The model in this state, for as long as the context lasts."""
    if state.label == ORIGINAL:
        yield
        return
    with model.edit() as edit:
        if state.change is None:
            edit.initialise(seed)
        else:
            edit.scale_spectrum("qk", state.change.alpha)
        yield


@dataclass(frozen=True)
class Seen:
    """The measurements of one state: `of` per site and measured word, `maps` of the chosen word's prompt."""

    state: State
    written: Written
    prompt: Prompt
    maps: Mapping[Site, Float[Tensor, "tokens tokens"]]
    of: Mapping[Site, Sequence[Measured]]
    scores: Float[Tensor, "words shots"]


@dataclass(frozen=True)
class Uniform:
    """The same measures of attention that is uniform over the visible keys."""

    masses: Float[Tensor, "words masses"]
    shapes: Float[Tensor, "words shapes"]


@dataclass(frozen=True)
class Plan:
    """Which words are run, after how many shots."""

    circle: Circle
    shots: int
    most: int
    measured: range
    scored: range
    seed: int


def maps_task(state: State) -> str:
    """The task of measuring the maps of a state; the number of the word follows."""
    return f"measuring the maps, {state.label}, word"


def scores_task(state: State) -> str:
    """The task of scoring the clues in a state; the number of the word follows."""
    return f"scoring the clues, {state.label}, word"


def observe(model: Model, state: State, plan: Plan, step: Step) -> Seen:
    """Everything about one state."""
    with put(model, state, plan.seed):
        written = write_clue(model, plan.circle, 0, plan.shots)
        prompt = _prompt(model, plan, 0, written.clue)
        maps = {site: pattern.mean(0) for site, pattern in captured(model, prompt).items()}
        of: dict[Site, list[Measured]] = {}
        for done, index in enumerate(plan.measured):
            step(maps_task(state), done, len(plan.measured))
            word_prompt = reference_prompt(model, plan, index)
            for site, pattern in captured(model, word_prompt).items():
                of.setdefault(site, []).append(measured(pattern, word_prompt.labels))
        step(maps_task(state), len(plan.measured), len(plan.measured))
        advance = partial(step, scores_task(state))
        scores = log_probabilities(model, plan.circle, plan.most, plan.scored, advance)
    return Seen(state, written, prompt, maps, of, scores)


def captured(model: Model, prompt: Prompt) -> dict[Site, Float[Tensor, "heads tokens tokens"]]:
    """The maps of every site on one prompt."""
    with model.session() as session:
        capture = session.capture("pattern")
        session.run(prompt.tokens[None], head=False)
        return {site: pattern[0] for site, pattern in capture.take()["pattern"].items()}


def reference_prompt(model: Model, plan: Plan, index: int) -> Prompt:
    """A word of the circle after its shots, with its reference clue as the answer."""
    return _prompt(model, plan, index, plan.circle.clues[index].clue)


def _prompt(model: Model, plan: Plan, index: int, answer: str) -> Prompt:
    shots = plan.circle.shots(index, plan.shots)
    return built(model, plan.circle.category, shots, plan.circle.clues[index].word, answer)


def uniform_measures(model: Model, plan: Plan, sites: Sequence[Site]) -> dict[Site, Uniform]:
    """The null of every site; sites with the same window share it."""
    uniform_of_window: dict[int | None, Uniform] = {}
    prompts = [reference_prompt(model, plan, index) for index in plan.measured]
    for site in sites:
        if site.window not in uniform_of_window:
            patterns = [(uniform_pattern(site, len(prompt.tokens)), prompt.labels) for prompt in prompts]
            uniform_of_window[site.window] = Uniform(
                torch.stack([masses(pattern, labels)[0] for pattern, labels in patterns]),
                torch.stack([shapes(pattern[0], labels) for pattern, labels in patterns]),
            )
    return {site: uniform_of_window[site.window] for site in sites}
