"""The exceptions that headscope raises on purpose.

Each class holds the exit code of the command line. A message says what was wrong, what was expected, what was found and
where; `hint` says what to do about it.
"""

from typing import ClassVar


class HeadscopeError(Exception):
    """Root of every error that headscope raises on purpose."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class UsageError(HeadscopeError):
    """An argument, a selection, a name or a text that cannot be used."""

    exit_code: ClassVar[int] = 2


class CheckpointError(HeadscopeError):
    """A checkpoint that is missing, malformed, non-finite, or of an unreadable family."""

    exit_code: ClassVar[int] = 3


class WeightsRefused(CheckpointError):
    """The projections of this site have no canonical form; the message says why."""


class CaptureError(CheckpointError):
    """This family does not allow its attention to be read or changed in this way."""


class VariantRefused(CaptureError):
    """This family cannot run in the requested variant; the message says why."""


class LensError(HeadscopeError):
    """A lens could not produce its finding."""

    exit_code: ClassVar[int] = 4


class NumericsError(HeadscopeError):
    """A result is not finite or misses the tolerance that it promises."""

    exit_code: ClassVar[int] = 4


class ResourceError(HeadscopeError):
    """The environment lacks something: disk, network, memory or a package."""

    exit_code: ClassVar[int] = 5
