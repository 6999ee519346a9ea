"""What can be listed and checked without torch: members, models, texts, and the arguments of commands.

Lists and help read names, prose and settings from here. Checks refuse wrong arguments before anything is loaded,
fetched or run; what only a loaded model can tell is refused later.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from headscope.attention.mechanism_spelling import check_spelling as check_mechanism
from headscope.attention.mechanism_summary import D_HEAD, LENGTHS, stored_summaries
from headscope.attention.mechanisms import mechanism_member, mechanism_members
from headscope.corpora.amount import Amount
from headscope.experiments import command_of, experiment_members
from headscope.experiments.command import Command
from headscope.lenses import lens_member, lens_members
from headscope.members import Member, MemberWarning, check_settings, setting_help
from headscope.model.formats.format import described_forms, forms

if TYPE_CHECKING:
    from pathlib import Path

    from headscope.core import Run
    from headscope.corpora import LocatedText, TextEntry
    from headscope.corpora.parallel.pair_listing import LocatedPairs, PairEntry
    from headscope.corpora.parallel.pairs import Pair
    from headscope.model.sources.names import ListedModel
    from headscope.progress import Step

__all__ = [
    "D_HEAD",
    "LENGTHS",
    "Amount",
    "Command",
    "Member",
    "MemberWarning",
    "check_claims",
    "check_compared",
    "check_folder",
    "check_heads",
    "check_index",
    "check_mechanism",
    "check_model",
    "check_pairs",
    "check_run",
    "check_settings",
    "check_text",
    "check_trajectory",
    "check_writer",
    "command_of",
    "described_forms",
    "experiment_function",
    "experiment_members",
    "find_pairs",
    "find_text",
    "forms",
    "index_item",
    "is_model_list",
    "is_parallel",
    "joined_pairs",
    "joined_text",
    "lens_member",
    "lens_members",
    "mechanism_member",
    "mechanism_members",
    "models",
    "models_in_list",
    "parallel_texts",
    "sentence_lines",
    "setting_help",
    "stored_summaries",
    "texts",
]


def models() -> "tuple[ListedModel, ...]":
    """The models that can be opened by name."""
    from headscope.model.sources.names import sources

    return sources()


def texts() -> "list[TextEntry]":
    """Every text that has a name."""
    from headscope.corpora.listing import texts as listed_texts

    return listed_texts()


def find_text(spelling: str, *, progress: "Step | None" = None, archive: "Path | None" = None) -> "LocatedText":
    """A text with its file and its splits; fetched once where that is needed."""
    from headscope.corpora.listing import find

    return find(spelling, progress, archive)


def joined_text(documents: Sequence[str]) -> str:
    """Documents as one file, separated by lines `***`."""
    from headscope.corpora.text import joined

    return joined(documents)


def parallel_texts() -> "list[PairEntry]":
    """Every parallel text that has a name."""
    from headscope.corpora.parallel.pair_listing import parallel_texts as listed_pairs

    return listed_pairs()


def is_parallel(spelling: str) -> bool:
    """Whether a spelling, with a split or without, means parallel text."""
    from headscope.corpora.parallel.pair_argument import is_parallel as is_parallel_name
    from headscope.corpora.parallel.pair_argument import parse_pair_spelling

    return is_parallel_name(parse_pair_spelling(spelling)[0])


def find_pairs(spelling: str, *, progress: "Step | None" = None, folder: "Path | None" = None) -> "LocatedPairs":
    """A parallel text with its splits; fetched once where that is needed."""
    from headscope.corpora.parallel.pair_listing import find_pairs as find

    return find(spelling, progress, folder)


def joined_pairs(pairs: "tuple[Pair, ...]") -> str:
    """Pairs as one file with two columns."""
    from headscope.corpora.parallel.pairs import tab_separated

    return tab_separated(pairs)


def check_pairs(spelling: str) -> None:
    """Refuse what is neither a name nor files of parallel text; nothing is fetched or read."""
    from headscope.corpora.parallel.pair_argument import check_pair_spelling

    check_pair_spelling(spelling)


def sentence_lines(spelling: str) -> list[str]:
    """The sentences of a file with one a line, or of standard input for `-`."""
    from headscope.corpora.text_lines import sentence_lines as lines_of

    return lines_of(spelling)


def check_model(name: str, *, hub: bool = False) -> None:
    """Refuse a name that no model has; nothing is fetched."""
    from headscope.model.sources.names import check_name

    check_name(name, hub=hub)


def check_heads(name: str, spellings: Sequence[str], *, hub: bool = False) -> None:
    """Refuse heads that a model does not have, where its configuration is here and says so."""
    from headscope.model.head_check import check_heads as check_heads_of_model

    check_heads_of_model(name, spellings, hub=hub)


def is_model_list(name: str) -> bool:
    """Whether a name means a list of models rather than a model."""
    from headscope.model.sources.model_lists import is_list

    return is_list(name)


def models_in_list(name: str) -> tuple[str, ...]:
    """The models that a list names."""
    from headscope.model.sources.model_lists import read_list

    return read_list(name)


def check_writer(name: str, purpose: str) -> None:
    """Refuse a model by its name that does not predict the next token, for a purpose that needs one."""
    from headscope.model.sources.names import check_writer as check_name_of_writer

    check_name_of_writer(name, purpose)


def check_text(spelling: str) -> None:
    """Refuse what is neither a text file nor the name of a text; nothing is fetched or read."""
    from headscope.corpora.text_argument import check_spelling

    check_spelling(spelling)


def check_folder(folder: "Path") -> None:
    """Refuse a folder that cannot hold a run."""
    from headscope.store.folder_check import check_folder as check_run_folder

    check_run_folder(folder)


def check_compared(names: Sequence[str], *, hub: bool = False, out: "Path | None" = None) -> None:
    """Refuse models and run folders that cannot be compared, or that `out` has no room for; nothing is fetched."""
    from headscope.comparison.source_check import check_sources

    check_sources(names, hub=hub, out=out)


def check_trajectory(training: "Path", out: "Path | None" = None) -> None:
    """Refuse a folder without a training or without saved steps, and a place that cannot hold the page."""
    from headscope.training.saved_steps import check_trajectory as check_saved_steps

    check_saved_steps(training)
    if out is not None:
        from headscope.comparison.source_check import check_place  # loads numpy

        check_place(out)


def check_claims(ids: Sequence[str]) -> None:
    """Refuse ids and sections that no claim has."""
    from headscope.theory.claim_ids import check_ids

    check_ids(ids)


def check_index(document: str = "", kind: str = "") -> None:
    """Refuse a document or a kind of items that the index does not have; empty is none."""
    from headscope.theory.index.contents import check_filters

    check_filters(document, kind)


def index_item(name: str) -> str:
    """The id of an item of the index, as a user may write it; refuses a name that none has."""
    from headscope.theory.index.contents import item_id_of

    return item_id_of(name)


def check_run(folder: "Path") -> None:
    """Refuse a folder without a finished run."""
    from headscope.store.folder_check import check_finished

    check_finished(folder)


def experiment_function(name: str) -> "Callable[..., Run] | None":
    """The Python function of an experiment, None where there is no such experiment; its call loads torch."""
    from headscope.experiments.function import function_of

    member = experiment_members().get(name)
    return None if member is None else function_of(member, _run_experiment)


def _run_experiment(*arguments: Any, **keywords: Any) -> "Run":
    from headscope.api import run_experiment

    return run_experiment(*arguments, **keywords)
