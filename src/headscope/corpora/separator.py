"""The line between two documents: `***` with nothing but blanks around it."""

import re

SEPARATOR = re.compile(r"^[ \t]*\*\*\*[ \t]*$", re.MULTILINE)
SEPARATOR_LINE = re.compile(r"[ \t]*\*\*\*[ \t]*\n?")
