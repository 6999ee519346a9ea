"""The line that separates two documents: `***` and nothing else but blanks."""

import re

SEPARATOR = re.compile(r"^[ \t]*\*\*\*[ \t]*$", re.MULTILINE)
SEPARATOR_LINE = re.compile(r"[ \t]*\*\*\*[ \t]*\n?")
