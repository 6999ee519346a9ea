"""The lens contract: one file, one question about a model, as a fold over batches of text.

A lens never calls the model. It declares what it needs; the pipeline unions the needs of all chosen lenses
and runs the text once per variant of the model. What the rest of a layer makes of other outputs of its heads is asked
of the weights (`WeightSource.after_heads`).

    start(params, spec, sites) → state
    update(state, batch)       → state       once per batch and variant, or piece by piece (`Needs.pieces`)
    merge(a, b)                → state       any split of the text gives the same answer
    finish(state, weights)     → Finding

Beside the fold stands `definition`: the formula transcribed in float64, sharing no code with the fold. It is
given the stored maps of the same batches (`Batch.captures["pattern"]`) and the weights, and returns the same
tables; the contract test compares the two.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl
from jaxtyping import Bool, Int
from torch import Tensor

from headscope.attention.statistics import Request, RowStatistics
from headscope.core import About, Finding, ModelSpec, Site, WeightSource

AS_IS = "as is"


@dataclass(frozen=True)
class Needs:
    """What a lens wants to be handed; the pipeline takes the union over the chosen lenses.

    `captures` may name pattern, corner (its part of the first queries and keys; `corner:256` for as many), early (its
    rows of the first queries), pairs (the pattern among some tokens), scores, rows (the scores of some rows), scale, q,
    k, v, z, corner_z (the z of the corner's queries), x (the input of the query projection), resid (the residual stream
    that enters a layer) and final (the one that leaves the last layer of each stack, before any norm behind it; its key
    is the last self-attention of the stack). What is `welcome` may be missing: it is captured where the family shows
    it, and the lens goes without it elsewhere. `variants` are changed forms of the model on which the same text is run
    too:

    - "initialised": the same architecture, freshly initialised;
    - "without skips": no skip connection carries anything, layers give what they would add;
    - "without mlp", "without attention": what the feed-forward parts, or the attention, would add is not added;
    - "attention alone": without skips, and with the feed-forward parts passed by.

    A family may not allow some of them: the lens is then told (`Batch.refused`) and goes on with the others. `tokens`
    says how much text from its beginning the changed forms need to see: they are shown the whole batches that hold it,
    whatever other lenses need, and the model as it is sees all of it.

    `spelling` asks for the texts of the first tokens of each window.

    With `pieces` the lens may be handed a batch in pieces, while the forward runs: what each attention call shows as
    soon as it is there, so that nothing of all sites is ever held at once. Each quantity of each site comes once per
    batch, all of them with the same tokens; a whole batch is a piece too.
    """

    weights: bool = False
    statistics: Request | None = None
    captures: frozenset[str] = frozenset()
    welcome: frozenset[str] = frozenset()
    variants: tuple[str, ...] = (AS_IS,)
    pieces: bool = False
    spelling: bool = False
    tokens: int | None = None

    @property
    def text(self) -> bool:
        """Whether the model has to be run at all."""
        return self.statistics is not None or bool(self.captures)


@dataclass(frozen=True)
class Batch:
    """What one forward pass on one variant showed, or a piece of it; on the CPU, wherever the model is.

    `uniform` holds the same statistics for attention that is uniform over the visible keys: the null. Padding
    is False in `real`, and rows of padding hold NaN in every statistic. `spelling` holds, for each window, the texts of
    its first tokens (`attention.maps.CORNER` of them), with a blank in front where a word begins.

    Where the model cannot be run in this variant, `refused` says why, and there are no tokens; what was shown of the
    variant before does not count.
    """

    variant: str
    tokens: Int[Tensor, "batch tokens"]
    real: Bool[Tensor, "batch tokens"]
    statistics: Mapping[Site, RowStatistics] = field(default_factory=dict)
    uniform: Mapping[Site, RowStatistics] = field(default_factory=dict)
    captures: Mapping[str, Mapping[Site, Tensor]] = field(default_factory=dict)
    spelling: tuple[tuple[str, ...], ...] = ()
    refused: str = ""


@dataclass(frozen=True)
class Lens:
    """A question about a model; the module that defines it binds one to `LENS`.

    `params` is a frozen dataclass with few fields, each with a default and `metadata={"help": …}`; they become
    the options of `headscope lens NAME`.

    `invariant` names the symmetries of the model under which the numbers do not change:

    - "qk": w_q → w_q G, w_k → w_k G⁻ᵀ with any G that the model's own function allows;
    - "vo": w_v → w_v G, w_o → G⁻¹ w_o;
    - "rotated qk", "rotated vo": the same with an orthogonal G only;
    - "heads": a permutation of heads, which permutes the rows that are about heads.

    "qk:heads" says that under "qk" only the table called `heads` stays the same; any symmetry can be narrowed so.
    """

    name: str
    about: About
    params: type[Any]
    needs: Callable[[Any, ModelSpec], Needs]
    start: Callable[[Any, ModelSpec, tuple[Site, ...]], Any]
    update: Callable[[Any, Batch], Any]
    merge: Callable[[Any, Any], Any]
    finish: Callable[[Any, WeightSource | None], Finding]
    definition: Callable[[Any, WeightSource | None, Sequence[Batch]], dict[str, pl.DataFrame]]
    headline: Callable[[Finding], tuple[str, ...]]
    invariant: frozenset[str] = frozenset()
