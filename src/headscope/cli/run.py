"""`main`: run a command and turn whatever it raises into one readable message and an exit code."""

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from headscope.cli.screen import INTERRUPTED, complain, noted_warnings, starting_line
from headscope.cli.streams import TERMINATED, ReaderGone, Terminated, guarded_streams, termination
from headscope.errors import HeadscopeError, ResourceError

BROKEN_PIPE = 141

_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run `headscope`; always ends by `SystemExit` with one of the documented codes.

    0 ok · 1 a bug · 2 usage · 3 checkpoint · 4 a lens failed or verify disagrees · 5 environment
    130 and 143: stopped by Ctrl-C or SIGTERM · 141: the reader of standard output left
    """
    # Idle threads of torch sleep instead of spinning: the same numbers, and no fivefold cost on a busy machine.
    # Read when torch is loaded, which has not happened yet.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    all_words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in all_words or os.environ.get("HEADSCOPE_DEBUG", "") not in ("", "0")
    # Accepted anywhere on the line: whoever needs it has just seen an error and presses the up arrow.
    words = [word for word in all_words if word != "--debug"]
    with guarded_streams(), termination():
        if debug:
            import logging

            logging.basicConfig(stream=sys.stderr, format="%(name)s: %(message)s")
            logging.getLogger("headscope").setLevel(logging.INFO)
        _run(words, debug)
    sys.exit(0)


def _run(words: Sequence[str], debug: bool) -> None:
    """Run one command and write all of its output; what it raises becomes a message and an exit code."""
    try:
        with starting_line():
            from headscope.catalogue import MemberWarning
            from headscope.cli.app import app
        try:
            with noted_warnings(MemberWarning):
                app(words, prog_name="headscope")
        finally:
            sys.stdout.flush()
    except HeadscopeError as error:
        _end(error, debug)
    except MemoryError as error:
        _end(_out_of_memory(error), debug)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Terminated:
        sys.exit(TERMINATED)
    except ReaderGone:
        sys.exit(BROKEN_PIPE)
    except Exception as error:  # noqa: BLE001  the last place that can turn a bug into a message
        if "can't allocate memory" in str(error):
            _end(_out_of_memory(error), debug)
        if isinstance(error, OSError) and error.errno in _MACHINE:
            _end(_refused_by_machine(error), debug)
        _end_with_bug(error, debug)


def _end(error: HeadscopeError, debug: bool) -> NoReturn:
    if debug:
        import traceback

        traceback.print_exception(error)
    complain(error.message, error.hint)
    sys.exit(error.exit_code)


def _end_with_bug(error: Exception, debug: bool) -> NoReturn:
    import traceback

    if debug:
        traceback.print_exception(error)
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = f"in {last.name}, {Path(last.filename).name}:{last.lineno}"
    complain(
        f"this is a bug in headscope: {type(error).__name__}: {error}\n  {place}",
        "the same command with --debug shows where it comes from; please report it",
    )
    sys.exit(1)


def _out_of_memory(error: BaseException) -> ResourceError:
    wrapped = ResourceError(
        "there is not enough memory for this",
        hint="try a smaller --window; `headscope look MODEL` estimates the memory",
    )
    wrapped.__cause__ = error
    return wrapped


def _refused_by_machine(error: OSError) -> ResourceError:
    where = "" if error.filename is None else f": {error.filename}"
    wrapped = ResourceError(
        f"the system refuses to go on: {error.strerror}{where}",
        hint="check the disk and who may write to it",
    )
    wrapped.__cause__ = error
    return wrapped
