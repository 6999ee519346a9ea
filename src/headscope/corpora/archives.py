"""Reads files of a wheel, an npm tarball or a Debian package into memory.

Nothing is written under the names in an archive. Only regular files whose whole name matches a pattern are read, and
only up to a size limit.
"""

import gzip
import io
import lzma
import re
import shutil
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, Protocol, cast, runtime_checkable

from headscope.errors import ResourceError

MAX_MEMBER_BYTES = 32 << 20
MAX_TOTAL_BYTES = 512 << 20

_DAMAGE = (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError)


@runtime_checkable
class Stream(Protocol):
    """Something to read bytes from."""

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes."""
        ...


def members(archive: Path, name_pattern: str) -> dict[str, bytes]:
    """The files of an archive whose whole name matches `name_pattern`, sorted by name.

    Raises:
        ResourceError: The archive is damaged or truncated, has no such file, or has a link or a huge file of that name.
    """
    pattern, contents, total = re.compile(name_pattern), dict[str, bytes](), 0
    try:
        for name, content in _files(archive, pattern):
            total += len(content)
            if len(content) > MAX_MEMBER_BYTES or total > MAX_TOTAL_BYTES:
                raise _refusal(archive, f"{name} is larger than any text that belongs there")
            contents[name] = content
    except (*_DAMAGE, OSError) as error:
        raise ResourceError(
            f"{archive.name} is damaged or truncated: {error or type(error).__name__}",
            hint="remove it and fetch it again",
        ) from error
    if not contents:
        raise _refusal(archive, "it has none of the files that were expected")
    return dict(sorted(contents.items()))


def _files(archive: Path, pattern: re.Pattern[str]) -> Iterator[tuple[str, bytes]]:
    if archive.suffix == ".whl":
        yield from _zip_members(archive, pattern)
    elif archive.suffix == ".deb":
        with _payload(archive) as stream:
            yield from _tar_members(archive, stream, pattern)
    else:
        with gzip.open(archive) as plain:
            yield from _tar_members(archive, plain, pattern)


def _zip_members(archive: Path, pattern: re.Pattern[str]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(archive) as opened:
        for info in opened.infolist():
            if _is_match(archive, info.filename, pattern):
                with opened.open(info) as source:
                    yield info.filename, source.read(MAX_MEMBER_BYTES + 1)


def _tar_members(archive: Path, stream: Stream, pattern: re.Pattern[str]) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=cast("Any", stream), mode="r|") as opened:
        for info in opened:
            name = info.name.removeprefix("./")
            if not _is_match(archive, name, pattern):
                continue
            source = opened.extractfile(info) if info.isreg() else None
            if source is None:
                raise _refusal(archive, f"{name} is a link or a device, expected a file")
            yield name, source.read(MAX_MEMBER_BYTES + 1)


def _is_match(archive: Path, name: str, pattern: re.Pattern[str]) -> bool:
    if not pattern.fullmatch(name):
        return False
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise _refusal(archive, f"the name {name!r} leads out of it")
    return True


@contextmanager
def _payload(archive: Path) -> Iterator[Stream]:
    """The tar inside a Debian package.

    The package is an `ar` archive: a header of 60 bytes before each member.
    """
    with archive.open("rb") as file:
        if file.read(8) != b"!<arch>\n":
            raise _refusal(archive, "it is not a Debian package")
        while len(header := file.read(60)) == 60:
            name, size = header[:16].decode("latin1").strip().rstrip("/"), _size(archive, header[48:58])
            content = file.read(size)
            if len(content) < size:
                break
            if name.startswith("data.tar"):
                with _unpack(archive, name, content) as stream:
                    yield stream
                return
            file.seek(size % 2, io.SEEK_CUR)
    raise EOFError("the end is missing")


def _size(archive: Path, field: bytes) -> int:
    digits = field.decode("latin1").strip()
    if not (digits.isascii() and digits.isdigit()):
        raise _refusal(archive, f"it says that a member is {digits!r} bytes long")
    return int(digits)


@contextmanager
def _unpack(archive: Path, name: str, content: bytes) -> Iterator[Stream]:
    if name.endswith(".zst"):
        with _unpack_by_dpkg(archive) as stream:
            yield stream
    elif name.endswith(".xz"):
        with lzma.open(io.BytesIO(content)) as unpacked:
            yield unpacked
    else:
        with gzip.open(io.BytesIO(content)) as plain:
            yield plain


@contextmanager
def _unpack_by_dpkg(archive: Path) -> Iterator[Stream]:
    """Let `dpkg-deb` unpack a package; it runs no script.

    Ubuntu packs with zstandard, which Python cannot read yet.
    """
    if (program := shutil.which("dpkg-deb")) is None:
        raise ResourceError(
            f"{archive.name} is packed with zstandard and dpkg-deb was not found",
            hint="take the package of Debian instead of Ubuntu's",
        )
    command = [program, "--fsys-tarfile", str(archive)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None  # noqa: S101  asked for above
        try:
            yield process.stdout
            process.stdout.read()
        finally:
            process.kill()


def _refusal(archive: Path, why: str) -> ResourceError:
    return ResourceError(
        f"{archive.name} was refused: {why}",
        hint="this is not the expected package: try again, or use another package index",
    )
