"""Members: lenses and experiments, each a folder that is found by its name; nothing else registers it.

A member's folder holds `about.md` (prose), `settings.py` (what can be chosen; it loads no torch), and the file of its
role (`lens.py`, `experiment.py`). Folders of this package are found by a scan. Other packages name theirs as entry
points, in the group of the kind (`headscope.lenses`, `headscope.experiments`):

    [project.entry-points."headscope.lenses"]
    colour = "my_package.colour"          # the folder, as a package
"""

import difflib
import importlib
import pkgutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headscope.about import About, read_about
from headscope.errors import LensError, UsageError


@dataclass(frozen=True)
class Member:
    """One member, known by its folder; its modules are imported when they are asked for."""

    name: str
    package: str
    role: str  # the file that makes the folder a member, e.g. "lens"

    @property
    def folder(self) -> Path:
        """Where its files lie."""
        spec = find_spec(self.package)
        if spec is None or not spec.submodule_search_locations:
            raise LensError(f"{self.name}: there is no package {self.package!r}", hint="an entry point names a folder")
        return Path(next(iter(spec.submodule_search_locations)))

    @cached_property
    def about(self) -> About:
        """Its prose."""
        return read_about(self.folder / "about.md")

    @cached_property
    def settings(self) -> type[Any]:
        """The dataclass of what can be chosen."""
        settings: type[Any] = self.setting("Params")
        return settings

    def setting(self, name: str) -> Any:
        """What `settings.py` binds to a name."""
        return getattr(importlib.import_module(f"{self.package}.settings"), name)

    def load(self) -> Any:
        """What its role file binds under the role's name in capitals."""
        module = importlib.import_module(f"{self.package}.{self.role}")
        return getattr(module, self.role.upper())


def members(package: str, role: str, order: Sequence[str] = ()) -> dict[str, Member]:
    """The members of a kind by name: first those that `order` names, then the rest by name.

    Raises:
        UsageError: Two members have the same name.
    """
    by_name: dict[str, Member] = {}
    for member in (*_folders(package, role), *_entry_points(package, role)):
        if member.name in by_name:
            raise UsageError(
                f"two packages hold {role} {member.name!r}: {by_name[member.name].package} and {member.package}",
                hint="rename one of them, or uninstall its package",
            )
        by_name[member.name] = member
    ordered = [name for name in order if name in by_name]
    return {name: by_name[name] for name in (*ordered, *sorted(by_name.keys() - set(ordered)))}


def unknown_member(role: str, name: str, names: Iterable[str]) -> UsageError:
    """The error for a name that nobody has; it tells the nearest ones."""
    every_name = list(names)
    near = difflib.get_close_matches(name, every_name, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    plural = "lenses" if role == "lens" else f"{role}s"
    return UsageError(f"there is no {role} {name!r}", hint=f"{hint}the {plural} are: {', '.join(every_name)}")


def _folders(package: str, role: str) -> Iterable[Member]:
    places = importlib.import_module(package).__path__
    for module in pkgutil.iter_modules(places):
        if module.ispkg and any(Path(place, module.name, f"{role}.py").is_file() for place in places):
            yield Member(module.name, f"{package}.{module.name}", role)


def _entry_points(package: str, role: str) -> Iterable[Member]:
    for entry in sorted(metadata.entry_points(group=package), key=lambda entry: entry.name):
        yield Member(entry.name, entry.value, role)
