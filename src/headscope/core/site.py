"""Site: one attention call of a model."""

from dataclasses import dataclass
from typing import Literal

Stack = Literal["enc", "dec", "only", "text", "image", "sound"]  # the last three are towers that run in parallel
Kind = Literal["self", "cross"]


@dataclass(frozen=True)
class Site:
    """One attention call of a model, as probing found it.

    A module that several layers share (ALBERT) counts once per call: `module` and `call` together
    identify the computation; `stack`, `kind` and `layer` are its place for people and tables.

    `window` is the number of keys, the query's own included, that the model itself lets a query see on its
    left; None where there is no such limit. `extras` names what else enters the scores: "bias" (relative
    positions), "softcap", "sinks".
    """

    stack: Stack
    kind: Kind
    layer: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_value: int
    causal: bool
    window: int | None = None
    extras: tuple[str, ...] = ()
    module: str = ""
    call: int = 0

    @property
    def label(self) -> str:
        """The name of the site for people: `L3`.

        With two stacks `enc.L3`, `dec.L3`, `dec.L3.cross`; with two towers `text.L3`, `image.L3`.
        """
        stack = "" if self.stack == "only" else f"{self.stack}."
        kind = ".cross" if self.kind == "cross" else ""
        return f"{stack}L{self.layer}{kind}"

    def head_label(self, head: int) -> str:
        """`L3.H7`; with two stacks `enc.L3.H7`, `dec.L3.cross.H7`."""
        return f"{self.label}.H{head}"

    def kv_head(self, head: int) -> int:
        """The key/value head that query head `head` reads."""
        return head // (self.n_heads // self.n_kv_heads)
