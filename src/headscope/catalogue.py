"""The names, prose and settings of lenses, experiments and mechanisms, and the forms of checkpoints.

Loading this needs no torch, so that lists and help are instant.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headscope.attention.mechanisms import mechanism_member, mechanism_members
from headscope.experiments import command_of, experiment_members
from headscope.experiments.function import function_of
from headscope.lenses import lens_member, lens_members
from headscope.members import Member, MemberWarning, setting_help
from headscope.model.formats.format import described_forms, forms

if TYPE_CHECKING:
    from headscope.core import Run

__all__ = [
    "Member",
    "MemberWarning",
    "command_of",
    "described_forms",
    "experiment_function",
    "experiment_members",
    "forms",
    "lens_member",
    "lens_members",
    "mechanism_member",
    "mechanism_members",
    "setting_help",
]


def experiment_function(name: str) -> "Callable[..., Run] | None":
    """The Python function of an experiment, None where there is no such experiment; its call loads torch."""
    member = experiment_members().get(name)
    return None if member is None else function_of(member, _run_experiment)


def _run_experiment(*arguments: Any, **keywords: Any) -> "Run":
    from headscope.api import run_experiment

    return run_experiment(*arguments, **keywords)
