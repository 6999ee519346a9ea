"""The Python function of an experiment takes its settings as arguments and hands them on as `Params`."""

import inspect
from pathlib import Path
from typing import Any

import pytest

from headscope.core import Selection
from headscope.errors import UsageError
from headscope.experiments import experiment_members
from headscope.experiments.fewshot.settings import Params as FewshotParams
from headscope.experiments.function import function_of
from headscope.experiments.intervene.change_spelling import Change
from headscope.experiments.intervene.settings import Params as InterveneParams
from headscope.experiments.intervene.settings import Randomise

COMMON = ("hub", "device", "out", "progress")
# Every argument that these functions have ever taken: more may come, none may go.
ARGUMENTS = {
    "intervene": (
        *("what", "changes", "matrices", "at", "text", "prompts", "window", "windows", "new_tokens", "seed", "draws"),
        *COMMON,
    ),
    "fewshot": (
        *("what", "category", "word", "shots", "words", "clues", "alphas", "initialised", "layers", "seed"),
        *COMMON,
    ),
}


def handed_on(name: str, *arguments: Any, **keywords: Any) -> tuple[Any, ...]:
    """What the runner is given: the model, the parameters, and the other arguments."""
    calls = []
    function = function_of(experiment_members()[name], lambda *call, **common: calls.append((*call, common)))
    function(*arguments, **keywords)
    ((called, model, params, common),) = calls
    assert called == name
    return model, params, common


@pytest.mark.parametrize("name", ARGUMENTS)
def test_no_argument_is_lost(name: str) -> None:
    function = function_of(experiment_members()[name], print)
    parameters = inspect.signature(function).parameters
    assert set(ARGUMENTS[name]) <= set(parameters)
    assert next(iter(parameters)) == "what"
    for argument in parameters:
        assert f"\n    {argument}: " in str(function.__doc__)
    assert function.__name__ == name


def test_defaults_are_those_of_the_settings() -> None:
    assert handed_on("intervene", "tiny") == ("tiny", InterveneParams(), {})
    assert handed_on("fewshot", what="tiny") == ("tiny", FewshotParams(), {})


def test_arguments_after_the_model_are_changes() -> None:
    _, params, _ = handed_on("intervene", "tiny", "rank 8", Change("scale", "1/4"), draws=1)
    assert params == InterveneParams(changes=("rank 8", "scale 1/4"), draws=1)


def test_none_stands_for_the_default_unless_it_is_a_value() -> None:
    _, params, _ = handed_on("intervene", "tiny", at=None, window=None, prompts=None, text=None)
    assert params == InterveneParams()
    assert handed_on("fewshot", "tiny", words=None)[1].words is None


def test_sequences_and_single_values_become_tuples() -> None:
    assert handed_on("fewshot", "tiny", alphas=["1/4", 2])[1].alphas == ("1/4", "2")
    assert handed_on("fewshot", "tiny", alphas=2)[1].alphas == ("2",)
    assert handed_on("intervene", "tiny", prompts="Hello")[1].prompts == ("Hello",)
    assert handed_on("intervene", "tiny", prompts=[])[1].prompts == ()


def test_words_become_the_choices_of_an_enum() -> None:
    assert handed_on("intervene", "tiny", randomise=["v"])[1].randomise == (Randomise.V,)
    with pytest.raises(UsageError, match=r"randomise: there is no 'x'\n  hint: one of init, v, u, permute"):
        handed_on("intervene", "tiny", randomise="x")


def test_a_text_is_read_and_a_selection_stays(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("Some words.")
    selection = Selection.of("L1")
    _, params, common = handed_on("intervene", "tiny", text=tmp_path / "text.txt", at=selection, out=tmp_path)
    assert params.text.documents == ("Some words.",)
    assert params.at is selection
    assert common == {"out": tmp_path}


@pytest.mark.parametrize("keywords", [{"windwo": 3}, {"what": "tiny", "model": "tiny"}, {}])
def test_wrong_arguments_are_refused_as_by_any_function(keywords: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"intervene\(\) "):
        handed_on("intervene", **keywords)
