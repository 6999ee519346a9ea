"""Plan: which heads of a model attend through which mechanism, as a small file that people can read.

    {
      "headscope plan": 1,
      "model": {"name": "smollm2", "architecture": "LlamaForCausalLM", "weights": "3f1c…"},
      "replace": {"band_sparse(left=256, right=0, columns=(0,))": "L0-3,L5.H0-2"},
      "origin": {"by": "search", "budget": 0.01, "text": "moby-dick:search"}
    }

`replace` holds, for each mechanism in its own spelling, the heads that attend through it; the others attend as the
model does. `origin` says how the plan came about. A plan is data: reading one runs nothing and loads no torch.

A repaired plan has version 2 and one more entry: "repair": {"file": "plan_repair.safetensors", "sha256": "9b1e…"}.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscope.attention.mechanism_rules import Heads, heads_by_mechanism
from headscope.attention.mechanism_spelling import check_spelling
from headscope.core.selection import Selection
from headscope.core.site import Site
from headscope.errors import UsageError
from headscope.files import Destination, write_file
from headscope.model.plans.repaired_weights import RepairedWeights

if TYPE_CHECKING:
    from headscope.model.model import Model

VERSION, VERSION_OF_REPAIRS = 1, 2
KEY = "headscope plan"
_PLAIN = {KEY, "model", "replace", "origin"}
_ENTRIES = {VERSION: _PLAIN, VERSION_OF_REPAIRS: _PLAIN | {"repair"}}
_LARGEST = 2**20  # bytes: a plan of a model with ten thousand heads takes a hundredth of it
_WRITING = Destination(
    "cannot write the plan {path}: {reason}", "name another file", refusal="cannot write the plan {path}: {reason}"
)


@dataclass(frozen=True)
class Plan:
    """The heads of each mechanism, and the model that they belong to.

    Properties:
        - what is written is read back  (tested: test_a_plan_is_read_back)
        - a damaged plan is refused with the place  (tested: test_damaged_plans)
    """

    replace: Mapping[str, str]
    model: Mapping[str, str] = field(default_factory=dict)
    origin: Mapping[str, Any] = field(default_factory=dict)
    repair: RepairedWeights | None = None

    @classmethod
    def for_model(cls, model: "Model", replace: Mapping[str, str], origin: Mapping[str, Any] | None = None) -> "Plan":
        """A plan for an open model.

        Raises:
            UsageError: A mechanism or a selection makes no sense for this model.
        """
        from headscope.model.plans.weight_digest import weight_digest

        spec = model.spec
        identity = {"name": spec.name, "architecture": spec.architecture, "weights": weight_digest(model.hf)}
        plan = cls(dict(replace), identity, dict(origin or {}))
        plan.heads(model.sites)
        return plan

    @classmethod
    def read(cls, file: str | Path) -> "Plan":
        """The plan in a file.

        Raises:
            UsageError: The file is no plan that this version can read.
        """
        path = Path(file)
        try:
            if path.stat().st_size > _LARGEST:
                raise UsageError(f"{path} is no plan: it is larger than {_LARGEST} bytes")
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UsageError(f"there is no plan {path}", hint="`headscope swap MODEL --save FILE` writes one") from None
        except OSError as error:
            raise UsageError(f"the plan {path} cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError):
            raise UsageError(f"{path} is no plan: it is no JSON in UTF-8") from None
        return cls.of(content, str(path), path.parent)

    @classmethod
    def of(cls, content: object, where: str = "the plan", folder: Path | None = None) -> "Plan":
        """The plan that the content of a file means; repaired weights lie in its folder."""
        if not isinstance(content, dict) or KEY not in content:
            raise UsageError(f"{where} is no plan: {KEY!r} is missing")
        entries = _ENTRIES.get(content[KEY]) if isinstance(content[KEY], int) else None
        if entries is None:
            raise UsageError(
                f"{where} has version {content[KEY]!r}, expected {' or '.join(map(str, _ENTRIES))}",
                hint="a newer headscope may read it",
            )
        unknown = content.keys() - entries
        if unknown:
            raise UsageError(f"{where} has an unknown entry {min(unknown)!r}")
        replace, model = (_words(content.get(name), f"{where}: {name}") for name in ("replace", "model"))
        origin = content.get("origin", {})
        if not isinstance(origin, dict):
            raise UsageError(f"{where}: origin must be an object, got {origin!r}")
        for mechanism, heads in replace.items():
            check_spelling(mechanism)
            Selection.parse(heads)
        repair = _repair_of(content["repair"], where, folder or Path()) if "repair" in content else None
        return cls(replace, model, origin, repair)

    def write(self, file: str | Path) -> None:
        """Write the plan into a file, and repaired weights into one next to it."""
        path = Path(file)
        weights = f"{path.stem}_repair.safetensors"
        if self.repair is not None:
            self.repair.write(path.with_name(weights))
        write_file(path, self.text(weights).encode(), _WRITING)

    def text(self, weights: str = "") -> str:
        """The plan as JSON; `weights` is the name of the file that holds repaired weights."""
        content: dict[str, object] = {KEY: VERSION if self.repair is None else VERSION_OF_REPAIRS}
        content |= {"model": dict(self.model), "replace": dict(self.replace), "origin": dict(self.origin)}
        if self.repair is not None:
            content["repair"] = {"file": weights, "sha256": self.repair.sha256}
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"

    def export(self, model: "Model", file: str | Path) -> None:
        """Write the plan as a Python module of mask functions for FlexAttention.

        Raises:
            UsageError: A mechanism is no mask of positions, or the model has attention that the module cannot describe.
        """
        from headscope.model.plans.flex_export import write_flex_module

        write_flex_module(self, model, file)

    def heads(self, sites: tuple[Site, ...]) -> dict[str, Heads]:
        """The heads of each mechanism among the sites of a model.

        Raises:
            UsageError: A selection matches no head, or two mechanisms claim the same one.
        """
        return heads_by_mechanism(self.replace, sites)

    def check_model(self, model: "Model") -> None:
        """Refuse a model that the plan was not made for.

        Raises:
            UsageError: Its weights are others.
        """
        from headscope.model.plans.weight_digest import weight_digest

        if not self.model.get("weights"):
            return  # written by hand, for no particular weights
        digest = weight_digest(model.hf)
        if digest != self.model["weights"]:
            made_for = f"{self.model.get('name', 'another model')} ({self.model.get('architecture', 'unknown')})"
            raise UsageError(
                f"this plan was made for {made_for} with weights {self.model['weights']}; {model.spec.name} "
                f"({model.spec.architecture}) has weights {digest}",
                hint='make a plan for this model, or take "weights" out of the file to use it anyway',
            )


def _repair_of(value: object, where: str, folder: Path) -> RepairedWeights:
    """The weights that a plan names: a file in its own folder."""
    words = _words(value, f"{where}: repair")
    name = words.get("file", "")
    if words.keys() != {"file", "sha256"} or Path(name).name != name or not name:
        raise UsageError(f"{where}: repair must name a file in the folder of the plan, and its sha256; got {words}")
    return RepairedWeights(words["sha256"], file=folder / name)


def _words(value: object, where: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(entry, str) for entry in value.values()):
        raise UsageError(f"{where} must be an object of texts, got {str(value)[:60]!r}")
    return value
