"""Saves a Run to a folder, loads it again, resumes an interrupted one.

RUN/manifest.json                 what was run, with the sha256 of every file below; written last
RUN/findings/<lens>.json          one finding
RUN/tables/<lens>.<table>.parquet
RUN/arrays/<lens>.safetensors     its arrays and those of its figures
RUN/run.json                      times, machine, what is finished so far: outside the hashed bundle
"""

from headscope.store.folder import RunFolder, check_folder, load, save

__all__ = ["RunFolder", "check_folder", "load", "save"]
