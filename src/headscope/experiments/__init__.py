"""Things to do with a model, one folder each. A folder with an `experiment.py` is an experiment."""

from functools import cache
from typing import TYPE_CHECKING

from headscope.members import Member, members, unknown_member

if TYPE_CHECKING:
    from headscope.experiments.command import Command
    from headscope.experiments.experiment import AnyExperiment

# The order of lists and help; an experiment that is not named here comes last.
ORDER = ("intervene", "fewshot")


def experiment_members() -> dict[str, Member]:
    """Every experiment by name; none is imported."""
    return members(__name__, "experiment", ORDER)


def experiment_member(name: str) -> Member:
    """The experiment of that name, not yet imported; the error for an unknown name lists the nearest ones."""
    by_name = experiment_members()
    if name not in by_name:
        raise unknown_member("experiment", name, by_name)
    return by_name[name]


def command_of(member: Member) -> "Command":
    """The command of an experiment; only its settings are imported, which load no torch."""
    command: Command = member.setting("COMMAND")
    return command


def experiment_named(name: str) -> "AnyExperiment":
    """The experiment of that name; only its own files are imported."""
    return _loaded(experiment_member(name))


@cache
def _loaded(member: Member) -> "AnyExperiment":
    experiment: AnyExperiment = member.load()
    return experiment
