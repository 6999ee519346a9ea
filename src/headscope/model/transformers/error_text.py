"""What an error of another library says, as part of one of our sentences."""

_LONGEST = 300


def reason(error: BaseException) -> str:
    """The message on one line, cut where it is very long; the kind of the error where it says nothing."""
    said = " ".join(str(error).split())
    if not said:
        return type(error).__name__
    # A bare KeyError says only the key.
    said = f"{type(error).__name__} {said}" if isinstance(error, KeyError) else said
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST]} …"
