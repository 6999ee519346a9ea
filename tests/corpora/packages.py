"""Small packages made by hand in the forms that pip, npm and apt bring, and clients that bring them."""

import gzip
import io
import lzma
import tarfile
import zipfile
from pathlib import Path


def wheel(path: Path, files: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def tar(files: dict[str, str], links: dict[str, str] | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info)
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content.encode())
            archive.addfile(info, io.BytesIO(content.encode()))
    return buffer.getvalue()


def tarball(path: Path, files: dict[str, str], links: dict[str, str] | None = None) -> Path:
    path.write_bytes(gzip.compress(tar(files, links)))
    return path


def member(name: str, content: bytes) -> bytes:
    """One entry of an `ar` archive: a header of 60 bytes, the content, a byte to make it even."""
    header = f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
    return header + content + b"\n" * (len(content) % 2)


def deb(path: Path, files: dict[str, str], links: dict[str, str] | None = None) -> Path:
    named = {name if name.startswith("/") else f"./{name}": content for name, content in files.items()}
    data = lzma.compress(tar(named, links))
    control = lzma.compress(tar({"./postinst": "#!/bin/sh\ntouch /tmp/was-run\n"}))
    parts = [("debian-binary", b"2.0\n"), ("control.tar.xz", control), ("data.tar.xz", data)]
    path.write_bytes(b"!<arch>\n" + b"".join(member(*part) for part in parts))
    return path


def bringing(package: Path):
    """A stand-in for `clients.run`: the client puts the package where it was asked to, in two steps."""

    def run(command, scratch, watch):
        content = package.read_bytes()
        (scratch / package.name).write_bytes(content[: len(content) // 2])
        watch()
        (scratch / package.name).write_bytes(content)
        watch()
        return 0, "saved"

    return run
