"""Questions about a model, one folder each. A folder with a `lens.py` is a lens: nothing else registers it."""

from functools import cache
from typing import TYPE_CHECKING

from headscope.members import Member, member_named, members, usable

if TYPE_CHECKING:
    from headscope.lenses.lens import AnyLens

# The order of the report; a lens that is not named here comes last.
ORDER = (
    "spectra",
    "focus",
    "roles",
    "alignment",
    "circuits",
    "composition",
    "likeness",
    "embeddings",
    "gaussian",
    "preconditioning",
    "scores",
    "dependence",
    "transport",
    "uniformity",
    "lowrank",
    "structure",
    "angles",
    "maps",
)


def lens_members() -> dict[str, Member]:
    """Every lens by name, in the order of the report; no lens is imported."""
    return members(__name__, "lens", ORDER)


def lens_member(name: str) -> Member:
    """The lens of that name, not yet imported; the error for an unknown name lists the nearest ones."""
    return member_named(name, lens_members(), "lens")


def lenses() -> dict[str, "AnyLens"]:
    """Every lens by name, in the order of the report; a broken one of another package is left out, with a warning."""
    return usable(lens_members(), _loaded)


def lens_named(name: str) -> "AnyLens":
    """The lens of that name; only its own files are imported."""
    return _loaded(lens_member(name))


@cache
def _loaded(member: Member) -> "AnyLens":
    from headscope.lenses.lens import TextLens, WeightLens

    lens: object = member.load()
    if not isinstance(lens, (TextLens, WeightLens)) or lens.name != member.name:
        bound = f"one of the name {lens.name!r}" if isinstance(lens, (TextLens, WeightLens)) else repr(lens)
        raise member.error(f"it must bind LENS to a lens of the name {member.name!r}, found {bound}")
    return lens
