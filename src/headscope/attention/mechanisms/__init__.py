"""One file per mechanism, found by a scan; entry points name those of other packages. Loads no torch."""

from headscope.members import Member, member_named, members, own_members


def mechanism_members() -> dict[str, Member]:
    """Every mechanism by name; none is imported."""
    return members(__name__, "mechanism", group="headscope.mechanisms", is_folder=False)


def mechanism_member(name: str) -> Member:
    """The mechanism of that name, not yet imported; the error for an unknown name lists the nearest ones."""
    # Those of this package come first: entry points are read from the disk, which takes 20 ms.
    headscope_members = own_members(__name__, "mechanism", is_folder=False)
    if name in headscope_members:
        return headscope_members[name]
    return member_named(name, mechanism_members(), "mechanism")
