"""The summary of a mechanism, for lists: its description, parameters and cost.

Costs come from the class of a mechanism, which loads torch. `make docs` writes the summaries of headscope's own
mechanisms to `mechanisms/summaries.json`, so that listing them takes no time; a test compares the file with the code.
"""

import dataclasses
import inspect
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headscope.attention.mechanism import Mechanism

LENGTHS = (1024, 4096, 16384, 65536)
D_HEAD = 64
SHOWN_AT = 4096  # the length whose examples are measured, at every length: so that one sees how the cost grows
STORED = Path(__file__).with_name("mechanisms") / "summaries.json"


@dataclass(frozen=True)
class MechanismSummary:
    """What a list says about a mechanism; `flops` of one head of width `D_HEAD`, at each of `LENGTHS`."""

    name: str
    description: str
    parameters: dict[str, str | None]  # by name; the default as Python writes it, None where there is none
    flops: tuple[float, ...]

    @property
    def growth(self) -> float:
        """The power of n in the cost, between the last two lengths."""
        return growth(self.flops, LENGTHS)

    def spelled_parameters(self) -> str:
        """The parameters with their defaults: `left=None, right=None`."""
        spelled = (name if default is None else f"{name}={default}" for name, default in self.parameters.items())
        return ", ".join(spelled) or "none"


def summary_of(cls: "type[Mechanism]") -> MechanismSummary:
    """The summary of a mechanism, from its class."""
    example = cls.examples(SHOWN_AT)[0]
    fields: Iterable[dataclasses.Field[Any]] = dataclasses.fields(cls)  # type: ignore[arg-type]
    return MechanismSummary(
        cls.name,
        inspect.cleandoc(cls.__doc__ or "").split("\n")[0],
        {field.name: _default(field) for field in fields if field.init},
        tuple(example.cost(n, D_HEAD).flops for n in LENGTHS),
    )


def stored_summaries() -> dict[str, MechanismSummary]:
    """The summaries that `make docs` wrote, by name; loads no torch."""
    rows = json.loads(STORED.read_text(encoding="utf-8"))
    return {row["name"]: MechanismSummary(**{**row, "flops": tuple(row["flops"])}) for row in rows}


def spelled_summaries(classes: "Iterable[type[Mechanism]]") -> str:
    """The content of the file of summaries."""
    return json.dumps([asdict(summary_of(cls)) for cls in classes], indent=2, ensure_ascii=False) + "\n"


def growth(costs: Sequence[float], lengths: Sequence[int]) -> float:
    """The power of n in the cost, between the last two lengths."""
    return math.log(costs[-1] / costs[-2]) / math.log(lengths[-1] / lengths[-2])


def _default(field: "dataclasses.Field[Any]") -> str | None:
    if field.default is not dataclasses.MISSING:
        return repr(field.default)
    return "…" if field.default_factory is not dataclasses.MISSING else None
