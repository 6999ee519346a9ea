"""Runs a tokenizer quietly; its failure is an error of the checkpoint."""

from collections.abc import Iterator
from contextlib import contextmanager

from headscope.errors import CheckpointError, HeadscopeError
from headscope.model.transformers.library_messages import quiet, reason


@contextmanager
def tokenising() -> Iterator[None]:
    """Run a tokenizer inside the context.

    A tokenizer is made of files of the checkpoint, and may fail on any word.

    Raises:
        CheckpointError: The tokenizer fails.
    """
    try:
        with quiet():
            yield
    except (HeadscopeError, MemoryError):
        raise
    except Exception as error:
        raise CheckpointError(
            f"the tokenizer fails on this text: {reason(error)}",
            hint="fetch the tokenizer files again, or remove them to open the model without text",
        ) from error
