r"""Pictures of a mechanism at n positions: map, graph, and reach of layers.

A softmax over a set of keys is drawn by its parts (window, global, random …), as the sets are defined. Any other
mechanism mixes values with weights that depend on the tokens: out is linear in v, so the weights are what comes out
when the values are the unit vectors. They are drawn for Gaussian queries and keys.

The receptive field after L layers: position j reaches i through L layers when there is a path of at most L steps
$i \to \dots \to j$ in the graph of the pattern (each token also keeps its own state through the skip connection).
"""

from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool
from numpy.typing import NDArray
from torch import Tensor

from headscope.attention.call import Call
from headscope.attention.mechanism import Mechanism
from headscope.core import Figure, HeatMap, Mosaic, Network
from headscope.errors import UsageError

MOST_POSITIONS = 512
D_HEAD = 16
_NOTHING = 1e-12  # a weight below this is rounding, not attention

Parts = dict[str, Bool[Tensor, "queries keys"]]


def pictures(
    mechanism: Mechanism, n: int, *, causal: bool = False, layers: int = 3, seed: int = 0
) -> tuple[Figure, ...]:
    """Map, graph and receptive field of a mechanism at n positions.

    A mechanism without a fixed pattern has its weights too.
    """
    if not 1 <= n <= MOST_POSITIONS:
        raise UsageError(f"a picture shows 1 to {MOST_POSITIONS} positions, got {n}")
    if not 1 <= layers <= MOST_POSITIONS:
        # After as many layers as there are positions nothing new is reached.
        raise UsageError(f"a receptive field has 1 to {MOST_POSITIONS} layers, got {layers}")
    call = _gaussian(n, causal, seed)
    refusal = mechanism.supports(call)
    if refusal is not None:
        raise UsageError(f"cannot draw {mechanism!r}: {refusal}", hint="try with or without --causal")
    parts = {name: mask[0, 0].expand(n, n) for name, mask in mechanism.parts(call).items()}
    weights: tuple[Figure, ...] = ()
    if not parts:
        mixed = effective_weights(mechanism, call)
        weights = (_weights(mechanism, mixed, causal),)
        parts = {"mixes": mixed.abs() > _NOTHING}
    return (
        _map(mechanism, parts, causal),
        _graph(mechanism, parts, causal),
        _field(mechanism, parts, layers),
        *weights,
    )


def effective_weights(mechanism: Mechanism, call: Call) -> Tensor:
    """The n × n matrix by which the first head mixes values.

    It is the output when the values are unit vectors.
    """
    n = call.k.shape[2]
    values = torch.eye(n, dtype=call.k.dtype).expand(1, 1, n, n)
    return mechanism(replace(call, v=values)).out[0, 0]


def layers_needed(pattern: Bool[Tensor, "n n"], layers: int) -> NDArray[np.int64]:
    """Cell (i, j): the fewest layers through which j reaches i.

    It is 0 where more than `layers` would be needed.
    """
    adjacent = pattern.double().numpy() > 0
    reached = np.eye(len(adjacent), dtype=bool) | adjacent
    needed = reached.astype(np.int64)
    for layer in range(2, layers + 1):
        # float32 products are exact counts below 2^24, and far quicker than boolean ones.
        further = (adjacent.astype(np.float32) @ reached.astype(np.float32) > 0) | reached
        needed[further & ~reached] = layer
        reached = further
    return needed


def _gaussian(n: int, causal: bool, seed: int) -> Call:
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(1, 1, n, D_HEAD, generator=generator, dtype=torch.float64) for _ in range(2))
    positions = torch.arange(n)[None]
    return Call(q, k, k, D_HEAD**-0.5, positions, positions, right=0 if causal else None)


def _map(mechanism: Mechanism, parts: Parts, causal: bool) -> Mosaic:
    names = tuple(parts)
    n = len(next(iter(parts.values())))
    values = np.zeros((n, n))
    for number, name in reversed(list(enumerate(names, start=1))):  # the first part that claims a pair shows
        values[parts[name].numpy()] = number
    share = float((values > 0).mean())
    return Mosaic(
        name="map",
        title=f"{mechanism!r}{', causal' if causal else ''}: who attends to whom",
        caption=f"Row i, column j: token i attends to token j. {100 * share:.1f} % of all pairs at n = {n}.",
        values=values,
        kinds=names,
    )


def _graph(mechanism: Mechanism, parts: Parts, causal: bool) -> Network:
    names = tuple(parts)
    n = len(next(iter(parts.values())))
    kinds = _map(mechanism, parts, causal).values
    edges = np.array([(i, j, kinds[i, j]) for i, j in zip(*np.nonzero(kinds), strict=True) if i != j], dtype=np.float64)
    return Network(
        name="graph",
        title=f"{mechanism!r}{', causal' if causal else ''}: the graph of its pattern",
        caption=f"{len(edges)} edges between {n} tokens (a token's edge to itself is not drawn).",
        nodes=tuple(str(i) for i in range(n)),
        edges=edges.reshape(-1, 3),
        kinds=names,
    )


def _field(mechanism: Mechanism, parts: Parts, layers: int) -> Mosaic:
    pattern = torch.stack(list(parts.values())).any(dim=0)
    needed = layers_needed(pattern, layers)
    shares = [
        f"{layer}: {100 * float(((needed > 0) & (needed <= layer)).mean()):.0f} %" for layer in range(1, layers + 1)
    ]
    return Mosaic(
        name="field",
        title=f"{mechanism!r}: the receptive field of {layers} layers",
        caption=f"The fewest layers through which j reaches i. Share of pairs reached after layer {', '.join(shares)}.",
        values=needed.astype(np.float64),
        kinds=tuple(f"{layer} layer{'s' if layer > 1 else ''}" for layer in range(1, layers + 1)),
        ordered=True,
    )


def _weights(mechanism: Mechanism, mixed: Tensor, causal: bool) -> HeatMap:
    n = len(mixed)
    labels = tuple(str(i) for i in range(n))
    return HeatMap(
        name="weights",
        title=f"{mechanism!r}{', causal' if causal else ''}: the weights on the values",
        caption=f"For Gaussian queries and keys of width {D_HEAD}; the rows sum to 1 only where the mechanism "
        "normalises them.",
        values=mixed.double().numpy(),
        row_labels=labels,
        column_labels=labels,
        row_axis="query",
        column_axis="key",
        reference=0.0 if float(mixed.min()) < -_NOTHING else None,
    )
