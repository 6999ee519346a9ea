"""Swap: which windows a text gives to search, fit and judgement, and where facts are hidden in it."""

from types import SimpleNamespace

import pytest
import torch

from headscope.corpora import Text
from headscope.corpora.windows import Windows
from headscope.errors import UsageError
from headscope.experiments.swap import judgement, material
from headscope.experiments.swap.material import Material, gather
from headscope.experiments.swap.recall import (
    ABLE,
    CITIES,
    LOOKUP,
    NEEDLES,
    PASSKEY,
    Recall,
    Trial,
    recall_budget,
    trial_of,
)
from headscope.experiments.swap.settings import Params
from headscope.model.model import Model
from headscope.model.plans.plan import Plan
from headscope.progress import silent
from tests.experiments.stand_in import stand_in


def reader(context: int | None = None) -> Model:
    return stand_in(reads_text=True, spec=SimpleNamespace(name="reader", context=context))


@pytest.fixture
def tokens_of(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many tokens each split of the text `book` has."""
    sizes = {"fit": 10_000, "search": 10_000, "test": 10_000}

    def windows_of(_: object, text: Text, length: int) -> Windows:
        tokens = torch.arange(sizes[text.name.rpartition(":")[2]])
        n_full = len(tokens) // length
        rest = tokens[n_full * length :]
        return Windows(tokens[: n_full * length].view(-1, length), rest[None] if len(rest) else None, 0)

    parts = {split: Text(f"book:{split}", (split,)) for split in sizes}
    monkeypatch.setattr(material, "split_parts", lambda text: parts)
    for module in (material, judgement):
        monkeypatch.setattr(module, "windows_of", windows_of)
    return sizes


BOOK = Text("book", ("one", "two", "three"))


def gathered(*lengths: int, context: int | None = None, windows: int = 12, tokens: int = 64, **how: bool) -> Material:
    how = {"searches": True} | how
    return gather(reader(context), [BOOK], lengths, tokens=tokens, windows=windows, **how)


def searched(material: Material) -> dict[int, int]:
    """How many windows of each length a search reads."""
    return {part.tokens: len(part.windows) for part in material.search}


@pytest.mark.usefixtures("tokens_of")
def test_a_window_may_be_as_long_as_the_context() -> None:
    assert {n: len(part) for n, part in gathered(128, 129, context=128).test.items()} == {128: 12}
    assert list(gathered(128, 64).test) == [64, 128]
    short = gathered(32, context=48)
    assert searched(short) == {48: 12}
    assert len(short.fit[0]) == 48


@pytest.mark.usefixtures("tokens_of")
@pytest.mark.parametrize(("windows", "longer"), [(12, 6), (9, 4), (4, 4)])
def test_longer_windows_of_a_search_hold_as_many_tokens(windows: int, longer: int) -> None:
    """But at least four; shorter ones than those of the search are judged alone."""
    windows_by_split = gathered(32, 64, 128, windows=windows)
    assert searched(windows_by_split) == {64: windows, 128: longer}
    assert [len(window) for window in windows_by_split.fit] == [128, 128]


def test_a_long_window_needs_three_of_its_kind(tokens_of: dict[str, int]) -> None:
    tokens_of["search"] = 3 * 1000
    assert searched(gathered(1000)) == {64: 12, 1000: 3}
    tokens_of["search"] = 3 * 1000 - 1
    windows_by_split = gathered(1000)
    assert list(searched(windows_by_split)) == [64]
    assert windows_by_split.omissions == ["Not searched at 1000 tokens: book:search has 2999."]


def test_a_search_needs_four_windows_and_a_fit_one(tokens_of: dict[str, int]) -> None:
    tokens_of |= {"search": 4 * 64, "fit": 64, "test": 64}
    windows_by_split = gathered(64)
    assert (len(windows_by_split.search[0].windows), len(windows_by_split.fit), len(windows_by_split.test[64])) == (
        4,
        1,
        1,
    )
    tokens_of["search"] = 4 * 64 - 1
    with pytest.raises(UsageError, match="at least 4 windows of 64: 256 tokens"):
        gathered(64)
    tokens_of |= {"search": 4 * 64, "fit": 63}
    with pytest.raises(UsageError, match="at least 1 windows of 64: 64 tokens"):
        gathered(64)


def test_the_windows_of_a_fit_are_bounded(tokens_of: dict[str, int]) -> None:
    """A backward holds all of one."""
    tokens_of["search"] = 3 * 5000
    assert [len(window) for window in gathered(5000, tokens=64, windows=4).fit] == [4096, 4096]
    assert [len(window) for window in gathered(64, tokens=5000, searches=False, fits=True).fit] == [4096, 4096]
    assert [len(window) for window in gathered(64, context=80, searches=False, fits=True).fit] == [64, 64]
    assert [len(window) for window in gathered(32, context=48, tokens=64, searches=False, fits=True).fit] == [48, 48]
    assert gathered(64, searches=False).fit == ()


def test_a_short_text_is_judged_in_quarters(tokens_of: dict[str, int]) -> None:
    tokens_of["test"] = 1003
    assert {n: len(part) for n, part in gathered(searches=False).test.items()} == {250: 4}
    assert list(gathered(searches=False, context=100).test) == [100]
    tokens_of["test"] = 2048
    assert list(gathered(searches=False).test) == [2048]


def test_the_spec_counts_the_judging_windows(tokens_of: dict[str, int]) -> None:
    tokens_of["test"] = 300
    spec = gathered(64, 128).spec
    assert (spec.n_tokens, spec.n_windows, spec.window) == (4 * 64 + 2 * 128, 6, 128)


def test_facts_are_hidden_in_texts_up_to_the_context(
    tokens_of: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens_of["test"] = 60
    monkeypatch.setattr(
        judgement, "recall", lambda _, plan, n, fillers, *rest: [Recall(n, PASSKEY, 0.5, len(fillers), 0, 0)]
    )
    windows_by_split = Material((), (), {}, Text("book:test", ("test",)))
    params = Params(recall_lengths=(20, 30, 31, 61))
    outcomes, omissions = judgement._recalled(reader(30), Plan({}), params, windows_by_split, silent)
    assert [(row.n, row.trials) for row in outcomes] == [(20, 3), (30, 2)]
    assert omissions == tuple(f"No recall at {n} tokens: the context of reader has 30." for n in (31, 61))
    outcomes, omissions = judgement._recalled(reader(), Plan({}), params, windows_by_split, silent)
    assert [(row.n, row.trials) for row in outcomes] == [(20, 3), (30, 2), (31, 1)]
    assert omissions == ("No recall at 61 tokens: book:test has 60.",)


FILLER = "·"


def speller() -> Model:
    """A model whose tokens are letters."""
    return stand_in(
        tokenizer=lambda words, add_special_tokens: {"input_ids": [ord(letter) for letter in words]},
        spec=SimpleNamespace(name="speller"),
    )


def hidden(task: str, depth: float, n: int, filler: int | None = None) -> tuple[Trial, str]:
    text = torch.full((n if filler is None else filler,), ord(FILLER))
    trial = trial_of(speller(), task, depth, text, n, torch.Generator().manual_seed(5))
    return trial, "".join(map(chr, trial.prompt.tolist()))


@pytest.mark.parametrize("task", [PASSKEY, NEEDLES, LOOKUP])
@pytest.mark.parametrize("depth", [0.1, 0.5, 0.9])
def test_the_share_of_the_text_before_a_fact_is_its_depth(task: str, depth: float) -> None:
    trial, text = hidden(task, depth, 2000)
    assert len(trial.prompt) + len(trial.answer) == 2000
    answer = "".join(map(chr, trial.answer.tolist())).strip()
    question = text.rpartition("\n")[2]
    fact = text.index(f"\n{question.split('?')[0]}" if task != PASSKEY else "\nThe pass key is")
    if task == LOOKUP:
        fact = text.index("\napple: ")
        assert f"\n{question} {answer}\n" in text
    assert text[:fact].count(FILLER) == round(depth * text.count(FILLER))
    assert text.count(answer) == (2 if task == PASSKEY else 1)


def test_needles_lie_at_equal_distances_around_the_text() -> None:
    for depth in (0.1, 0.3, 0.7):
        _, text = hidden(NEEDLES, depth, 3000)
        pieces = text.split("\nThe special number of ")[:-1]
        before = [piece.count(FILLER) for piece in pieces]
        room = text.count(FILLER)
        places = [sum(before[: index + 1]) / room for index in range(len(CITIES))]
        assert places == pytest.approx(sorted((depth + quarter / 4) % 1 for quarter in range(4)), abs=2 / room)


def test_facts_fit_where_there_is_room_for_a_sign() -> None:
    """The shortest text holds one token besides facts and question, and may be no longer than its filler."""
    shortest = next(n for n in range(60, 400) if fits(n))
    assert len(hidden(PASSKEY, 0.5, shortest)[0].prompt) < shortest
    _, text = hidden(PASSKEY, 0.5, shortest)
    assert text.count(FILLER) == 1
    assert len(hidden(PASSKEY, 0.5, shortest + 9, filler=10)[0].prompt) == len(text) + 9
    with pytest.raises(UsageError, match="together they cannot have"):
        hidden(PASSKEY, 0.5, shortest + 9, filler=9)


def fits(n: int) -> bool:
    try:
        hidden(PASSKEY, 0.5, n)
    except UsageError:
        return False
    return True


def test_a_task_counts_where_the_original_solves_four_fifths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts that it does not find itself are not asked for."""
    rights = {PASSKEY: [True] * 12 + [False] * 3, NEEDLES: [True] * 11 + [False] * 4, LOOKUP: [True] * 15}
    flat = [right for task in (PASSKEY, NEEDLES, LOOKUP) for right in rights[task]]
    monkeypatch.setattr("headscope.experiments.swap.recall.rights", lambda *arguments: flat)
    texts = [torch.full((2000,), ord(FILLER))] * 3
    budget = recall_budget(speller(), {2000: texts}, 0.1, 0, silent)
    assert ABLE == 0.8
    assert [trial.task for trial in budget.trials] == [PASSKEY] * 12 + [LOOKUP] * 15


def test_outcomes_are_counted_by_task_and_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import nullcontext

    from headscope.experiments.swap import recall as module

    outcomes = iter([[True, True, False] * 15, [False, True, False] * 15])
    monkeypatch.setattr(module, "rights", lambda *arguments: next(outcomes))
    monkeypatch.setattr(module, "apply", lambda plan, model: nullcontext())
    texts = [torch.full((2000,), ord(FILLER))] * 3
    rows = module.recall(speller(), Plan({}), 2000, texts, 0, silent)
    assert rows == [
        Recall(2000, task, depth, 3, 2, 1) for task in (PASSKEY, NEEDLES, LOOKUP) for depth in (0.1, 0.3, 0.5, 0.7, 0.9)
    ]
