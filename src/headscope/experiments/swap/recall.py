"""Recall: whether a model still finds what a long text told it, which perplexity hardly shows.

Each trial hides facts in ordinary text (the windows of the judgement) and asks for one at the end:

    passkey    one number, told once
    needles    a number for each of four cities, far apart; one is asked for
    look-up    a list of twenty words with their numbers; one is asked for

A trial is right when every token of the answer is the likeliest one, given the tokens of the answer before it. Facts
lie at several depths of the text: 0 is its beginning, 1 its end. A task that the original itself solves in less than
`ABLE` of its trials says nothing about a plan and is left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from headscope.errors import UsageError
from headscope.experiments.text_sample import Tokens
from headscope.model.model import Model
from headscope.model.plans.applied_plan import apply
from headscope.model.plans.plan import Plan
from headscope.model.transformers.model_state import restored
from headscope.model.transformers.probe_inputs import forward_options
from headscope.progress import Step

TASK = "asking for hidden facts, trial"
ABLE = 0.8
TEXTS = 3  # in which each fact is hidden at each depth
DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
TASKS = PASSKEY, NEEDLES, LOOKUP = "passkey", "needles", "look-up"
CITIES = ("Paris", "Rome", "Cairo", "Lima")
WORDS = (
    "apple", "river", "stone", "cloud", "table", "horse", "paper", "green", "night", "house",
    "music", "bread", "tower", "water", "light", "chair", "grass", "smoke", "wheel", "bridge",
)  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """Tokens of a text with a question at its end, and those of the answer."""

    task: str
    depth: float
    prompt: Tokens
    answer: Tokens


@dataclass(frozen=True)
class Recall:
    """How many trials of a task were right at one length and depth, without a plan and with it."""

    n: int
    task: str
    depth: float
    trials: int
    original: int
    plan: int


def recall(model: Model, plan: Plan, n: int, fillers: Sequence[Tokens], seed: int, step: Step) -> list[Recall]:
    """Ask for facts at every depth, once in each text of `fillers`; text, facts and question are n tokens together."""
    trials = trials_of(model, n, fillers, seed)
    original = rights(model, trials, step)
    with apply(plan, model):
        swapped = rights(model, trials, step)
    outcomes = list(zip(trials, original, swapped, strict=True))
    return [
        _counted(n, task, depth, [row for row in outcomes if (row[0].task, row[0].depth) == (task, depth)])
        for task in TASKS
        for depth in DEPTHS
    ]


def trials_of(model: Model, n: int, fillers: Sequence[Tokens], seed: int) -> list[Trial]:
    """A trial of every task at every depth in each text of `fillers`, n tokens each."""
    generator = torch.Generator().manual_seed(seed)
    return [
        trial_of(model, task, depth, filler, n, generator) for task in TASKS for depth in DEPTHS for filler in fillers
    ]


def rights(model: Model, trials: Sequence[Trial], step: Step) -> list[bool]:
    """Which trials the model gets right, as it is now."""
    outcomes = []
    for index, trial in enumerate(trials):
        step(TASK, index, len(trials))
        outcomes.append(is_right(model, trial))
    step(TASK, len(trials), len(trials))
    return outcomes


@dataclass
class RecallBudget:
    """The second budget of a search: the share of the facts that the original finds and a plan may lose.

    Facts are hidden in texts of the split `search`. A task counts at a length where the original gets at least `ABLE`
    of its trials right; a plan is within the budget where it finds at least `1 - allowed` as many of these facts.

    Properties:
        - a plan that sees nothing is over every budget  (tested: test_a_recall_budget_refuses_a_plan_that_forgets)
    """

    model: Model
    trials: Sequence[Trial]  # that count
    allowed: float

    def lost(self, plan: Plan, step: Step) -> float:
        """The share of the facts that the plan does not find."""
        with apply(plan, self.model):
            return 1.0 - sum(rights(self.model, self.trials, step)) / len(self.trials)


def recall_budget(
    model: Model, fillers: Mapping[int, Sequence[Tokens]], allowed: float, seed: int, step: Step
) -> RecallBudget:
    """The budget over the trials that count, at every length of `fillers`.

    Raises:
        UsageError: The original itself solves no task, so that nothing can be lost.
    """
    counting: list[Trial] = []
    for n, texts in fillers.items():
        trials = trials_of(model, n, texts, seed)
        outcomes = rights(model, trials, step)
        for task in TASKS:
            of_task = [(trial, right) for trial, right in zip(trials, outcomes, strict=True) if trial.task == task]
            if sum(right for _, right in of_task) >= ABLE * len(of_task):
                counting += [trial for trial, right in of_task if right]
    if not counting:
        raise UsageError(
            f"recall cannot be a budget here: {model.spec.name} itself finds less than {ABLE:.0%} of the facts of "
            f"every task in texts of {', '.join(map(str, fillers)) or 'these'} tokens",
            hint="ask in shorter texts (--recall-lengths 256), or leave --recall out",
        )
    return RecallBudget(model, counting, allowed)


def _counted(n: int, task: str, depth: float, outcomes: Sequence[tuple[Trial, bool, bool]]) -> Recall:
    rights = [sum(row[1] for row in outcomes), sum(row[2] for row in outcomes)]
    return Recall(n, task, depth, len(outcomes), *rights)


def trial_of(model: Model, task: str, depth: float, filler: Tokens, n: int, generator: torch.Generator) -> Trial:
    """A trial of a task: facts at their places in a text, the question behind it, n tokens with the answer.

    Properties:
        - the fact stands at its depth and nowhere else  (tested: test_a_fact_stands_at_its_depth)
    """
    numbers = [f"{number}" for number in torch.randint(1000, 9999, (len(WORDS),), generator=generator).tolist()]
    if task == PASSKEY:
        facts = [(depth, f"\nThe pass key is {numbers[0]}. Remember it: {numbers[0]} is the pass key.\n")]
        question, answer = "\nWhat is the pass key? The pass key is", numbers[0]
    elif task == NEEDLES:
        # The city that is asked for is at the depth, the others at equal distances from it, around the text.
        places = [(depth + index / len(CITIES)) % 1.0 for index in range(len(CITIES))]
        order = torch.randperm(len(CITIES), generator=generator).tolist()
        facts = [
            (place, f"\nThe special number of {CITIES[city]} is {numbers[city]}.\n")
            for place, city in zip(places, order, strict=True)
        ]
        target = order[0]
        question, answer = f"\nThe special number of {CITIES[target]} is", numbers[target]
    else:
        target = int(torch.randint(len(WORDS), (1,), generator=generator))
        lines = "".join(f"{word}: {number}\n" for word, number in zip(WORDS, numbers, strict=True))
        facts = [(depth, f"\n{lines}")]
        question, answer = f"\n{WORDS[target]}:", numbers[target]
    return _placed(model, task, depth, (filler, n), sorted(facts), (question, f" {answer}"))


def _placed(
    model: Model,
    task: str,
    depth: float,
    text: tuple[Tokens, int],
    facts: Sequence[tuple[float, str]],
    ending: tuple[str, str],
) -> Trial:
    filler, n = text
    # A tokenizer may join the answer's first sign with the question: what both give together is cut where they part.
    question, with_answer = (_plain(model, words) for words in (ending[0], ending[0] + ending[1]))
    answer = with_answer[len(question) :]
    inserts = [(place, _plain(model, fact)) for place, fact in facts]
    room = n - len(with_answer) - sum(len(tokens) for _, tokens in inserts)
    if room < 1 or len(filler) < room:
        raise UsageError(
            f"facts and question of the task {task} have {n - room} tokens, and the text {len(filler)}: together they "
            f"cannot have {n}",
            hint="ask in longer texts (--recall-lengths), or give a longer text",
        )
    parts, start = [], 0
    for place, tokens in inserts:
        cut = max(1, round(place * room))
        parts += [filler[start:cut], tokens]
        start = cut
    prompt = torch.cat([*parts, filler[start:room], question])
    return Trial(task, depth, prompt, answer)


def _plain(model: Model, words: str) -> Tokens:
    """The tokens of some words without special ones."""
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise RuntimeError("recall needs a tokenizer, and the material was checked for one")
    return torch.tensor(tokenizer(words, add_special_tokens=False)["input_ids"], dtype=torch.long)


def is_right(model: Model, trial: Trial) -> bool:
    """Whether each token of the answer is the likeliest one after those before it."""
    tokens = torch.cat([trial.prompt, trial.answer])[None].to(model.hf.device)
    with torch.no_grad(), restored(model.hf):
        logits = model.hf(input_ids=tokens, **forward_options(model.hf)).logits[0]
    predicted = logits[-len(trial.answer) - 1 : -1].argmax(-1).cpu()
    return bool((predicted == trial.answer).all())
