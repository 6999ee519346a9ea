"""Members: lenses, experiments and mechanisms, each found by its name; nothing else registers it.

A lens or an experiment is a folder with `about.md` (prose), `settings.py` (what can be chosen; it loads no torch) and
the file of its role (`lens.py`, `experiment.py`), which binds the role's name in capitals (`LENS`). A mechanism is one
file that binds `MECHANISM`. Those of this package are found by a scan. Other packages name theirs as entry points:

    [project.entry-points."headscope.lenses"]
    colour = "my_package.colour"          # the folder, as a package

    [project.entry-points."headscope.mechanisms"]
    pastel = "my_package.pastel"          # the file, as a module

A member of another package never takes the place of one of this package, and a broken one breaks no other: it stays in
the lists with the reason, and only its users get the error.
"""

import importlib
import pkgutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import Field, dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from headscope.about import About, read_about
from headscope.errors import HeadscopeError, ResourceError, UsageError

T = TypeVar("T")
_PROJECT = __name__.partition(".")[0]
_SPELLED = {"Selection": str, "Text": str}


class MemberWarning(UserWarning):
    """A member of another package is left out because it cannot be used."""


@dataclass(frozen=True)
class Member:
    """One member, known by its name and place; its modules are imported when they are asked for."""

    name: str
    package: str  # of a mechanism: its module
    role: str  # "lens", "experiment" or "mechanism"
    is_folder: bool = True
    problem: str = ""  # why it cannot be used, as far as its name alone shows

    @property
    def is_foreign(self) -> bool:
        """Whether another package brings it."""
        return self.package.partition(".")[0] != _PROJECT

    @property
    def folder(self) -> Path:
        """Where its files lie."""
        with self.guard():
            spec = find_spec(self.package)
            if spec is None or not spec.submodule_search_locations:
                raise self.error(f"there is no package {self.package!r}")
            return Path(next(iter(spec.submodule_search_locations)))

    @cached_property
    def about(self) -> About:
        """Its prose."""
        with self.guard():
            return read_about(self.folder / "about.md")

    @cached_property
    def settings(self) -> type[Any]:
        """The dataclass of what can be chosen."""
        settings: type[Any] = self.setting("Params")
        return settings

    def setting(self, name: str) -> Any:
        """What `settings.py` binds to a name."""
        return self._bound(f"{self.package}.settings", name)

    def optional_setting(self, name: str) -> Any:
        """What `settings.py` binds to a name; None where it does not."""
        with self.guard():
            return getattr(importlib.import_module(f"{self.package}.settings"), name, None)

    def setting_types(self) -> dict[str, Any]:
        """The type of every setting; nouns whose modules load torch count as the strings that spell them."""
        with self.guard():
            return get_type_hints(self.settings, localns=_SPELLED)

    def load(self) -> Any:
        """What its role file binds to the role's name in capitals."""
        return self._bound(f"{self.package}.{self.role}" if self.is_folder else self.package, self.role.upper())

    def error(self, reason: str) -> ResourceError:
        """The error of whoever uses this member although it is broken."""
        return ResourceError(
            f"{self.role} {self.name!r} of {self.package} cannot be used: {reason}",
            hint="repair or uninstall its package; --debug shows the traceback" if self.is_foreign else "",
        )

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Turn every exception of another package's code into `error`; one of our own code is a bug and stays."""
        if self.problem:
            raise self.error(self.problem)
        try:
            yield
        except ResourceError:
            raise
        except Exception as error:
            if not self.is_foreign:
                raise
            is_ours = isinstance(error, HeadscopeError)
            raise self.error(str(error) if is_ours else f"{type(error).__name__}: {error}") from error

    def _bound(self, module_name: str, name: str) -> Any:
        with self.guard():
            module = importlib.import_module(module_name)
            if not hasattr(module, name):
                raise self.error(f"{module_name} must bind {name}")
            return getattr(module, name)


def members(
    package: str, role: str, order: Sequence[str] = (), *, group: str = "", is_folder: bool = True
) -> dict[str, Member]:
    """The members of a kind by name: first those that `order` names, then the rest by name.

    Args:
        package: Where the members of headscope lie.
        role: What they are called: `lens`, `experiment` or `mechanism`.
        order: The names that come first.
        group: The group of entry points, where its name is not that of the package.
        is_folder: Whether a member is a folder; else it is a file.
    """
    by_name = own_members(package, role, is_folder=is_folder)
    article = "an" if role == "experiment" else "a"
    for member in _entry_points(group or package, role, is_folder):
        same_name = by_name.get(member.name)
        if same_name is None:
            by_name[member.name] = member
        elif not same_name.is_foreign:
            by_name[member.package] = replace(member, problem=f"headscope has {article} {role} of this name; rename it")
        elif same_name.package != member.package:
            packages = f"{same_name.package} and {member.package}"
            problem = (
                f"two packages hold {article} {role} of this name: {packages}; rename one or uninstall its package"
            )
            by_name[member.name] = replace(same_name, problem=problem)
    ordered = [name for name in order if name in by_name]
    return {name: by_name[name] for name in (*ordered, *sorted(by_name.keys() - set(ordered)))}


def own_members(package: str, role: str, *, is_folder: bool = True) -> dict[str, Member]:
    """The members of a kind that headscope itself has, by name."""
    places = importlib.import_module(package).__path__
    by_name = {}
    for module in pkgutil.iter_modules(places):
        has_role_file = any(Path(place, module.name, f"{role}.py").is_file() for place in places)
        if has_role_file if is_folder else not module.name.startswith("_"):
            by_name[module.name] = Member(module.name, f"{package}.{module.name}", role, is_folder)
    return by_name


def member_named(name: str, by_name: Mapping[str, Member], role: str) -> Member:
    """The member of that name; the error for an unknown name lists the nearest ones.

    Raises:
        UsageError: There is none.
    """
    if name not in by_name:
        raise unknown_member(role, name, by_name)
    return by_name[name]


def usable(by_name: Mapping[str, Member], load: Callable[[Member], T]) -> dict[str, T]:
    """What `load` makes of every member; a broken one of another package is left out, with a warning."""
    loaded = {}
    for name, member in by_name.items():
        try:
            loaded[name] = load(member)
        except ResourceError as error:
            if not member.is_foreign:
                raise
            warnings.warn(error.message, MemberWarning, stacklevel=2)
    return loaded


def setting_help(field: "Field[Any]") -> str:
    """The help of a setting with a capital and a full stop; what ends with one is left as it is written."""
    text: str = field.metadata.get("help", "")
    return text if not text or text.endswith(".") else f"{text[:1].upper()}{text[1:]}."


def check_settings(params: Any) -> None:
    """Refuse settings that make no sense: `Params.check`, where a member has it; loads no torch.

    Raises:
        UsageError: They make no sense.
    """
    check = getattr(params, "check", None)
    if check is not None:
        check()


def unknown_member(role: str, name: str, names: Iterable[str]) -> UsageError:
    """The error for a name that nobody has; it tells the nearest ones."""
    import difflib  # only errors need it

    candidates = list(names)
    near = difflib.get_close_matches(name, candidates, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    plural = "lenses" if role == "lens" else f"{role}s"
    return UsageError(f"there is no {role} {name!r}", hint=f"{hint}the {plural} are: {', '.join(candidates)}")


def _entry_points(group: str, role: str, is_folder: bool) -> Iterable[Member]:
    from importlib import metadata  # takes 50 ms to load: most commands name a member of headscope itself

    for entry in sorted(metadata.entry_points(group=group), key=lambda entry: (entry.name, entry.value)):
        yield Member(entry.name, entry.value, role, is_folder)
