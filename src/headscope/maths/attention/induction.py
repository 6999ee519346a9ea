r"""An induction circuit by hand: two attention heads that continue a repetition.

After … A B … A the circuit predicts B. The stream of a token has four parts: its own symbol, the symbol before it
(empty at first), the prediction (empty at first), and its position.

- layer 1, the previous-token head: every position looks at the one before it and copies that symbol into the second
  part. Its W_QK shifts positions by one.
- layer 2, the induction head: looks for positions whose *second* part is the current symbol, i.e. those just after an
  earlier A, and copies their symbol into the prediction. It reads as key what the first head wrote: K-composition. One
  layer cannot do this, because the key of B must know the symbol before B.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscope.errors import UsageError
from headscope.maths.linear_algebra.factored import Factored


@dataclass(frozen=True)
class Induction:
    r"""The weights of an induction circuit for a vocabulary and a longest length.

    Symbol 0 is the start of text, at position 0.

    Definition:
        d_model = 3·symbols + positions; the parts are symbol, previous symbol, prediction, position, all one-hot.
        `sharpness` is the score of a match; the others score 0.
    Properties:
        - a repeated random text is continued  (tested: test_induction_continues_a_repetition)
        - without the first head it is not  (tested: test_induction_needs_both_layers)
        - its heads compose through the keys alone  (tested: test_induction_is_key_composition)
    Reference:
        Elhage et al. (2021); Olsson et al. (2022), In-context learning and induction heads.
    """

    symbols: int
    positions: int
    sharpness: float = 40.0

    def __post_init__(self) -> None:
        if self.symbols < 2 or self.positions < 2 or not self.sharpness > 0:
            raise UsageError("an induction circuit needs two symbols, two positions and a positive sharpness")

    @property
    def d_model(self) -> int:
        """Width of the stream."""
        return 3 * self.symbols + self.positions

    def embed(self, tokens: Int[Tensor, "*batch tokens"]) -> Float[Tensor, "*batch tokens d_model"]:
        """Symbol and position, one-hot."""
        n = tokens.shape[-1]
        if n > self.positions:
            raise UsageError(f"the circuit has {self.positions} positions; the text has {n}")
        if bool((tokens < 0).any()) or bool((tokens >= self.symbols).any()):
            raise UsageError(f"symbols must lie in 0 … {self.symbols - 1}")
        x = torch.zeros(*tokens.shape, self.d_model, dtype=torch.float64)
        x[..., : self.symbols] = torch.nn.functional.one_hot(tokens, self.symbols).to(torch.float64)
        x[..., 3 * self.symbols : 3 * self.symbols + n] = torch.eye(n, dtype=torch.float64)
        return x

    @property
    def previous_qk(self) -> Factored:
        """Scores of the first layer: position p looks for position p − 1."""
        shift = torch.diag(torch.ones(self.positions - 1, dtype=torch.float64), -1)
        read = self._part(3, self.positions)
        return Factored(self.sharpness * read.mT @ shift, read)

    @property
    def previous_ov(self) -> Factored:
        """The map of the first layer: symbol → previous symbol."""
        return Factored(self._part(0, self.symbols).mT, self._part(1, self.symbols))

    @property
    def induction_qk(self) -> Factored:
        """Scores of the second layer: query symbol against previous symbol of the key."""
        return Factored(self.sharpness * self._part(0, self.symbols).mT, self._part(1, self.symbols))

    @property
    def induction_ov(self) -> Factored:
        """The map of the second layer: symbol → prediction."""
        return Factored(self._part(0, self.symbols).mT, self._part(2, self.symbols))

    def run(self, tokens: Int[Tensor, "*batch tokens"], *, first_layer: bool = True) -> "Trace":
        """Run both causal layers on a text.

        `first_layer=False` leaves the previous-token head out.
        """
        x = self.embed(tokens)
        previous = _causal_pattern(x, self.previous_qk)
        if first_layer:
            x = x + previous @ (x @ self.previous_ov.left) @ self.previous_ov.right
        induction = _causal_pattern(x, self.induction_qk)
        x = x + induction @ (x @ self.induction_ov.left) @ self.induction_ov.right
        return Trace(previous, induction, x[..., 2 * self.symbols : 3 * self.symbols])

    def _part(self, index: int, size: int) -> Float[Tensor, "size d_model"]:
        part = torch.zeros(size, self.d_model, dtype=torch.float64)
        part[:, index * self.symbols : index * self.symbols + size] = torch.eye(size, dtype=torch.float64)
        return part


@dataclass(frozen=True)
class Trace:
    """Both patterns of a run, and the prediction as shares of the symbols."""

    previous: Float[Tensor, "*batch tokens tokens"]
    induction: Float[Tensor, "*batch tokens tokens"]
    prediction: Float[Tensor, "*batch tokens symbols"]


def _causal_pattern(x: Float[Tensor, "*batch tokens d"], form: Factored) -> Float[Tensor, "*batch tokens tokens"]:
    scores = (x @ form.left) @ (x @ form.right.mT).mT
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return torch.softmax(scores.masked_fill(later, -torch.inf), -1)
