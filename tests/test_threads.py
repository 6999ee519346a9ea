"""Narrow models run on one thread of torch, wide ones on their user's; afterwards there are as many as before."""

from dataclasses import dataclass

import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from headscope import api
from headscope.core import About, Finding, ModelSpec, TextSpec
from headscope.pipeline.threads import WIDE, fitting_threads

NARROW, BROAD = (
    ModelSpec("m", "test", "m", "M", "decoder-only", 1, 4, 4, width, 8, 300, 100, 1, "float32")
    for width in (WIDE - 1, WIDE)
)
WIDTHS = pytest.mark.parametrize(("spec", "threads"), [(NARROW, 1), (BROAD, 3)], ids=["narrow", "wide"])


@pytest.fixture(autouse=True)
def three_threads():
    """A number that neither the rule nor the workers of the tests set."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@WIDTHS
def test_the_threads_of_a_model(spec, threads):
    with fitting_threads(spec):
        assert torch.get_num_threads() == threads
    assert torch.get_num_threads() == 3


def blas_threads():
    """The threads of every library that numpy and scipy multiply with."""
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def test_products_of_numpy_stay_on_one_thread_for_a_narrow_model():
    with threadpool_limits(2, user_api="blas"):
        before = blas_threads()
        with fitting_threads(NARROW):
            assert blas_threads() == {1}
        assert blas_threads() == before


@WIDTHS
def test_they_are_restored_after_an_error(spec, threads):
    with pytest.raises(KeyboardInterrupt), fitting_threads(spec):
        assert torch.get_num_threads() == threads
        raise KeyboardInterrupt
    assert torch.get_num_threads() == 3


def test_a_wide_model_within_a_measurement_of_a_narrow_one():
    with fitting_threads(NARROW):
        with fitting_threads(BROAD), fitting_threads(NARROW):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3


@dataclass(frozen=True)
class Params:
    seed: int = 0


class Counting:
    """An experiment that notes the threads it is run on, and may fail."""

    params = Params

    def __init__(self, error: Exception | None = None, *, keeps_threads: bool = False):
        self.error, self.threads, self.keeps_threads = error, [], keeps_threads

    def check(self, params):
        self.threads.append(torch.get_num_threads())

    def stages(self, model, params):
        return ()

    def run(self, model, params, progress):
        self.threads.append(torch.get_num_threads())
        if self.error is not None:
            raise self.error
        about = About("T", "Q?", "D", (), "R", "nobody")
        return Finding("counting", about), TextSpec("t", "", 1, 1, 1, 1, 0, 1, 1)


@dataclass
class Opened:
    spec: ModelSpec
    sites: tuple = ()


@WIDTHS
def test_an_experiment_that_keeps_threads_runs_on_those_of_its_user(spec, threads, monkeypatch):
    experiment = Counting(keeps_threads=True)
    monkeypatch.setattr(api, "experiment_named", lambda name: experiment)
    monkeypatch.setattr(api, "open", lambda model, **_: model)
    api.run_experiment("counting", Opened(spec))
    assert experiment.threads == [3, 3]


@WIDTHS
@pytest.mark.parametrize("error", [None, ValueError("broken")], ids=["success", "error"])
def test_an_experiment_runs_on_them(spec, threads, error, monkeypatch):
    experiment = Counting(error)
    monkeypatch.setattr(api, "experiment_named", lambda name: experiment)
    monkeypatch.setattr(api, "open", lambda model, **_: model)
    if error is None:
        api.run_experiment("counting", Opened(spec))
    else:
        with pytest.raises(ValueError, match="broken"):
            api.run_experiment("counting", Opened(spec))
    assert experiment.threads == [3, threads]
    assert torch.get_num_threads() == 3
