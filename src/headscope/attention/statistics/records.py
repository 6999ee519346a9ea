"""Statistics of the rows of an attention pattern: the request and the record."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscope.attention.call import Output
from headscope.errors import UsageError


@dataclass(frozen=True)
class Request:
    """Which statistics to compute: bands are half-widths w of |i − j| ≤ w."""

    bands: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if any(width < 0 for width in self.bands):
            raise UsageError(f"bands are half-widths |i − j| ≤ w with w ≥ 0, got {self.bands}")

    def union(self, other: "Request") -> "Request":
        """The union of two requests."""
        return Request(tuple(sorted({*self.bands, *other.bands})))


@dataclass(frozen=True)
class RowStatistics:
    r"""Statistics per row (query) of the attention pattern, in float64.

    They are on the device of the call if it has float64.

    p is the pattern as it would be stored: with a sink a row sums to 1 − `sink`. Rows that see no key and rows
    of padding hold NaN (and `n_visible` 0). Where keys have no position relative to the query
    (cross-attention), `distance`, `distance_sd`, `diagonal` and `bands` are NaN.

    Definition:
        entropy_nats $-\sum_j p_{ij} \ln p_{ij}$; participation $\sum_j p_{ij}^2$;
        distance and distance_sd: mean and standard deviation of |query_position − key_position| under
        $p_{ij} / \sum_j p_{ij}$; diagonal: mass on the query's own position; first: mass on the first real key
        of the sequence; bands[w]: mass on |query_position − key_position| ≤ w; lse: $\ln \sum_j e^{s_{ij}}$
        without the sink.
    """

    entropy_nats: Float[Tensor, "batch heads queries"]
    participation: Float[Tensor, "batch heads queries"]  # Σ_j p_ij²
    distance: Float[Tensor, "batch heads queries"]  # Σ_j p_ij |i − j| / Σ_j p_ij
    distance_sd: Float[Tensor, "batch heads queries"]
    diagonal: Float[Tensor, "batch heads queries"]
    first: Float[Tensor, "batch heads queries"]
    bands: Mapping[int, Float[Tensor, "batch heads queries"]]
    n_visible: Int[Tensor, "batch heads queries"]
    sink: Float[Tensor, "batch heads queries"] | None = None  # mass on the sink; None without sinks
    lse: Float[Tensor, "batch heads queries"] | None = None  # None where only the pattern was known
    method: str = ""  # how the numbers were obtained

    def cpu(self) -> "RowStatistics":
        """The same with all tensors on the CPU."""
        tensors = {field.name: getattr(self, field.name) for field in fields(self)}
        moved: dict[str, Any] = {name: value.cpu() for name, value in tensors.items() if isinstance(value, Tensor)}
        return replace(self, bands={width: rows.cpu() for width, rows in self.bands.items()}, **moved)

    @classmethod
    def of_heads(cls, parts: Sequence["RowStatistics"], order: Sequence[int]) -> "RowStatistics":
        """Statistics of several groups of heads as one record.

        Head i is head `order[i]` of the concatenated groups.
        """
        index = list(order)

        def joined(tensors: Sequence[Tensor]) -> Tensor:
            return torch.cat(list(tensors), dim=1)[:, index]

        fields = ("entropy_nats", "participation", "distance", "distance_sd", "diagonal", "first", "n_visible")
        sinks = [part.sink for part in parts if part.sink is not None]
        lses = [part.lse for part in parts if part.lse is not None]
        return cls(
            **{name: joined([getattr(part, name) for part in parts]) for name in fields},
            bands={width: joined([part.bands[width] for part in parts]) for width in parts[0].bands},
            sink=joined(sinks) if len(sinks) == len(parts) else None,
            lse=joined(lses) if len(lses) == len(parts) else None,
            method="; ".join(dict.fromkeys(part.method for part in parts)),
        )


@dataclass(frozen=True)
class Observed:
    """The output of a call and the statistics of its rows, from one pass."""

    output: Output
    statistics: RowStatistics
