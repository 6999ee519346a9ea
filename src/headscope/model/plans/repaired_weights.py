"""Weights that belong to a plan: rows and columns of its heads' projections.

plan.json
plan_repair.safetensors      parameter → new values, parameter.index0 (rows) or .index1 (columns) → which
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from headscope.errors import UsageError
from headscope.files import Destination, sha256_of, write_file

if TYPE_CHECKING:
    from torch import Tensor

    from headscope.model.edit import Edit

_WRITING = Destination(
    "cannot write the repaired weights {path}: {reason}",
    "name another file for the plan",
    refusal="cannot write the repaired weights {path}: {reason}",
)


@dataclass(frozen=True, eq=False)
class Slice:
    """New values of some rows (`axis` 0) or columns (`axis` 1) of a parameter."""

    axis: int
    index: "Tensor"
    values: "Tensor"


class RepairedWeights:
    """The new values by parameter, as the bytes of a safetensors file.

    The file is read when they are needed.
    Values are kept as float16 where it can hold them: a plan is judged with the values that its file has.

    Properties:
        - written and read back they are the same  (tested: test_a_repaired_plan_is_read_back)
        - another file under the same name is refused  (tested: test_repaired_weights_that_are_not_those_of_the_plan)
    """

    def __init__(self, sha256: str, content: bytes = b"", file: Path | None = None) -> None:
        self.sha256, self._content, self._file = sha256, content, file

    @classmethod
    def of(cls, slices: Mapping[str, Slice]) -> "RepairedWeights":
        """The weights of some slices, by the name of the parameter."""
        from safetensors.torch import save

        tensors = {}
        for name, part in sorted(slices.items()):
            tensors[name] = _compact(part.values)
            tensors[f"{name}.index{part.axis}"] = part.index.cpu().contiguous()
        content = save(tensors)
        return cls(sha256_of(content), content)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RepairedWeights) and other.sha256 == self.sha256

    def __hash__(self) -> int:
        return hash(self.sha256)

    def write(self, file: Path) -> None:
        """Write the weights into a file, in one step."""
        write_file(file, self._bytes(), _WRITING)

    def put(self, edit: "Edit") -> None:
        """Put the values in place, until the edit closes.

        Raises:
            UsageError: A parameter is not there, or has another shape.
        """
        for name, part in self.slices.items():
            edit.put(name, part.axis, part.index, part.values)

    @cached_property
    def slices(self) -> dict[str, Slice]:
        """The new values, by the name of the parameter."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            tensors = load(self._bytes())
        except SafetensorError as error:
            raise UsageError(f"{self._place} holds no repaired weights: {error}") from None
        slices = {}
        for name, values in tensors.items():
            axes = [axis for axis in (0, 1) if f"{name}.index{axis}" in tensors]
            if axes:
                slices[name] = Slice(axes[0], tensors[f"{name}.index{axes[0]}"], values)
        return slices

    @property
    def _place(self) -> str:
        return "the plan" if self._file is None else str(self._file)

    def _bytes(self) -> bytes:
        if self._content or self._file is None:
            return self._content
        try:
            content = self._file.read_bytes()
        except OSError as error:
            raise UsageError(
                f"the repaired weights {self._file} cannot be read: {error.strerror}",
                hint="keep the file next to the plan that names it",
            ) from None
        if sha256_of(content) != self.sha256:
            raise UsageError(
                f"{self._file} is not the file that the plan names: its sha256 is {sha256_of(content)}, expected "
                f"{self.sha256}",
                hint="copy plan and weights together",
            )
        return content


def _compact(values: "Tensor") -> "Tensor":
    half = values.detach().cpu().half()
    return half.contiguous() if bool(half.isfinite().all()) else values.detach().cpu().float().contiguous()
