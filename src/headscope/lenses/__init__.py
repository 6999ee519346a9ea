"""Questions about a model, one folder each. A folder with a `lens.py` is a lens: nothing else registers it."""

from functools import cache
from typing import TYPE_CHECKING

from headscope.members import Member, members, unknown_member

if TYPE_CHECKING:
    from headscope.lenses.lens import AnyLens

# The order of the report; a lens that is not named here comes last.
ORDER = (
    "spectra",
    "focus",
    "alignment",
    "likeness",
    "embeddings",
    "gaussian",
    "preconditioning",
    "scores",
    "dependence",
    "transport",
    "uniformity",
    "lowrank",
    "angles",
    "maps",
)


def lens_members() -> dict[str, Member]:
    """Every lens by name, in the order of the report; no lens is imported."""
    return members(__name__, "lens", ORDER)


def lens_member(name: str) -> Member:
    """The lens of that name, not yet imported; an unknown name is an error that tells the nearest ones."""
    lenses_by_name = lens_members()
    if name not in lenses_by_name:
        raise unknown_member("lens", name, lenses_by_name)
    return lenses_by_name[name]


def lenses() -> dict[str, "AnyLens"]:
    """Every lens by name, in the order of the report."""
    return {name: _loaded(member) for name, member in lens_members().items()}


def lens_named(name: str) -> "AnyLens":
    """The lens of that name; only its own files are imported."""
    return _loaded(lens_member(name))


@cache
def _loaded(member: Member) -> "AnyLens":
    lens: AnyLens = member.load()
    return lens
