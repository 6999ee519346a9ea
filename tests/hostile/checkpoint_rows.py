"""Damaged checkpoints, opened by `headscope verify`."""

from pathlib import Path

from tests.hostile.checkpoint_cases import FOLDERS, GGUF, GGUF_FILES, SHARDED, Case
from tests.hostile.row import Row, Scene


def of_folder(kind: str, case: Case, *, sharded: bool) -> Row:
    def prepare(scene: Scene) -> list[str]:
        folder = scene.copy(scene.seeds.sharded if sharded else scene.seeds.llama)
        case.break_it(folder)
        return ["verify", str(folder)]

    return Row(kind, case.id, prepare, 3, case.says, case.hints)


def of_gguf(kind: str, case: Case) -> Row:
    def prepare(scene: Scene) -> list[str]:
        scene.copy(scene.seeds.gguf, GGUF)
        case.break_it(scene.folder)
        return ["verify", str(Path(scene.folder, GGUF))]

    named = () if "folder" in case.id else (GGUF,)
    return Row(kind, case.id, prepare, 3, (*case.says, *named), case.hints)


ROWS = [
    *(of_folder(kind, case, sharded=False) for kind, cases in FOLDERS.items() for case in cases),
    *(of_folder(kind, case, sharded=True) for kind, cases in SHARDED.items() for case in cases),
    *(of_gguf(kind, case) for kind, cases in GGUF_FILES.items() for case in cases),
]
