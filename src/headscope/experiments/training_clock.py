"""Which clock counts the minutes of a training; loads no torch."""

from enum import StrEnum


class Clock(StrEnum):
    """What minutes of training are."""

    WALL = "wall"
    PROCESSOR = "processor"
