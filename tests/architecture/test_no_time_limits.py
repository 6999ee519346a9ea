"""No test has a limit of wall-clock time: a busy machine is not a broken law."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
# A timeout of 0 or None is the absence of one.
LIMITS = re.compile(r"\btimeout\s*=\s*(?!0\b|None\b)|perf_counter\(|monotonic\(|\btime\.sleep\(")


def test_no_test_measures_or_limits_time() -> None:
    limits = [
        f"{path.relative_to(TESTS)}:{number}"
        for path in sorted(TESTS.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if LIMITS.search(line) and path != Path(__file__)
    ]
    assert limits == []
