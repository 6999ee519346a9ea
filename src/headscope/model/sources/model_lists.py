"""Lists of models in text files: one name a line. Loads no torch."""

from pathlib import Path

from headscope.errors import CheckpointError, UsageError
from headscope.model.formats.checkpoint_file import file_size
from headscope.model.formats.format import format_at

POPULAR = "popular"  # the list that ships with headscope
_POPULAR_FILE = Path(__file__).parent / "popular.txt"
_MAX_BYTES = 1_000_000


def is_list(name: str) -> bool:
    """Whether `name` names a list of models rather than a model."""
    path = Path(name)
    if name == POPULAR or not path.is_file():
        return name == POPULAR
    return path.suffix.lower() not in (".safetensors", ".json") and format_at(path) is None


def read_list(name: str) -> tuple[str, ...]:
    """The models that a list names: one a line, without comments, each once."""
    file = _POPULAR_FILE if name == POPULAR else Path(name)
    try:
        if file_size(file) > _MAX_BYTES:
            raise UsageError(f"{file} is larger than {_MAX_BYTES} bytes", hint="give a text file with one model a line")
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError, CheckpointError) as error:
        raise UsageError(f"cannot read the list {file}: {error}", hint="give a UTF-8 text file") from error
    names = [line.partition("#")[0].strip() for line in lines]
    models = tuple(dict.fromkeys(name for name in names if name))
    if not models:
        raise UsageError(f"{file} names no model", hint="write one repository id a line")
    return models
