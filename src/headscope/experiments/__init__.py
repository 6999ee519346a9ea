"""Things to do with a model, one folder each. A folder with an `experiment.py` is an experiment."""

from functools import cache
from typing import TYPE_CHECKING

from headscope.members import Member, member_named, members

if TYPE_CHECKING:
    from headscope.experiments.command import Command
    from headscope.experiments.experiment import AnyExperiment

# The order of lists and help; an experiment that is not named here comes last.
ORDER = ("why", "swap", "prune", "intervene", "fewshot", "translation", "tiny")


def experiment_members() -> dict[str, Member]:
    """Every experiment by name; none is imported."""
    return members(__name__, "experiment", ORDER)


def experiment_member(name: str) -> Member:
    """The experiment of that name, not yet imported; the error for an unknown name lists the nearest ones."""
    return member_named(name, experiment_members(), "experiment")


def command_of(member: Member) -> "Command":
    """The command of an experiment; only its settings are imported, which load no torch."""
    from headscope.experiments.command import Command

    command: object = member.setting("COMMAND")
    if not isinstance(command, Command) or not command.path:
        raise member.error(f"its settings must bind COMMAND to a Command with a path, found {command!r}")
    return command


def experiment_named(name: str) -> "AnyExperiment":
    """The experiment of that name; only its own files are imported."""
    return _loaded(experiment_member(name))


@cache
def _loaded(member: Member) -> "AnyExperiment":
    from headscope.experiments.experiment import Experiment

    experiment: object = member.load()
    if not isinstance(experiment, Experiment) or experiment.name != member.name:
        raise member.error(
            f"it must bind EXPERIMENT to an experiment of the name {member.name!r}, found {experiment!r}"
        )
    return experiment
