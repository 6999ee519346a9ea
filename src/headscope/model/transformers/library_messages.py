"""What other libraries say: their log lines are silenced, their errors become part of one of our sentences."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_LONGEST_MESSAGE = 300


@contextmanager
def quiet() -> Iterator[None]:
    """No log lines, warnings or progress bars of transformers inside.

    Everything as it was afterwards.
    """
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def reason(error: BaseException) -> str:
    """The message on one line, cut where it is very long.

    The kind of the error where it says nothing.
    """
    message = " ".join(str(error).split())
    if not message:
        return type(error).__name__
    # A bare KeyError says only the key.
    message = f"{type(error).__name__} {message}" if isinstance(error, KeyError) else message
    return message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE]} …"
