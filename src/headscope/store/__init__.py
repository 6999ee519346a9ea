"""Saves a Run to a folder, loads it again, resumes an interrupted one.

RUN/manifest.json                 what was run, with the sha256 of every file below; written last
RUN/findings/<lens>.json          one finding
RUN/tables/<lens>.<table>.parquet
RUN/arrays/<lens>.safetensors     its arrays and those of its figures
RUN/run.json                      times, machine, what is finished so far: outside the hashed bundle

Names are fetched when they are used, so that a folder is checked without loading what reads it.
"""

from typing import TYPE_CHECKING

from headscope.lazy_names import lazy_names

if TYPE_CHECKING:
    from headscope.store.folder import RunFolder, load, save
    from headscope.store.folder_check import check_folder

__all__ = ["RunFolder", "check_folder", "load", "save"]

__getattr__ = lazy_names(
    __name__,
    {
        "folder": "RunFolder load save",
        "folder_check": "check_folder",
    },
)
