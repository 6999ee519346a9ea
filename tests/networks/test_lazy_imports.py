"""What the networks cost whoever does not use them: nothing."""

import subprocess
import sys


def run(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)


def test_refusals_load_no_torch():
    run(
        "import sys\n"
        "from headscope.errors import UsageError\n"
        "from headscope.networks.choices import check_choices\n"
        "from headscope.networks.layout import spelled_mechanisms\n"
        "try:\n    check_choices({'norm': 'batch'})\nexcept UsageError:\n    pass\nelse:\n    raise SystemExit(1)\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )


def test_other_checkpoints_load_no_network():
    run(
        "import sys\n"
        "import headscope\n"
        "headscope.open('tiny')\n"
        "loaded = [name for name in sys.modules if name.startswith('headscope.networks.')]\n"
        "assert loaded == ['headscope.networks.families'], loaded"
    )
