"""Command: what the command line says about an experiment, beside its options. Loads no torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """Where an experiment is found (`headscope study fewshot`) and the help that people read there.

    `path` has one word or several; the words before the last name a group. `tables` are those that `--table` can name,
    the main one first. `needs_writer` says that the model must predict the next token.
    """

    path: tuple[str, ...]
    help: str
    examples: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    needs_writer: bool = False
