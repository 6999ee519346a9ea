"""Opens the tokenizer of a checkpoint, if it has one.

It never runs code of the checkpoint.
"""

from pathlib import Path
from typing import Any

from headscope.errors import CheckpointError
from headscope.model.formats.checkpoint_file import file_size
from headscope.model.transformers.library_messages import quiet, reason

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

_BESIDE = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt", "*.jinja")


def open_tokenizer(folder: Path, config: Any) -> tuple[Any | None, tuple[str, ...]]:
    """The tokenizer, and notes about it.

    None where the folder has no usable tokenizer.
    """
    from transformers import AutoTokenizer

    if not any(path for pattern in _FILES for path in folder.glob(pattern)):
        return None, ()
    for path in (path for pattern in (*_FILES, *_BESIDE) for path in folder.glob(pattern)):
        file_size(path)  # a pipe under this name would block, a folder would be ignored
    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(
                folder, config=config, local_files_only=True, trust_remote_code=False
            )
    except Exception as error:
        if (why := _unusable_here(error)) is not None:
            return None, (f"opened without its tokenizer, which {why}",)
        raise CheckpointError(
            f"the tokenizer in {folder} cannot be read: {reason(error)}",
            hint="fetch the tokenizer files again, or remove them to open the model without text",
        ) from error
    return tokenizer, _size_note(tokenizer, config)


def _unusable_here(error: Exception) -> str | None:
    """Why an intact tokenizer cannot be used on this machine.

    None where the tokenizer is broken.
    """
    message = str(error)
    if "custom code" in message:
        return "needs code of its own; headscope never runs code of a checkpoint"
    if isinstance(error, ImportError) or "install" in message:
        packages = [name for name in ("sentencepiece", "tiktoken", "protobuf") if name in message]
        return f"needs a package that is not installed ({' or '.join(packages) or reason(error)})"
    return None


def _size_note(tokenizer: Any, config: Any) -> tuple[str, ...]:
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    rows = getattr(text, "vocab_size", None)
    last = max(tokenizer.get_vocab().values(), default=-1)
    if not isinstance(rows, int) or last < rows:
        return ()
    return (f"the tokenizer has ids up to {last}, the model embeds only ids below {rows}",)
