"""Sound inputs for the hostile corpus, made once, and the way to run a command in this process."""

from collections.abc import Callable
from pathlib import Path

import pytest

from headscope.cli import main
from headscope.store import save
from tests.hostile import broken
from tests.hostile.row import Seeds
from tests.hostile.runs import a_run

Ended = tuple[int, str, str]


@pytest.fixture(scope="session")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Seeds:
    folder = tmp_path_factory.mktemp("seeds")
    model = broken.save_llama(folder / "llama")
    broken.save_llama(folder / "sharded", shard_size="20KB")
    broken.save_gguf(folder / "m.gguf", model)
    broken.save_llama(folder / "talker")
    broken.save_tokenizer(folder / "talker", n_words=60)
    save(a_run(), folder / "run")
    (folder / "run" / "report.html").write_text("the finished report")
    return Seeds(folder / "llama", folder / "sharded", folder / "m.gguf", folder / "talker", folder / "run")


@pytest.fixture
def headscope(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Ended]:
    """Run a command in this process: (exit code, standard output, standard error)."""
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HEADSCOPE_DEBUG", raising=False)

    def run(*line: str) -> Ended:
        with pytest.raises(SystemExit) as ended:
            main(line)
        out, err = capfd.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, out, err

    return run
