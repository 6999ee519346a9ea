"""What can be asked: names, prose and settings of lenses. Loads no torch, so that lists and help are instant."""

from headscope.lenses import lens_member, lens_members
from headscope.members import Member

__all__ = ["Member", "lens_member", "lens_members"]
