"""What can be chosen for the lens `spectra`."""

from dataclasses import dataclass, field

TABLES = ("heads", "layers", "feed_forward")  # the main one first


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    bins: int = field(default=48, metadata={"help": "bars of the histograms"})
