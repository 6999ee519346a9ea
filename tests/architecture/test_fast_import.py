"""`import headscope`, help and version load nothing heavy."""

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "matplotlib", "polars", "pyarrow", "scipy", "numpy")


def loaded_after(code: str) -> set[str]:
    probe = f"{code}\nimport json, sys\nsys.stderr.write(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    return set(json.loads(done.stderr))


@pytest.mark.parametrize(
    "code",
    [
        "import headscope; headscope.__version__; dir(headscope)",
        "from headscope.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass",
        "from headscope.cli import main\ntry: main(['--version'])\nexcept SystemExit: pass",
        "from headscope.cli import main\ntry: main(['report', '--help'])\nexcept SystemExit: pass",
    ],
)
def test_nothing_heavy_is_loaded(code):
    assert not loaded_after(code) & set(HEAVY)
