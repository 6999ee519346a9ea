"""What an error of another library says, as part of one of our sentences."""

_LONGEST = 300


def reason(error: BaseException) -> str:
    """The message on one line, cut where it is very long; the kind of the error where it says nothing."""
    message = " ".join(str(error).split())
    if not message:
        return type(error).__name__
    # A bare KeyError says only the key.
    message = f"{type(error).__name__} {message}" if isinstance(error, KeyError) else message
    return message if len(message) <= _LONGEST else f"{message[:_LONGEST]} …"
