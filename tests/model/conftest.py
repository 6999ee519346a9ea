"""What the tests of opening share: a cache of their own, so that none of them sees or fills the user's."""

from pathlib import Path

import pytest


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder for one test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("HEADSCOPE_CACHE", str(folder))
    return folder
