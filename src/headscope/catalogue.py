"""The names, prose and settings of lenses and experiments.

Loading this needs no torch, so that lists and help are instant.
"""

from headscope.experiments import command_of, experiment_members
from headscope.lenses import lens_member, lens_members
from headscope.members import Member

__all__ = ["Member", "command_of", "experiment_members", "lens_member", "lens_members"]
