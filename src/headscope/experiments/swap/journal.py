"""What a search has measured, kept in the cache so that an interrupted search goes on where it was.

A journal is a file of JSON lines for each set of circumstances: the weights, the yardstick, the versions of headscope
and torch, the threads and the kernel. A line holds the readings of one plan on one window and the seconds that the
forward took. The same search asks for the same entries in the same order, so it ends with the same plan whether it was
interrupted or not.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from headscope.experiments.text_sample import Tokens
from headscope.fetch.cache import CACHE, cache_folder
from headscope.files import disk_errors
from headscope.model.model import Model

FOLDER = "swap-searches"


@dataclass(frozen=True)
class Entry:
    """The readings of one window, and how long the forward took."""

    readings: list[float]
    seconds: float


@dataclass
class Journal:
    """Entries by plan and window; without a file they live as long as the object.

    Properties:
        - what was measured before is not measured again  (tested: test_an_interrupted_search_goes_on)
        - damaged lines count as none  (tested: test_damaged_lines_of_a_journal_count_as_none)
        - other weights have another file  (tested: test_other_weights_have_another_journal)
    """

    file: Path | None = None
    entries: dict[str, Entry] = field(default_factory=dict)
    n_known: int = 0  # entries that an earlier search left

    def entry(self, plan: Mapping[str, str], tokens: Tokens, measured: Callable[[], Entry]) -> Entry:
        """The entry of a plan on a window, measured where it is missing."""
        key = _digest([dict(plan), tokens.tolist()])
        if key not in self.entries:
            self.entries[key] = measured()
            self._append(key, self.entries[key])
        return self.entries[key]

    def _append(self, key: str, entry: Entry) -> None:
        if self.file is not None:
            with disk_errors(self.file, CACHE):
                self.file.parent.mkdir(parents=True, exist_ok=True)
                with self.file.open("a", encoding="utf-8") as lines:
                    # The line before may have been cut: a new one begins in any case.
                    lines.write("\n" + json.dumps([key, entry.seconds, *entry.readings]))


def journal_of(model: Model, yardstick: str) -> Journal:
    """The journal of a model in this environment, with what earlier searches left in it."""
    versions = [version("headscope"), torch.__version__, os.environ.get("HEADSCOPE_COMPILED", "")]
    circumstances = [yardstick, *versions, torch.get_num_threads(), weights_sha256(model.hf)]
    file = cache_folder() / FOLDER / f"{_digest(circumstances)[:32]}.json"
    entries = read_entries(file)
    return Journal(file, entries, len(entries))


def read_entries(file: Path) -> dict[str, Entry]:
    """The entries in a file; none where it is missing."""
    entries: dict[str, Entry] = {}
    try:
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                # The last line of an interrupted search may be cut.
                with contextlib.suppress(ValueError, TypeError, RecursionError):
                    key, seconds, *readings = json.loads(line)
                    entries[str(key)] = Entry([float(number) for number in readings], float(seconds))
    except (OSError, UnicodeDecodeError):
        return entries
    return entries


def weights_sha256(hf: Any) -> str:
    """The hash of every weight of a transformers model, with names, shapes and types."""
    digest = hashlib.sha256()
    for name, weight in sorted(hf.state_dict().items()):
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}\n".encode())
        digest.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
