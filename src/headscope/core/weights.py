r"""The canonical form of one site's projections, and the sources of weights.

$q = g_q \odot (x\,w_q + b_q)$, likewise k and v; the site writes $\sum_h z_h\,w_{o,h} + b_o$ to the residual
stream. Gains are recorded, never folded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from headscope.core.model_spec import ModelSpec
from headscope.core.site import Site, Stack
from headscope.core.stream_reading import Rotary, StreamReading


@dataclass(frozen=True)
class WeightStatus:
    """Whether a site's projections are known, and why not.

    exact: the equation above holds; `reason` names terms of the scores that W_QK does not show, where there are any.
    clipped: it holds up to a size at which q, k or v are cut off (`reason` names it). normed: q and k are normalised
    after it (QK-norm), so W_QK is the form before normalisation. refused: there is no such form; `reason` says why.
    """

    status: Literal["exact", "clipped", "normed", "refused"]
    reason: str = ""


@dataclass(frozen=True)
class HeadWeights:
    """The projections of a site's heads, in the conventions of `headscope.shapes`."""

    site: Site
    w_q: Float[Tensor, "heads d_model d_head"]
    w_k: Float[Tensor, "kv_heads d_source d_head"]
    w_v: Float[Tensor, "kv_heads d_source d_value"]
    w_o: Float[Tensor, "heads d_value d_out"]
    b_q: Float[Tensor, "heads d_head"]
    b_k: Float[Tensor, "kv_heads d_head"]
    b_v: Float[Tensor, "kv_heads d_value"]
    b_o: Float[Tensor, " d_out"]
    gain_q: Float[Tensor, "heads d_head"]
    gain_k: Float[Tensor, "kv_heads d_head"]
    gain_v: Float[Tensor, "kv_heads d_value"]
    status: WeightStatus

    def kv_of_head(self, head: int) -> int:
        """The key/value head that query head `head` reads."""
        return self.site.kv_head(head)


@dataclass(frozen=True)
class FeedForward:
    """One matrix of a layer's feed-forward part; `sizes` are its inputs and outputs.

    `name` is the module's name inside its layer (`mlp.up_proj`), `module` its name in the model. A module that several
    layers share counts once per layer.
    """

    stack: Stack
    layer: int
    name: str
    module: str
    sizes: tuple[int, int]

    @property
    def label(self) -> str:
        """The name of the matrix: `L3.mlp.up_proj`; with two stacks `dec.L3.fc1`."""
        stack = "" if self.stack == "only" else f"{self.stack}."
        return f"{stack}L{self.layer}.{self.name}"


@dataclass(frozen=True)
class Embedding:
    """A table of vectors, one row for each token or position.

    token: the input of the first layer for a token; output: the vector that gives the logit of a token, where this is a
    separate table; position: the vector added for a position. `stack` is None where stacks share the table. `first` is
    the first row that the model uses (some families do not count positions from 0).
    """

    role: Literal["token", "output", "position"]
    stack: Stack | None
    module: str
    sizes: tuple[int, int]
    first: int = 0

    @property
    def label(self) -> str:
        """The name of the table: `token`; with two stacks `dec token`."""
        return self.role if self.stack in (None, "only") else f"{self.stack} {self.role}"


@runtime_checkable
class Vocabulary(Protocol):
    """The spelling of tokens."""

    @property
    def size(self) -> int:
        """The number of tokens: the largest id plus one."""
        ...

    def token(self, word: str) -> int | None:
        """The single token of this word inside a text.

        None where the word takes several tokens.
        """
        ...

    def spelled(self, tokens: Sequence[int]) -> tuple[str, ...]:
        """The text of each token, with a blank in front where a word begins."""
        ...


@dataclass(frozen=True)
class AfterHeads:
    """What a layer computes from its heads' outputs.

    `normed` is the input of its feed-forward part, which most families normalise before or after the sum with the skip;
    None where the layer has no such matrices. `out` is the output of the layer.
    """

    normed: Float[Tensor, "windows tokens d_model"] | None
    out: Float[Tensor, "windows tokens d_model"]


@runtime_checkable
class WeightSource(Protocol):
    """The weights for lenses: from a file, one tensor at a time, or a built model."""

    @property
    def spec(self) -> ModelSpec:
        """The model whose weights these are."""
        ...

    @property
    def sites(self) -> tuple[Site, ...]:
        """Every attention site, in the order of the forward pass."""
        ...

    @property
    def method(self) -> str:
        """How the weights are read, for `Finding.method`."""
        ...

    def status(self, site: Site) -> WeightStatus:
        """Whether this site's projections are known."""
        ...

    def weights(self, site: Site) -> HeadWeights:
        """The projections of one site.

        Raises `WeightsRefused` where there is no canonical form.
        """
        ...

    @property
    def feed_forward(self) -> tuple[FeedForward, ...]:
        """The feed-forward matrices of every layer that can be read separately."""
        ...

    @property
    def feed_forward_notes(self) -> tuple[str, ...]:
        """Sentences that say which feed-forward matrices are missing, and why."""
        ...

    def feed_forward_matrix(self, matrix: FeedForward) -> Float[Tensor, "d_in d_out"]:
        """One feed-forward matrix, rows acting on the right."""
        ...

    @property
    def embeddings(self) -> tuple[Embedding, ...]:
        """The readable tables of token, output and position vectors."""
        ...

    @property
    def embedding_notes(self) -> tuple[str, ...]:
        """Sentences about tables that are shared, scaled or left out."""
        ...

    def embedding_table(self, table: Embedding) -> Float[Tensor, "rows d"]:
        """One table with all rows, as stored."""
        ...

    @property
    def vocabulary(self) -> Vocabulary | None:
        """The spelling of the tokens; None where the checkpoint has no tokenizer."""
        ...

    def after_heads(
        self,
        site: Site,
        stream: Float[Tensor, "windows tokens d_model"],
        z: Float[Tensor, "windows heads tokens d_value"],
    ) -> AfterHeads:
        """What the rest of a site's layer computes from a stream and its heads' outputs.

        Raises `WeightsRefused` where this is unknown: for weights in a file, and for a layer that attends twice.
        """
        ...

    def stream_reading(self) -> StreamReading:
        """The norms between the stream and the heads.

        Raises `WeightsRefused` for weights in a file: norms are found in a model that runs (`Needs.built`).
        """
        ...

    def rotary(self, site: Site) -> Rotary | None:
        """How a site turns its queries and keys with the position; None where it does not.

        Raises `WeightsRefused` where positions enter in another way, and for weights in a file.
        """
        ...
