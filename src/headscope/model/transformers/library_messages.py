"""Silences the log lines of other libraries, and quotes their errors in ours."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_LONGEST_MESSAGE = 300


@contextmanager
def quiet() -> Iterator[None]:
    """Silence log lines, warnings and progress bars of transformers.

    Restores everything afterwards.
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
    """The message of an error on one line, cut where it is very long.

    The class of the error where it has no message.
    """
    message = " ".join(str(error).split())
    if not message:
        return type(error).__name__
    # A bare KeyError only holds the key.
    message = f"{type(error).__name__} {message}" if isinstance(error, KeyError) else message
    return message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE]} …"
