"""Puts a plan into a model: its heads attend through the plan's mechanisms until it is taken out again.

    swapped = hs.apply("plan.json", model)     # a model of headscope, or one that transformers has loaded
    print(swapped.generate("Call me"))         # prefill and cached steps go through the plan
    swapped.close()                            # or: with hs.apply(…) as swapped:

Where all heads of a kv group attend through bands, a cache drops the keys and values that none of them will read again;
`undropped` says where it could not.

A plan is a session that stays open. It belongs to the thread that opened it: forwards of other threads run the model as
it is. Repaired weights are an edit, which all threads see; while they are in place the model cannot be edited again.
"""

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from headscope.attention.mechanism_spelling import spelled
from headscope.core.selection import Selection, selection_text
from headscope.model.plans.plan import Plan

if TYPE_CHECKING:
    from headscope.model.model import Model


class AppliedPlan:
    """A model whose heads attend as a plan says; `close` leaves it as it was.

    Everything that a model has is there too (`generate`, `perplexity`, `run`, `hf`), with the plan in place.

    Properties:
        - the output is that of the mechanisms  (tested: test_a_plan_replaces_its_heads)
        - its caches drop the keys that no head reads  (tested: test_generate_drops_keys_by_itself)
        - nothing is left behind  (tested: test_close_leaves_the_model_as_it_was)
    """

    def __init__(self, plan: Plan, model: "Model") -> None:
        self.plan, self.model = plan, model
        self._stack = ExitStack()
        plan.check_model(model)
        rules = [
            (Selection.parse(selection_text(heads)), spelled(mechanism))
            for mechanism, heads in plan.heads(model.sites).items()
        ]
        self._session = session = self._stack.enter_context(model.session())
        try:
            for selection, mechanism in rules:
                session.replace(selection, mechanism)
            if plan.repair is not None:
                plan.repair.put(self._stack.enter_context(model.edit()))
        except BaseException:
            self._stack.close()
            raise

    @property
    def undropped(self) -> dict[str, str]:
        """The sites whose caches keep keys that no head reads, so far as they were used, and why."""
        return {site.label: reason for site, reason in self._session.live.key_dropping.reasons.items()}

    def close(self) -> None:
        """Take the plan out; harmless when it is out already."""
        self._stack.close()

    def __enter__(self) -> "AppliedPlan":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "model":
            raise AttributeError(name)
        return getattr(self.model, name)


def apply(plan: Plan | str | Path, model: Any) -> AppliedPlan:
    """Let the heads of a model attend as a plan says, until the result is closed.

    Args:
        plan: A plan, or the file that holds one.
        model: A model of headscope, one that transformers has loaded, or what `open` takes.

    Raises:
        UsageError: The plan is for another model, or names what this model does not have.
    """
    from headscope.model.model import open_model

    read = plan if isinstance(plan, Plan) else Plan.read(plan)
    return AppliedPlan(read, open_model(model))
