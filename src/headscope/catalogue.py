"""What can be asked: names, prose and settings of lenses and experiments; and the formats that can be opened.

Loads no torch, so that lists and help are instant.
"""

from headscope.experiments import command_of, experiment_members
from headscope.lenses import lens_member, lens_members
from headscope.members import Member
from headscope.model.formats.format import described_forms, forms

__all__ = [
    "Member",
    "command_of",
    "described_forms",
    "experiment_members",
    "forms",
    "lens_member",
    "lens_members",
]
