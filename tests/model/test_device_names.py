"""Names of devices: present ones, missing ones, and names that torch does not know."""

import pytest
import torch

from headscope.errors import ResourceError, UsageError
from headscope.model.devices import device_named
from headscope.model.model import open_model
from tests.pretence import WIDE, Pretence


def test_devices_by_name() -> None:
    assert device_named("cpu") == torch.device("cpu")
    with pytest.raises(UsageError, match="no device 'banana'"):
        device_named("banana")
    with pytest.raises(UsageError, match="holds no numbers"):
        device_named("meta")
    with pytest.raises(UsageError, match="no device 'banana'"):
        open_model("tiny", device="banana")
    with Pretence(WIDE):
        assert device_named("xla:0") == WIDE


def test_a_device_that_is_not_there_is_said_so() -> None:
    with pytest.raises(ResourceError, match="'xla' cannot be used here") as caught:
        open_model("tiny", device="xla")
    assert caught.value.exit_code == 5
    assert "CPU" in caught.value.hint
