"""How the attention of a model reads the residual stream: norms before it, turns of its queries and keys."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscope.core.site import Site, Stack


@dataclass(frozen=True)
class StreamNorm:
    """A norm of the stream up to its scale, one positive number for each token.

    A vector r becomes gain ⊙ (r − mean) / scale + bias; the mean is taken away where `centred` says so.
    """

    centred: bool
    gain: Float[Tensor, " d_model"]
    bias: Float[Tensor, " d_model"]


@dataclass(frozen=True)
class StreamReading:
    """The norms between the stream and the heads of a model.

    before: the norm before each site, None where it reads the stream itself. after: the norm of what a site adds, where
    there is one. unclear: why it is not known how a site reads the stream. final: the norm before the output head.
    not_a_sum: for each stack, why its stream is no sum of what its parts write. embedding: why the first layer does not
    receive the vectors of the token table alone; empty where it does, up to a factor. output: the role of the table
    that logits are read with (`token` where it is tied); empty where there are no logits behind the final norm.
    """

    before: Mapping[Site, StreamNorm | None]
    after: Mapping[Site, StreamNorm] = field(default_factory=dict)
    unclear: Mapping[Site, str] = field(default_factory=dict)
    final: StreamNorm | None = None
    not_a_sum: Mapping[Stack, str] = field(default_factory=dict)
    embedding: str = ""
    output: str = ""


@dataclass(frozen=True)
class Rotary:
    """Planes of channels that a site turns with the position: channel `first` towards channel `second`.

    `angle` holds radians for one position. Channels that are in no plane are not turned.
    """

    width: int
    first: Int[Tensor, " planes"]
    second: Int[Tensor, " planes"]
    angle: Float[Tensor, " planes"]

    def turn(self, distance: int) -> Float[Tensor, "width width"]:
        """The matrix T for a key `distance` tokens before its query: the score is q T kᵀ."""
        matrix = torch.eye(self.width, dtype=torch.float64)
        cosine, sine = torch.cos(distance * self.angle.double()), torch.sin(distance * self.angle.double())
        matrix[self.first, self.first] = matrix[self.second, self.second] = cosine
        matrix[self.first, self.second], matrix[self.second, self.first] = sine, -sine
        return matrix
