"""Command: what the command line says about an experiment, beside its options. Loads no torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """Where an experiment is found (`headscope study fewshot`) and the help that people read there.

    `path` has one word or several; the words before the last name a group. `tables` are those that `--table` can name,
    the main one first. `needs_writer` says that the model must predict the next token. `default_model` is used where no
    model is named; without it one must be. With `reads_sentences`, `--text` also takes the text itself: several words
    that are no file. `default_out` is the folder of the page where none is named; without it no page is written then.
    With `makes_model` the experiment takes no model and always has a folder: it trains its own there.
    """

    path: tuple[str, ...]
    help: str
    examples: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    needs_writer: bool = False
    default_model: str = ""
    reads_sentences: bool = False
    default_out: str = ""
    makes_model: bool = False
