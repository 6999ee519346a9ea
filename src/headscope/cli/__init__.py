"""The command line. Modules that load torch are imported inside the commands, so that help is instant."""

from headscope.cli.run import main

__all__ = ["main"]
