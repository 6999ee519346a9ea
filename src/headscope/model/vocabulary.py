"""The tokenizer of a checkpoint, if it has one; never with code of the checkpoint's own."""

from pathlib import Path
from typing import Any

from headscope.errors import CheckpointError
from headscope.model.quiet import quiet

# transformers would invent an empty tokenizer for a folder without any of these.
_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.*",
    "*.spm",
    "spiece.model",
    "sentencepiece*",
    "tekken.json",
)


def open_tokenizer(folder: Path, config: Any) -> tuple[Any | None, tuple[str, ...]]:
    """The tokenizer and what is to be said about it; None where the folder has none."""
    from transformers import AutoTokenizer

    if not any(path for pattern in _FILES for path in folder.glob(pattern)):
        return None, ()
    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(
                folder, config=config, local_files_only=True, trust_remote_code=False
            )
    except ImportError as error:
        return None, (
            f"opened without its tokenizer, which needs a package that is not here: {_first(error)}",
        )
    except Exception as error:
        raise CheckpointError(
            f"the tokenizer in {folder} cannot be read: {_first(error)}",
            hint="fetch the tokenizer files again, or remove them to open the model without text",
        ) from error
    return tokenizer, _size_note(tokenizer, config)


def _size_note(tokenizer: Any, config: Any) -> tuple[str, ...]:
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    rows = getattr(text, "vocab_size", None)
    last = max(tokenizer.get_vocab().values(), default=-1)
    if not isinstance(rows, int) or last < rows:
        return ()
    return (f"the tokenizer has ids up to {last}, the model embeds only ids below {rows}",)


def _first(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
