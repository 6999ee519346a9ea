"""Small matrices on one thread: waking a second one takes longer than the work, much longer on a busy machine."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
