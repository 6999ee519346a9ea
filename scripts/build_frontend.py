"""Build the script of the report from `frontend/` and write it into the package.

    python scripts/build_frontend.py

Needs node and npm. Next to the script it writes the hash of its sources, which a test compares: whoever changes a
source must build again.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from headscope.report.bundle import BUNDLE, SOURCES_HASH, source_hash

ROOT = Path(__file__).parents[1]
FRONTEND = ROOT / "frontend"


# `npm ci` would refuse a lock file that names no packages for other platforms; this installs the same versions.
INSTALL = ("install", "--no-save", "--no-audit", "--no-fund", "--silent")


def build(frontend: Path) -> bytes:
    """Install what the lock file names, check the types, and return the bundled script."""
    if not (frontend / "node_modules").is_dir():
        npm(frontend, *INSTALL)
    npm(frontend, "run", "--silent", "build")
    return (frontend / "dist" / "report.js").read_bytes()


def npm(folder: Path, *arguments: str) -> None:
    """Call npm in a folder."""
    program = shutil.which("npm")
    if program is None:
        sys.exit("npm is not installed: install node 20 or newer, then call this script again")
    subprocess.run([program, *arguments], cwd=folder, check=True, capture_output=True)


def check_place() -> None:
    """Refuse to write into another copy of headscope than the one that holds these sources."""
    if not BUNDLE.is_relative_to(ROOT):
        sys.exit(
            f"Python imports headscope from {BUNDLE.parents[1]}, not from {ROOT}: install this copy, or set PYTHONPATH"
        )


def main() -> None:
    """Build the script and write it with the hash of its sources."""
    check_place()
    BUNDLE.write_bytes(build(FRONTEND))
    SOURCES_HASH.write_text(source_hash(FRONTEND) + "\n")
    print(f"{BUNDLE}: {BUNDLE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
