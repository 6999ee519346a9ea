"""Versions and code hash: what numbers depend on besides model, text, parameters."""

import hashlib
import platform
from functools import cache
from importlib import metadata
from pathlib import Path

import headscope

_PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "scipy", "polars")


def versions() -> dict[str, str]:
    """Versions of headscope, of Python, and of the packages that compute."""
    return {"headscope": headscope.__version__, "python": platform.python_version(), **_package_versions()}


@cache
def _package_versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in _PACKAGES}


@cache
def code_digest() -> str:
    """The hash of this package's sources.

    So an edited lens never reuses its old answer in a run folder.
    """
    digest = hashlib.sha256()
    root = Path(headscope.__file__).parent
    for path in sorted((*root.rglob("*.py"), *root.rglob("*.md"))):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()
