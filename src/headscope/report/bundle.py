"""The script of the report: built from `frontend/`, committed with the hash of its sources."""

import hashlib
from functools import cache
from pathlib import Path

BUNDLE = Path(__file__).with_name("report_bundle.js")
SOURCES_HASH = Path(__file__).with_name("report_bundle.sha256")
_SETTINGS = ("package.json", "package-lock.json", "tsconfig.json", "vite.config.ts")


@cache
def script() -> str:
    """The text of the script."""
    return BUNDLE.read_text(encoding="utf-8").strip()


def source_hash(frontend: Path) -> str:
    """One hash over all sources of the script, with their names."""
    digest = hashlib.sha256()
    for path in sorted([*(frontend / "src").rglob("*.ts"), *(frontend / name for name in _SETTINGS)]):
        digest.update(f"{path.relative_to(frontend).as_posix()}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
