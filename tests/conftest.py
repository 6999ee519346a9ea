"""What every test shares: quiet cores, the embedded model opened once, a cache of its own where it needs one."""

import os
import random

# Before torch is loaded: idle threads sleep instead of spinning, which on a busy machine costs fivefold.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

from tests import typechecker  # noqa: F401  pyproject.toml names it, and it must be there before the package

# Two threads at most: tests run beside other work, and small matrices gain nothing from more. One per worker.
torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else min(2, os.cpu_count() or 1))


def pytest_runtest_setup() -> None:
    """Seed every generator, before the fixtures too: no test depends on which ones a worker ran before it."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  models and libraries draw from it
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def tiny():
    """The embedded model. Sessions and edits leave nothing behind, so one is enough for all tests."""
    from headscope.model.model import open_model

    return open_model("tiny")


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """An empty cache folder for one test, so that none of them sees or fills the user's."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("HEADSCOPE_CACHE", str(folder))
    return folder


# No deadlines, and no complaint that examples take long to make: a slow machine is not a broken law.
# Derandomised: the same examples in every run.
settings.register_profile("headscope", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("headscope")
