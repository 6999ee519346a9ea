r"""Writers and readers: the stream of a text as an exact sum, and what each reader receives from each part of it.

    written = model.written("The cat sat on the mat.")
    written["L3.H2"]                       # what one head writes
    written.stream("L5")                   # the sum of all writers before layer 5: what enters it
    written.reader("L5.H1", "q").received()    # by writer, what the queries of that head receive
    written.reader("logits", tokens=[262]).received()

A reader sees the stream through a norm. With the norm's scale held at that of the text (`frozen`), the norm is linear,
and what the writers contribute adds up to what the reader receives. Queries and keys are those before rotary positions
and QK-norm.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from headscope.core.selection import Selection
from headscope.core.site import Site, Stack
from headscope.errors import CaptureError, UsageError
from headscope.model.session.cache import Cache
from headscope.model.session.captures import QUANTITIES, WatchedQuantity, output_matrices
from headscope.model.session.places import Spot, last_of_stacks
from headscope.model.session.stream_sum import StreamSum
from headscope.model.tracing.norms import Norm

if TYPE_CHECKING:
    from headscope.model.model import Model

EMBED, REST = "embed", "the norm's and the reader's own biases"


@dataclass(frozen=True)
class Sight:
    """How a reader sees the stream: through a norm, at the scale that it has on the text."""

    norm: Norm
    scale: Tensor
    module: nn.Module


@dataclass(frozen=True)
class Reader:
    """One reader of the stream: the norm before it, the vectors it reads, and the matrix it reads with.

    `writers` holds the parts of the stream before the norm; `sight` is None where no norm stands before the reader, and
    `matrix` where its input itself is asked for.
    """

    label: str
    writers: dict[str, Tensor]
    sight: "Sight | None"
    matrix: Tensor | None = None
    bias: Tensor | None = None

    def received(self) -> dict[str, Tensor]:
        """By writer, what the reader receives from it at the scale of the text; the biases are the last entry.

        Properties:
            - the entries add up to what the reader receives  (tested: test_readers_receive_the_sum)
        """
        received = {name: self._read(self._normed(part)) for name, part in self.writers.items()}
        shift = torch.zeros_like(next(iter(self.writers.values()))[:1, :1])
        if self.sight is not None:
            shift = shift + self.sight.norm.bias
        remainder = self._read(shift)
        received[REST] = remainder if self.bias is None else remainder + self.bias
        return received

    def input(self, writers: Iterable[str] | None = None, *, frozen: bool = True) -> Tensor:
        """What the norm gives for some of the writers: at the scale of the text, or at the scale that these have."""
        names = list(self.writers if writers is None else writers)
        if unknown := [name for name in names if name not in self.writers]:
            raise UsageError(
                f"{unknown[0]!r} writes nothing that {self.label} reads", hint="see the keys of received()"
            )
        first = next(iter(self.writers.values()))
        stream = torch.stack([self.writers[name] for name in names]).sum(0) if names else torch.zeros_like(first)
        if self.sight is None:
            return stream
        if frozen:
            return self.sight.norm.apply(stream, self.sight.scale)
        with torch.no_grad():
            normed: Tensor = self.sight.module(stream)
        return normed

    def _normed(self, part: Tensor) -> Tensor:
        return part if self.sight is None else self.sight.norm.linear(part, self.sight.scale)

    def _read(self, normed: Tensor) -> Tensor:
        return normed if self.matrix is None else normed @ self.matrix


class WrittenStream:
    """What each part of a model writes into the stream for one text."""

    def __init__(self, model: "Model", stream_sum: StreamSum, cache: Cache) -> None:
        self._model, self._sum, self._cache = model, stream_sum, cache
        self._tensors: dict[str, Tensor] = {}
        # How many writers stand before each point of the stream.
        self._before: dict[tuple[Site, str], int] = {}
        self._collect()

    def __repr__(self) -> str:
        return f"<the stream of {self._model.spec.name} as a sum of {len(self._tensors)} writers>"

    @property
    def writers(self) -> tuple[str, ...]:
        """The names of the writers in the order in which they write."""
        return tuple(self._tensors)

    def __getitem__(self, writer: str) -> Tensor:
        if writer not in self._tensors:
            raise UsageError(
                f"no writer is called {writer!r}", hint=f"they are {', '.join(self.writers[:4])} … {self.writers[-1]}"
            )
        return self._tensors[writer]

    def stream(self, at: str = "final", place: str = "resid") -> Tensor:
        """The sum of the writers before a place: `resid` or `resid_mid` of a layer, or the final stream."""
        return torch.stack(list(self._written_before(self._point(at, place)).values())).sum(0)

    def reader(self, at: str, letter: str | None = None, tokens: Sequence[int] | None = None) -> Reader:
        """A reader: `("L5.H1", "q")`, `("L5", "mlp")` or `"logits"`, of the latter only some tokens on request."""
        if at == "logits":
            return self._logits_reader(tokens)
        site, heads = Selection.of(at).one_site(self._model.sites)
        if letter == "mlp":
            sight = self._sight("mlp_scale", "mlp_in", site)
            return Reader(f"{_layer(site)}.mlp", self._written_before((site, "mlp")), sight)
        if letter not in ("q", "k", "v"):
            raise UsageError(f"cannot read as {letter!r}", hint="a head reads as q, k or v, a layer as mlp")
        if len(heads) != 1:
            raise UsageError(f"{at} names {len(heads)} heads, expected one", hint='write ("L5.H1", "q")')
        if site.kind == "cross" and letter != "q":
            raise CaptureError(f"{site.label}: the keys and values of cross-attention read the stream of the encoder")
        sight = self._sight("x_scale", "x", site)
        weights = self._model.weights(site)
        head = heads[0] if letter == "q" else site.kv_head(heads[0])
        gain = getattr(weights, f"gain_{letter}")[head]
        matrix = getattr(weights, f"w_{letter}")[head] * gain
        bias = getattr(weights, f"b_{letter}")[head] * gain
        label = f"{site.head_label(heads[0])}.{letter}"
        like = self._tensors[EMBED]
        return Reader(label, self._written_before((site, "attn")), sight, matrix.to(like), bias.to(like))

    def _logits_reader(self, tokens: Sequence[int] | None) -> Reader:
        head = self._model.hf.get_output_embeddings()
        site = last_of_stacks(self._model)[-1]
        if not isinstance(head, torch.nn.Linear) or site.stack != self._sum.stack:
            raise CaptureError(f"no logits are read from the stream of {self._model.spec.family} models")
        sight = self._sight("final_scale", "logits", site)
        rows = slice(None) if tokens is None else list(tokens)
        matrix = head.weight.detach()[rows].T * self._model.stream_map.factor_before_logits(site)
        bias = None if head.bias is None else head.bias.detach()[rows]
        return Reader("logits", dict(self._tensors), sight, matrix, bias)

    def _sight(self, scale: str, read: str, site: Site) -> Sight | None:
        """The norm before a reader; None where it reads the stream as it is."""
        quantity = QUANTITIES[scale]
        spots = self._model.spots(quantity) if isinstance(quantity, WatchedQuantity) else None
        spot: Spot | None = None if spots is None else spots.by_site.get(site)
        if spots is not None and spot is not None and spot.norm is not None:
            module = self._model.hf.get_submodule(spot.module)
            return Sight(spot.norm, self._cache.tensors[scale][site], module)
        if self._model.stream_map.reads_the_stream(site, read):
            return None
        why = "" if spots is None else spots.missing.get(site, "")
        raise CaptureError(f"{site.label}: what its readers see of the stream is not known: {why}")

    def _collect(self) -> None:
        stored = self._cache.tensors
        first = self._sum.layers[0][0]
        self._tensors[EMBED] = stored["resid"][first]
        for sites in self._sum.layers:
            for site in sites:
                self._before[site, "attn"] = len(self._tensors)
                self._collect_attention(site)
                self._before[site, "mid"] = len(self._tensors)
            is_parallel = self._is_parallel(sites[0])
            self._before[sites[0], "mlp"] = self._before[sites[0], "attn"] if is_parallel else len(self._tensors)
            if sites[0] not in self._sum.without_mlp:
                self._tensors[f"{_layer(sites[0])}.mlp"] = stored["mlp_add"][sites[0]]

    def _collect_attention(self, site: Site) -> None:
        stored = self._cache.tensors
        route, attn_add = self._sum.routes[site], stored["attn_add"][site]
        if route is None:
            self._tensors[f"{site.label}.attn"] = attn_add
            return
        attn_out, matrices = stored["attn_out"][site], output_matrices(self._model, site).detach()
        z = stored["z"][site]
        for head in range(site.n_heads):
            part = z[:, head] @ matrices[head]
            self._tensors[site.head_label(head)] = route.followed(part, attn_out, attn_add)
        bias = self._model.hf.get_submodule(_output_module(self._model, site)).bias
        shift = torch.zeros_like(attn_add) if bias is None else bias.detach().expand_as(attn_add)
        written = route.followed(shift, attn_out, attn_add)
        if route.norm is not None:
            written = written + route.norm.bias
        if bias is not None or route.norm is not None:
            self._tensors[f"{site.label}.bias"] = written

    def _is_parallel(self, site: Site) -> bool:
        """Whether the feed-forward part reads what the attention reads, not what it has written."""
        quantity = QUANTITIES["resid_mid"]
        return isinstance(quantity, WatchedQuantity) and site not in self._model.spots(quantity).by_site

    def _point(self, at: str, place: str) -> tuple[Site, str] | None:
        if at == "final":
            return None
        if place not in ("resid", "resid_mid"):
            raise UsageError(f"the stream has no place {place!r}", hint="resid or resid_mid")
        site, _ = Selection.of(at).one_site(self._model.sites)
        if site.stack != self._sum.stack:
            raise UsageError(f"{site.label} is in another stack: this is the stream of {self._sum.stack}")
        return site, "attn" if place == "resid" else "mid"

    def _written_before(self, point: tuple[Site, str] | None) -> dict[str, Tensor]:
        count = len(self._tensors) if point is None else self._before[point]
        return dict(list(self._tensors.items())[:count])


def written_stream(model: "Model", text: str | Tensor, stack: Stack | None = None) -> WrittenStream:
    """Run a text and take its stream apart.

    Raises:
        VariantRefused: The stream of this family is not a sum of what its parts write.
    """
    name = stack or last_of_stacks(model)[-1].stack
    stream_sum = model.stream_sum(name)
    names = ["resid", "attn_add", "mlp_add", "mlp_scale", "final_scale"]
    if any(route is not None for route in stream_sum.routes.values()):
        names += ["z", "attn_out", "x_scale"]
    places = [name for name in names if _has_place(model, name)]
    return WrittenStream(model, stream_sum, model.run(text, *places).cache)


def _has_place(model: "Model", name: str) -> bool:
    quantity = QUANTITIES[name]
    return not isinstance(quantity, WatchedQuantity) or bool(model.spots(quantity).by_site)


def _layer(site: Site) -> str:
    return site.label.removesuffix(".cross")


def _output_module(model: "Model", site: Site) -> str:
    projections = model.plan(site).projections
    return "" if projections is None else projections.o.module
