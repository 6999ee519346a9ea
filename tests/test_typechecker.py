"""The typechecker of the tests refuses what beartype refuses, and writes each check once."""

import jaxtyping
import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscope.maths.linear_algebra.spectrum import singular_values, stable_rank
from tests import typechecker


def typed(function):
    """As the import hook does."""
    return jaxtyping.jaxtyped(function, typechecker=typechecker.check)


def inner(annotation):
    @typed
    def function(x: annotation, times: int = 2) -> annotation:
        return x.repeat(times) if times else x[None]

    return function


def local():
    class Local:
        pass

    @typed
    def function(x: Local) -> Local:
        return x

    return Local, function


def test_the_package_is_checked():
    with pytest.raises(jaxtyping.TypeCheckError, match="checking the parameters"):
        singular_values(torch.ones(3))
    with pytest.raises(jaxtyping.TypeCheckError, match="checking the parameters"):
        stable_rank([1.0, 2.0])


@pytest.mark.parametrize("again", range(2))
def test_arguments_and_results_are_checked_at_every_call(again):
    for _ in range(2):
        function = inner(Float[Tensor, " n"])
        assert len(function(torch.ones(3), 1)) == 3
        with pytest.raises(jaxtyping.TypeCheckError, match="checking the parameters"):
            function(torch.ones(3, 1))
        with pytest.raises(jaxtyping.TypeCheckError, match="checking the parameters"):
            function(torch.ones(3), "2")
        with pytest.raises(jaxtyping.TypeCheckError, match="checking the return value"):
            function(torch.ones(3), 2)  # another length than n
        with pytest.raises(jaxtyping.TypeCheckError, match="checking the return value"):
            function(torch.ones(3), 0)


def test_other_types_in_the_same_place_are_other_checks():
    whole, real = inner(Int[Tensor, " n"]), inner(Float[Tensor, " n"])
    assert len(whole(torch.ones(3, dtype=torch.int64), 1)) == len(real(torch.ones(3), 1)) == 3
    for function, argument in ((real, torch.ones(3, dtype=torch.int64)), (whole, torch.ones(3))):
        with pytest.raises(jaxtyping.TypeCheckError):
            function(argument, 1)


def test_classes_of_the_same_name_are_told_apart():
    (one_class, one), (other_class, other) = local(), local()
    assert isinstance(one(one_class()), one_class)
    assert isinstance(other(other_class()), other_class)
    with pytest.raises(jaxtyping.TypeCheckError):
        other(one_class())


def test_a_check_is_written_once_and_not_before_a_call(monkeypatch):
    written = []
    beartype = typechecker.beartype
    monkeypatch.setattr(typechecker, "_checks", {})
    monkeypatch.setattr(typechecker, "beartype", lambda bare: (written.append(bare.__qualname__), beartype(bare))[1])
    functions = [inner(Float[Tensor, " n"]) for _ in range(3)]
    assert written == []
    for function in functions:
        function(torch.ones(3), 1)
    assert written == [functions[0].__qualname__] * 2  # of the parameters, and of the result with them
