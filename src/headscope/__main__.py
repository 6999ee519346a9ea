"""Run the command line: `python -m headscope`."""

from headscope.cli import main

main()
